package reconcile_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// upTo is a run over the events of a time, which must be done, and until when all is proven after it.
func (b *world) upTo(t *testing.T, since, until time.Time) time.Time {
	t.Helper()
	if r := b.ask(t, reconcile.Order{What: reconcile.Events, Since: since, Until: until}); r.Status != runs.Done {
		t.Fatalf("from %s until %s: %s: %s", since, until, r.Status, r.Detail)
	}
	_, proven, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", reconcile.Events)
	if err != nil {
		t.Fatal(err)
	}
	return proven
}

// What lies between two times that were read is not proven, until somebody reads it.
func TestAGapIsNotProven(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 4, eventTime)
	b.Carry(t, "one", 1, b.jobs())
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
	b.Carry(t, "one", 1, b.jobs())
	if proven := b.upTo(t, time.Time{}, time.Time{}); proven.UnixMicro() <= all[last].Happened {
		t.Fatalf("proven until %s, before the late event", proven)
	}
	b.api.mu.Lock()
	b.api.h.Events = all
	b.api.mu.Unlock()
	b.api.set(b.api.Now().Add(time.Minute))
	if r := b.ask(t, reconcile.Order{What: reconcile.Events}); r.Status != runs.Done || r.Counts[reconcile.Missing] != 1 {
		t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
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
	b.Carry(t, "one", 1, b.jobs())
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
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: r.Carry})
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true}, Who: "ada", Reason: "it is wrong"})
	if err != nil {
		t.Fatal(err)
	}
	if r := b.ended(t, run); r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	before := one[time.Time](t, b, `SELECT (convert_from(body, 'UTF8')::jsonb #>> '{settles,before}')::timestamptz FROM events WHERE event_id LIKE 'settle:%'`)
	if at := looked.Load(); at == nil || at.Sub(before) < late.Reader.Lag() {
		t.Errorf("looked at %v, and wins over all before %s", at, before)
	}
}
