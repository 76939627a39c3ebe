package api

import (
	"fmt"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

const (
	contentType = "Content-Type"
	// cloudEvents begins the media types of all CloudEvents formats.
	cloudEvents    = "application/cloudevents"
	structuredType = cloudEvents + "+json"
	batchType      = cloudEvents + "-batch+json"
)

// Accept accepts a CloudEvent in one of its three modes, or a JSON object with an Idempotency-Key.
func (p Provider) Accept(_ *provider.Source, d *provider.Delivery) (provider.AcceptedDelivery, error) {
	media, params, err := mediaType(d.Header)
	if err != nil {
		return provider.AcceptedDelivery{}, err
	}
	if charset := params["charset"]; isJSON(media) && charset != "" && !strings.EqualFold(charset, "utf-8") &&
		!strings.EqualFold(charset, "us-ascii") {
		return provider.AcceptedDelivery{}, invalid(http.StatusUnsupportedMediaType,
			"charset is %.40q: JSON must be UTF-8", charset)
	}
	switch {
	case media == structuredType:
		return provider.AcceptedDelivery{Delivery: withoutKeyHeader(d)}, checkBody(d.Body)
	case media == batchType:
		bodies, err := batchBodies(d.Body)
		return provider.AcceptedDelivery{Delivery: withBody(withoutKeyHeader(d), d.Body,
			func(h http.Header) { h[contentType] = []string{structuredType} }), Bodies: bodies}, err
	case strings.HasPrefix(media, cloudEvents):
		return provider.AcceptedDelivery{}, invalid(http.StatusUnsupportedMediaType,
			"%s is %.100q: send CloudEvents as %s or %s", contentType, media, structuredType, batchType)
	case isBinary(d.Header):
		return acceptBinary(d, media)
	}
	return acceptPlain(d, media)
}

// mediaType reads the single Content-Type; "" if there is none.
func mediaType(h http.Header) (media string, params map[string]string, err error) {
	values := h.Values(contentType)
	switch {
	case len(values) > 1:
		return "", nil, invalid(http.StatusBadRequest, "%s is given %d times", contentType, len(values))
	case len(values) == 0 || values[0] == "":
		return "", nil, nil
	}
	media, params, err = mime.ParseMediaType(values[0])
	if err != nil || !strings.Contains(media, "/") || !utf8.ValidString(values[0]) {
		return "", nil, invalid(http.StatusBadRequest, "%s %.100q is not a media type", contentType, values[0])
	}
	return media, params, nil
}

// isJSON reports whether a media type is JSON, as defined by the JSON format of CloudEvents
// (3.1.1).
func isJSON(media string) bool {
	_, subtype, _ := strings.Cut(media, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}

// withoutKeyHeader removes the Idempotency-Key of a delivery whose events contain their own key.
func withoutKeyHeader(d *provider.Delivery) *provider.Delivery {
	if _, ok := d.Header[idempotency.Header]; !ok {
		return d
	}
	return withBody(d, d.Body, func(h http.Header) { delete(h, idempotency.Header) })
}

// withBody copies a delivery with another body and other headers.
func withBody(d *provider.Delivery, body []byte, change func(http.Header)) *provider.Delivery {
	other := *d
	other.Body, other.Header = body, d.Header.Clone()
	change(other.Header)
	return &other
}

// acceptPlain accepts a JSON object. It stores the key without its quotes.
func acceptPlain(d *provider.Delivery, media string) (provider.AcceptedDelivery, error) {
	if media != "" && !isJSON(media) {
		return provider.AcceptedDelivery{}, invalid(http.StatusUnsupportedMediaType,
			"%s is %.100q: send a JSON object as application/json with an %s, or a CloudEvent as %s", contentType,
			media, idempotency.Header, structuredType)
	}
	key, err := idempotency.Key(d.Header.Values(idempotency.Header))
	switch {
	case err != nil:
		return provider.AcceptedDelivery{}, invalid(http.StatusBadRequest, "%s", err)
	case key == "":
		return provider.AcceptedDelivery{}, invalid(http.StatusBadRequest, "the header %s is missing: send an event "+
			"name that stays the same when the event is sent again, "+
			`e.g. %s: "order-1001-paid"; a CloudEvent contains its own id and is sent as %s`, idempotency.Header,
			idempotency.Header, structuredType)
	}
	v, err := canonical.Parse(d.Body)
	if err != nil {
		return provider.AcceptedDelivery{}, invalid(http.StatusBadRequest, "the body is not JSON: %v", err)
	}
	defer v.Release()
	if v.Kind() != canonical.Object {
		return provider.AcceptedDelivery{}, invalid(http.StatusBadRequest, "the body is a JSON %s: send an object",
			v.Kind())
	}
	if key == d.Header.Get(idempotency.Header) {
		return provider.AcceptedDelivery{Delivery: d}, nil
	}
	return provider.AcceptedDelivery{Delivery: withBody(d, d.Body,
		func(h http.Header) { h[idempotency.Header] = []string{key} })}, nil
}

// checkBody returns what is wrong with a body in the JSON format.
func checkBody(body []byte) error {
	v, err := canonical.Parse(body)
	if err != nil {
		return invalid(http.StatusBadRequest, "the body is not JSON: %v", err)
	}
	defer v.Release()
	return checkEvent(v, "")
}

// batchBodies returns the events of a batch, in the JSON batch format.
func batchBodies(body []byte) ([][]byte, error) {
	v, err := canonical.Parse(body)
	if err != nil {
		return nil, invalid(http.StatusBadRequest, "the body is not JSON: %v", err)
	}
	defer v.Release()
	all := v.Elements()
	switch {
	case v.Kind() != canonical.Array:
		return nil, invalid(http.StatusBadRequest, "the body is a JSON %s: a batch must be an array", v.Kind())
	case len(all) > declared.MaxEvents:
		return nil, invalid(http.StatusRequestEntityTooLarge, "the batch has %d events, and the maximum is %d: "+
			"send several batches", len(all), declared.MaxEvents)
	case len(all) == 0:
		return nil, invalid(http.StatusBadRequest, "the batch is empty")
	}
	out := make([][]byte, len(all))
	for i, member := range all {
		if err := checkEvent(member, fmt.Sprintf("event %d of the batch, counted from 0: ", i)); err != nil {
			return nil, err
		}
		out[i] = member.Raw()
	}
	return out, nil
}

func invalid(status int, format string, args ...any) error {
	return &provider.InvalidDelivery{Status: status, Detail: fmt.Sprintf(format, args...)}
}
