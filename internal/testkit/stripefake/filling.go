package stripefake

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
)

// Fill makes n objects of a type that were there before the life began: one a second, the last one just before now, and no event
// tells of them. Their bodies are written when they are asked for, so a million cost little memory, and the life leaves them alone.
// It comes before all other objects of the type.
func (f *Fake) Fill(account, objectType string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, k := f.account(account), kindNamed(objectType)
	if len(a.kinds[k.plural]) > 0 {
		panic("stripefake: Fill comes before all other objects of a type")
	}
	variants := make([]*template, 5)
	for i := range variants {
		variants[i] = f.template(k, uint64(i))
	}
	objects, revisions := make([]object, n), make([]revision, n) // in one piece: a million are a burden on the collector
	for i := range n {
		at := f.now() - int64(n-i)*second
		revisions[i].at = at
		objects[i] = object{
			kind: k, id: fmt.Sprintf("%s_Fill%07d", k.prefix, i+1), created: at / second, filling: variants[i%len(variants)], revisions: revisions[i : i+1 : i+1],
		}
		a.add(&objects[i])
	}
}

// template is a body without the id and the times of birth.
type template struct{ parts [][]byte }

// Stand-ins for the id and the time of birth.
const (
	anyID       = "stand-in for an id"
	anyTime     = 987654321987
	anyTimeText = "987654321987"
)

func (f *Fake) template(k *kind, seed uint64) *template {
	m := &maker{choose: rand.New(rand.NewPCG(seed, 3)), now: anyTime, ref: func(name string) string { return kindNamed(name).prefix + "_Fill0000001" }}
	body := k.birth(m)
	body["id"], body["created"], body["livemode"] = anyID, anyTime, f.options.Live
	t := &template{}
	rest := text(body)
	for {
		i, n := bytes.Index(rest, []byte(anyTimeText)), len(anyTimeText)
		if j := bytes.Index(rest, []byte(anyID)); j >= 0 && (i < 0 || j < i) {
			i, n = j, len(anyID)
		}
		if i < 0 {
			t.parts = append(t.parts, rest)
			return t
		}
		t.parts = append(t.parts, rest[:i], rest[i:i+n])
		rest = rest[i+n:]
	}
}

// body is the template as an object's first body.
func (t *template) body(o *object) []byte {
	out := make([]byte, 0, 1024)
	for _, part := range t.parts {
		switch string(part) {
		case anyID:
			out = append(out, o.id...)
		case anyTimeText:
			out = strconv.AppendInt(out, o.created, 10)
		default:
			out = append(out, part...)
		}
	}
	return out
}
