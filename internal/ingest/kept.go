package ingest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// What is kept beside a body is written here without reflection: it is done for every delivery.

// keptHeaders are the allow-listed headers as a JSON object of strings.
func keptHeaders(allowed []string, d *provider.Delivery) json.RawMessage {
	return events.AppendHeaders(nil, allowed, d)
}

// copiedHeader is how many bytes are kept of a header's value where each event of a delivery has a copy.
const copiedHeader = 256

// cutHeaders is a delivery with the headers that are allowed, each short enough to be kept with each of many events.
func cutHeaders(allowed []string, d *provider.Delivery) *provider.Delivery {
	short := *d
	short.Header = make(http.Header, len(allowed))
	for _, name := range allowed {
		if values := d.Header[name]; len(values) > 0 {
			short.Header[name] = []string{cut(strings.Join(values, ", "), copiedHeader)}
		}
	}
	return &short
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
