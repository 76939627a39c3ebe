package stripefake

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// tree is an object as encoding/json has it.
type tree = map[string]any

// account is what belongs to one account. Its lists are in the order of creation, oldest first.
type account struct {
	id      string // "" for the own one
	objects map[string]*object
	kinds   map[string][]*object // by plural
	alive   []*object            // go on changing
	events  []*event
	named   map[string]*event
	made    map[string]int // chosen ids, by prefix
}

// object is one object from its creation on.
type object struct {
	account   *account
	kind      *kind
	id        string
	place     int   // in its list
	created   int64 // seconds
	revisions []revision
	// before had the same id and was deleted.
	before *object
	// hidden are the times at which the object was hidden, and found again, one after the other.
	hidden []int64
	// filling writes the first body of an object that was made in bulk, nil for others.
	filling *template
}

// revision is an object from one change to the next; its body is nil once it is deleted.
type revision struct {
	at   int64
	body []byte
}

// at is what an object was at a time; false: it was not there yet.
func (o *object) at(t int64) (revision, bool) {
	for i, r := range slices.Backward(o.revisions) {
		if r.at <= t {
			r.body = o.bodyOf(i)
			return r, true
		}
	}
	if o.before != nil {
		return o.before.at(t)
	}
	return revision{}, false
}

// bodyOf is the body of a revision.
func (o *object) bodyOf(i int) []byte {
	if i == 0 && o.filling != nil {
		return o.filling.body(o)
	}
	return o.revisions[i].body
}

// found says whether the API finds an object at a time that is there.
func (o *object) found(t int64) bool {
	n := 0
	for n < len(o.hidden) && o.hidden[n] <= t {
		n++
	}
	return n%2 == 0
}

func (o *object) body() []byte {
	r, _ := o.at(o.revisions[len(o.revisions)-1].at)
	return r.body
}

func (o *object) gone() bool { return o.body() == nil }

func (o *object) tree() tree { return parse(o.body()) }

// add puts a new object into its account's lists.
func (a *account) add(o *object) {
	o.account, o.before = a, a.objects[o.id]
	list := a.kinds[o.kind.plural]
	o.place = len(list)
	a.kinds[o.kind.plural] = append(list, o)
	a.objects[o.id] = o
}

func (f *Fake) account(id string) *account {
	i := slices.IndexFunc(f.accounts, func(a *account) bool { return a.id == id || id == Own && a.id == "" })
	if i < 0 {
		return nil
	}
	return f.accounts[i]
}

// must is the object of an id: the test that names another is wrong.
func (f *Fake) must(account, id string) *object {
	if a := f.account(account); a != nil && a.objects[id] != nil {
		return a.objects[id]
	}
	panic(fmt.Sprintf("stripefake: there is no %s in account %q", id, account))
}

// Object is the truth about an object at some moment.
type Object struct {
	Account, Type, ID string
	// Body is the object as the API answers it, with what changes without an event (an invoice's webhooks_delivered_at), but for its links, which each answer renders anew; nil: deleted.
	Body []byte
	// Changed is when it became so.
	Changed time.Time
	// Changes is how often it changed so far, its creation included.
	Changes int
}

// Deleted tells whether the object is gone.
func (o Object) Deleted() bool { return o.Body == nil }

// Truth is every object that ever was, one per account and id, as it is now.
func (f *Fake) Truth() []Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Object
	for _, a := range f.accounts {
		for _, k := range allKinds() {
			for _, o := range a.kinds[k.plural] {
				if a.objects[o.id] == o { // not one whose id was given again
					all = append(all, o.truth(f.now()))
				}
			}
		}
	}
	return all
}

// At is what an object was at a moment; false: it was not there yet.
func (f *Fake) At(account, id string, at time.Time) (Object, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.must(account, id)
	if _, ok := o.at(at.UnixMicro()); !ok {
		return Object{}, false
	}
	return o.truth(at.UnixMicro()), true
}

// History is all that an object ever was, oldest first, its lives before it was deleted and made again included.
func (f *Fake) History(account, id string) []Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Object
	for o := f.must(account, id); o != nil; o = o.before {
		for i, r := range slices.Backward(o.revisions) {
			all = append(all, Object{Account: o.account.id, Type: o.kind.name, ID: o.id, Body: o.bodyOf(i), Changed: time.UnixMicro(r.at).UTC()})
		}
	}
	slices.Reverse(all)
	for i := range all {
		all[i].Changes = i + 1
	}
	return all
}

func (o *object) truth(t int64) Object {
	r, _ := o.at(t)
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
		panic(err) // the trees are made of strings, numbers, lists and maps only
	}
	return b
}
