package canonical

import (
	"slices"
	"sync"
)

// Kind is what a Value is.
type Kind uint8

// The kinds. A nil *Value, and what is not there, is Missing.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// String is the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Bool:
		return "boolean"
	case Number:
		return "number"
	case String:
		return "string"
	case Array:
		return "array"
	case Object:
		return "object"
	}
	return "missing"
}

// mark is what the reader noticed about a value; a container has the marks of all it contains but escaped and shape.
type mark uint8

const (
	escaped    mark = 1 << iota // the string has a backslash
	unstorable                  // jsonb refuses it or would choke on it
	plain                       // the number is a short integer in canonical form as it is written
)

// document is one parsed text: nodes in source order, a container before its contents, a key before its value.
type document struct {
	src   []byte
	nodes []Value
}

// documents are those that were released: every delivery and every event is parsed, and warm memory is read faster than new.
var documents sync.Pool

// keptNodes bounds what a released document may hold on to.
const keptNodes = 4 << 10

func newDocument(src []byte) *document {
	doc, ok := documents.Get().(*document)
	if !ok {
		doc = &document{}
	}
	doc.src, doc.nodes = src, slices.Grow(doc.nodes, room(src))
	return doc
}

// Release gives the memory of a whole parsed text back, of which v is the root or any part. Neither v nor any other Value of the text
// may be used after it, nor released again: the memory may be another text's by then. Texts and bytes that were got from them may be
// used. Only who made the Value and handed it to nobody calls this; whoever does not leaves the memory to the collector.
func (v *Value) Release() {
	if v == nil || v.doc == nil || cap(v.doc.nodes) > keptNodes {
		return
	}
	doc := v.doc
	clear(doc.nodes) // a Value that is used too late is more likely missing than another's
	doc.src, doc.nodes = nil, doc.nodes[:0]
	documents.Put(doc)
}

// Value is one JSON value inside a document. A nil *Value is a missing value; every method can be called on it.
type Value struct {
	doc        *document
	start, end uint32 // the source span
	self, next uint32 // the index of this node, and of the first node after all it contains
	kind       Kind
	marks      mark
}

// Kind is what the value is.
func (v *Value) Kind() Kind {
	if v == nil {
		return Missing
	}
	return v.kind
}

// Raw is the value's span of the source, without surrounding whitespace; nil if missing. It must not be changed.
func (v *Value) Raw() []byte {
	if v == nil {
		return nil
	}
	return v.doc.src[v.start:v.end:v.end]
}

// Bool is the value of a boolean; ok is false for any other kind.
func (v *Value) Bool() (value, ok bool) {
	if v.Kind() != Bool {
		return false, false
	}
	return v.doc.src[v.start] == 't', true
}

// Text is the decoded text of a string; ok is false for any other kind. Lone surrogates become U+FFFD.
func (v *Value) Text() (text string, ok bool) {
	if v.Kind() != String {
		return "", false
	}
	return v.text(), true
}

// Is tells whether the value is a string of a text, without making a copy of it. Lone surrogates are equal to nothing.
func (v *Value) Is(text string) bool { return v.Kind() == String && v.isKey(text) }

// text is the decoded text of a string node.
func (v *Value) text() string {
	inner := v.inner()
	if v.marks&escaped == 0 {
		return string(inner)
	}
	return string(appendDecoded(make([]byte, 0, len(inner)), inner, true))
}

// inner is the source of a string node between its quotes.
func (v *Value) inner() []byte {
	return v.doc.src[v.start+1 : v.end-1]
}

// Get walks members of objects by key and is nil where one is missing or a value on the way is no object. Of duplicate
// keys the last one counts.
func (v *Value) Get(path ...string) *Value {
	for _, key := range path {
		if v.Kind() != Object {
			return nil
		}
		v = v.member(key)
	}
	return v
}

func (v *Value) member(key string) (found *Value) {
	nodes := v.doc.nodes
	for i := v.self + 1; i < v.next; i = nodes[i+1].next {
		if nodes[i].isKey(key) {
			found = &nodes[i+1]
		}
	}
	return found
}

// isKey compares a string node with a text without decoding it where that can be avoided.
func (v *Value) isKey(key string) bool {
	inner := v.inner()
	if v.marks&escaped == 0 {
		return string(inner) == key
	}
	// An escape is never shorter than what it stands for.
	return len(inner) >= len(key) && string(appendDecoded(make([]byte, 0, len(inner)), inner, false)) == key
}

// Elements are the values of an array in order; nil for any other kind.
func (v *Value) Elements() []*Value {
	if v.Kind() != Array {
		return nil
	}
	nodes := v.doc.nodes
	var all []*Value
	for i := v.self + 1; i < v.next; i = nodes[i].next {
		all = append(all, &nodes[i])
	}
	return all
}
