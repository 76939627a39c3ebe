package signature

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Ref refers to one value of a request.
type Ref struct {
	Kind Kind
	// Name is the header, the dotted path in a JSON body, the form field, the query parameter, or
	// the item of the signature's header (its key, or its index from 0).
	Name string
	// Lower: the value is used in lower case.
	Lower bool
	// Unescaped: in a URL, the percent-escapes of : / ? @ ! $ ' ( ) * , ; are decoded, as HubSpot
	// does.
	Unescaped bool
	// OtherPort: in a URL, the default port is added, or the port removed. Senders differ in which
	// they sign.
	OtherPort bool
}

// Kind is the place of a value.
type Kind int

// The kinds, and how a reference to each is written.
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
	Timestamp       // timestamp: the text of the signed time
	Item            // item:t
	SortedForm      // sorted_form: each field and value of a form, sorted by field, without separators
	Secret          // secret: for Hash only
	// The following kinds are for events, not for signed messages.
	Root      // root:data.id: in the whole body, where a delivery is split into events
	Index     // index: the event's index in its delivery, from 0
	Content   // content: a digest of the event
	EventType // type: the event's type
)

var kinds = map[string]Kind{"body": Body, "header": Header, "json": JSON, "form": Form, "query": Query,
	"method": HTTPMethod, "url": URL, "path": Path, "timestamp": Timestamp, "item": Item, "sorted_form": SortedForm,
	"secret": Secret, "root": Root, "index": Index, "content": Content, "type": EventType}

// kindsWithName are the kinds that need a name; the others have none.
var kindsWithName = []Kind{Header, JSON, Form, Query, Item, Root}

// ParseRef parses a reference: a kind, and for some kinds a colon and a name. "|lower" after it
// converts the value to lower case. "url|unescaped" and "url|port" are variants of the URL.
func ParseRef(text string) (Ref, error) {
	original := text
	var r Ref
	for {
		rest, option, found := cutAtLast(text, "|")
		if !found || !r.setOption(option) {
			break
		}
		text = rest
	}
	word, name, hasName := strings.Cut(text, ":")
	kind, ok := kinds[word]
	switch {
	case !ok:
		return Ref{}, fmt.Errorf("%q is not a reference to a value of a request: write body, header:NAME, json:PATH, "+
			"form:FIELD, query:NAME, item:KEY, method, url, path, timestamp, sorted_form or secret", original)
	case slices.Contains(kindsWithName, kind) && name == "":
		return Ref{}, fmt.Errorf("%q needs a name: write %s:NAME", original, word)
	case !slices.Contains(kindsWithName, kind) && hasName:
		return Ref{}, fmt.Errorf("%q: %s has no name", original, word)
	case (r.Unescaped || r.OtherPort) && kind != URL:
		return Ref{}, fmt.Errorf("%q: only the url has |unescaped and |port", original)
	}
	if kind == Header {
		name = http.CanonicalHeaderKey(name)
	}
	r.Kind, r.Name = kind, name
	return r, nil
}

func cutAtLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// setOption sets one option of a reference. It returns false if there is no such option, or if it
// is already set.
func (r *Ref) setOption(option string) bool {
	flag := map[string]*bool{"lower": &r.Lower, "unescaped": &r.Unescaped, "port": &r.OtherPort}[option]
	if flag == nil || *flag {
		return false
	}
	*flag = true
	return true
}

// MustRef is ParseRef for constant references.
func MustRef(text string) Ref {
	r, err := ParseRef(text)
	if err != nil {
		panic(err)
	}
	return r
}

// UnmarshalText reads a reference. It keeps a text that is not a reference as the name of kind
// None, which CheckFields reports.
func (r *Ref) UnmarshalText(text []byte) error {
	parsed, err := ParseRef(string(text))
	if err != nil {
		parsed.Name = string(text)
	}
	*r = parsed
	return nil
}

// MarshalText returns String.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String formats a reference so that ParseRef can parse it.
func (r Ref) String() string {
	if r.Kind == None {
		return r.Name
	}
	text := ""
	for word, kind := range kinds {
		if kind == r.Kind {
			text = word
		}
	}
	if r.Name != "" {
		text += ":" + r.Name
	}
	if r.Unescaped {
		text += "|unescaped"
	}
	if r.OtherPort {
		text += "|port"
	}
	if r.Lower {
		text += "|lower"
	}
	return text
}
