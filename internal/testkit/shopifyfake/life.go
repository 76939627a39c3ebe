package shopifyfake

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Object is an object as it is now.
type Object struct {
	Type, ID string
	// Body is nil where it is gone.
	Body []byte
	// Changed is when it changed last.
	Changed time.Time
}

// Hide lets an object look as if it were gone, to whoever asks for it and in lists, until it is shown again.
func (f *Fake) Hide(name, id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[name+" "+id].away = hidden
}

// Live takes so many steps of the shop's life.
func (f *Fake) Live(steps int) {
	for range steps {
		f.step()
	}
}

func (f *Fake) step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(f.choose.Int64N(f.options.Gap.Microseconds()+1)) * time.Microsecond)
	k := kinds[f.choose.IntN(len(kinds))]
	alive := f.living(k.name)
	n := f.choose.IntN(100)
	switch {
	case len(alive) == 0, n < 15, n < 40 && len(alive) < f.options.Objects:
		f.create(k, f.chance(f.options.Quiet))
	case n < 90 || k.kept:
		f.change(alive[f.choose.IntN(len(alive))], f.chance(f.options.Quiet))
	default:
		f.remove(alive[f.choose.IntN(len(alive))], false)
	}
}

func (f *Fake) living(name string) []*object {
	return slices.DeleteFunc(slices.Clone(f.kinds[name]), func(o *object) bool { return !o.alive() })
}

// Create makes an object of a type and returns its id.
func (f *Fake) Create(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(kindOf(name), false).id
}

// Change changes an object; quiet: no webhook tells of it.
func (f *Fake) Change(name, id string, quiet bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change(f.objects[name+" "+id], quiet)
}

// Slip changes an object whose version does not move, and no webhook tells of it.
func (f *Fake) Slip(name, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.objects[name+" "+id]
	o.changes++
	o.history = append(o.history, revision{at: f.now(), updated: o.latest().updated, body: o.render(o.latest().updated * second)})
}

// Delete deletes an object; quiet: no webhook tells of it.
func (f *Fake) Delete(name, id string, quiet bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(f.objects[name+" "+id], quiet)
}

func (f *Fake) create(k *kind, quiet bool) *object {
	o := &object{kind: k, number: f.nextID()}
	o.id = fmt.Sprint(o.number)
	switch k.name {
	case "fulfillment", "refund":
		o.parent = f.any("order")
	case "inventory_level":
		o.item, o.location = f.any("inventory_item"), f.any("location")
		o.id = o.item.id + ":" + o.location.id
		if old := f.objects[k.name+" "+o.id]; old != nil { // connected once already
			if !old.alive() {
				f.write(old, k.create, quiet)
			}
			return old
		}
	}
	f.objects[k.name+" "+o.id] = o
	f.kinds[k.name] = append(f.kinds[k.name], o)
	f.write(o, k.create, quiet)
	f.touch(o, quiet)
	return o
}

// nextID is above 2^53, as most of Shopify's are.
func (f *Fake) nextID() int64 {
	f.last += 1 + f.choose.Int64N(1000)
	return f.last
}

// any is a living object of a kind, made where there is none.
func (f *Fake) any(name string) *object {
	if alive := f.living(name); len(alive) > 0 {
		return alive[f.choose.IntN(len(alive))]
	}
	return f.create(kindOf(name), false)
}

func (f *Fake) change(o *object, quiet bool) {
	o.changes++
	f.write(o, o.kind.change, quiet)
	f.touch(o, quiet)
}

// touch moves the order of a fulfillment on.
func (f *Fake) touch(o *object, quiet bool) {
	if o.parent != nil && o.parent.alive() {
		f.change(o.parent, quiet)
	}
}

// write adds a revision, and owes its webhook.
func (f *Fake) write(o *object, topic string, quiet bool) {
	at := f.now()
	o.history = append(o.history, revision{at: at, updated: at / second})
	o.history[len(o.history)-1].body = o.render(at)
	if !quiet {
		f.owe(o, topic, at)
	}
}

// remove takes an object away, and with it what lies in it.
func (f *Fake) remove(o *object, quiet bool) {
	at := f.now()
	o.history = append(o.history, revision{at: at, updated: at / second})
	if !quiet {
		f.owe(o, o.kind.remove, at)
	}
	for _, level := range f.living("inventory_level") {
		if level.item == o {
			f.remove(level, quiet)
		}
	}
	for _, in := range append(f.living("fulfillment"), f.living("refund")...) {
		if in.parent == o {
			in.history = append(in.history, revision{at: at, updated: at / second}) // nobody is told
		}
	}
}

// Truth is every object that ever was, as it is now, by type and id.
func (f *Fake) Truth() []Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Object
	for _, o := range f.objects {
		out = append(out, Object{Type: o.kind.name, ID: o.id, Body: o.latest().body, Changed: time.UnixMicro(o.latest().at).UTC()})
	}
	slices.SortFunc(out, func(a, b Object) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID)) })
	return out
}

// old is how far back a key without read_all_orders sees orders.
const old = 60 * 24 * time.Hour
