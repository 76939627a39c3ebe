package github

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// deliveryRetention is how long deliveries can be listed and sent again
// (https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks).
const deliveryRetention = 3 * 24 * time.Hour

// DeliveryRetention returns three days.
func (GitHub) DeliveryRetention() time.Duration { return deliveryRetention }

// ListDeliveries lists the deliveries of a webhook, newest first
// (https://docs.github.com/en/rest/repos/webhooks#list-deliveries-for-a-repository-webhook).
func (GitHub) ListDeliveries(_ *provider.API, hook, cursor string) provider.Call {
	query := url.Values{"per_page": {pageSize}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	return provider.Call{Path: "/" + hook + "/deliveries", Query: query}
}

// FetchDelivery reads one delivery with its request.
func (GitHub) FetchDelivery(_ *provider.API, hook, id string) provider.Call {
	return provider.Call{Path: "/" + hook + "/deliveries/" + id}
}

// Redeliver requests another attempt, which has the same key. It needs a key that may write
// webhooks.
func (GitHub) Redeliver(_ *provider.API, hook, id string) provider.Call {
	return provider.Call{Method: http.MethodPost, Path: "/" + hook + "/deliveries/" + id + "/attempts"}
}

// DeliveryPage splits a page. A delivery that GitHub throttled (throttled_at) was not received
// either.
func (GitHub) DeliveryPage(header http.Header, body []byte) (page []provider.SentDelivery, next string, err error) {
	var list []struct {
		ID     int64     `json:"id"`
		GUID   string    `json:"guid"`
		At     time.Time `json:"delivered_at"`
		Status int       `json:"status_code"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", fmt.Errorf("read page of deliveries: %w", err)
	}
	for _, one := range list {
		if one.ID <= 0 || !provider.ValidName(one.GUID) || one.At.IsZero() {
			return nil, "", errors.New("read page of deliveries: one has no id, guid or time")
		}
		page = append(page, provider.SentDelivery{ID: strconv.FormatInt(one.ID, 10), Key: one.GUID,
			SentAt: one.At.UTC(), Failed: one.Status < 200 || one.Status > 299})
	}
	return page, following(header).Get("cursor"), nil
}

// ReadDelivery builds a delivery from the API's response. GitHub has parsed and rewritten the body,
// so its bytes differ from those that were signed.
func (GitHub) ReadDelivery(body []byte) (*provider.Delivery, error) {
	var one struct {
		GUID    string `json:"guid"`
		Event   string `json:"event"`
		Request struct {
			Headers map[string]any  `json:"headers"`
			Payload json.RawMessage `json:"payload"`
		} `json:"request"`
	}
	if err := json.Unmarshal(body, &one); err != nil {
		return nil, fmt.Errorf("read delivery: %w", err)
	}
	payload := bytes.TrimSpace(one.Request.Payload)
	if len(payload) == 0 || payload[0] != '{' {
		return nil, errors.New("read delivery: the API's response has no request")
	}
	d := &provider.Delivery{Header: http.Header{}, Body: payload}
	for name, value := range one.Request.Headers {
		if text, ok := value.(string); ok {
			d.Header.Set(name, text)
		}
	}
	d.Header.Set("Content-Type", "application/json") // for a form the API returns the JSON in its field
	d.Header.Set(deliveryHeader, one.GUID)
	d.Header.Set(eventHeader, one.Event)
	// The signatures are those of the sent bytes, which the API does not return.
	d.Header.Del(signatureHeader)
	d.Header.Del(sha1Header)
	return d, nil
}

// link matches one link of a Link header: <https://api.github.com/...?page=2>; rel="next".
var link = regexp.MustCompile(`<([^<>]*)>;\s*rel="next"`)

// following returns the query of the next page, or an empty one
// (https://docs.github.com/en/rest/using-the-rest-api/using-pagination-in-the-rest-api).
func following(header http.Header) url.Values {
	m := link.FindStringSubmatch(header.Get("Link"))
	if m == nil {
		return url.Values{}
	}
	at, err := url.Parse(m[1])
	if err != nil {
		return url.Values{}
	}
	return at.Query()
}
