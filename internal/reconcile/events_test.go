package reconcile_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// some are the events that chance lets through.
func some(evs []sim.Event, percent int, seed uint64) (kept []sim.Event) {
	r := rand.New(rand.NewPCG(seed, 41))
	for _, e := range evs {
		if r.IntN(100) < percent {
			kept = append(kept, e)
		}
	}
	return kept
}

// jobs are what carries out a bundle's runs.
func (b *world) jobs() map[string]runs.Carry {
	return map[string]runs.Carry{reconcile.Job: b.runner().Carry}
}

// What webhooks lost is found, appended under its own name and applied; what they brought, and what comes later, is a duplicate.
func TestMissedEvents(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 1, eventTime)
	all := b.api.h.Events
	kept := some(all, 60, 1)
	b.deliver(t, kept)
	if len(b.wrong(t)) == 0 {
		t.Fatal("nothing is wrong before: this history needs no reconciliation")
	}
	b.carry(t, b.runner())
	r := b.ask(t, reconcile.Order{What: reconcile.Events})
	want := counts{reconcile.Seen: int64(len(all)), reconcile.Missing: int64(len(all) - len(kept)), reconcile.Present: int64(len(kept))}
	for name, n := range want {
		if r.Counts[name] != n {
			t.Errorf("%s: %d, want %d", name, r.Counts[name], n)
		}
	}
	if r.Status != runs.Done {
		t.Errorf("the run is %s: %s", r.Status, r.Detail)
	}
	since, until := b.provenOf(t, "", reconcile.Events)
	if want := b.api.now.Add(-reconcile.DefaultSettings.Settle).Truncate(time.Second); !until.Equal(want) ||
		since.After(b.api.now.Add(-time.Hour)) {
		t.Errorf("proven from %s until %s, want %s", since, until, want)
	}
	var stored int
	count := `SELECT count(*) FROM events WHERE origin = 'reconcile'`
	if err := b.DB.Pool.QueryRow(t.Context(), count).Scan(&stored); err != nil || stored != len(all)-len(kept) {
		t.Errorf("%d events of reconciliation (%v), want %d", stored, err, len(all)-len(kept))
	}
	b.deliver(t, all) // the webhooks that come late are duplicates
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&stored); err != nil || stored != len(all) {
		t.Errorf("%d events in all (%v), want %d", stored, err, len(all))
	}
	if again := b.ask(t, reconcile.Order{What: reconcile.Events}); again.Counts[reconcile.Missing] != 0 {
		t.Errorf("a second run finds %d missing", again.Counts[reconcile.Missing])
	}
}

// After the events and a look at each object that owes one the mirror is what the provider has.
func TestReconciledMirrorIsTheProviders(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds(4)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, seed, eventTime)
			b.deliver(t, some(b.api.h.Events, 50, seed))
			b.carry(t, b.runner())
			b.ask(t, reconcile.Order{What: reconcile.Events})
			looks := 0
			for _, id := range b.api.h.ObjectIDs() {
				var owed bool
				err := b.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(bool_or(look_after <> 0), false) FROM objects WHERE object_id = $1`, id).Scan(&owed)
				if err != nil {
					t.Fatal(err)
				}
				if !owed {
					continue
				}
				looks++
				has(t, b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: id}),
					counts{reconcile.Missing: 1})
			}
			for _, w := range b.wrong(t) {
				t.Errorf("after %d looks %s", looks, w)
			}
		})
	}
}

// The watermark moves only after a read: at the first call for events there is none.
func TestReconcile_eventsNotReadYet_movesNoWatermark(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 5, eventTime)
	var calls atomic.Int64
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path != "/events" || calls.Add(1) > 1 {
			return nil, nil
		}
		_, until := b.provenOf(t, "", reconcile.Events)
		if !until.IsZero() {
			t.Errorf("complete until %s before anything is read", until)
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	if r := b.ask(t, reconcile.Order{What: reconcile.Events}); r.Status != runs.Done || calls.Load() == 0 {
		t.Errorf("%s after %d calls: %s", r.Status, calls.Load(), r.Detail)
	}
}

// What was read proves what was read: neither what lies between two stretches of time, nor what lies before a first run over a short one.
func TestNothingIsProvenUnread(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 5, eventTime)
	first, last := time.UnixMicro(b.api.h.Events[0].Happened), time.UnixMicro(b.api.h.End("obj_1"))
	for _, e := range b.api.h.Events {
		if at := time.UnixMicro(e.Happened); at.Before(first) {
			first = at
		}
	}
	b.carry(t, b.runner())
	proven := func(want bool, at time.Time) {
		t.Helper()
		since, until := b.provenOf(t, "", reconcile.Events)
		if !until.IsZero() && !since.After(at) && at.Before(until) != want {
			t.Errorf("proven from %s until %s; %s among it: want %t", since, until, at, want)
		}
	}
	late := b.api.now.Add(-10 * time.Minute)
	b.ask(t, reconcile.Order{What: reconcile.Events, Since: late}) // long after all that happened
	proven(false, last)
	b.ask(t, reconcile.Order{What: reconcile.Events, Since: first.Add(-time.Minute), Until: first.Add(-time.Second)})
	proven(false, last)
	if r := b.ask(t, reconcile.Order{What: reconcile.Events}); r.Counts[reconcile.Missing] != int64(len(b.api.h.Events)) {
		t.Errorf("after runs over other times a run finds %v of %d events", r.Counts, len(b.api.h.Events))
	}
	proven(true, last)
	calls := b.api.made("/events")
	if r := b.ask(t, reconcile.Order{What: reconcile.Events, Until: last.Add(time.Second)}); r.Counts[reconcile.Present] == 0 || b.api.made("/events") == calls {
		t.Errorf("a run up to a time before what is proven has read nothing: %v", r.Counts)
	}
	var rows int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM watermarks WHERE what = 'events'`).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d watermarks (%v)", rows, err)
	}
}

// upTo is a run over the events of a time, which must be done, and until when all is proven after it.
func (b *world) upTo(t *testing.T, since, until time.Time) time.Time {
	t.Helper()
	b.done(t, reconcile.Order{What: reconcile.Events, Since: since, Until: until})
	_, proven := b.provenOf(t, "", reconcile.Events)
	return proven
}

// What lies between two times that were read is not proven, until somebody reads it.
func TestAGapIsNotProven(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 4, eventTime)
	b.carry(t, b.runner())
	at := func(d time.Duration) time.Time { return time.UnixMicro(sim.Start).Add(d).UTC().Truncate(time.Second) }
	if proven := b.upTo(t, time.Time{}, at(2*time.Second)); !proven.Equal(at(2 * time.Second)) {
		t.Fatalf("proven until %s", proven)
	}
	if proven := b.upTo(t, at(4*time.Second), at(6*time.Second)); !proven.Equal(at(2 * time.Second)) {
		t.Errorf("proven until %s, though nobody has read from 2 s to 4 s", proven)
	}
	if proven := b.upTo(t, at(2*time.Second), at(6*time.Second)); !proven.Equal(at(6 * time.Second)) {
		t.Errorf("proven until %s, though all was read until 6 s", proven)
	}
}

// An event that comes into the list after a run has passed its time is found by the next run, which begins before what is proven.
func TestAnEventThatIsListedLate(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 5, eventTime)
	all := slices.Clone(b.api.h.Events)
	last := slices.IndexFunc(all, func(e sim.Event) bool {
		return !slices.ContainsFunc(all, func(other sim.Event) bool { return other.Happened > e.Happened })
	})
	b.api.h.Events = slices.Delete(slices.Clone(all), last, last+1)
	b.deliver(t, b.api.h.Events)
	b.api.set(time.UnixMicro(all[last].Happened).Add(reconcile.DefaultSettings.Settle + 2*time.Second))
	b.carry(t, b.runner())
	if proven := b.upTo(t, time.Time{}, time.Time{}); proven.UnixMicro() <= all[last].Happened {
		t.Fatalf("proven until %s, before the late event", proven)
	}
	b.api.mu.Lock()
	b.api.h.Events = all
	b.api.mu.Unlock()
	b.api.set(b.api.Now().Add(time.Minute))
	has(t, b.done(t, reconcile.Order{What: reconcile.Events}), counts{reconcile.Missing: 1})
}

// A cursor that the API has forgotten ends no list of events: it is read again.
func TestEventsOfAForgottenCursor(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 6, eventTime)
	var forgot atomic.Int32
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path != "/events" || c.Query.Get("cursor") == "" || forgot.Add(1) > 3 {
			return nil, nil
		}
		return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Expired, Detail: "no such place"}, Status: http.StatusGone, Date: b.api.now}, nil
	}
	b.carry(t, b.runner())
	r := b.ask(t, reconcile.Order{What: reconcile.Events})
	if n := int64(len(b.api.h.Events)); r.Status != runs.Done || r.Counts[reconcile.Missing] != n || forgot.Load() < 3 {
		t.Errorf("%s with %v of %d events after %d forgotten cursors: %s", r.Status, r.Counts, n, forgot.Load(), r.Detail)
	}
}

// lagging may answer with what was half a second ago.
type lagging struct{ sim.Provider }

func (lagging) Lag() time.Duration { return 500 * time.Millisecond }

// A look that is to win over all that was received before it begins so much later that the answer is not older.
func TestALookThatSettlesWaitsForTheLag(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 7, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 3_000_000})
	b.api.set(time.Now())
	b.deliver(t, b.api.h.Events)
	var looked atomic.Pointer[time.Time]
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if now := time.Now(); strings.HasPrefix(c.Path, "/things/") {
			looked.CompareAndSwap(nil, &now)
		}
		return nil, nil
	}
	r := b.runner()
	late := *r.Sources.All()[b.Source]
	late.Reader = lagging{}
	r.Sources.Replace(&late)
	b.carry(t, r)
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true}, Who: "ada", Reason: "it is wrong"})
	if err != nil {
		t.Fatal(err)
	}
	isDone(t, b.ended(t, run))
	before := one[time.Time](t, b, `SELECT (convert_from(body, 'UTF8')::jsonb #>> '{settles,before}')::timestamptz FROM events WHERE event_id LIKE 'settle:%'`)
	if at := looked.Load(); at == nil || at.Sub(before) < late.Reader.Lag() {
		t.Errorf("looked at %v, and wins over all before %s", at, before)
	}
}

// What a webhook that is named later was sent is read as far back as the provider knows, and nothing is said to be proven of it before that was done.
func TestAWebhookThatIsNamedLater(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 3, Start: time.Now().Add(-60 * time.Hour), Repositories: 2}, nil)
	hooks := f.fake.Hooks()
	f.reads.API.Hooks = hooks[:1]
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Open(1)
	f.fake.Open(1)
	f.fake.SetWebhooks(githubfake.Webhooks{})
	f.deliver(t)
	f.fake.Advance(24 * time.Hour)
	f.through(t, f.reads.Caller)
	counted := func(order reconcile.Order, missing int64) (since, until time.Time) {
		t.Helper()
		order.What = reconcile.Events
		r := f.run(t, order)
		if r.Status != runs.Done || r.Counts[reconcile.Missing] != missing {
			t.Fatalf("%s: %s, %v, want %d missing", r.Status, r.Detail, r.Counts, missing)
		}
		return f.provenOf(t, "", reconcile.Events)
	}
	_, before := counted(reconcile.Order{}, 0)
	f.reads.API.Hooks = hooks
	f.fake.Advance(time.Hour)
	recent := f.fake.Now().Add(-30 * time.Minute)
	if _, until := counted(reconcile.Order{Since: recent}, 0); !until.Equal(before) {
		t.Errorf("proven until %s by a run over half an hour of other webhooks, it was %s", until, before)
	}
	if since, until := counted(reconcile.Order{}, 2); since.After(f.fake.Now().Add(-48*time.Hour)) || !until.After(before) {
		t.Errorf("proven from %s until %s, now it is %s", since, until, f.fake.Now())
	}
}

// What is proven stays until as much was read of what the configuration names now, in however many stretches.
func TestProvenOfOtherLists(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 4, eventTime)
	r := b.runner()
	b.carry(t, r)
	at := func(d time.Duration) time.Time { return time.UnixMicro(sim.Start).Add(d).UTC().Truncate(time.Second) }
	if proven := b.upTo(t, time.Time{}, at(20*time.Second)); !proven.Equal(at(20 * time.Second)) {
		t.Fatalf("proven until %s", proven)
	}
	other := *r.Sources.All()[b.Source]
	config := *other.Config
	config.Accounts = []string{"*"}
	other.Config = &config
	r.Sources.Replace(&other)
	if proven := b.upTo(t, time.Time{}, at(10*time.Second)); !proven.Equal(at(20 * time.Second)) {
		t.Errorf("proven until %s by a run that has come to 10 s", proven)
	}
	if proven := b.upTo(t, at(15*time.Second), at(30*time.Second)); !proven.Equal(at(20 * time.Second)) {
		t.Errorf("proven until %s, though nobody has read from 10 s to 15 s", proven)
	}
	if proven := b.upTo(t, time.Time{}, at(25*time.Second)); !proven.Equal(at(25 * time.Second)) {
		t.Errorf("proven until %s, though all was read until 25 s", proven)
	}
	if proven := b.upTo(t, at(24*time.Second), at(30*time.Second)); !proven.Equal(at(30 * time.Second)) {
		t.Errorf("proven until %s, though all was read until 30 s", proven)
	}
}
