package archive

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/events"
)

// appendLine appends an event as a line. source and provider are names.
func appendLine(dst []byte, e *events.FullRecord, source, provider string) []byte {
	dst = strconv.AppendInt(append(dst, `{"postern":`...), Version, 10)
	dst = strconv.AppendInt(append(dst, `,"id":"`...), e.ID, 10)
	dst = appendField(append(dst, '"'), `,"source":`, source)
	dst = appendField(dst, `,"provider":`, provider)
	dst = appendField(dst, `,"event_id":`, e.Key)
	dst = appendField(dst, `,"event_type":`, e.Type)
	dst = appendField(dst, `,"account":`, e.Account)
	dst = appendField(dst, `,"object_type":`, e.ObjectType)
	dst = appendField(dst, `,"object_id":`, e.ObjectID)
	dst = appendTime(append(dst, `,"occurred_at":`...), e.OccurredAt)
	dst = appendTime(append(dst, `,"received_at":`...), e.ReceivedAt)
	dst = appendField(dst, `,"origin":`, e.Origin)
	dst = appendField(dst, `,"api_version":`, e.APIVersion)
	dst = append(append(dst, `,"headers":`...), e.Headers...)
	dst = append(append(dst, `,"verification":`...), e.Verification...)
	dst = hex.AppendEncode(append(dst, `,"fingerprint":"`...), e.Fingerprint)
	dst = strconv.AppendInt(append(dst, `","delivery_id":"`...), e.DeliveryID, 10)
	dst = strconv.AppendInt(append(dst, `","delivery_index":`...), int64(e.Index), 10)
	return append(appendBody(dst, e.Body), "}\n"...)
}

func appendField[T string | []byte](dst []byte, name string, text T) []byte {
	return appendQuoted(append(dst, name...), text)
}

func appendTime(dst []byte, at time.Time) []byte {
	if at.IsZero() {
		return append(dst, "null"...)
	}
	return append(at.UTC().AppendFormat(append(dst, '"'), timeLayout), '"')
}

// appendBody appends a body without loss: as text if it is UTF-8, otherwise in base64.
func appendBody(dst, body []byte) []byte {
	if utf8.Valid(body) {
		return appendField(dst, `,"body":`, body)
	}
	dst = append(dst, `,"body_base64":"`...)
	return append(base64.StdEncoding.AppendEncode(dst, body), '"')
}

// mayNeedEscape are the bytes that may need an escape. E2 begins the two separators that some
// readers take for line ends.
var mayNeedEscape = func() (t [256]bool) {
	for c := range 0x20 {
		t[c] = true
	}
	t['"'], t['\\'], t[0x7f], t[0xe2] = true, true, true, true
	return t
}()

// appendQuoted appends UTF-8 text as a JSON string.
func appendQuoted[T string | []byte](dst []byte, text T) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if !mayNeedEscape[c] {
			continue
		}
		switch {
		case c == 0xe2 && i+2 < len(text) && text[i+1] == 0x80 && text[i+2]|1 == 0xa9: // U+2028 and U+2029
			dst = append(append(dst, text[from:i]...), '\\', 'u', '2', '0', '2', hexDigits[text[i+2]&0xf])
			i += 2
		case c == 0xe2:
			continue
		case c == '"' || c == '\\':
			dst = append(append(dst, text[from:i]...), '\\', c)
		case c == '\n':
			dst = append(append(dst, text[from:i]...), '\\', 'n')
		default:
			dst = append(append(dst, text[from:i]...), '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
		from = i + 1
	}
	return append(append(dst, text[from:]...), '"')
}
