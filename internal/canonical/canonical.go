package canonical

import (
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
)

// Options say what the canonical text leaves out.
type Options struct {
	// DropNull leaves out null members of objects, at every depth. Null elements of arrays stay.
	DropNull bool
	// Without are dotted paths of members to leave out, from the root through objects and through
	// each element of arrays. A key may contain dots.
	Without []string
}

// AppendCanonical appends the canonical text, which is the same for all equal values: keys sorted
// bytewise, the last of duplicate keys, numbers as in NumberText, strings without needless escapes,
// lone surrogates as \udXXX, no whitespace. A missing value is written as null.
func (v *Value) AppendCanonical(dst []byte, o Options) []byte {
	w := newWriter(o)
	w.dst = dst
	w.value(v, o.Without)
	dst, w.dst = w.dst, nil
	w.release()
	return dst
}

// Sum returns the SHA-256 of the canonical text.
func (v *Value) Sum(o Options) [32]byte {
	w := newWriter(o)
	w.dst = slices.Grow(w.dst[:0], len(v.Raw())+16)
	w.value(v, o.Without)
	sum := sha256.Sum256(w.dst)
	w.release()
	return sum
}

// writers are pooled, because every delivery and every state is written. Writers larger than
// maxPooledText and maxPooledMembers are not reused.
var writers sync.Pool

const (
	maxPooledText    = 64 << 10
	maxPooledMembers = 1 << 10
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
	if cap(w.dst) > maxPooledText || cap(w.members) > maxPooledMembers {
		return
	}
	clear(w.members[:cap(w.members)]) // the keys point into a document's memory
	w.members = w.members[:0]
	writers.Put(w)
}

// writer appends canonical text. members is a stack: the members of each open object are above
// those of the objects around it.
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

// text copies a string without escapes unchanged, because it is canonical.
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

// key writes the key of a member. No value ends with '{', so that byte means the first member.
func (w *writer) key(key *Value) {
	if w.dst[len(w.dst)-1] != '{' {
		w.dst = append(w.dst, ',')
	}
	w.text(key)
	w.dst = append(w.dst, ':')
}

// descend returns the rests of the dotted paths below key. out means that one of the paths ends at
// key.
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
