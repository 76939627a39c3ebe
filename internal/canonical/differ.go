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
	d := &differenceVisitor{visit: visit}
	d.values(root, before, after)
}

type differenceVisitor struct {
	visit func(path string, before, after *Value) bool
	done  bool
}

func (d *differenceVisitor) values(path string, before, after *Value) {
	switch kind := before.Kind(); {
	case d.done:
	case kind == Object && after.Kind() == Object:
		d.objects(path, before, after)
	case kind == Array && after.Kind() == Array:
		d.arrays(path, before, after)
	case kind != after.Kind() || !bytes.Equal(before.AppendCanonical(nil, Options{}),
		after.AppendCanonical(nil, Options{})):
		d.done = !d.visit(path, before, after)
	}
}

func (d *differenceVisitor) objects(path string, before, after *Value) {
	a, b := before.appendMembers(nil), after.appendMembers(nil)
	for len(a) > 0 || len(b) > 0 {
		var old, now *Value
		var key []byte
		c := compareNext(a, b)
		if c <= 0 {
			key, old, a = a[0].key, &before.doc.nodes[a[0].value], a[1:]
		}
		if c >= 0 {
			key, now, b = b[0].key, &after.doc.nodes[b[0].value], b[1:]
		}
		d.values(path+step(string(key)), old, now)
	}
}

func (d *differenceVisitor) arrays(path string, before, after *Value) {
	a, b := before.Elements(), after.Elements()
	for i := range max(len(a), len(b)) {
		var old, now *Value
		if i < len(a) {
			old = a[i]
		}
		if i < len(b) {
			now = b[i]
		}
		d.values(path+"["+strconv.Itoa(i)+"]", old, now)
	}
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
