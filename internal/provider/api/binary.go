package api

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/provider"
)

// attributePrefix begins the names of headers with attributes, in canonical form.
const attributePrefix = "Ce-"

// isBinary reports whether a request has one of the headers that every event in the binary mode
// has.
func isBinary(h http.Header) bool {
	return slices.ContainsFunc([]string{"Specversion", "Id", "Source", "Type"},
		func(name string) bool { return len(h[attributePrefix+name]) > 0 })
}

// acceptBinary converts an event with its attributes in headers and its data in the body into the
// JSON format (bindings/http-protocol-binding.md, 3.1). JSON data keeps every byte; other data is
// written in base64.
func acceptBinary(d *provider.Delivery, media string) (provider.AcceptedDelivery, error) {
	attributes, err := attributesOf(d.Header)
	if err != nil {
		return provider.AcceptedDelivery{}, err
	}
	event := []byte("{")
	member := func(name string) {
		if len(event) > 1 {
			event = append(event, ',')
		}
		event = append(canonical.AppendText(event, name), ':')
	}
	for _, a := range attributes {
		member(a.name)
		event = canonical.AppendText(event, a.value)
	}
	if media != "" {
		member("datacontenttype")
		event = canonical.AppendText(event, d.Header.Get(contentType))
	}
	switch {
	case len(d.Body) == 0:
	case isJSON(media):
		v, err := canonical.Parse(d.Body)
		if err != nil {
			return provider.AcceptedDelivery{}, invalid(http.StatusBadRequest, "%s is %s, and the body is not JSON: %v",
				contentType, media, err)
		}
		v.Release()
		member("data")
		event = append(event, d.Body...)
	default:
		member("data_base64")
		event = append(event, '"')
		event = append(base64.StdEncoding.AppendEncode(event, d.Body), '"')
	}
	event = append(event, '}')
	if err := checkBody(event); err != nil {
		return provider.AcceptedDelivery{}, err
	}
	return provider.AcceptedDelivery{Delivery: withBody(d, event, func(h http.Header) {
		h[contentType] = []string{structuredType}
		delete(h, idempotency.Header)
	})}, nil
}

type attributeValue struct{ name, value string }

// attributesOf returns the attributes in headers, sorted by name.
func attributesOf(h http.Header) ([]attributeValue, error) {
	var out []attributeValue
	for field, values := range h {
		rest, ok := strings.CutPrefix(field, attributePrefix)
		if !ok {
			continue
		}
		name := strings.ToLower(rest)
		switch {
		case len(values) != 1:
			return nil, invalid(http.StatusBadRequest, "the header ce-%.40s is given %d times", name, len(values))
		case name == "datacontenttype":
			return nil, invalid(http.StatusBadRequest, "the header ce-datacontenttype is not allowed: use %s",
				contentType)
		case name == "data" || !isAttributeName(name):
			return nil, invalid(http.StatusBadRequest, "the header ce-%.40s is not an attribute: names of attributes "+
				"consist of letters and digits", name)
		}
		value, why := decodeHeader(values[0])
		if why != "" {
			return nil, invalid(http.StatusBadRequest, "the header ce-%.40s %s", name, why)
		}
		out = append(out, attributeValue{name, value})
	}
	slices.SortFunc(out, func(a, b attributeValue) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// decodeHeader decodes a header's value. It removes the quotes of a quoted string, and then decodes
// percent-encodings once. why says what is wrong with the value.
func decodeHeader(value string) (text, why string) {
	if strings.HasPrefix(value, `"`) {
		var ok bool
		if value, ok = unquote(value); !ok {
			return "", "begins with a quote but does not end with one: write a quote as %22"
		}
	}
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			out = append(out, value[i])
			continue
		}
		b, err := hex.DecodeString(value[min(i+1, len(value)):min(i+3, len(value))])
		if err != nil || len(b) != 1 {
			return "", "has a % that begins no percent-encoding: write it as %25"
		}
		out = append(out, b[0])
		i += 2
	}
	if !utf8.Valid(out) {
		return "", "is not UTF-8 after decoding"
	}
	return string(out), ""
}

// unquote returns the content of an HTTP quoted string (RFC 9110, 5.6.4).
func unquote(value string) (string, bool) {
	var out strings.Builder
	for i := 1; i < len(value); i++ {
		switch value[i] {
		case '"':
			return out.String(), i == len(value)-1
		case '\\':
			if i++; i == len(value) {
				return "", false
			}
		}
		out.WriteByte(value[i])
	}
	return "", false
}
