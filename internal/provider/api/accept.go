package api

import (
	"fmt"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/idempotency/header"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

const (
	contentType = "Content-Type"
	// cloudEvents begins the media types of every format that CloudEvents have.
	cloudEvents    = "application/cloudevents"
	structuredType = cloudEvents + "+json"
	batchType      = cloudEvents + "-batch+json"
)

// Accept takes a CloudEvent in one of its three modes, or a JSON object under an Idempotency-Key.
func (p Provider) Accept(_ *provider.Source, d *provider.Delivery) (provider.Accepted, error) {
	media, params, err := mediaType(d.Header)
	if err != nil {
		return provider.Accepted{}, err
	}
	if charset := params["charset"]; isJSON(media) && charset != "" && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return provider.Accepted{}, invalid(http.StatusUnsupportedMediaType, "charset is %.40q: JSON is written in UTF-8", charset)
	}
	switch {
	case media == structuredType:
		return provider.Accepted{Delivery: named(d)}, checkBody(d.Body)
	case media == batchType:
		bodies, err := members(d.Body)
		return provider.Accepted{Delivery: with(named(d), d.Body, func(h http.Header) { h[contentType] = []string{structuredType} }), Bodies: bodies}, err
	case strings.HasPrefix(media, cloudEvents):
		return provider.Accepted{}, invalid(http.StatusUnsupportedMediaType, "%s is %.100q: CloudEvents are taken as %s and %s", contentType, media, structuredType, batchType)
	case isBinary(d.Header):
		return acceptBinary(d, media)
	}
	return acceptPlain(d, media)
}

// mediaType reads the one Content-Type; "" where there is none.
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
		return "", nil, invalid(http.StatusBadRequest, "%s %.100q is no media type", contentType, values[0])
	}
	return media, params, nil
}

// isJSON tells whether a media type is JSON, as the JSON format of CloudEvents has it (3.1.1).
func isJSON(media string) bool {
	_, subtype, _ := strings.Cut(media, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}

// named is a delivery of events that are named by themselves: a key that came beside is not theirs.
func named(d *provider.Delivery) *provider.Delivery {
	if _, ok := d.Header[header.Name]; !ok {
		return d
	}
	return with(d, d.Body, func(h http.Header) { delete(h, header.Name) })
}

// with is a delivery with another body and other headers.
func with(d *provider.Delivery, body []byte, change func(http.Header)) *provider.Delivery {
	other := *d
	other.Body, other.Header = body, d.Header.Clone()
	change(other.Header)
	return &other
}

// acceptPlain takes a JSON object and writes its key as it is without quotes.
func acceptPlain(d *provider.Delivery, media string) (provider.Accepted, error) {
	if media != "" && !isJSON(media) {
		return provider.Accepted{}, invalid(http.StatusUnsupportedMediaType, "%s is %.100q: send a JSON object as application/json with an %s, or a CloudEvent as %s", contentType, media, header.Name, structuredType)
	}
	key, err := header.Key(d.Header.Values(header.Name))
	switch {
	case err != nil:
		return provider.Accepted{}, invalid(http.StatusBadRequest, "%s", err)
	case key == "":
		return provider.Accepted{}, invalid(http.StatusBadRequest, `the header %s is missing: send a name of the event that is the same whenever it is sent again, e.g. %s: "order-1001-paid"; a CloudEvent, which names itself, is sent as %s`,
			header.Name, header.Name, structuredType)
	}
	v, err := canonical.Parse(d.Body)
	if err != nil {
		return provider.Accepted{}, invalid(http.StatusBadRequest, "the body is not JSON: %v", err)
	}
	defer v.Release()
	if v.Kind() != canonical.Object {
		return provider.Accepted{}, invalid(http.StatusBadRequest, "the body is a JSON %s: send an object", v.Kind())
	}
	if key == d.Header.Get(header.Name) {
		return provider.Accepted{Delivery: d}, nil
	}
	return provider.Accepted{Delivery: with(d, d.Body, func(h http.Header) { h[header.Name] = []string{key} })}, nil
}

// checkBody tells what is wrong with a body in the JSON format.
func checkBody(body []byte) error {
	v, err := canonical.Parse(body)
	if err != nil {
		return invalid(http.StatusBadRequest, "the body is not JSON: %v", err)
	}
	defer v.Release()
	return check(v, "")
}

// members are the events of a batch, in the JSON batch format.
func members(body []byte) ([][]byte, error) {
	v, err := canonical.Parse(body)
	if err != nil {
		return nil, invalid(http.StatusBadRequest, "the body is not JSON: %v", err)
	}
	defer v.Release()
	all := v.Elements()
	switch {
	case v.Kind() != canonical.Array:
		return nil, invalid(http.StatusBadRequest, "the body is a JSON %s: a batch is an array", v.Kind())
	case len(all) > declared.MaxEvents:
		return nil, invalid(http.StatusRequestEntityTooLarge, "the batch holds %d events, and at most %d are taken: send several batches", len(all), declared.MaxEvents)
	case len(all) == 0:
		return nil, invalid(http.StatusBadRequest, "the batch is empty")
	}
	out := make([][]byte, len(all))
	for i, member := range all {
		if err := check(member, fmt.Sprintf("event %d of the batch, counted from 0: ", i)); err != nil {
			return nil, err
		}
		out[i] = member.Raw()
	}
	return out, nil
}

func invalid(status int, format string, args ...any) error {
	return &provider.Invalid{Status: status, Detail: fmt.Sprintf(format, args...)}
}
