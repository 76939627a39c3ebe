package canonical

import "bytes"

// AppendOverlay appends the canonical text of changes laid over state. Objects are merged member by
// member at every depth, arrays and scalars are replaced, and a null in changes removes the member.
// Missing changes leave the state unchanged; changes that are not an object replace it.
func AppendOverlay(dst []byte, state, changes *Value, o Options) []byte {
	if changes.Kind() == Missing {
		return state.AppendCanonical(dst, o)
	}
	w := newWriter(o)
	w.dst = dst
	w.overlay(state, changes, o.Without)
	dst, w.dst = w.dst, nil
	w.release()
	return dst
}

func (w *writer) overlay(state, changes *Value, without []string) {
	if changes.Kind() != Object {
		w.value(changes, without)
		return
	}
	base := len(w.members)
	if state.Kind() == Object {
		w.members = state.appendMembers(w.members)
	}
	i, j := base, len(w.members)
	w.members = changes.appendMembers(w.members)
	below, end := j, len(w.members)
	w.dst = append(w.dst, '{')
	for i < below || j < end {
		order := compareNext(w.members[i:below], w.members[j:end])
		var m member
		var under, above, key *Value
		if order <= 0 {
			m = w.members[i]
			key, under = &state.doc.nodes[m.value-1], &state.doc.nodes[m.value]
			i++
		}
		if order >= 0 {
			m = w.members[j]
			key, above = &changes.doc.nodes[m.value-1], &changes.doc.nodes[m.value]
			j++
		}
		rest, out := descend(without, m.key)
		switch {
		case out || above.Kind() == Null || above == nil && w.dropNull && under.kind == Null:
		case above == nil:
			w.key(key)
			w.value(under, rest)
		default:
			w.key(key)
			w.overlay(under, above, rest)
		}
	}
	w.dst = append(w.dst, '}')
	w.members = w.members[:base]
}

// compareNext says which of two sorted lists, not both empty, has the next key: negative means the
// first, positive the second, 0 both.
func compareNext(a, b []member) int {
	switch {
	case len(b) == 0:
		return -1
	case len(a) == 0:
		return 1
	}
	return bytes.Compare(a[0].key, b[0].key)
}
