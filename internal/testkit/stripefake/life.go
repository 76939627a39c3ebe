package stripefake

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Live takes n steps.
func (f *Fake) Live(n int) {
	for range n {
		f.Step()
	}
}

// Step lets some time pass and one thing happen.
func (f *Fake) Step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(1+f.choose.IntN(int(f.options.Gap.Microseconds()))) * time.Microsecond)
	if o := f.last; o != nil && !o.gone() && f.chance(f.options.Burst) {
		f.happen(o)
		return
	}
	a := f.accounts[f.choose.IntN(len(f.accounts))]
	room := len(a.alive) < max(1, f.options.Objects/len(f.accounts))
	if len(a.alive) == 0 || f.chance(births[room]) {
		if !room {
			a.alive = slices.Delete(a.alive, 0, 1) // the oldest stays as it is
		}
		f.last = f.create(a, f.anyKind(), nil)
		return
	}
	f.happen(a.alive[f.choose.IntN(len(a.alive))])
}

// births are the percentage of steps that make an object, while there is room for more that change and when there is not.
var births = map[bool]int{true: 50, false: 15}

func (f *Fake) anyKind() *kind {
	if some := f.options.Kinds; len(some) > 0 {
		return kindNamed(some[f.choose.IntN(len(some))])
	}
	n := len(kinds)
	if !f.options.Thin {
		n-- // thin ones are the last
	}
	return kinds[f.choose.IntN(n)]
}

// Create makes an object of a type ("customer") at the present time, with some fields (dotted paths) as told, and returns its id.
func (f *Fake) Create(account, objectType string, fields map[string]any) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(f.account(account), kindNamed(objectType), fields).id
}

func (f *Fake) create(a *account, k *kind, fields map[string]any) *object {
	now := f.now()
	o := &object{kind: k, id: f.name(a, k), created: now / second}
	m := f.maker(a, o)
	body := k.birth(m)
	body["id"] = o.id
	if !k.undated {
		body["created"] = o.created
	}
	if !k.modeless {
		body["livemode"] = f.options.Live
	}
	if k.thin {
		body["created"] = thinTime(now)
	}
	set(body, fields)
	o.revisions = []revision{{at: now, body: text(body)}}
	a.add(o)
	a.alive = append(a.alive, o)
	after := o.tree()
	status, _ := after["status"].(string)
	f.tell(o, strings.ReplaceAll(k.opens, "{status}", status), nil, after)
	return o
}

// name is the id of a new object. Stripe makes most ids; those that users choose may be ones that were deleted.
func (f *Fake) name(a *account, k *kind) string {
	if k == &accounts {
		return cmp.Or(a.id, Own)
	}
	if !k.chosen {
		f.made[k.prefix]++
		return fmt.Sprintf("%s_%s%06d", k.prefix, f.options.Name, f.made[k.prefix])
	}
	if f.chance(f.options.Reborn) {
		for _, o := range a.kinds[k.plural] {
			if a.objects[o.id].gone() {
				return o.id
			}
		}
	}
	a.made[k.prefix]++
	return fmt.Sprintf("%s-%d", k.prefix, a.made[k.prefix])
}

func (f *Fake) maker(a *account, o *object) *maker {
	return &maker{choose: f.choose, id: o.id, account: cmp.Or(a.id, Own), now: f.now() / second, live: f.options.Live, ref: func(name string) string {
		var ids []string
		for _, o := range a.alive {
			if o.kind.name == name {
				ids = append(ids, o.id)
			}
		}
		if len(ids) == 0 {
			return kindNamed(name).prefix + "_Fake0"
		}
		return ids[f.choose.IntN(len(ids))]
	}}
}

// happen lets one of the things happen that can happen to the object, by their weights.
func (f *Fake) happen(o *object) {
	f.last = o
	t := o.tree()
	var able []change
	for _, c := range o.kind.changes {
		if c.when == nil || c.when(t) {
			able = append(able, slices.Repeat([]change{c}, c.weight)...)
		}
	}
	if len(able) > 0 {
		f.change(o, able[f.choose.IntN(len(able))])
	}
}

// Do lets the thing happen to an object that an event tells of ("customer.deleted", "invoice.paid").
func (f *Fake) Do(account, id, event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.must(account, id)
	t := o.tree()
	for _, c := range o.kind.changes {
		if slices.Contains(c.events, event) && (c.when == nil || c.when(t)) {
			f.change(o, c)
			return
		}
	}
	panic(fmt.Sprintf("stripefake: no %s can happen to %s as it is", event, id))
}

// Set changes fields of an object (dotted paths; a nil value is null) at the present time, which its *.updated event tells.
func (f *Fake) Set(account, id string, fields map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.must(account, id)
	i := slices.IndexFunc(o.kind.changes, func(c change) bool { return strings.HasSuffix(c.events[0], ".updated") })
	f.change(o, change{events: o.kind.changes[i].events[:1], do: func(m *maker, t tree) {
		set(t, fields)
		if _, own := t["updated"]; own {
			t["updated"] = m.now
		}
	}})
}

// Hide has the API not find an object from now on, as for a key that may not see it, or find it again. Nothing tells it, and the object lives on.
func (f *Fake) Hide(account, id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.must(account, id); o.found(f.now()) == hidden {
		o.hidden = append(o.hidden, f.now())
	}
}

// SetQuietly changes fields of an object, and no event tells it.
func (f *Fake) SetQuietly(account, id string, fields map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change(f.must(account, id), change{do: func(_ *maker, t tree) { set(t, fields) }})
}

// Vanish deletes an object, and no event tells it, as where the data of test mode are deleted.
func (f *Fake) Vanish(account, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change(f.must(account, id), change{})
}

func set(t tree, fields map[string]any) {
	for _, path := range slices.Sorted(maps.Keys(fields)) {
		under, key := reach(t, path)
		put(under, key, fields[path])
	}
}

// change makes the object's next revision and the events that tell of it. What changes nothing is no change.
func (f *Fake) change(o *object, c change) {
	before, after := o.tree(), o.tree()
	next := revision{at: f.now()}
	if c.do == nil {
		a := o.account
		a.alive = slices.DeleteFunc(a.alive, func(one *object) bool { return one == o })
	} else {
		m := f.maker(o.account, o)
		m.still = f.chance(f.options.Still)
		c.do(m, after)
		next.body = text(after)
		after = parse(next.body)
		if reflect.DeepEqual(before, after) {
			return
		}
	}
	o.revisions = append(o.revisions, next)
	for _, event := range c.events {
		f.tell(o, event, before, after)
	}
}

// thinTime is a time as the second API spells it.
func thinTime(t int64) string { return time.UnixMicro(t).UTC().Format("2006-01-02T15:04:05.000Z") }
