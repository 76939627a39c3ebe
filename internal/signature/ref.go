package signature

import (
	"fmt"
	"net/http"
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
	// Unescaped: of an address, the percent-escapes of : / ? @ ! $ ' ( ) * , ; are taken as those characters, as HubSpot does.
	Unescaped bool
	// OtherPort: of an address, its default port is written out, or its port left out. Senders differ in which they sign.
	OtherPort bool
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

// ParseRef reads a reference: a kind, with a colon and a name where it needs one. "|lower" after it takes the value in lower case;
// "url|unescaped" and "url|port" are other spellings of the address.
func ParseRef(text string) (Ref, error) {
	whole := text
	var r Ref
	for {
		rest, change, found := cutLast(text, "|")
		if !found || !r.change(change) {
			break
		}
		text = rest
	}
	word, name, hasName := strings.Cut(text, ":")
	kind, ok := kinds[word]
	switch {
	case !ok:
		return Ref{}, fmt.Errorf("%q names no value of a request: write body, header:NAME, json:PATH, form:FIELD, query:NAME, item:KEY, method, url, path, timestamp, sorted_form or secret", whole)
	case slices.Contains(named, kind) && name == "":
		return Ref{}, fmt.Errorf("%q lacks a name: write %s:NAME", whole, word)
	case !slices.Contains(named, kind) && hasName:
		return Ref{}, fmt.Errorf("%q: %s takes no name", whole, word)
	case (r.Unescaped || r.OtherPort) && kind != URL:
		return Ref{}, fmt.Errorf("%q: only the url has |unescaped and |port", whole)
	}
	if kind == Header {
		name = http.CanonicalHeaderKey(name)
	}
	r.Kind, r.Name = kind, name
	return r, nil
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// change notes one change of a value; false where it is none, or noted already.
func (r *Ref) change(word string) bool {
	flag := map[string]*bool{"lower": &r.Lower, "unescaped": &r.Unescaped, "port": &r.OtherPort}[word]
	if flag == nil || *flag {
		return false
	}
	*flag = true
	return true
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
