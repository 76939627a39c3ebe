package canonical

import (
	"bytes"
	"strconv"
	"strings"
)

// Differ calls visit for each place at which two values differ, the places of an object in the order of its keys, until visit returns false. path
// names the place below root as a person would write it: root.lines[0].amount, and root["a key"] where a key is no plain name. A value that is
// missing on one side is nil there. Numbers are compared as exact values.
func Differ(root string, before, after *Value, visit func(path string, before, after *Value) bool) {
	d := &differ{visit: visit}
	d.values(root, before, after)
}

type differ struct {
	visit func(path string, before, after *Value) bool
	done  bool
}

func (d *differ) values(path string, before, after *Value) {
	switch kind := before.Kind(); {
	case d.done:
	case kind == Object && after.Kind() == Object:
		d.objects(path, before, after)
	case kind == Array && after.Kind() == Array:
		d.arrays(path, before, after)
	case kind != after.Kind() || !bytes.Equal(before.AppendCanonical(nil, Options{}), after.AppendCanonical(nil, Options{})):
		d.done = !d.visit(path, before, after)
	}
}

func (d *differ) objects(path string, before, after *Value) {
	a, b := before.appendMembers(nil), after.appendMembers(nil)
	for len(a) > 0 || len(b) > 0 {
		var old, now *Value
		var key []byte
		c := order(a, b)
		if c <= 0 {
			key, old, a = a[0].key, &before.doc.nodes[a[0].value], a[1:]
		}
		if c >= 0 {
			key, now, b = b[0].key, &after.doc.nodes[b[0].value], b[1:]
		}
		d.values(path+step(string(key)), old, now)
	}
}

func (d *differ) arrays(path string, before, after *Value) {
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

// step is the way from an object to one of its members.
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
