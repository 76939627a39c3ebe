package signature

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Ref names one value of a request.
type Ref struct {
	Kind Kind
	// Name is the header, the dotted path into a JSON body, the form field, the query parameter, or the item of the signature's
	// header (its key, or its place from 0).
	Name string
	// Lower: the value is taken in lower case.
	Lower bool
}

// Kind is where a value is found.
type Kind int

// The kinds, and how a reference is written.
const (
	None       Kind = iota
	Body            // body
	Header          // header:X-Name
	JSON            // json:data.id
	Form            // form:field
	Query           // query:name
	HTTPMethod      // method
	URL             // url
	Path            // path: the URL's path with its query
	Timestamp       // timestamp: the signed time in the sender's own spelling
	Item            // item:t
	SortedForm      // sorted_form: each field and value of a form, sorted by field, without separators
	Secret          // secret: for Hash alone
	// The following name events, not what is signed.
	Root      // root:data.id: in the whole body, where a delivery is split into events
	Index     // index: the event's place in its delivery, from 0
	Content   // content: a digest of the event
	EventType // type: the event's type
)

var kinds = map[string]Kind{"body": Body, "header": Header, "json": JSON, "form": Form, "query": Query, "method": HTTPMethod, "url": URL,
	"path": Path, "timestamp": Timestamp, "item": Item, "sorted_form": SortedForm, "secret": Secret,
	"root": Root, "index": Index, "content": Content, "type": EventType}

// named are the kinds that need a name; the others take none.
var named = []Kind{Header, JSON, Form, Query, Item, Root}

// ParseRef reads a reference: a kind, with a colon and a name where it needs one, and "|lower" where the value is to be taken in
// lower case.
func ParseRef(text string) (Ref, error) {
	text, lower := strings.CutSuffix(text, "|lower")
	word, name, hasName := strings.Cut(text, ":")
	kind, ok := kinds[word]
	switch {
	case !ok:
		return Ref{}, fmt.Errorf("%q names no value of a request: write body, header:NAME, json:PATH, form:FIELD, query:NAME, item:KEY, method, url, path, timestamp, sorted_form or secret", text)
	case slices.Contains(named, kind) && name == "":
		return Ref{}, fmt.Errorf("%q lacks a name: write %s:NAME", text, word)
	case !slices.Contains(named, kind) && hasName:
		return Ref{}, fmt.Errorf("%q: %s takes no name", text, word)
	}
	if kind == Header {
		name = http.CanonicalHeaderKey(name)
	}
	return Ref{Kind: kind, Name: name, Lower: lower}, nil
}

// MustRef is ParseRef for references in the program's text.
func MustRef(text string) Ref {
	r, err := ParseRef(text)
	if err != nil {
		panic(err)
	}
	return r
}

// String writes a reference as ParseRef reads it.
func (r Ref) String() string {
	for word, kind := range kinds {
		if kind == r.Kind {
			if r.Name != "" {
				word += ":" + r.Name
			}
			if r.Lower {
				word += "|lower"
			}
			return word
		}
	}
	return ""
}

// Template is a text with references in braces: "{timestamp}.{body}". What stands in brackets is left out where a reference in it
// finds nothing: "[id:{query:id};]ts:{timestamp};". Doubled, a brace or an opening bracket stands for itself.
type Template struct {
	text   string
	groups []group
}

type group struct {
	parts    []part
	optional bool
}

type part struct {
	literal string
	ref     Ref
}

// ParseTemplate reads a template.
func ParseTemplate(text string) (Template, error) {
	t := Template{text: text}
	var now group
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			now.parts = append(now.parts, part{literal: literal.String()})
			literal.Reset()
		}
	}
	end := func() {
		flush()
		if len(now.parts) > 0 {
			t.groups = append(t.groups, now)
		}
		now = group{}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case (c == '{' || c == '}' || c == '[' || c == ']') && i+1 < len(text) && text[i+1] == c:
			literal.WriteByte(c)
			i++
		case c == '{':
			to := strings.IndexByte(text[i:], '}')
			if to < 0 {
				return t, fmt.Errorf("%q: a { is not closed", text)
			}
			ref, err := ParseRef(text[i+1 : i+to])
			if err != nil {
				return t, err
			}
			flush()
			now.parts = append(now.parts, part{ref: ref})
			i += to
		case c == '[' && !now.optional:
			end()
			now.optional = true
		case c == ']' && now.optional:
			end()
		case c == '[' || c == ']' || c == '}':
			return t, fmt.Errorf("%q: %q at byte %d does not fit; double it where it stands for itself", text, c, i)
		default:
			literal.WriteByte(c)
		}
	}
	if now.optional {
		return t, fmt.Errorf("%q: a [ is not closed", text)
	}
	end()
	return t, nil
}

// MustTemplate is ParseTemplate for templates in the program's text.
func MustTemplate(text string) Template {
	t, err := ParseTemplate(text)
	if err != nil {
		panic(err)
	}
	return t
}

// String is the template as it was written.
func (t Template) String() string { return t.text }

// Refs are the references of a template, in their order.
func (t Template) Refs() []Ref {
	var out []Ref
	for _, g := range t.groups {
		for _, p := range g.parts {
			if p.ref.Kind != None {
				out = append(out, p.ref)
			}
		}
	}
	return out
}

// uses tells whether a template holds a reference of a kind.
func (t Template) uses(kind Kind) bool {
	return slices.ContainsFunc(t.Refs(), func(r Ref) bool { return r.Kind == kind })
}

// Expand fills in a template by a function that finds values. The error names a reference that finds nothing.
func (t Template) Expand(find func(Ref) (string, bool)) (string, error) {
	var out strings.Builder
	err := t.write(&out, func(r Ref) ([]byte, bool) {
		s, ok := find(r)
		return []byte(s), ok
	})
	return out.String(), err
}

// errNothing says that a reference finds nothing.
var errNothing = errors.New("is not there")

func (t Template) write(w io.Writer, find func(Ref) ([]byte, bool)) error {
	for _, g := range t.groups {
		values := make([][]byte, len(g.parts))
		missing := ""
		for i, p := range g.parts {
			values[i] = []byte(p.literal)
			if p.ref.Kind == None {
				continue
			}
			v, ok := find(p.ref)
			if !ok {
				missing = p.ref.String()
				break
			}
			values[i] = v
		}
		if missing != "" && g.optional {
			continue
		}
		if missing != "" {
			return fmt.Errorf("%s %w", missing, errNothing)
		}
		for _, v := range values {
			if _, err := w.Write(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// Find finds what a reference names in a request; false where it is not there, not there once, or empty.
func Find(r Request, ref Ref) (string, bool) {
	text, ok := (&values{r: &r}).find(ref)
	return string(text), ok && len(text) > 0
}

// values finds what references name in one request.
type values struct {
	r *Request
	// claim is the group of signatures that is being proven; nil before one is read.
	claim  *claim
	secret []byte
	form   url.Values
	parsed bool
}

// maxFields bounds the fields of a form that nobody has proven yet.
const maxFields = 1000

func (v *values) find(ref Ref) ([]byte, bool) {
	value, ok := v.raw(ref)
	if ok && ref.Lower {
		return []byte(strings.ToLower(string(value))), true
	}
	return value, ok
}

func (v *values) raw(ref Ref) ([]byte, bool) {
	switch ref.Kind {
	case Body:
		return v.r.Body, true
	case HTTPMethod:
		if v.r.Method == "" {
			return []byte(http.MethodPost), true
		}
		return []byte(v.r.Method), true
	case Secret:
		return v.secret, true
	}
	s, ok := v.text(ref)
	return []byte(s), ok
}

func (v *values) text(ref Ref) (string, bool) {
	switch ref.Kind {
	case Header:
		values := v.r.Header[ref.Name]
		if len(values) != 1 { // of two, a proxy and we might each believe another
			return "", false
		}
		return values[0], values[0] != ""
	case JSON:
		return findJSON(v.r.Body, strings.Split(ref.Name, "."))
	case Form:
		return one(v.fields(), ref.Name)
	case SortedForm:
		return v.sortedForm()
	case URL:
		return v.r.URL, v.r.URL != ""
	case Query, Path:
		return v.ofURL(ref)
	case Timestamp:
		return v.timestamp()
	case Item:
		if v.claim == nil {
			return "", false
		}
		return v.claim.item(ref.Name)
	}
	return "", false
}

func (v *values) timestamp() (string, bool) {
	if v.claim == nil || v.claim.timestamp == "" {
		return "", false
	}
	return v.claim.timestamp, true
}

func (v *values) ofURL(ref Ref) (string, bool) {
	u, err := url.Parse(v.r.URL)
	if err != nil || v.r.URL == "" {
		return "", false
	}
	if ref.Kind == Path {
		return u.RequestURI(), true
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", false
	}
	return one(query, ref.Name)
}

func one(values url.Values, name string) (string, bool) {
	if len(values[name]) != 1 {
		return "", false
	}
	return values[name][0], true
}

// fields are a form's; none where the body is no form or has too many.
func (v *values) fields() url.Values {
	if !v.parsed {
		v.parsed = true
		if body := string(v.r.Body); strings.Count(body, "&") < maxFields {
			if form, err := url.ParseQuery(body); err == nil {
				v.form = form
			}
		}
	}
	return v.form
}

// sortedForm joins fields and values, sorted by field. Of a field that comes twice the values are sorted, and equal ones are
// written once, as Twilio's Node SDK does; its Go SDK takes the first alone.
func (v *values) sortedForm() (string, bool) {
	fields := v.fields()
	if fields == nil {
		return "", false
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	var out strings.Builder
	for _, name := range names {
		vs := slices.Clone(fields[name])
		slices.Sort(vs)
		for _, value := range slices.Compact(vs) {
			out.WriteString(name)
			out.WriteString(value)
		}
	}
	return out.String(), true
}
