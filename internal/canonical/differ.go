package canonical

import (
	"bytes"
	"strconv"
	"strings"
)

// VisitDifferences calls visit for each path at which two values differ, in the order of an
// object's keys, until visit returns false. path names the value below root: root.lines[0].amount,
// or root["a key"] if a key is not a plain name. A value that is missing on one side is nil.
// Numbers are compared as exact values.
func VisitDifferences(root string, before, after *Value, visit func(path string, before, after *Value) bool) {
	d := &differenceVisitor{path: []byte(root)}
	d.visit = func(before, after *Value) bool { return visit(string(d.path), before, after) }
	d.values(before, after)
}

// VisitDifferingValues calls visit as VisitDifferences does, without the paths.
func VisitDifferingValues(before, after *Value, visit func(before, after *Value) bool) {
	(&differenceVisitor{visit: visit}).values(before, after)
}

// differenceVisitor has the path of the compared values. The path becomes a string only for values
// that differ: a text with one long key would otherwise cost its length for each value below it.
type differenceVisitor struct {
	visit func(before, after *Value) bool
	path  []byte
	done  bool
}

func (d *differenceVisitor) values(before, after *Value) {
	switch kind := before.Kind(); {
	case d.done:
	case kind == Object && after.Kind() == Object:
		d.objects(before, after)
	case kind == Array && after.Kind() == Array:
		d.arrays(before, after)
	case kind != after.Kind() || !bytes.Equal(before.AppendCanonical(nil, Options{}),
		after.AppendCanonical(nil, Options{})):
		d.done = !d.visit(before, after)
	}
}

func (d *differenceVisitor) objects(before, after *Value) {
	a, b, parent := before.appendMembers(nil), after.appendMembers(nil), len(d.path)
	for !d.done && (len(a) > 0 || len(b) > 0) {
		var old, now *Value
		var key []byte
		c := compareNext(a, b)
		if c <= 0 {
			key, old, a = a[0].key, &before.doc.nodes[a[0].value], a[1:]
		}
		if c >= 0 {
			key, now, b = b[0].key, &after.doc.nodes[b[0].value], b[1:]
		}
		d.path = append(d.path[:parent], step(string(key))...)
		d.values(old, now)
	}
	d.path = d.path[:parent]
}

func (d *differenceVisitor) arrays(before, after *Value) {
	a, b, parent := before.Elements(), after.Elements(), len(d.path)
	for i := range max(len(a), len(b)) {
		if d.done {
			break
		}
		var old, now *Value
		if i < len(a) {
			old = a[i]
		}
		if i < len(b) {
			now = b[i]
		}
		d.path = append(strconv.AppendInt(append(d.path[:parent], '['), int64(i), 10), ']')
		d.values(old, now)
	}
	d.path = d.path[:parent]
}

// step returns the path step from an object to one of its members.
func step(key string) string {
	for _, c := range []byte(key) {
		if c != '_' && c != '-' && (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') {
			return `[` + string(AppendText(nil, strings.ToValidUTF8(key, "\ufffd"))) + `]`
		}
	}
	if key == "" {
		return `[""]`
	}
	return "." + key
}
