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

// RunSteps executes n steps.
func (f *Fake) RunSteps(n int) {
	for range n {
		f.Step()
	}
}

// Step moves the clock and makes one change.
func (f *Fake) Step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(1+f.chooser.IntN(int(f.options.Gap.Microseconds()))) * time.Microsecond)
	if o := f.last; o != nil && !o.isDeleted() && f.chance(f.options.Burst) {
		f.changeRandomly(o)
		return
	}
	a := f.accounts[f.chooser.IntN(len(f.accounts))]
	room := len(a.changing) < max(1, f.options.Objects/len(f.accounts))
	if len(a.changing) == 0 || f.chance(createPercent[room]) {
		if !room {
			a.changing = slices.Delete(a.changing, 0, 1) // the oldest object does not change any more
		}
		f.last = f.create(a, f.anyKind(), nil)
		return
	}
	f.changeRandomly(a.changing[f.chooser.IntN(len(a.changing))])
}

// createPercent is the percentage of steps that create an object: for an account that has room for
// more changing objects, and for one that has not.
var createPercent = map[bool]int{true: 50, false: 15}

func (f *Fake) anyKind() *kind {
	if some := f.options.ObjectTypes; len(some) > 0 {
		return kindNamed(some[f.chooser.IntN(len(some))])
	}
	n := len(kinds)
	if !f.options.IDOnlyEvents {
		n-- // the last kind is the id-only one
	}
	return kinds[f.chooser.IntN(n)]
}

// Create creates an object of a type ("customer") now. The fields (dotted paths) override the
// initial body. It returns the id.
func (f *Fake) Create(account, objectType string, fields map[string]any) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(f.account(account), kindNamed(objectType), fields).id
}

func (f *Fake) create(a *account, k *kind, fields map[string]any) *object {
	now := f.now()
	o := &object{kind: k, id: f.newID(a, k), created: now / second}
	m := f.changeContext(a, o)
	body := k.newBody(m)
	body["id"] = o.id
	if !k.undated {
		body["created"] = o.created
	}
	if !k.modeless {
		body["livemode"] = f.options.LiveMode
	}
	if k.idOnly {
		body["created"] = v2Time(now)
	}
	set(body, fields)
	o.revisions = []revision{{at: now, body: text(body)}}
	a.add(o)
	a.changing = append(a.changing, o)
	after := o.tree()
	status, _ := after["status"].(string)
	f.addEvent(o, strings.ReplaceAll(k.createEvent, "{status}", status), nil, after)
	return o
}

// newID returns the id of a new object. Stripe chooses most ids. An id that a user chooses may be
// the id of a deleted object.
func (f *Fake) newID(a *account, k *kind) string {
	if k == &accounts {
		return cmp.Or(a.id, OwnAccount)
	}
	if !k.chosenIDs {
		f.idCounts[k.prefix]++
		return fmt.Sprintf("%s_%s%06d", k.prefix, f.options.Name, f.idCounts[k.prefix])
	}
	if f.chance(f.options.ReusedIDs) {
		for _, o := range a.byType[k.plural] {
			if a.objects[o.id].isDeleted() {
				return o.id
			}
		}
	}
	a.idCounts[k.prefix]++
	return fmt.Sprintf("%s-%d", k.prefix, a.idCounts[k.prefix])
}

func (f *Fake) changeContext(a *account, o *object) *changeContext {
	return &changeContext{choose: f.chooser, id: o.id, account: cmp.Or(a.id, OwnAccount), now: f.now() / second,
		liveMode: f.options.LiveMode,
		refTo: func(name string) string {
			var ids []string
			for _, o := range a.changing {
				if o.kind.name == name {
					ids = append(ids, o.id)
				}
			}
			if len(ids) == 0 {
				return kindNamed(name).prefix + "_Fake0"
			}
			return ids[f.chooser.IntN(len(ids))]
		}}
}

// changeRandomly makes one of the possible changes of the object, by weight.
func (f *Fake) changeRandomly(o *object) {
	f.last = o
	t := o.tree()
	var able []change
	for _, c := range o.kind.changes {
		if c.when == nil || c.when(t) {
			able = append(able, slices.Repeat([]change{c}, c.weight)...)
		}
	}
	if len(able) > 0 {
		f.change(o, able[f.chooser.IntN(len(able))])
	}
}

// ApplyEvent makes the change that belongs to an event type ("customer.deleted", "invoice.paid").
func (f *Fake) ApplyEvent(account, id, event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.mustFind(account, id)
	t := o.tree()
	for _, c := range o.kind.changes {
		if slices.Contains(c.events, event) && (c.when == nil || c.when(t)) {
			f.change(o, c)
			return
		}
	}
	panic(fmt.Sprintf("stripefake: no %s can happen to %s as it is", event, id))
}

// Set changes fields of an object (dotted paths; a nil value is null) now and adds its *.updated
// event.
func (f *Fake) Set(account, id string, fields map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.mustFind(account, id)
	i := slices.IndexFunc(o.kind.changes, func(c change) bool { return strings.HasSuffix(c.events[0], ".updated") })
	f.change(o, change{events: o.kind.changes[i].events[:1], do: func(m *changeContext, t tree) {
		set(t, fields)
		if _, own := t["updated"]; own {
			t["updated"] = m.now
		}
	}})
}

// SetHidden makes the API not find an object from now on, as for a key without access, or find it
// again. There is no event, and the object may still change.
func (f *Fake) SetHidden(account, id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.mustFind(account, id); o.isVisible(f.now()) == hidden {
		o.visibilityChanges = append(o.visibilityChanges, f.now())
	}
}

// SetWithoutEvent changes fields of an object without an event.
func (f *Fake) SetWithoutEvent(account, id string, fields map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change(f.mustFind(account, id), change{do: func(_ *changeContext, t tree) { set(t, fields) }})
}

// DeleteWithoutEvent deletes an object without an event, as the deletion of test data does.
func (f *Fake) DeleteWithoutEvent(account, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change(f.mustFind(account, id), change{})
}

func set(t tree, fields map[string]any) {
	for _, path := range slices.Sorted(maps.Keys(fields)) {
		under, key := descend(t, path)
		setValue(under, key, fields[path])
	}
}

// change adds the next revision of the object and its events. A change without effect adds nothing.
func (f *Fake) change(o *object, c change) {
	before, after := o.tree(), o.tree()
	next := revision{at: f.now()}
	if c.do == nil {
		a := o.account
		a.changing = slices.DeleteFunc(a.changing, func(one *object) bool { return one == o })
	} else {
		m := f.changeContext(o.account, o)
		m.keepVersion = f.chance(f.options.VersionUnmoved)
		c.do(m, after)
		next.body = text(after)
		after = parse(next.body)
		if reflect.DeepEqual(before, after) {
			return
		}
	}
	o.revisions = append(o.revisions, next)
	for _, event := range c.events {
		f.addEvent(o, event, before, after)
	}
}

// v2Time formats a time as the v2 API does.
func v2Time(t int64) string { return time.UnixMicro(t).UTC().Format("2006-01-02T15:04:05.000Z") }
