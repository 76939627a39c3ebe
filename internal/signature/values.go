package signature

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Find returns the value of a reference in a request; false if it is missing, not unique, or empty.
func Find(r Request, ref Ref) (string, bool) {
	text, ok := (&values{request: &r}).find(ref)
	return string(text), ok && len(text) > 0
}

// values finds the values of references in one request. The request is not verified yet, so parsing
// happens once and is bounded.
type values struct {
	request *Request
	// claim is the group of signatures that is being verified; nil before one is read.
	claim *claim
	// secret is the secret that is being tried.
	secret []byte

	// Buffers for typical requests, so that a verification makes one allocation.
	textsBuffer     [2]string
	claimsBuffer    [1]claim
	itemsBuffer     [4]item
	digestBuffer    [64]byte
	timestampBuffer [32]byte

	jsonState    parseState
	fields       url.Values
	formState    parseState
	sortedFields []byte
}

// parseState is whether the JSON or the form of the body was parsed, and with which result.
type parseState int

const (
	notParsed parseState = iota
	readable
	unreadable
)

func parseResult(ok bool) parseState {
	if ok {
		return readable
	}
	return unreadable
}

// maxFields bounds the fields of a form or a query.
const maxFields = 1000

func (v *values) find(ref Ref) ([]byte, bool) {
	value, ok := v.findRaw(ref)
	if ok && ref.Lower {
		return bytes.ToLower(value), true
	}
	return value, ok
}

func (v *values) findRaw(ref Ref) ([]byte, bool) {
	switch ref.Kind {
	case Body:
		return v.request.Body, true
	case Secret:
		return v.secret, true
	case SortedForm:
		return v.sortedForm()
	case JSON:
		return v.findJSON(ref)
	}
	s, ok := v.text(ref)
	if ref.Kind == Timestamp { // the buffer suffices, because one time is used at once
		return append(v.timestampBuffer[:0], s...), ok
	}
	return []byte(s), ok
}

func (v *values) text(ref Ref) (string, bool) {
	switch ref.Kind {
	case HTTPMethod:
		if v.request.Method == "" {
			return http.MethodPost, true
		}
		return v.request.Method, true
	case Header:
		values := v.request.Header[ref.Name]
		if len(values) != 1 { // of two values, a proxy and this gateway could use different ones
			return "", false
		}
		return values[0], values[0] != ""
	case JSON:
		text, ok := v.findJSON(ref)
		return string(text), ok
	case Form:
		return singleValue(v.parseForm(), ref.Name)
	case URL:
		return v.urlValue(ref)
	case Query, Path:
		return v.urlPart(ref)
	case Timestamp:
		if v.claim == nil {
			return "", false
		}
		return v.claim.timestamp, v.claim.timestamp != ""
	case Item:
		if v.claim == nil {
			return "", false
		}
		return v.claim.findItem(ref.Name)
	}
	return "", false
}

func (v *values) findJSON(ref Ref) ([]byte, bool) {
	if v.jsonState == notParsed {
		v.jsonState = parseResult(json.Valid(v.request.Body))
	}
	if v.jsonState == unreadable {
		return nil, false
	}
	return findJSON(v.request.Body, ref.Name)
}

// hubspotEscapes are the escapes that HubSpot decodes
// (https://developers.hubspot.com/docs/guides/apps/authentication/validating-requests).
var hubspotEscapes = strings.NewReplacer("%3A", ":", "%3a", ":", "%2F", "/", "%2f", "/", "%3F", "?", "%3f", "?", "%40",
	"@", "%21", "!", "%24", "$", "%27", "'", "%28", "(", "%29", ")", "%2A", "*", "%2a", "*", "%2C", ",", "%2c", ",",
	"%3B", ";", "%3b", ";")

func (v *values) urlValue(ref Ref) (string, bool) {
	address := v.request.URL
	if ref.OtherPort {
		address = togglePort(address)
	}
	if ref.Unescaped {
		address = hubspotEscapes.Replace(address)
	}
	return address, address != ""
}

// togglePort adds the default port to a URL, or removes its port. It changes no other byte.
func togglePort(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return ""
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host, tail := rest[:end], rest[end:]
	if at := strings.LastIndexByte(host, ':'); at > strings.LastIndexAny(host, "]@") {
		return scheme + "://" + host[:at] + tail
	}
	port := ":80"
	if strings.EqualFold(scheme, "https") {
		port = ":443"
	}
	return scheme + "://" + host + port + tail
}

func (v *values) urlPart(ref Ref) (string, bool) {
	u, err := url.Parse(v.request.URL)
	if err != nil || v.request.URL == "" {
		return "", false
	}
	if ref.Kind == Path {
		return u.RequestURI(), true
	}
	return singleValue(parseFields(u.RawQuery), ref.Name)
}

func singleValue(values url.Values, name string) (string, bool) {
	if len(values[name]) != 1 {
		return "", false
	}
	return values[name][0], true
}

// parseFields parses a form or a query; nil if it is invalid or has too many fields.
func parseFields(text string) url.Values {
	if strings.Count(text, "&") >= maxFields {
		return nil
	}
	fields, err := url.ParseQuery(text)
	if err != nil {
		return nil
	}
	return fields
}

func (v *values) parseForm() url.Values {
	if v.formState == notParsed {
		if bytes.Count(v.request.Body, []byte("&")) < maxFields {
			v.fields = parseFields(string(v.request.Body))
		}
		v.formState = parseResult(v.fields != nil)
	}
	return v.fields
}

// sortedForm joins fields and values, sorted by field. The values of a repeated field are sorted,
// and equal ones are written once, as in Twilio's Node SDK. Its Go SDK uses the first value only.
func (v *values) sortedForm() ([]byte, bool) {
	fields := v.parseForm()
	if fields == nil || v.sortedFields != nil {
		return v.sortedFields, fields != nil
	}
	names := make([]string, 0, len(fields))
	size := 0
	for name, values := range fields {
		names = append(names, name)
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	slices.Sort(names)
	v.sortedFields = make([]byte, 0, size)
	for _, name := range names {
		vs := slices.Clone(fields[name])
		slices.Sort(vs)
		for _, value := range slices.Compact(vs) {
			v.sortedFields = append(append(v.sortedFields, name...), value...)
		}
	}
	return v.sortedFields, true
}
