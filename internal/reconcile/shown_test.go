package reconcile_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// keyed is a shop one process of which has shown its key for a look that found nothing, and others of whose invoices are gone as well.
type keyed struct {
	*shop
	r *reconcile.Runner
	// gone are invoices that have gone, and here is one that is there.
	gone []string
	here string
	// stop ends the process.
	stop func()
	// answers is what the API's address leads to.
	answers atomic.Pointer[http.Handler]
}

// newKeyed makes the first of these looks, which costs three calls: itself, an event, and the control.
func newKeyed(t *testing.T) *keyed {
	t.Helper()
	b := &keyed{shop: newShop(t, "", stripefake.Options{Seed: 51})}
	for range 5 {
		b.gone = append(b.gone, b.fake.Create("", "invoice", nil))
	}
	b.here = b.fake.Create("", "invoice", nil)
	b.deliver(t, every)
	b.fake.Advance(2 * time.Minute)
	for _, id := range b.gone {
		b.fake.Vanish("", id)
	}
	var ours http.Handler = b.fake
	b.answers.Store(&ours)
	b.r = b.runner(t, b.api(serve(t, func(w http.ResponseWriter, r *http.Request) { (*b.answers.Load()).ServeHTTP(w, r) })), asIs)
	b.stop = b.carry(t, b.r)
	b.finds(t, b.gone[0], 3)
	return b
}

// looks has the process look at an invoice, and says what came of it and how many calls were made.
func (b *keyed) looks(t *testing.T, id string) (r *runs.Run, calls int) {
	t.Helper()
	before := len(b.fake.Requests())
	r = b.ask(t, reconcile.Order{What: reconcile.Object, Type: "invoice", ID: id})
	return r, len(b.fake.Requests()) - before
}

// finds has it look at one that is believed to be gone, for so many calls.
func (b *keyed) finds(t *testing.T, id string, calls int) {
	t.Helper()
	r, n := b.looks(t, id)
	if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); r.Status != runs.Done || n != calls || !slices.Contains(dead, id) {
		t.Errorf("%s for %d calls, want %d; deleted are %q: %s", r.Status, n, calls, dead, r.Detail)
	}
}

// fails has it look at the one that is there, which a key of another account must not show to be gone.
func (b *keyed) fails(t *testing.T, why string) {
	t.Helper()
	r, _ := b.looks(t, b.here)
	if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted AND object_id = $1`, b.here); r.Status != runs.Failed || !strings.Contains(r.Detail, why) || len(dead) > 0 {
		t.Errorf("%s, deleted are %q: %s", r.Status, dead, r.Detail)
	}
}

const another = "its key is of another account"

// What has shown the key is not asked for again for a while; what the API says of the account is, each time.
func TestAShownKeyIsRemembered(t *testing.T) {
	t.Parallel()
	b := newKeyed(t)
	b.finds(t, b.gone[1], 2)
	b.stop()
	b.r.Settings.Shown = 0 // for what is shown from now on
	b.carry(t, b.r)
	b.finds(t, b.gone[2], 2)
	b.r.Sources.Forget()
	b.finds(t, b.gone[3], 3)
	b.finds(t, b.gone[4], 3)
}

// calling is a Caller that does something before each call.
type calling struct {
	reconcile.Caller
	before func(provider.Call)
}

func (c calling) Do(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
	c.before(call)
	return c.Caller.Do(ctx, call)
}

// What puts a key in doubt while it is being shown has it shown again: nobody knows which came first.
func TestADoubtWhileAKeyIsShown(t *testing.T) {
	t.Parallel()
	b := newKeyed(t)
	doubted := false
	for _, s := range b.runner(t, b.api(b.fake.URL), func(c reconcile.Caller) reconcile.Caller {
		return calling{c, func(call provider.Call) {
			if strings.HasPrefix(call.Path, "/v1/events/") && !doubted {
				doubted = true
				b.r.Sources.Forget()
			}
		}}
	}).Sources.All() {
		b.r.Sources.Replace(s)
	}
	b.finds(t, b.gone[1], 3)
	b.finds(t, b.gone[2], 3)
	b.finds(t, b.gone[3], 2)
}

// A key that was refused, one of another configuration, and one whose account lists no event any
// more have to be shown again, whatever was known of them before.
func TestAKeyInDoubtIsShownAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		doubt, right func(t *testing.T, b *keyed)
		why          string
	}{
		"refused": {
			func(_ *testing.T, b *keyed) { b.fake.SetFaults(stripefake.Faults{Revoked: true}) },
			func(t *testing.T, b *keyed) {
				b.fake.SetFaults(stripefake.Faults{})
				b.DB.Exec(t, `UPDATE budgets SET blocked_until = now()`) // nobody calls for a while after that
			}, "api.key",
		},
		"of another configuration": {
			func(t *testing.T, b *keyed) { b.use(t, serve(t, b.elsewhere(t, "invoice", 10).ServeHTTP)) },
			func(t *testing.T, b *keyed) { b.use(t, b.fake.URL) }, another,
		},
		"of an account that has become empty": {
			func(_ *testing.T, b *keyed) { b.fake.SetFaults(stripefake.Faults{Blind: true}) },
			func(_ *testing.T, b *keyed) { b.fake.SetFaults(stripefake.Faults{}) }, another,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newKeyed(t)
			c.doubt(t, b)
			b.fails(t, c.why)
			c.right(t, b)
			b.finds(t, b.gone[1], 3)
			b.finds(t, b.gone[2], 2)
		})
	}
}

// use is another configuration, whose API is elsewhere.
func (b *keyed) use(t *testing.T, url string) {
	for _, s := range b.runner(t, b.api(url), asIs).Sources.All() {
		b.r.Sources.Replace(s)
	}
}

// An account whose newest event is not in the log may be another one: its key has to be shown again.
func TestAnUnknownEventHasTheKeyShownAgain(t *testing.T) {
	t.Parallel()
	b := newKeyed(t)
	b.unheard(t)
	b.finds(t, b.gone[1], 3) // itself, the control, and an event that the API knows
	b.r.Sources.Forget()
	b.finds(t, b.gone[2], 3)
	b.fake.Create("", "invoice", nil)
	b.deliver(t, every)
	b.fake.Advance(time.Minute)
	b.finds(t, b.gone[3], 2)
	theirs := b.elsewhere(t, "invoice", 10)
	b.answers.Store(&theirs)
	b.fails(t, another)
}

// The object that has shown a key does not show it any more once it is missing itself.
func TestAnObjectThatHasShownTheKeyMayBeMissing(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 234, alive(4))
	gone := map[string]bool{}
	var shows []string // the objects that were found
	r := b.silently(t, 0, func(id string) bool { return !gone[id] })
	answers := b.api.fails
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if id, ok := strings.CutPrefix(c.Path, "/things/"); ok && !gone[id] {
			shows = append(shows, id)
		}
		return answers(c)
	}
	b.carry(t, r)
	look := func(id string) (found []string) {
		t.Helper()
		b.api.mu.Lock()
		gone[id], shows = true, nil
		b.api.mu.Unlock()
		isDone(t, b.ended(t, b.order(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: id})))
		b.api.mu.Lock()
		defer b.api.mu.Unlock()
		return shows
	}
	first := look("obj_4")
	if len(first) != 1 {
		t.Fatalf("%q have shown the key", first)
	}
	second := look(first[0])
	if len(second) != 1 || second[0] == first[0] {
		t.Fatalf("%q have shown the key that %s had shown, which is missing", second, first)
	}
	rest := slices.DeleteFunc([]string{"obj_1", "obj_2", "obj_3"}, func(id string) bool { return id == first[0] || id == second[0] })
	if found := look(rest[0]); len(found) != 0 {
		t.Errorf("%q have shown a key that was shown already", found)
	}
}

// On an account that lists no event, the object that has shown the key does so for the next look as well: nothing that the API answers speaks against it.
func TestAQuietAccountsKeyIsRemembered(t *testing.T) {
	t.Parallel()
	b, first := quietShop(t, 5)
	k := &keyed{shop: b}
	b.carry(t, b.runner(t, b.api(b.fake.URL), asIs))
	k.finds(t, first, 3) // itself, the list of events, an object that is there
	asked := map[string]bool{}
	for _, r := range b.fake.Requests() {
		asked[r.Path] = true
	}
	for _, o := range b.fake.Truth() {
		if o.Type == "invoice" && o.Body != nil && !asked["/v1/invoices/"+o.ID] {
			b.fake.Vanish("", o.ID)
			k.finds(t, o.ID, 2)
			return
		}
	}
	t.Error("all invoices were asked for")
}
