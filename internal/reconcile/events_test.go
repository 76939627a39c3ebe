package reconcile_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
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
	b.Carry(t, "one", 1, b.jobs())
	r := b.ask(t, reconcile.Order{What: reconcile.Events})
	want := map[string]int64{reconcile.Seen: int64(len(all)), reconcile.Missing: int64(len(all) - len(kept)), reconcile.Present: int64(len(kept))}
	for name, n := range want {
		if r.Counts[name] != n {
			t.Errorf("%s: %d, want %d", name, r.Counts[name], n)
		}
	}
	if r.Status != runs.Done {
		t.Errorf("the run is %s: %s", r.Status, r.Detail)
	}
	since, until, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", reconcile.Events)
	if want := b.api.now.Add(-reconcile.DefaultSettings.Settle).Truncate(time.Second); err != nil || !until.Equal(want) || since.After(b.api.now.Add(-time.Hour)) {
		t.Errorf("proven from %s until %s (%v), want %s", since, until, err, want)
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
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, seed, eventTime)
			b.deliver(t, some(b.api.h.Events, 50, seed))
			b.Carry(t, "one", 1, b.jobs())
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
				if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: id}); r.Status != runs.Done || r.Counts[reconcile.Missing] != 1 {
					t.Errorf("a look at %s is %s with %v: %s", id, r.Status, r.Counts, r.Detail)
				}
			}
			for _, w := range b.wrong(t) {
				t.Errorf("after %d looks %s", looks, w)
			}
		})
	}
}

// A dry run counts and appends nothing, and proves nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 2, eventTime)
	kept := some(b.api.h.Events, 70, 2)
	b.deliver(t, kept)
	b.Carry(t, "one", 1, b.jobs())
	r := b.ask(t, reconcile.Order{What: reconcile.Events, DryRun: true})
	if missing := int64(len(b.api.h.Events) - len(kept)); r.Status != runs.Done || r.Counts[reconcile.Missing] != missing {
		t.Errorf("%s with %v, want %d missing", r.Status, r.Counts, missing)
	}
	var stored int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE origin = 'reconcile'`).Scan(&stored); err != nil || stored != 0 {
		t.Errorf("%d events were appended (%v)", stored, err)
	}
	if _, until, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", reconcile.Events); err != nil || !until.IsZero() {
		t.Errorf("proven until %s (%v)", until, err)
	}
}

// Whatever the API does, and wherever processes end, the run comes to its end, skips nothing, and tells what was missing.
func TestTroubleSkipsNothing(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 3, eventTime)
	all := b.api.h.Events
	kept := some(all, 50, 3)
	b.deliver(t, kept)
	r := rand.New(rand.NewPCG(3, 51))
	b.api.fails = func(provider.Call) (*reconcile.Response, error) {
		switch r.IntN(6) {
		case 0:
			return nil, errDown
		case 1:
			return &reconcile.Response{Verdict: provider.JudgeStatus(http.StatusInternalServerError, http.Header{}, nil)}, nil
		case 2:
			return &reconcile.Response{Verdict: provider.JudgeStatus(http.StatusTooManyRequests, http.Header{}, nil)}, nil
		}
		return nil, nil
	}
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Events}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // processes come and go
		stop, before := b.Carry(t, fmt.Sprint("process ", i), 1, b.jobs()), b.api.made("/events")
		enough := 1 + i
		testkit.Eventually(t, time.Minute, func() error {
			if now, err := runs.Show(t.Context(), b.Operator, run); err != nil || now.Status.Final() {
				return err
			}
			if made := b.api.made("/events") - before; made < enough {
				return fmt.Errorf("%d calls, want %d", made, enough)
			}
			return nil
		})
		stop()
		b.audit(t) // it may have ended between an append and what it makes of it
	}
	b.Carry(t, "last", 1, b.jobs())
	got := b.ended(t, run)
	if got.Status != runs.Done || got.Counts[reconcile.Missing] != int64(len(all)-len(kept)) || got.Counts[reconcile.Seen] != int64(len(all)) {
		t.Errorf("%s with %v, want %d missing of %d: %s", got.Status, got.Counts, len(all)-len(kept), len(all), got.Detail)
	}
	var stored int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&stored); err != nil || stored != len(all) {
		t.Errorf("%d events in the log (%v), want %d", stored, err, len(all))
	}
}

// Credentials that are good for nothing end the run with what to do, and nothing is proven.
func TestRefusedCredentials(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 4, eventTime)
	b.api.fails = func(provider.Call) (*reconcile.Response, error) {
		return &reconcile.Response{Verdict: provider.JudgeStatus(http.StatusUnauthorized, http.Header{}, nil)}, nil
	}
	b.Carry(t, "one", 1, b.jobs())
	r := b.ask(t, reconcile.Order{What: reconcile.Events})
	if want := "the API of source " + applied.Name + ": answered 401"; r.Status != runs.Failed || len(r.Detail) < len(want) || r.Detail[:len(want)] != want {
		t.Errorf("%s: %s", r.Status, r.Detail)
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
		_, until, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", reconcile.Events)
		if err != nil || !until.IsZero() {
			t.Errorf("complete until %s (%v) before anything is read", until, err)
		}
		return nil, nil
	}
	b.Carry(t, "one", 1, b.jobs())
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
	b.Carry(t, "one", 1, b.jobs())
	proven := func(want bool, at time.Time) {
		t.Helper()
		since, until, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", reconcile.Events)
		if err != nil || !until.IsZero() && !since.After(at) && at.Before(until) != want {
			t.Errorf("proven from %s until %s (%v); %s among it: want %t", since, until, err, at, want)
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
