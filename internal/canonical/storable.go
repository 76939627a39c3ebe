package canonical

import "bytes"

// Storable is the value as JSON that PostgreSQL's jsonb accepts. Where nothing needs repair it is the source span itself;
// otherwise (repaired) a new text in which NUL and lone surrogates, in keys too, are U+FFFD, and a number with an exponent
// beyond ±300 or more than 1000 digits is a string of its source text. A missing value is null.
func (v *Value) Storable() (json []byte, repaired bool) {
	switch {
	case v.Kind() == Missing:
		return []byte("null"), false
	case v.marks&unstorable == 0:
		return v.Raw(), false
	}
	return v.appendRepaired(make([]byte, 0, len(v.Raw())+16)), true
}

func (v *Value) appendRepaired(dst []byte) []byte {
	if v.marks&unstorable == 0 {
		return append(dst, v.Raw()...)
	}
	switch v.kind {
	case Number:
		return append(append(append(dst, '"'), v.Raw()...), '"')
	case String:
		text := appendDecoded(nil, v.inner(), true)
		return appendQuoted(dst, bytes.ReplaceAll(text, []byte{0}, []byte("\uFFFD")))
	case Array:
		return v.appendRepairedItems(append(dst, '['), ']')
	}
	return v.appendRepairedItems(append(dst, '{'), '}')
}

// appendRepairedItems writes what a container holds, in source order and with duplicates, of which jsonb keeps the last.
func (v *Value) appendRepairedItems(dst []byte, closing byte) []byte {
	nodes := v.doc.nodes
	for i, odd := v.self+1, false; i < v.next; i, odd = nodes[i].next, !odd {
		switch {
		case i == v.self+1:
		case v.kind == Object && odd:
			dst = append(dst, ':')
		default:
			dst = append(dst, ',')
		}
		dst = nodes[i].appendRepaired(dst)
	}
	return append(dst, closing)
}
