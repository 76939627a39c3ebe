package canonical

import (
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
)

// Options choose what the canonical text leaves out.
type Options struct {
	// DropNull leaves out members of objects that are null, at every depth. Elements of arrays stay.
	DropNull bool
	// Without are dotted paths of members left out, from the root through objects, and through each element of arrays. A key may itself contain dots.
	Without []string
}

// AppendCanonical appends the one text that all equal values share: keys bytewise ascending, of duplicates the last,
// numbers as NumberText has them, strings without needless escapes, lone surrogates as \udXXX, no whitespace. A missing
// value is written as null.
func (v *Value) AppendCanonical(dst []byte, o Options) []byte {
	w := newWriter(o)
	w.dst = dst
	w.value(v, o.Without)
	dst, w.dst = w.dst, nil
	w.release()
	return dst
}

// Sum is the SHA-256 of the canonical text.
func (v *Value) Sum(o Options) [32]byte {
	w := newWriter(o)
	w.dst = slices.Grow(w.dst[:0], len(v.Raw())+16)
	w.value(v, o.Without)
	sum := sha256.Sum256(w.dst)
	w.release()
	return sum
}

// writers are used again, since every delivery and every state is written. Those that grew above keptText and keptMembers are not.
var writers sync.Pool

const (
	keptText    = 64 << 10
	keptMembers = 1 << 10
)

func newWriter(o Options) *writer {
	w, ok := writers.Get().(*writer)
	if !ok {
		w = &writer{members: make([]member, 0, 64)}
	}
	w.dropNull = o.DropNull
	return w
}

func (w *writer) release() {
	if cap(w.dst) > keptText || cap(w.members) > keptMembers {
		return
	}
	clear(w.members[:cap(w.members)]) // the keys are a document's memory
	w.members = w.members[:0]
	writers.Put(w)
}

// writer appends canonical text. members is a stack: each open object has its members on top of those around it.
type writer struct {
	dst      []byte
	dropNull bool
	members  []member
}

func (w *writer) value(v *Value, without []string) {
	switch v.Kind() {
	case Missing:
		w.dst = append(w.dst, "null"...)
	case Number:
		w.dst = v.appendNumber(w.dst)
	case String:
		w.text(v)
	case Array:
		w.array(v, without)
	case Object:
		w.object(v, without)
	default:
		w.dst = append(w.dst, v.Raw()...)
	}
}

// text copies a string without escapes as it is written: what is left is what needs none.
func (w *writer) text(v *Value) {
	if v.marks&escaped == 0 {
		w.dst = append(w.dst, v.Raw()...)
		return
	}
	w.dst = appendQuoted(w.dst, v.key())
}

func (w *writer) array(v *Value, without []string) {
	nodes := v.doc.nodes
	w.dst = append(w.dst, '[')
	for i := v.self + 1; i < v.next; i = nodes[i].next {
		if i > v.self+1 {
			w.dst = append(w.dst, ',')
		}
		w.value(&nodes[i], without)
	}
	w.dst = append(w.dst, ']')
}

func (w *writer) object(v *Value, without []string) {
	nodes, base := v.doc.nodes, len(w.members)
	w.members = v.appendMembers(w.members)
	end := len(w.members)
	w.dst = append(w.dst, '{')
	for i := base; i < end; i++ {
		m := w.members[i]
		value := &nodes[m.value]
		rest, out := descend(without, m.key)
		if out || w.dropNull && value.kind == Null {
			continue
		}
		w.key(&nodes[m.value-1])
		w.value(value, rest)
	}
	w.dst = append(w.dst, '}')
	w.members = w.members[:base]
}

// key begins a member. No value ends with what an object begins with.
func (w *writer) key(key *Value) {
	if w.dst[len(w.dst)-1] != '{' {
		w.dst = append(w.dst, ',')
	}
	w.text(key)
	w.dst = append(w.dst, ':')
}

// descend is what is left of dotted paths below key; out: one of them ends at it.
func descend(paths []string, key []byte) (rest []string, out bool) {
	for _, path := range paths {
		below, ok := strings.CutPrefix(path, string(key))
		switch {
		case !ok:
		case below == "":
			return nil, true
		case below[0] == '.':
			rest = append(rest, below[1:])
		}
	}
	return rest, false
}
