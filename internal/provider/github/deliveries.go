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

// deliveriesKept: what is older can neither be listed nor sent again (https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks).
const deliveriesKept = 3 * 24 * time.Hour

// DeliveriesKept is three days.
func (GitHub) DeliveriesKept() time.Duration { return deliveriesKept }

// ListDeliveries lists what a webhook was sent, the newest first (https://docs.github.com/en/rest/repos/webhooks#list-deliveries-for-a-repository-webhook).
func (GitHub) ListDeliveries(_ *provider.API, hook, cursor string) provider.Call {
	query := url.Values{"per_page": {pageSize}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	return provider.Call{Path: "/" + hook + "/deliveries", Query: query}
}

// FetchDelivery reads one with its request.
func (GitHub) FetchDelivery(_ *provider.API, hook, id string) provider.Call {
	return provider.Call{Path: "/" + hook + "/deliveries/" + id}
}

// Redeliver asks for one more attempt, which has the same key. Only a key that may write webhooks may ask.
func (GitHub) Redeliver(_ *provider.API, hook, id string) provider.Call {
	return provider.Call{Method: http.MethodPost, Path: "/" + hook + "/deliveries/" + id + "/attempts"}
}

// DeliveryPage splits a page. What GitHub held back (throttled_at) has not arrived either.
func (GitHub) DeliveryPage(header http.Header, body []byte) (page []provider.Sent, next string, err error) {
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
		page = append(page, provider.Sent{ID: strconv.FormatInt(one.ID, 10), Key: one.GUID, At: one.At.UTC(), Failed: one.Status < 200 || one.Status > 299})
	}
	return page, following(header).Get("cursor"), nil
}

// ReadDelivery makes a delivery of what the API tells of one: GitHub has read the body and written it again, so that its bytes are not those that were signed.
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
		return nil, errors.New("read delivery: the API tells of it without what it carried")
	}
	d := &provider.Delivery{Header: http.Header{}, Body: payload}
	for name, value := range one.Request.Headers {
		if text, ok := value.(string); ok {
			d.Header.Set(name, text)
		}
	}
	d.Header.Set("Content-Type", "application/json") // a form's field is told as the JSON in it
	d.Header.Set(deliveryHeader, one.GUID)
	d.Header.Set(eventHeader, one.Event)
	// They are of the bytes that were sent.
	d.Header.Del(signatureHeader)
	d.Header.Del(sha1Header)
	return d, nil
}

// link is one of a Link header: <https://api.github.com/...?page=2>; rel="next".
var link = regexp.MustCompile(`<([^<>]*)>;\s*rel="next"`)

// following is the query of the page that follows, empty where none does (https://docs.github.com/en/rest/using-the-rest-api/using-pagination-in-the-rest-api).
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
