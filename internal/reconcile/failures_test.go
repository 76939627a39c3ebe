package reconcile_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// A failure in the middle of a period costs one page, not the pages before it.
func TestReconcile_pageFails_isRequestedAgain(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 90, reconciled.EventTimeOptions)
	r := b.Runner()
	r.Settings.InitialInterval, r.Settings.MaxInterval = 24*time.Hour, 24*time.Hour // one period
	r.Settings.RetryDelay = time.Millisecond
	all := len(b.API.History.Events)
	pages, calls := (all+reconciled.PageSize-1)/reconciled.PageSize, 0
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path != "/events" {
			return nil, nil
		}
		if calls++; calls >= 2 && calls < 2+3 { // the second page, three times
			return reconciled.ErrorResponse(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	b.StartReconciler(t, r)
	reconciled.WantCounts(t, b.WantDone(t, reconcile.Params{Scope: reconcile.Events}),
		reconciled.Counts{reconcile.Missing: int64(all)})
	if calls != pages+3 || pages < 3 {
		t.Errorf("%d calls for %d pages of which one failed three times", calls, pages)
	}
}

// A paused run stops calling the API, also while the API fails.
func TestReconcile_pausedDuringFailure_makesNoCalls(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 91, reconciled.EventTimeOptions)
	r := b.Runner()
	r.Settings.RetryDelay = time.Millisecond
	var run atomic.Int64
	var well atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path != "/events" || well.Load() {
			return nil, nil
		}
		if err := runs.ChangeStatus(t.Context(), b.OperatorPool, run.Load(), runs.Paused); err != nil {
			t.Error(err)
		}
		return reconciled.ErrorResponse(http.StatusBadGateway), nil
	}
	run.Store(b.StartRun(t, reconcile.Params{Scope: reconcile.Events}))
	b.StartReconciler(t, r)
	b.WaitForRun(t, run.Load(), func(r *runs.Run) bool { return r.Status == runs.Paused })
	reconciled.WaitForValue(t, b, "", `SELECT lease_owner FROM checkpoints WHERE run = $1`, run.Load())
	b.API.WantCalls(t, "/events", 1)
	well.Store(true)
	b.SetStatus(t, run.Load(), runs.Queued)
	reconciled.WantCounts(t, b.WaitForEnd(t, run.Load()),
		reconciled.Counts{reconcile.Missing: int64(len(b.API.History.Events))})
}

// A run that is rejected because its key was replaced meanwhile continues with the new key.
func TestReconcile_keyReplacedDuringRun_continues(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 93, reconciled.EventTimeOptions)
	r := b.Runner()
	old := &reconciled.SimAPI{History: b.API.History, Time: b.API.Time}
	calls := 0
	old.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path != "/events" {
			return nil, nil
		}
		if calls++; calls == 2 {
			r.Sources.Replace(b.SourceWith(func(*providerapi.Source) {}))
		}
		if calls >= 2 {
			return reconciled.ErrorResponse(http.StatusUnauthorized), nil
		}
		return nil, nil
	}
	r.Sources.Replace(b.SourceWith(func(s *providerapi.Source) { s.Caller = old }))
	b.StartReconciler(t, r)
	reconciled.WantCounts(t, b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}),
		reconciled.Counts{reconcile.Missing: int64(len(b.API.History.Events))})
	if calls != 2 {
		t.Errorf("%d calls with the old key", calls)
	}
}

// panickingReader is a provider whose reader panics on some responses.
type panickingReader struct {
	sim.Provider
	panics func(id string) bool
}

func (p panickingReader) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if p.panics(s.ObjectID) {
		panic("a shape without a reader")
	}
	return p.Provider.Snapshot(src, s)
}

func (p panickingReader) EventPage(account string, body []byte) ([][]byte, string, error) {
	if p.panics("") {
		panic("a page without a reader")
	}
	return p.Provider.EventPage(account, body)
}

func (p panickingReader) ObjectPage(src *provider.Source, a *provider.API, account, objectType, cursor string,
	header http.Header, body []byte) ([]provider.ListedObject, string, error) {
	if p.panics("") {
		panic("a list without a reader")
	}
	return p.Provider.ObjectPage(src, a, account, objectType, cursor, header, body)
}

// A reader that panics ends neither the process nor its other refetches. A run with such a response
// fails with a message.
func TestReconcile_readerPanics_failsOnlyThatWork(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 95, reconciled.EventTimeOptions)
	id := reconciled.QueryOne[string](t, b, `SELECT object_id FROM objects WHERE refetch_after <> 0 ORDER BY object_id
		LIMIT 1`)
	if others := reconciled.QueryOne[int](t, b, `SELECT count(*) FROM objects WHERE refetch_after <> 0
		AND object_id <> $1`, id); others == 0 {
		t.Fatal("no other object needs a refetch")
	}
	p := panickingReader{panics: func(some string) bool { return some == id || some == "" }}
	r := b.RunnerWith(func(s *providerapi.Source) { s.Provider, s.Reader = p, p })
	reconciled.StartRefetcher(t, r, "refetcher")
	reconciled.WaitForValue(t, b, 0, `SELECT count(*) FROM objects WHERE refetch_after <> 0 AND object_id <> $1`, id)
	reconciled.WaitForValue(t, b, 1, `SELECT count(*) FROM refetch_requests WHERE object_id = $1
		AND error LIKE '%panicked%'
		AND due > clock_now() + interval '50 minutes'`, id)
	b.StartReconciler(t, r)
	for _, o := range []reconcile.Params{{Scope: reconcile.Object, Type: "thing", ID: id}, {Scope: reconcile.Events},
		{Scope: reconcile.Objects}} {
		b.WantFailure(t, o, "panicked", "without a reader")
	}
}

// A response without a date cannot be ordered.
func TestRefetch_responseWithoutDate_isRejected(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 97, reconciled.EventTimeOptions)
	id := b.ObjectWithPendingRefetch(t)
	var dated atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if dated.Load() {
			return nil, nil
		}
		body := b.API.History.StoredRefetch(id, sim.Refetch{Began: b.API.Time.UnixMicro()}).Body
		return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Body: body}, nil
	}
	r := b.Runner()
	reconciled.StartRefetcher(t, r, "refetcher")
	b.WaitForRequestError(t, "have no time (header Date)")
	b.StartReconciler(t, r)
	for _, o := range []reconcile.Params{{Scope: reconcile.Object, Type: "thing", ID: id}, {Scope: reconcile.Events},
		{Scope: reconcile.Objects}} {
		run := b.StartRun(t, o)
		b.WaitForRun(t, run, func(r *runs.Run) bool {
			return strings.Contains(r.Detail, "have no time (header Date)")
		})
	}
	reconciled.WantValue(t, b, 0, reconciled.CountRefetchesSQL)
	dated.Store(true)
	b.WaitForRefetches(t)
}

// failingEventReader is a provider that fails to apply one event while it is set to.
type failingEventReader struct {
	sim.Provider
	key   string
	fails *atomic.Bool
}

func (p failingEventReader) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	if e.Key == p.key && p.fails.Load() {
		return provider.Observation{}, reconciled.ErrProviderDown
	}
	return p.Provider.Observe(src, e)
}

// The watermark does not move while an event is not applied. The run's detail says what it waits
// for. The run continues when the event is applied.
func TestReconcile_unappliedEvents_holdTheWatermark(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 99, reconciled.EventTimeOptions)
	var now atomic.Bool
	now.Store(true)
	e := b.API.History.Events[len(b.API.History.Events)/2]
	b.Proc = b.Applier(t, failingEventReader{key: e.Key, fails: &now})
	r := b.Runner()
	r.Settings.WaitReportDelay = 0
	b.StartReconciler(t, r)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Events})
	waits := func(r *runs.Run) bool {
		return strings.HasPrefix(r.Detail, "waits for the outcomes of 1 of its appended events, among "+
			"them event ") && strings.HasSuffix(r.Detail, ", which has failed: "+reconciled.ErrProviderDown.Error())
	}
	b.WaitForRun(t, run, waits)
	complete := func(want bool) {
		t.Helper()
		if _, until := b.CompleteRange(t, "", reconcile.Events); until.UnixMicro() > e.OccurredAt != want {
			t.Errorf("complete until %s, with an event of %d, which is applied: %t", until, e.OccurredAt, want)
		}
	}
	complete(false)
	for _, to := range []runs.Status{runs.Paused, runs.Queued} {
		b.SetStatus(t, run, to)
		b.WaitForRun(t, run, func(r *runs.Run) bool {
			return to == runs.Queued && waits(r) || to == runs.Paused && r.Detail == ""
		})
	}
	now.Store(false)
	b.DB.Exec(t, `UPDATE outcomes SET due = clock_now() WHERE status = 'failed'`)
	applied.Apply(t, b.Proc, 0, []int64{reconciled.QueryOne[int64](t, b, `SELECT event_id FROM outcomes
		WHERE status = 'failed'`)})
	if got := b.WaitForEnd(t, run); got.Status != runs.Done || got.Detail != "" ||
		got.Counts[reconcile.Missing] != int64(len(b.API.History.Events)) {
		t.Errorf("%s with %v: %q", got.Status, got.Counts, got.Detail)
	}
	complete(true)
}

// panickingFetch panics for the name of any object.
type panickingFetch struct{ sim.Provider }

func (panickingFetch) Fetch(*provider.Source, *provider.API, string, string, string) (provider.Call, bool) {
	panic("a name without a reader")
}

// A scan calls the API in other goroutines. A panic there fails the run and not the process.
func TestObjectScan_fetchPanics_failsTheRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 210, reconciled.LivingObjects)
	b.API.Version = sim.ListsIDs // so that each object is requested by id
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) {
		s.Reader, s.API.Version = panickingFetch{}, sim.ListsIDs
	}))
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "panicked", "without a reader")
}

// An object whose absence cannot be verified does not become unrepaired while the control call
// fails too. The run waits until the API works, and deletes the object then.
func TestObjectScan_missingDuringOutage_waitsForTheAPI(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-4 * time.Hour)}, nil)
	var all []string
	for range 4 {
		all = append(all, f.Fake.CreateOfKind(0, "milestone"))
		f.Fake.Advance(2 * time.Second)
	}
	f.Deliver(t)
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.Fake.Delete(all[1])
	f.Fake.Advance(2 * time.Hour)
	var requested, well atomic.Bool
	// The list that shows whether an object is missing is rejected. From then on the control call
	// fails.
	f.StartThrough(t, reconciled.InterceptingCaller{Caller: f.APISource.Caller,
		Intercept: func(c provider.Call) *providerapi.Response {
			switch {
			case well.Load():
			case strings.HasSuffix(c.Path, "/milestones") && c.Query.Get("per_page") == "1":
				requested.Store(true)
				return reconciled.ErrorResponse(http.StatusForbidden)
			case requested.Load() && c.Path == "/":
				return reconciled.ErrorResponse(http.StatusBadGateway)
			}
			return nil
		}})
	run := f.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "milestone"})
	r := f.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "502") || r.Status.Ended() })
	if n := f.Count(t, `SELECT coalesce(sum(unrepaired), 0) FROM object_scans`); r.Status.Ended() || n != 0 ||
		!requested.Load() {
		t.Errorf("%s with %d unrepaired, list requested %t: %s", r.Status, n, requested.Load(), r.Detail)
	}
	well.Store(true)
	reconciled.WantExactCounts(t, f.WaitForEnd(t, run),
		reconciled.Counts{reconcile.Processed: 4, objectscan.Equal: 3, objectscan.Orphans: 1, objectscan.Repaired: 1})
}
