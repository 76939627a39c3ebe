package stripefake

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
)

// AddObjects adds n objects of a type that existed before the first step. One was created each
// second, the last one just before now, and there are no events for them. Their bodies are
// generated on request, so a million of them use little memory. The steps do not change them. Call
// it before any other object of the type is created.
func (f *Fake) AddObjects(account, objectType string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, k := f.account(account), kindNamed(objectType)
	if len(a.byType[k.plural]) > 0 {
		panic("stripefake: call AddObjects before any other object of the type is created")
	}
	variants := make([]*template, 5)
	for i := range variants {
		variants[i] = f.template(k, uint64(i))
	}
	// one allocation, because a million objects would burden the garbage collector
	objects, revisions := make([]object, n), make([]revision, n)
	for i := range n {
		at := f.now() - int64(n-i)*second
		revisions[i].at = at
		objects[i] = object{
			kind: k, id: fmt.Sprintf("%s_Fill%07d", k.prefix, i+1), created: at / second,
			template: variants[i%len(variants)], revisions: revisions[i : i+1 : i+1],
		}
		a.add(&objects[i])
	}
}

// template is a body without the id and the creation time.
type template struct{ parts [][]byte }

// Placeholders for the id and the creation time.
const (
	placeholderID       = "stand-in for an id"
	placeholderTime     = 987654321987
	placeholderTimeText = "987654321987"
)

func (f *Fake) template(k *kind, seed uint64) *template {
	m := &changeContext{choose: rand.New(rand.NewPCG(seed, 3)), now: placeholderTime,
		refTo: func(name string) string { return kindNamed(name).prefix + "_Fill0000001" }}
	body := k.newBody(m)
	body["id"], body["created"], body["livemode"] = placeholderID, placeholderTime, f.options.LiveMode
	t := &template{}
	rest := text(body)
	for {
		i, n := bytes.Index(rest, []byte(placeholderTimeText)), len(placeholderTimeText)
		if j := bytes.Index(rest, []byte(placeholderID)); j >= 0 && (i < 0 || j < i) {
			i, n = j, len(placeholderID)
		}
		if i < 0 {
			t.parts = append(t.parts, rest)
			return t
		}
		t.parts = append(t.parts, rest[:i], rest[i:i+n])
		rest = rest[i+n:]
	}
}

// body returns the template as the first body of an object.
func (t *template) body(o *object) []byte {
	out := make([]byte, 0, 1024)
	for _, part := range t.parts {
		switch string(part) {
		case placeholderID:
			out = append(out, o.id...)
		case placeholderTimeText:
			out = strconv.AppendInt(out, o.created, 10)
		default:
			out = append(out, part...)
		}
	}
	return out
}
