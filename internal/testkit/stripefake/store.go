package stripefake

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// tree is an object as encoding/json parses it.
type tree = map[string]any

// account holds the data of one account. Its lists are in the order of creation, oldest first.
type account struct {
	id         string // "" for the account itself
	objects    map[string]*object
	byType     map[string][]*object // by plural
	changing   []*object            // objects that still change
	events     []*event
	eventsByID map[string]*event
	idCounts   map[string]int // number of chosen ids, by prefix
}

// object is one object from its creation on.
type object struct {
	account   *account
	kind      *kind
	id        string
	position  int   // in its list
	created   int64 // seconds
	revisions []revision
	// before is the deleted object that had the same id.
	before *object
	// visibilityChanges are the times at which the object was alternately hidden and shown.
	visibilityChanges []int64
	// template generates the first body of an object of AddObjects. It is nil for other objects.
	template *template
}

// revision is an object from one change to the next. Its body is nil after the delete.
type revision struct {
	at   int64
	body []byte
}

// revisionAt returns the revision at a time, or false before the creation.
func (o *object) revisionAt(t int64) (revision, bool) {
	for i, r := range slices.Backward(o.revisions) {
		if r.at <= t {
			r.body = o.bodyOf(i)
			return r, true
		}
	}
	if o.before != nil {
		return o.before.revisionAt(t)
	}
	return revision{}, false
}

// bodyOf returns the body of a revision.
func (o *object) bodyOf(i int) []byte {
	if i == 0 && o.template != nil {
		return o.template.body(o)
	}
	return o.revisions[i].body
}

// isVisible reports whether the API finds an existing object at a time.
func (o *object) isVisible(t int64) bool {
	n := 0
	for n < len(o.visibilityChanges) && o.visibilityChanges[n] <= t {
		n++
	}
	return n%2 == 0
}

func (o *object) body() []byte {
	r, _ := o.revisionAt(o.revisions[len(o.revisions)-1].at)
	return r.body
}

func (o *object) isDeleted() bool { return o.body() == nil }

func (o *object) tree() tree { return parse(o.body()) }

// add adds a new object to the lists of its account.
func (a *account) add(o *object) {
	o.account, o.before = a, a.objects[o.id]
	list := a.byType[o.kind.plural]
	o.position = len(list)
	a.byType[o.kind.plural] = append(list, o)
	a.objects[o.id] = o
}

func (f *Fake) account(id string) *account {
	i := slices.IndexFunc(f.accounts, func(a *account) bool { return a.id == id || id == OwnAccount && a.id == "" })
	if i < 0 {
		return nil
	}
	return f.accounts[i]
}

// mustFind returns the object of an id. It panics for an unknown id, which is a mistake of the
// test.
func (f *Fake) mustFind(account, id string) *object {
	if a := f.account(account); a != nil && a.objects[id] != nil {
		return a.objects[id]
	}
	panic(fmt.Sprintf("stripefake: there is no %s in account %q", id, account))
}

// Object is the true state of an object at a time.
type Object struct {
	Account, Type, ID string
	// Body is the object as the API returns it, including properties that change without an event
	// (webhooks_delivered_at of an invoice). Links are excluded, because each response has new
	// ones. Nil means deleted.
	Body []byte
	// Changed is the time of the change to this state.
	Changed time.Time
	// Changes is the number of changes so far, including the creation.
	Changes int
}

// Deleted reports whether the object is deleted.
func (o Object) Deleted() bool { return o.Body == nil }

// CurrentObjects returns the current state of every object, including deleted ones, one for each
// account and id.
func (f *Fake) CurrentObjects() []Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Object
	for _, a := range f.accounts {
		for _, k := range allKinds() {
			for _, o := range a.byType[k.plural] {
				if a.objects[o.id] == o { // skip an object whose id was used again
					all = append(all, o.snapshotAt(f.now()))
				}
			}
		}
	}
	return all
}

// ObjectAt returns the state of an object at a time, or false before the creation.
func (f *Fake) ObjectAt(account, id string, at time.Time) (Object, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.mustFind(account, id)
	if _, ok := o.revisionAt(at.UnixMicro()); !ok {
		return Object{}, false
	}
	return o.snapshotAt(at.UnixMicro()), true
}

// History returns all states of an object, oldest first, including those of earlier objects with
// the same id.
func (f *Fake) History(account, id string) []Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Object
	for o := f.mustFind(account, id); o != nil; o = o.before {
		for i, r := range slices.Backward(o.revisions) {
			all = append(all, Object{Account: o.account.id, Type: o.kind.name, ID: o.id, Body: o.bodyOf(i),
				Changed: time.UnixMicro(r.at).UTC()})
		}
	}
	slices.Reverse(all)
	for i := range all {
		all[i].Changes = i + 1
	}
	return all
}

func (o *object) snapshotAt(t int64) Object {
	r, _ := o.revisionAt(t)
	out := Object{Account: o.account.id, Type: o.kind.name, ID: o.id, Body: r.body, Changed: time.UnixMicro(r.at).UTC()}
	for ; o != nil; o = o.before {
		for _, r := range o.revisions {
			if r.at <= t {
				out.Changes++
			}
		}
	}
	return out
}

func parse(body []byte) tree {
	var t tree
	if err := json.Unmarshal(body, &t); err != nil {
		panic(err) // text wrote it
	}
	return t
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the trees consist of strings, numbers, lists and maps only
	}
	return b
}
