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

// QueryHeader stands among a provider's headers for the raw query, where that is a part of what was signed.
const QueryHeader = ":query"

// AppendHeaders appends what is kept of a delivery's headers, those that the provider allows, as a JSON object of strings. It is written without
// reflection, since it is done for every delivery.
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
		dst = canonical.AppendText(dst, Text(text))
	}
	return append(dst, '}')
}

// Delivered is a request as far as it was kept: what AppendHeaders has made of its headers, its body and its time of receipt.
func Delivered(headers, body []byte, receivedAt time.Time) (*provider.Delivery, error) {
	var kept map[string]string
	if err := json.Unmarshal(headers, &kept); err != nil {
		return nil, fmt.Errorf("read the kept headers: %w", err)
	}
	d := &provider.Delivery{Method: http.MethodPost, Header: http.Header{}, Body: body, ReceivedAt: receivedAt.UTC()}
	for name, value := range kept {
		if name == QueryHeader {
			d.Query = value
			continue
		}
		d.Header[name] = []string{value}
	}
	return d, nil
}
