package signature

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Find finds what a reference names in a request; false where it is not there, not there once, or empty.
func Find(r Request, ref Ref) (string, bool) {
	text, ok := (&values{r: &r}).find(ref)
	return string(text), ok && len(text) > 0
}

// values finds what references name in one request. Nobody has proven the request yet: what is parsed of it is parsed once, and
// bounded.
type values struct {
	r *Request
	// claim is the group of signatures that is being proven; nil before one is read.
	claim *claim
	// secret is the one that is being tried.
	secret []byte

	// Room for what usual requests need, so that a proof takes one piece of memory.
	someTexts  [2]string
	someClaims [1]claim
	someItems  [4]item
	digest     [64]byte
	stamp      [32]byte

	json   parsed
	fields url.Values
	form   parsed
	sorted []byte
}

// parsed tells whether something was parsed, and could be.
type parsed int

const (
	notYet parsed = iota
	readable
	unreadable
)

func outcome(ok bool) parsed {
	if ok {
		return readable
	}
	return unreadable
}

// maxFields bounds the fields of a form or a query.
const maxFields = 1000

func (v *values) find(ref Ref) ([]byte, bool) {
	value, ok := v.raw(ref)
	if ok && ref.Lower {
		return bytes.ToLower(value), true
	}
	return value, ok
}

func (v *values) raw(ref Ref) ([]byte, bool) {
	switch ref.Kind {
	case Body:
		return v.r.Body, true
	case Secret:
		return v.secret, true
	case SortedForm:
		return v.sortedForm()
	case JSON:
		return v.inJSON(ref)
	}
	s, ok := v.text(ref)
	if ref.Kind == Timestamp { // of which there is one at a time
		return append(v.stamp[:0], s...), ok
	}
	return []byte(s), ok
}

func (v *values) text(ref Ref) (string, bool) {
	switch ref.Kind {
	case HTTPMethod:
		if v.r.Method == "" {
			return http.MethodPost, true
		}
		return v.r.Method, true
	case Header:
		values := v.r.Header[ref.Name]
		if len(values) != 1 { // of two, a proxy and we might each believe another
			return "", false
		}
		return values[0], values[0] != ""
	case JSON:
		text, ok := v.inJSON(ref)
		return string(text), ok
	case Form:
		return one(v.parseForm(), ref.Name)
	case URL:
		return v.address(ref)
	case Query, Path:
		return v.ofURL(ref)
	case Timestamp:
		if v.claim == nil {
			return "", false
		}
		return v.claim.timestamp, v.claim.timestamp != ""
	case Item:
		if v.claim == nil {
			return "", false
		}
		return v.claim.item(ref.Name)
	}
	return "", false
}

func (v *values) inJSON(ref Ref) ([]byte, bool) {
	if v.json == notYet {
		v.json = outcome(json.Valid(v.r.Body))
	}
	if v.json == unreadable {
		return nil, false
	}
	return findJSON(v.r.Body, ref.Name)
}

// escapes are those that HubSpot takes as characters (https://developers.hubspot.com/docs/guides/apps/authentication/validating-requests).
var escapes = strings.NewReplacer("%3A", ":", "%3a", ":", "%2F", "/", "%2f", "/", "%3F", "?", "%3f", "?", "%40", "@", "%21", "!", "%24", "$",
	"%27", "'", "%28", "(", "%29", ")", "%2A", "*", "%2a", "*", "%2C", ",", "%2c", ",", "%3B", ";", "%3b", ";")

func (v *values) address(ref Ref) (string, bool) {
	address := v.r.URL
	if ref.OtherPort {
		address = otherPort(address)
	}
	if ref.Unescaped {
		address = escapes.Replace(address)
	}
	return address, address != ""
}

// otherPort writes an address with its default port, or without its port where it has one. It changes no other byte.
func otherPort(address string) string {
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

func (v *values) ofURL(ref Ref) (string, bool) {
	u, err := url.Parse(v.r.URL)
	if err != nil || v.r.URL == "" {
		return "", false
	}
	if ref.Kind == Path {
		return u.RequestURI(), true
	}
	return one(parseFields(u.RawQuery), ref.Name)
}

func one(values url.Values, name string) (string, bool) {
	if len(values[name]) != 1 {
		return "", false
	}
	return values[name][0], true
}

// parseFields reads a form or a query; nil where it is none, or has too many fields.
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
	if v.form == notYet {
		if bytes.Count(v.r.Body, []byte("&")) < maxFields {
			v.fields = parseFields(string(v.r.Body))
		}
		v.form = outcome(v.fields != nil)
	}
	return v.fields
}

// sortedForm joins fields and values, sorted by field. Of a field that comes twice the values are sorted, and equal ones are
// written once, as Twilio's Node SDK does; its Go SDK takes the first alone.
func (v *values) sortedForm() ([]byte, bool) {
	fields := v.parseForm()
	if fields == nil || v.sorted != nil {
		return v.sorted, fields != nil
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
	v.sorted = make([]byte, 0, size)
	for _, name := range names {
		vs := slices.Clone(fields[name])
		slices.Sort(vs)
		for _, value := range slices.Compact(vs) {
			v.sorted = append(append(v.sorted, name...), value...)
		}
	}
	return v.sorted, true
}
