package canonical

import "bytes"

// Overlay is changes laid over state: objects member by member at every depth, arrays and scalars whole, and a null in
// changes makes the member absent. Missing changes leave the state as it is; changes that are no object replace it.
// Neither input is changed.
func Overlay(state, changes *Value) *Value {
	if changes.Kind() == Missing {
		return state
	}
	text := make([]byte, 0, len(state.Raw())+len(changes.Raw()))
	// The text is made of values that were parsed, no deeper than either, so it is always JSON.
	v, _ := Parse(appendOverlay(text, state, changes))
	return v
}

func appendOverlay(dst []byte, state, changes *Value) []byte {
	if changes.Kind() != Object {
		return append(dst, changes.Raw()...)
	}
	var below []member
	if state.Kind() == Object {
		below = state.appendMembers(nil)
	}
	o := overlay{dst: append(dst, '{'), state: state, changes: changes}
	for _, above := range changes.appendMembers(nil) {
		for len(below) > 0 && bytes.Compare(below[0].key, above.key) < 0 {
			o.keep(below[0])
			below = below[1:]
		}
		var under *Value
		if len(below) > 0 && bytes.Equal(below[0].key, above.key) {
			under = &state.doc.nodes[below[0].value]
			below = below[1:]
		}
		o.lay(above, under)
	}
	for _, m := range below {
		o.keep(m)
	}
	return append(o.dst, '}')
}

// overlay writes the members of one object that both inputs have a say in.
type overlay struct {
	dst            []byte
	state, changes *Value
	more           bool
}

func (o *overlay) key(key *Value) {
	if o.more {
		o.dst = append(o.dst, ',')
	}
	o.more = true
	o.dst = append(append(o.dst, key.Raw()...), ':')
}

// keep writes a member that the changes do not mention.
func (o *overlay) keep(m member) {
	o.key(&o.state.doc.nodes[m.value-1])
	o.dst = append(o.dst, o.state.doc.nodes[m.value].Raw()...)
}

// lay writes a member of the changes over what is under it, nil if nothing.
func (o *overlay) lay(m member, under *Value) {
	value := &o.changes.doc.nodes[m.value]
	if value.kind == Null {
		return
	}
	o.key(&o.changes.doc.nodes[m.value-1])
	o.dst = appendOverlay(o.dst, under, value)
}
