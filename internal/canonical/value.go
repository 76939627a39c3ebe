package canonical

import (
	"slices"
	"sync"
)

// Kind is the kind of a Value.
type Kind uint8

// The kinds. A nil *Value and a value that does not exist are Missing.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// String returns the kind's name in lower case.
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

// mark holds properties that the reader found. A container has the marks of its contents, except
// escaped and plain.
type mark uint8

const (
	escaped    mark = 1 << iota // the string has a backslash
	unstorable                  // jsonb rejects it or handles it badly
	plain                       // the number is a short integer in canonical form
)

// document is one parsed text. Its nodes are in source order: a container before its contents, a
// key before its value.
type document struct {
	src   []byte
	nodes []Value
}

// documents are pooled, because every delivery and every event is parsed, and reused memory is
// faster than new memory.
var documents sync.Pool

// maxPooledNodes limits the memory that a released document keeps.
const maxPooledNodes = 4 << 10

func newDocument(src []byte) *document {
	doc, ok := documents.Get().(*document)
	if !ok {
		doc = &document{}
	}
	doc.src, doc.nodes = src, slices.Grow(doc.nodes, nodeCapacity(src))
	return doc
}

// Release gives the memory of a whole parsed text back; v is its root or any part. Afterwards
// neither v nor any other Value of the text may be used or released again, because the memory may
// belong to another text. Strings and bytes read from them stay valid. Only the owner of a Value
// that nothing else refers to may call this. A Value that is not released is garbage collected.
func (v *Value) Release() {
	if v == nil || v.doc == nil || cap(v.doc.nodes) > maxPooledNodes {
		return
	}
	doc := v.doc
	clear(doc.nodes) // a Value that is used after its release is then likely missing, not another text's value
	doc.src, doc.nodes = nil, doc.nodes[:0]
	documents.Put(doc)
}

// Value is one JSON value of a document. A nil *Value is a missing value; all methods accept it.
type Value struct {
	doc        *document
	start, end uint32 // the position in the source
	self, next uint32 // the index of this node, and of the first node after its contents
	kind       Kind
	marks      mark
}

// Kind returns the kind of the value.
func (v *Value) Kind() Kind {
	if v == nil {
		return Missing
	}
	return v.kind
}

// Raw returns the value's part of the source, without surrounding whitespace; nil if it is missing.
// The caller must not change it.
func (v *Value) Raw() []byte {
	if v == nil {
		return nil
	}
	return v.doc.src[v.start:v.end:v.end]
}

// Bool returns the value of a boolean; ok is false for any other kind.
func (v *Value) Bool() (value, ok bool) {
	if v.Kind() != Bool {
		return false, false
	}
	return v.doc.src[v.start] == 't', true
}

// Text returns the decoded text of a string; ok is false for any other kind. Lone surrogates become
// U+FFFD.
func (v *Value) Text() (text string, ok bool) {
	if v.Kind() != String {
		return "", false
	}
	return v.text(), true
}

// Is reports whether the value is a string with this text, without copying it. Lone surrogates
// equal nothing.
func (v *Value) Is(text string) bool { return v.Kind() == String && v.isKey(text) }

// text returns the decoded text of a string node.
func (v *Value) text() string {
	inner := v.inner()
	if v.marks&escaped == 0 {
		return string(inner)
	}
	return string(appendDecoded(make([]byte, 0, len(inner)), inner, true))
}

// inner returns the source of a string node without its quotes.
func (v *Value) inner() []byte {
	return v.doc.src[v.start+1 : v.end-1]
}

// Get follows keys through objects. It returns nil if a key does not exist or a value on the way is
// no object. Of duplicate keys the last one counts.
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

// isKey compares a string node with a text. It decodes the node only if necessary.
func (v *Value) isKey(key string) bool {
	inner := v.inner()
	if v.marks&escaped == 0 {
		return string(inner) == key
	}
	// An escape is never shorter than its decoded text.
	return len(inner) >= len(key) && string(appendDecoded(make([]byte, 0, len(inner)), inner, false)) == key
}

// Elements returns the elements of an array in order; nil for any other kind.
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
