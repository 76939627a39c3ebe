package canonical

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf8"
)

// MaxDepth is the maximum nesting depth of arrays and objects.
const MaxDepth = 1000

// SyntaxError says where a text stops being JSON, and why.
type SyntaxError struct {
	// Offset is the position of the offending byte, from 0.
	Offset int
	// Msg says what is wrong there.
	Msg string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Msg)
}

// Parse parses a text that must be exactly one JSON value (RFC 8259), with optional whitespace
// around it. The error is a *SyntaxError: broken syntax, invalid UTF-8 anywhere, or nesting deeper
// than MaxDepth. The Value refers to b.
func Parse(b []byte) (*Value, error) {
	if len(b) > math.MaxInt32 {
		return nil, &SyntaxError{Offset: math.MaxInt32, Msg: "the text is longer than 2 GiB"}
	}
	if !utf8.Valid(b) {
		return nil, &SyntaxError{Offset: invalidUTF8(b), Msg: "not valid UTF-8"}
	}
	doc := newDocument(b)
	r := reader{src: b, doc: doc}
	if err := r.document(); err != nil {
		return nil, err
	}
	return &doc.nodes[0], nil
}

// nodeCapacity returns for how many nodes memory is allocated: an estimate from the text, limited
// to what usual texts need.
func nodeCapacity(b []byte) int {
	estimate := 1
	for _, c := range []byte(",:{[") {
		estimate += bytes.Count(b, []byte{c})
	}
	return min(estimate, len(b)/8+4)
}

func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// reader reads src once and appends to doc.nodes. It refers to nodes by index, because the slice
// grows.
type reader struct {
	src []byte
	pos int
	doc *document
}

func (r *reader) syntaxError(at int, msg string) error {
	if at >= len(r.src) {
		return &SyntaxError{Offset: len(r.src), Msg: "the text ends too early"}
	}
	return &SyntaxError{Offset: at, Msg: msg}
}

func (r *reader) document() error {
	r.skipSpace()
	if _, err := r.value(0); err != nil {
		return err
	}
	r.skipSpace()
	if r.pos < len(r.src) {
		return r.syntaxError(r.pos, "unexpected text after the value")
	}
	return nil
}

func (r *reader) skipSpace() {
	for r.pos < len(r.src) {
		switch r.src[r.pos] {
		case ' ', '\n', '\t', '\r':
			r.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, or 0 at the end. A NUL is valid nowhere outside a value, so both can
// be treated alike.
func (r *reader) peek() byte {
	if r.pos < len(r.src) {
		return r.src[r.pos]
	}
	return 0
}

// value reads one value at depth and returns its marks.
func (r *reader) value(depth int) (mark, error) {
	switch c := r.peek(); {
	case c == '"':
		return r.text()
	case c == '{' || c == '[':
		if depth >= MaxDepth {
			return 0, r.syntaxError(r.pos, fmt.Sprintf("nested deeper than %d", MaxDepth))
		}
		return r.container(c, depth+1)
	case c == '-' || c >= '0' && c <= '9':
		return r.number()
	case c == 't':
		return 0, r.literal("true", Bool)
	case c == 'f':
		return 0, r.literal("false", Bool)
	case c == 'n':
		return 0, r.literal("null", Null)
	}
	return 0, r.syntaxError(r.pos, "expected a value")
}

func (r *reader) literal(word string, kind Kind) error {
	start := r.pos
	for i := range len(word) {
		if r.peek() != word[i] {
			return r.syntaxError(r.pos, "expected "+word)
		}
		r.pos++
	}
	r.add(kind, start, 0)
	return nil
}

// add appends a node for the text from start to the current position.
func (r *reader) add(kind Kind, start int, marks mark) {
	i := uint32(len(r.doc.nodes))
	r.doc.nodes = append(r.doc.nodes, Value{
		doc: r.doc, start: uint32(start), end: uint32(r.pos), self: i, next: i + 1, kind: kind, marks: marks,
	})
}

// container reads an array or an object whose opening byte is the current one.
func (r *reader) container(open byte, depth int) (mark, error) {
	kind, closing := Array, byte(']')
	if open == '{' {
		kind, closing = Object, '}'
	}
	self, start := len(r.doc.nodes), r.pos
	r.pos++
	r.add(kind, start, 0)
	r.skipSpace()
	var marks mark
	for first := true; r.peek() != closing; first = false {
		if err := r.separator(first, closing); err != nil {
			return 0, err
		}
		m, err := r.item(kind, depth)
		if err != nil {
			return 0, err
		}
		marks |= m
		r.skipSpace()
	}
	r.pos++
	node := &r.doc.nodes[self]
	node.end, node.next, node.marks = uint32(r.pos), uint32(len(r.doc.nodes)), marks&unstorable
	return node.marks, nil
}

// separator reads the comma before every item but the first.
func (r *reader) separator(first bool, closing byte) error {
	if first {
		return nil
	}
	if r.peek() != ',' {
		return r.syntaxError(r.pos, "expected a comma or "+string(closing))
	}
	r.pos++
	r.skipSpace()
	return nil
}

// item reads an element or a member.
func (r *reader) item(kind Kind, depth int) (mark, error) {
	if kind == Array {
		return r.value(depth)
	}
	if r.peek() != '"' {
		return 0, r.syntaxError(r.pos, "expected a key in quotes")
	}
	key, err := r.text()
	if err != nil {
		return 0, err
	}
	r.skipSpace()
	if r.peek() != ':' {
		return 0, r.syntaxError(r.pos, "expected a colon after the key")
	}
	r.pos++
	r.skipSpace()
	m, err := r.value(depth)
	return key | m, err
}
