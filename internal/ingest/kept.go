package ingest

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// What is kept beside a body is written here without reflection: it is done for every delivery.

// queryHeader stands among a provider's headers for the raw query, where that is a part of what was signed.
const queryHeader = ":query"

// keptHeaders are the allow-listed headers as a JSON object of strings.
func keptHeaders(allowed []string, d *provider.Delivery) json.RawMessage {
	return appendHeaders(nil, allowed, d)
}

func appendHeaders(dst []byte, allowed []string, d *provider.Delivery) []byte {
	dst = append(dst, '{')
	empty := true
	for _, name := range allowed {
		var text string
		switch values := d.Header[name]; {
		case len(values) == 1:
			text = values[0]
		case len(values) > 1:
			text = strings.Join(values, ", ")
		case name == queryHeader && d.Query != "":
			text = d.Query
		default:
			continue
		}
		if !empty {
			dst = append(dst, ',')
		}
		empty = false
		dst = appendMember(dst, name, events.Text(text))
	}
	return append(dst, '}')
}

// appendMember appends a name and a text, both UTF-8.
func appendMember(dst []byte, name, text string) []byte {
	dst = append(canonical.AppendText(dst, name), ':')
	return canonical.AppendText(dst, text)
}

// appendVerification writes a verification as encoding/json would.
func appendVerification(dst []byte, v provider.Verification) []byte {
	dst = appendMember(append(dst, '{'), "scheme", v.Scheme)
	dst = appendMember(append(dst, ','), "secret", v.Secret)
	if !v.SignedAt.IsZero() {
		dst = append(dst, `,"signed_at":"`...)
		dst = append(v.SignedAt.AppendFormat(dst, "2006-01-02T15:04:05.999999999Z07:00"), '"')
	}
	return append(dst, '}')
}

// appendReceipt writes the answer to one event of a delivery.
func appendReceipt(dst []byte, r events.Receipt) []byte {
	dst = appendMember(append(dst, '{'), "event_id", strings.ToValidUTF8(r.Key, "\ufffd"))
	dst = append(dst, `,"id":"`...)
	dst = append(strconv.AppendInt(dst, r.ID, 10), `","duplicate":`...)
	dst = append(strconv.AppendBool(dst, r.Duplicate), `,"received_at":"`...)
	dst = append(events.Time(r.ID).AppendFormat(dst, timeFormat), '"')
	if r.Conflict {
		dst = append(dst, `,"conflict":true`...)
	}
	return append(dst, '}')
}
