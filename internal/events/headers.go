package events

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// QueryHeader is the name among a provider's headers that stands for the raw query string, if that
// is signed.
const QueryHeader = ":query"

// AppendHeaders appends the allow-listed headers of a delivery as a JSON object of strings. It does
// not use reflection, because it runs for every delivery.
func AppendHeaders(dst []byte, allowed []string, d *provider.Delivery) []byte {
	dst = append(dst, '{')
	empty := true
	for _, name := range allowed {
		var text string
		switch values := d.Header[name]; {
		case len(values) == 1:
			text = values[0]
		case len(values) > 1:
			text = strings.Join(values, ", ")
		case name == QueryHeader && d.Query != "":
			text = d.Query
		default:
			continue
		}
		if !empty {
			dst = append(dst, ',')
		}
		empty = false
		dst = append(canonical.AppendText(dst, name), ':')
		dst = canonical.AppendText(dst, SanitizeText(text))
	}
	return append(dst, '}')
}

// DecodeDelivery returns the stored part of a request: its headers (as AppendHeaders wrote them),
// its body and its time of receipt.
func DecodeDelivery(headers, body []byte, receivedAt time.Time) (*provider.Delivery, error) {
	var stored map[string]string
	if err := json.Unmarshal(headers, &stored); err != nil {
		return nil, fmt.Errorf("decode the stored headers: %w", err)
	}
	d := &provider.Delivery{Method: http.MethodPost, Header: http.Header{}, Body: body, ReceivedAt: receivedAt.UTC()}
	for name, value := range stored {
		if name == QueryHeader {
			d.Query = value
			continue
		}
		d.Header[name] = []string{value}
	}
	return d, nil
}
