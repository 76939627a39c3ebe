package canonical

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
)

// member is a key, decoded with lone surrogates kept distinct, and the index of its value in the
// document.
type member struct {
	key   []byte
	value uint32
}

// appendMembers appends the members of an object, sorted bytewise by key, with only the last of
// duplicate keys.
func (v *Value) appendMembers(all []member) []member {
	nodes, base, ordered := v.doc.nodes, len(all), true
	for i := v.self + 1; i < v.next; i = nodes[i+1].next {
		key := nodes[i].key()
		ordered = ordered && (len(all) == base || bytes.Compare(all[len(all)-1].key, key) < 0)
		all = append(all, member{key: key, value: i + 1})
	}
	if ordered {
		return all
	}
	added := all[base:]
	slices.SortFunc(added, func(a, b member) int {
		return cmp.Or(bytes.Compare(a.key, b.key), cmp.Compare(a.value, b.value))
	})
	return all[:base+keepLast(added)]
}

// keepLast moves the last of each run of equal keys to the front and returns their number.
func keepLast(sorted []member) int {
	n := 0
	for i, m := range sorted {
		if i+1 < len(sorted) && bytes.Equal(m.key, sorted[i+1].key) {
			continue
		}
		sorted[n] = m
		n++
	}
	return n
}

// key returns the decoded text of a string node. Each lone surrogate becomes three distinct bytes.
func (v *Value) key() []byte {
	if v.marks&escaped == 0 {
		return v.inner()
	}
	inner := v.inner()
	return appendDecoded(make([]byte, 0, len(inner)), inner, false)
}

// Members yields the members of an object, sorted bytewise by key, with only the last of duplicate
// keys. It yields nothing for any other kind. Lone surrogates in keys become U+FFFD, so two keys
// that differ only there look equal.
func (v *Value) Members() iter.Seq2[string, *Value] {
	return func(yield func(string, *Value) bool) {
		if v.Kind() != Object {
			return
		}
		for _, m := range v.appendMembers(nil) {
			if !yield(v.doc.nodes[m.value-1].text(), &v.doc.nodes[m.value]) {
				return
			}
		}
	}
}
