package canonical

import "bytes"

// Storable returns the value as JSON that PostgreSQL's jsonb accepts. If the source is acceptable,
// it returns the value's part of the source. Otherwise (sanitized) it returns a new text: NUL and
// lone surrogates, also in keys, become U+FFFD. A number with an exponent beyond ±300 or more than
// 1000 digits becomes a string of its source text. A missing value is null.
func (v *Value) Storable() (json []byte, sanitized bool) {
	switch {
	case v.Kind() == Missing:
		return []byte("null"), false
	case v.marks&unstorable == 0:
		return v.Raw(), false
	}
	return v.appendSanitized(make([]byte, 0, len(v.Raw())+16)), true
}

func (v *Value) appendSanitized(dst []byte) []byte {
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
		return v.appendSanitizedItems(append(dst, '['), ']')
	}
	return v.appendSanitizedItems(append(dst, '{'), '}')
}

// appendSanitizedItems writes the items of a container in source order with duplicate keys, of
// which jsonb keeps the last.
func (v *Value) appendSanitizedItems(dst []byte, closing byte) []byte {
	nodes := v.doc.nodes
	for i, odd := v.self+1, false; i < v.next; i, odd = nodes[i].next, !odd {
		switch {
		case i == v.self+1:
		case v.kind == Object && odd:
			dst = append(dst, ':')
		default:
			dst = append(dst, ',')
		}
		dst = nodes[i].appendSanitized(dst)
	}
	return append(dst, closing)
}
