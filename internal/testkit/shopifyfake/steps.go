package shopifyfake

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Object is the current state of an object.
type Object struct {
	Type, ID string
	// Body is nil if the object is deleted.
	Body []byte
	// Changed is the time of the last change.
	Changed time.Time
}

// SetHidden makes the API not find an object, and lists omit it, or ends that.
func (f *Fake) SetHidden(name, id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[name+" "+id].hidden = hidden
}

// RunSteps executes the given number of steps.
func (f *Fake) RunSteps(steps int) {
	for range steps {
		f.step()
	}
}

func (f *Fake) step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(f.choose.Int64N(f.options.Gap.Microseconds()+1)) * time.Microsecond)
	k := kinds[f.choose.IntN(len(kinds))]
	alive := f.livingObjects(k.name)
	n := f.choose.IntN(100)
	switch {
	case len(alive) == 0, n < 15, n < 40 && len(alive) < f.options.Objects:
		f.create(k, f.chance(f.options.WithoutWebhook))
	case n < 90 || k.neverDeleted:
		f.change(alive[f.choose.IntN(len(alive))], f.chance(f.options.WithoutWebhook))
	default:
		f.remove(alive[f.choose.IntN(len(alive))], false)
	}
}

func (f *Fake) livingObjects(name string) []*object {
	return slices.DeleteFunc(slices.Clone(f.kinds[name]), func(o *object) bool { return !o.isAlive() })
}

// Create creates an object of a type and returns its id.
func (f *Fake) Create(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(kindOf(name), false).id
}

// Change changes an object. With quiet there is no webhook.
func (f *Fake) Change(name, id string, quiet bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change(f.objects[name+" "+id], quiet)
}

// ChangeKeepingVersion changes an object without advancing its version and without a webhook.
func (f *Fake) ChangeKeepingVersion(name, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.objects[name+" "+id]
	o.changes++
	o.history = append(o.history, revision{at: f.now(), updated: o.latestRevision().updated,
		body: o.render(o.latestRevision().updated * second)})
}

// Delete deletes an object. With quiet there is no webhook.
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
		o.parent = f.anyLiving("order")
	case "inventory_level":
		o.item, o.location = f.anyLiving("inventory_item"), f.anyLiving("location")
		o.id = o.item.id + ":" + o.location.id
		if existing := f.objects[k.name+" "+o.id]; existing != nil { // it was connected before
			if !existing.isAlive() {
				f.addRevision(existing, k.create, quiet)
			}
			return existing
		}
	}
	f.objects[k.name+" "+o.id] = o
	f.kinds[k.name] = append(f.kinds[k.name], o)
	f.addRevision(o, k.create, quiet)
	f.changeParent(o, quiet)
	return o
}

// nextID returns an id above 2^53, as most ids of Shopify are.
func (f *Fake) nextID() int64 {
	f.lastID += 1 + f.choose.Int64N(1000)
	return f.lastID
}

// anyLiving returns an existing object of a kind, or creates one.
func (f *Fake) anyLiving(name string) *object {
	if alive := f.livingObjects(name); len(alive) > 0 {
		return alive[f.choose.IntN(len(alive))]
	}
	return f.create(kindOf(name), false)
}

func (f *Fake) change(o *object, quiet bool) {
	o.changes++
	f.addRevision(o, o.kind.change, quiet)
	f.changeParent(o, quiet)
}

// changeParent advances the order of a fulfillment.
func (f *Fake) changeParent(o *object, quiet bool) {
	if o.parent != nil && o.parent.isAlive() {
		f.change(o.parent, quiet)
	}
}

// addRevision adds a revision and plans its webhook.
func (f *Fake) addRevision(o *object, topic string, quiet bool) {
	at := f.now()
	o.history = append(o.history, revision{at: at, updated: at / second})
	o.history[len(o.history)-1].body = o.render(at)
	if !quiet {
		f.planDelivery(o, topic, at)
	}
}

// remove deletes an object and the objects in it.
func (f *Fake) remove(o *object, quiet bool) {
	at := f.now()
	o.history = append(o.history, revision{at: at, updated: at / second})
	if !quiet {
		f.planDelivery(o, o.kind.remove, at)
	}
	for _, level := range f.livingObjects("inventory_level") {
		if level.item == o {
			f.remove(level, quiet)
		}
	}
	for _, in := range append(f.livingObjects("fulfillment"), f.livingObjects("refund")...) {
		if in.parent == o {
			in.history = append(in.history, revision{at: at, updated: at / second}) // without a webhook
		}
	}
}

// CurrentObjects returns the current state of every object, including deleted ones, by type and id.
func (f *Fake) CurrentObjects() []Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Object
	for _, o := range f.objects {
		out = append(out, Object{Type: o.kind.name, ID: o.id, Body: o.latestRevision().body,
			Changed: time.UnixMicro(o.latestRevision().at).UTC()})
	}
	slices.SortFunc(out, func(a, b Object) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID)) })
	return out
}

// orderRetention is the age up to which a key without read_all_orders sees orders.
const orderRetention = 60 * 24 * time.Hour
