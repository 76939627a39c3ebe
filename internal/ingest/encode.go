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

// These functions write JSON without reflection, because they run for every delivery.

// encodeHeaders returns the allow-listed headers as a JSON object of strings.
func encodeHeaders(allowed []string, d *provider.Delivery) json.RawMessage {
	return events.AppendHeaders(nil, allowed, d)
}

// maxCopiedHeader is the maximum size of a stored header value, in bytes, where each event of a
// delivery has its own copy.
const maxCopiedHeader = 256

// truncateHeaders returns the delivery with its allow-listed headers only, each truncated to
// maxCopiedHeader.
func truncateHeaders(allowed []string, d *provider.Delivery) *provider.Delivery {
	short := *d
	short.Header = make(http.Header, len(allowed))
	for _, name := range allowed {
		if values := d.Header[name]; len(values) > 0 {
			short.Header[name] = []string{truncate(strings.Join(values, ", "), maxCopiedHeader)}
		}
	}
	return &short
}

// appendMember appends a JSON name and string, both UTF-8.
func appendMember(dst []byte, name, text string) []byte {
	dst = append(canonical.AppendText(dst, name), ':')
	return canonical.AppendText(dst, text)
}

// appendVerification appends a verification as encoding/json encodes it.
func appendVerification(dst []byte, v provider.Verification) []byte {
	dst = appendMember(append(dst, '{'), "scheme", v.Scheme)
	dst = appendMember(append(dst, ','), "secret", v.Secret)
	if !v.SignedAt.IsZero() {
		dst = append(dst, `,"signed_at":"`...)
		dst = append(v.SignedAt.AppendFormat(dst, "2006-01-02T15:04:05.999999999Z07:00"), '"')
	}
	return append(dst, '}')
}

// appendReceipt appends the receipt of one event.
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
