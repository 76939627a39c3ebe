package reconcile_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// spent is how runs and hints begin to say that they wait for calls.
const spent = "the calls of thirty days are used: 9 of 10 (api.monthly, the rest is for what a person asks for by its name); it goes on at "

// tenMonthly is the shop's API with ten calls a month, and the number of calls that have come to it. The twelfth is answered when the channel is closed.
func (b *shop) tenMonthly(t *testing.T, twelfth <-chan struct{}) (*provider.API, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	api := b.api(serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 12 {
			<-twelfth
		}
		b.fake.ServeHTTP(w, r)
	}))
	api.Monthly = 10
	return api, &calls
}

// pass lets so many days pass for what is counted of calls.
func (b *shop) pass(t *testing.T, days int) {
	t.Helper()
	b.DB.Exec(t, `UPDATE budgets SET calls = (SELECT coalesce(jsonb_object_agg(c.key::int - $1::int, c.value), '{}') FROM jsonb_each(calls) c)`, days)
}

// raised is the configuration with as many calls as there may be need for, as a reload would bring it.
func (b *shop) raised(t *testing.T, r *reconcile.Runner, api *provider.API) {
	t.Helper()
	more := *api
	more.Monthly = 1000
	other := b.runner(t, &more, asIs)
	for _, s := range other.Sources.All() {
		r.Sources.Replace(s)
	}
}

// A run whose calls are used waits, says so, and keeps within them; it goes on from where it was when days are over, or more calls are allowed, and misses nothing.
func TestARunWaitsForCalls(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]reconcile.Order{"events": {What: reconcile.Events}, "objects": {What: reconcile.Objects, Full: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShop(t, "", stripefake.Options{Seed: 41, Objects: 8})
			b.fake.Live(60)
			b.deliver(t, func(n int) bool { return n%3 == 0 })
			b.fake.Advance(time.Minute)
			twelfth := make(chan struct{})
			answer := sync.OnceFunc(func() { close(twelfth) })
			api, calls := b.tenMonthly(t, twelfth)
			t.Cleanup(answer)
			r := b.runner(t, api, asIs)
			r.Settings.Poll = 20 * time.Millisecond
			r.Settings.Span, r.Settings.MaxSpan, r.Settings.MinSpan, r.Settings.Kept = 10*time.Second, 10*time.Second, time.Second, 4*time.Minute
			b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: r.Carry})
			o.Source = b.Source
			run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
			if err != nil {
				t.Fatal(err)
			}
			waits := func(r *runs.Run) bool { return strings.HasPrefix(r.Detail, spent) }
			if w := b.Until(t, run, waits); w.Status != runs.Running || w.Troubles != 0 || calls.Load() != 9 {
				t.Errorf("after %d calls the run is %+v", calls.Load(), w)
			}
			b.pass(t, 30)
			b.Until(t, run, waits)
			if n := calls.Load(); n != 9 {
				t.Errorf("%d calls within thirty days", n)
			}
			b.pass(t, 1)
			b.Until(t, run, func(r *runs.Run) bool { return r.Detail == "" })
			answer()
			testkit.Eventually(t, time.Minute, func() error {
				if n := calls.Load(); n < 18 {
					return fmt.Errorf("%d calls", n)
				}
				return nil
			})
			b.Until(t, run, waits)
			if n := calls.Load(); n != 18 {
				t.Errorf("%d calls within sixty days", n)
			}
			b.raised(t, r, api)
			if w := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() }); w.Status != runs.Done || w.Detail != "" {
				t.Errorf("with more calls the run is %+v", w)
			}
			if o.What == reconcile.Events {
				if missed := b.missed(t); len(missed) > 0 {
					t.Errorf("the log lacks %q", missed)
				}
			}
		})
	}
}

// A list that waits for calls is no trouble of its type, although another call may be made: the run waits with it, and passes nothing over. So does an object that is asked for by its name.
func TestNoTypeIsPassedOverForCalls(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/list", "/things/gone"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 220, living)
			b.deliver(t, b.api.h.Events)
			b.copied(t, "gone")
			var more atomic.Bool
			b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
				switch {
				case c.Path == path && !more.Load():
					return nil, reconcile.UsedUp(10 * time.Millisecond)
				case c.Path == "/others":
					return b.found(`{"things":[]}`), nil
				}
				return nil, nil
			}
			b.paired(t)
			run := b.order(t, reconcile.Order{What: reconcile.Objects})
			b.Until(t, run, func(r *runs.Run) bool { return strings.HasPrefix(r.Detail, spent) })
			times := b.api.made(path)
			testkit.Eventually(t, time.Minute, func() error {
				if n := b.api.made(path); n < times+2 {
					return fmt.Errorf("asked for %d times", n)
				}
				return nil
			})
			if r, err := runs.Show(t.Context(), b.Operator, run); err != nil || r.Status != runs.Running || r.Troubles != 0 {
				t.Errorf("the run is %+v, %v", r, err)
			}
			more.Store(true)
			r := b.ended(t, run)
			if r.Status != runs.Done || r.Counts[reconcile.Unlisted] != 0 || r.Counts[reconcile.Ghosts] != 1 || r.Counts[reconcile.Left] != 0 {
				t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
			}
		})
	}
}

// missed are the events of the account of which the log has none.
func (b *shop) missed(t *testing.T) (missed []string) {
	t.Helper()
	log := map[string]bool{}
	for _, key := range b.DB.Rows(t, `SELECT event_id FROM events`) {
		log[key] = true
	}
	for _, e := range b.fake.Events() {
		if !log[e.ID] {
			missed = append(missed, e.ID)
		}
	}
	return missed
}

// Looks whose calls are used wait, and their hints say so; a person's is made of what is kept for that. When more calls are allowed, all are made.
func TestHintsWaitForCalls(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 42, Objects: 8})
	b.fake.Live(60)
	b.deliver(t, func(int) bool { return false })
	b.fake.Advance(time.Minute)
	wanted := b.fake.Create("", "customer", nil)
	b.deliver(t, func(int) bool { return false })
	b.fake.Advance(time.Minute)
	owed := len(b.DB.Rows(t, `SELECT object_id FROM objects WHERE look_after <> 0`))
	if owed == 0 {
		t.Fatal("no object owes a look")
	}
	api, calls := b.tenMonthly(t, nil)
	b.DB.Exec(t, `INSERT INTO budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight, calls)
		VALUES ($1, '', 1, now(), now(), 0, '{}', jsonb_build_object(floor(extract(epoch FROM now()) / 86400)::int, 9))`, b.Source)
	r := b.runner(t, api, asIs)
	looksOf(t, r, "one")
	waiting := func(n int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if got := b.DB.Rows(t, `SELECT object_id FROM hints WHERE starts_with(error, $1) AND due > now() AND attempts = 0`, spent); len(got) != n {
				return fmt.Errorf("%d hints wait, want %d", len(got), n)
			}
			return nil
		})
	}
	waiting(owed)
	if n := calls.Load(); n != 0 {
		t.Errorf("%d calls were made", n)
	}
	if _, err := reconcile.Wish(t.Context(), b.Operator, versioning.Key{Source: b.Source, Type: "customer", ID: wanted}, "me", "in doubt"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() error {
		if got := b.DB.Rows(t, `SELECT event_id FROM events WHERE origin = 'reconcile'`); len(got) != 1 {
			return errors.New("no look was made")
		}
		return nil
	})
	waiting(owed)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls were made for one look", n)
	}
	b.raised(t, r, api)
	testkit.Eventually(t, time.Minute, func() error {
		if left := b.DB.Rows(t, `SELECT object_id FROM hints WHERE error <> ''`); len(left) > 0 {
			return fmt.Errorf("waiting are %q", left)
		}
		if made := b.DB.Rows(t, `SELECT DISTINCT object_id FROM events WHERE origin = 'reconcile'`); len(made) <= owed {
			return fmt.Errorf("looks were made at %d objects, of %d and the one that was wanted", len(made), owed)
		}
		return nil
	})
}
