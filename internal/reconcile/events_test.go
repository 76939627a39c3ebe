package reconcile_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Events without a webhook are found, appended with their own key and applied. Events that a
// webhook brought, or brings later, are duplicates.
func TestReconcile_missedEvents_areAppendedAndApplied(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 1, reconciled.EventTimeOptions)
	all := b.API.History.Events
	kept := reconciled.RandomSubset(all, 60, 1)
	b.Deliver(t, kept)
	if len(b.Differences(t)) == 0 {
		t.Fatal("there are no differences before: this history needs no reconciliation")
	}
	b.StartReconciler(t, b.Runner())
	r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
	want := reconciled.Counts{reconcile.Processed: int64(len(all)), reconcile.Missing: int64(len(all) - len(kept)),
		reconcile.Present: int64(len(kept))}
	for name, n := range want {
		if r.Counts[name] != n {
			t.Errorf("%s: %d, want %d", name, r.Counts[name], n)
		}
	}
	if r.Status != runs.Done {
		t.Errorf("the run is %s: %s", r.Status, r.Detail)
	}
	since, until := b.CompleteRange(t, "", reconcile.Events)
	if want := b.API.Time.Add(-refetch.DefaultLimits.ListDelay).Truncate(time.Second); !until.Equal(want) ||
		since.After(b.API.Time.Add(-time.Hour)) {
		t.Errorf("complete from %s until %s, want %s", since, until, want)
	}
	var stored int
	count := `SELECT count(*) FROM events WHERE origin = 'reconcile'`
	if err := b.DB.Pool.QueryRow(t.Context(), count).Scan(&stored); err != nil || stored != len(all)-len(kept) {
		t.Errorf("%d events of reconciliation (%v), want %d", stored, err, len(all)-len(kept))
	}
	b.Deliver(t, all) // webhooks that arrive late are duplicates
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&stored); err != nil ||
		stored != len(all) {
		t.Errorf("%d events in all (%v), want %d", stored, err, len(all))
	}
	if again := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}); again.Counts[reconcile.Missing] != 0 {
		t.Errorf("a second run finds %d missing", again.Counts[reconcile.Missing])
	}
}

// After the events and all pending refetches the mirror equals the provider.
func TestReconcile_eventsAndRefetches_makeMirrorEqual(t *testing.T) {
	t.Parallel()
	for seed := range uint64(reconciled.SeedCount(4)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewEmptyEnv(t, seed, reconciled.EventTimeOptions)
			b.Deliver(t, reconciled.RandomSubset(b.API.History.Events, 50, seed))
			b.StartReconciler(t, b.Runner())
			b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
			refetches := 0
			for _, id := range b.API.History.ObjectIDs() {
				var pending bool
				err := b.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(bool_or(refetch_after <> 0), false) FROM objects
					WHERE object_id = $1`, id).Scan(&pending)
				if err != nil {
					t.Fatal(err)
				}
				if !pending {
					continue
				}
				refetches++
				reconciled.WantCounts(t,
					b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: id}),
					reconciled.Counts{reconcile.Missing: 1})
			}
			for _, w := range b.Differences(t) {
				t.Errorf("after %d refetches %s", refetches, w)
			}
		})
	}
}

// The watermark moves only after a read: there is none at the first call for events.
func TestReconcile_eventsNotReadYet_movesNoWatermark(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 5, reconciled.EventTimeOptions)
	var calls atomic.Int64
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path != "/events" || calls.Add(1) > 1 {
			return nil, nil
		}
		_, until := b.CompleteRange(t, "", reconcile.Events)
		if !until.IsZero() {
			t.Errorf("complete until %s before anything is read", until)
		}
		return nil, nil
	}
	b.StartReconciler(t, b.Runner())
	if r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Status != runs.Done || calls.Load() == 0 {
		t.Errorf("%s after %d calls: %s", r.Status, calls.Load(), r.Detail)
	}
}

// A run moves the watermark over the time range that it read, and not over gaps between ranges or
// the time before a short first run.
func TestReconcile_unreadRanges_areNotComplete(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 5, reconciled.EventTimeOptions)
	first, last := time.UnixMicro(b.API.History.Events[0].OccurredAt),
		time.UnixMicro(b.API.History.LastChangeAt("obj_1"))
	for _, e := range b.API.History.Events {
		if at := time.UnixMicro(e.OccurredAt); at.Before(first) {
			first = at
		}
	}
	b.StartReconciler(t, b.Runner())
	complete := func(want bool, at time.Time) {
		t.Helper()
		since, until := b.CompleteRange(t, "", reconcile.Events)
		if !until.IsZero() && !since.After(at) && at.Before(until) != want {
			t.Errorf("complete from %s until %s; contains %s: want %t", since, until, at, want)
		}
	}
	late := b.API.Time.Add(-10 * time.Minute)
	b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events, Since: late}) // long after the history
	complete(false, last)
	b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events, Since: first.Add(-time.Minute),
		Until: first.Add(-time.Second)})
	complete(false, last)
	if r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Counts[reconcile.Missing] != int64(
		len(b.API.History.Events)) {
		t.Errorf("after runs over other time ranges a run finds %v of %d events", r.Counts, len(b.API.History.Events))
	}
	complete(true, last)
	calls := b.API.CallCount("/events")
	if r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events,
		Until: last.Add(time.Second)}); r.Counts[reconcile.Present] == 0 || b.API.CallCount("/events") == calls {
		t.Errorf("a run up to a time before the watermark has read nothing: %v", r.Counts)
	}
	var rows int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM watermarks WHERE subject = 'events'`).Scan(
		&rows); err != nil || rows != 1 {
		t.Errorf("%d watermarks (%v)", rows, err)
	}
}

// A gap between two time ranges holds the watermark until it is read.
func TestReconcile_gapBetweenRanges_isNotComplete(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 4, reconciled.EventTimeOptions)
	b.StartReconciler(t, b.Runner())
	at := func(d time.Duration) time.Time { return time.UnixMicro(sim.Start).Add(d).UTC().Truncate(time.Second) }
	if complete := completeUntilAfter(t, b, time.Time{}, at(2*time.Second)); !complete.Equal(at(2 * time.Second)) {
		t.Fatalf("complete until %s", complete)
	}
	if complete := completeUntilAfter(t, b, at(4*time.Second), at(6*time.Second)); !complete.Equal(
		at(2 * time.Second)) {
		t.Errorf("complete until %s, though 2 s to 4 s was not read", complete)
	}
	if complete := completeUntilAfter(t, b, at(2*time.Second), at(6*time.Second)); !complete.Equal(
		at(6 * time.Second)) {
		t.Errorf("complete until %s, though everything until 6 s was read", complete)
	}
}

// An event that is listed after a run has passed its time is found by the next run, which starts
// before the watermark.
func TestReconcile_eventListedLate_isFoundByNextRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 5, reconciled.EventTimeOptions)
	all := slices.Clone(b.API.History.Events)
	last := slices.IndexFunc(all, func(e sim.Event) bool {
		return !slices.ContainsFunc(all, func(other sim.Event) bool { return other.OccurredAt > e.OccurredAt })
	})
	b.API.History.Events = slices.Delete(slices.Clone(all), last, last+1)
	b.Deliver(t, b.API.History.Events)
	b.API.SetTime(time.UnixMicro(all[last].OccurredAt).Add(refetch.DefaultLimits.ListDelay + 2*time.Second))
	b.StartReconciler(t, b.Runner())
	if complete := completeUntilAfter(t, b, time.Time{}, time.Time{}); complete.UnixMicro() <= all[last].OccurredAt {
		t.Fatalf("complete until %s, before the late event", complete)
	}
	b.API.Mu.Lock()
	b.API.History.Events = all
	b.API.Mu.Unlock()
	b.API.SetTime(b.API.Now().Add(time.Minute))
	reconciled.WantCounts(t, b.WantDone(t, reconcile.Params{Scope: reconcile.Events}),
		reconciled.Counts{reconcile.Missing: 1})
}

// After an expired cursor the list of events is read again.
func TestReconcile_expiredEventCursor_readsTheListAgain(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 6, reconciled.EventTimeOptions)
	var forgot atomic.Int32
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path != "/events" || c.Query.Get("cursor") == "" || forgot.Add(1) > 3 {
			return nil, nil
		}
		return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Expired, Detail: "the cursor expired"},
			Status: http.StatusGone, Date: b.API.Time}, nil
	}
	b.StartReconciler(t, b.Runner())
	r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
	if n := int64(len(b.API.History.Events)); r.Status != runs.Done || r.Counts[reconcile.Missing] != n ||
		forgot.Load() < 3 {
		t.Errorf("%s with %v of %d events after %d expired cursors: %s", r.Status, r.Counts, n, forgot.Load(), r.Detail)
	}
}

// laggingReader is an API with a lag of half a second.
type laggingReader struct{ sim.Provider }

func (laggingReader) Lag() time.Duration { return 500 * time.Millisecond }

// A refetch that overwrites all earlier state starts late enough that its response is not older.
func TestOverwrite_apiLag_waitsForTheLag(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 7, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 3_000_000})
	b.API.SetTime(time.Now())
	b.Deliver(t, b.API.History.Events)
	var refetchedAt atomic.Pointer[time.Time]
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if now := time.Now(); strings.HasPrefix(c.Path, "/things/") {
			refetchedAt.CompareAndSwap(nil, &now)
		}
		return nil, nil
	}
	r := b.Runner()
	late := *r.Sources.All()[b.Source]
	late.Reader = laggingReader{}
	r.Sources.Replace(&late)
	b.StartReconciler(t, r)
	run, err := runs.Create(t.Context(), b.OperatorPool,
		runs.Request{Job: reconcile.Job, Params: reconcile.Params{Source: b.Source, Scope: reconcile.Object,
			Type: "thing", ID: "obj_1", Overwrite: true}, Actor: "ada", Reason: "it is wrong"})
	if err != nil {
		t.Fatal(err)
	}
	reconciled.WantRunDone(t, b.WaitForEnd(t, run))
	before := reconciled.QueryOne[time.Time](t, b, `SELECT (convert_from(body, 'UTF8')::jsonb #>>
		'{overwrite,before}')::timestamptz
		FROM events WHERE event_id LIKE 'overwrite:%'`)
	if at := refetchedAt.Load(); at == nil || at.Sub(before) < late.Reader.Lag() {
		t.Errorf("refetched at %v, and overwrites everything before %s", at, before)
	}
}

// The deliveries of a webhook that is configured later are read as far back as the provider stores
// them. The watermark does not cover them before.
func TestReconcile_webhookConfiguredLater_isReadFromTheStart(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Seed: 3, Start: time.Now().Add(-60 * time.Hour),
		Repositories: 2}, nil)
	hooks := f.Fake.Hooks()
	f.APISource.API.Webhooks = hooks[:1]
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.Fake.OpenIssue(1)
	f.Fake.OpenIssue(1)
	f.Fake.SetWebhooks(githubfake.Webhooks{})
	f.Deliver(t)
	f.Fake.Advance(24 * time.Hour)
	f.StartThrough(t, f.APISource.Caller)
	counted := func(params reconcile.Params, missing int64) (since, until time.Time) {
		t.Helper()
		params.Scope = reconcile.Events
		r := f.RunToEnd(t, params)
		if r.Status != runs.Done || r.Counts[reconcile.Missing] != missing {
			t.Fatalf("%s: %s, %v, want %d missing", r.Status, r.Detail, r.Counts, missing)
		}
		return f.CompleteRange(t, "", reconcile.Events)
	}
	_, before := counted(reconcile.Params{}, 0)
	f.APISource.API.Webhooks = hooks
	f.Fake.Advance(time.Hour)
	recent := f.Fake.Now().Add(-30 * time.Minute)
	if _, until := counted(reconcile.Params{Since: recent}, 0); !until.Equal(before) {
		t.Errorf("complete until %s after a run over half an hour of other webhooks, before %s", until, before)
	}
	if since, until := counted(reconcile.Params{}, 2); since.After(f.Fake.Now().Add(-48*time.Hour)) ||
		!until.After(before) {
		t.Errorf("complete from %s until %s, now it is %s", since, until, f.Fake.Now())
	}
}

// After the configuration changed, the watermark stays until the same time range was read with the
// new configuration, in one or several runs.
func TestReconcile_configurationChanged_keepsWatermarkUntilReread(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 4, reconciled.EventTimeOptions)
	r := b.Runner()
	b.StartReconciler(t, r)
	at := func(d time.Duration) time.Time { return time.UnixMicro(sim.Start).Add(d).UTC().Truncate(time.Second) }
	if complete := completeUntilAfter(t, b, time.Time{}, at(20*time.Second)); !complete.Equal(at(20 * time.Second)) {
		t.Fatalf("complete until %s", complete)
	}
	other := *r.Sources.All()[b.Source]
	config := *other.Config
	config.Accounts = []string{"*"}
	other.Config = &config
	r.Sources.Replace(&other)
	if complete := completeUntilAfter(t, b, time.Time{}, at(10*time.Second)); !complete.Equal(at(20 * time.Second)) {
		t.Errorf("complete until %s after a run up to 10 s", complete)
	}
	if complete := completeUntilAfter(t, b, at(15*time.Second), at(30*time.Second)); !complete.Equal(
		at(20 * time.Second)) {
		t.Errorf("complete until %s, though 10 s to 15 s was not read", complete)
	}
	if complete := completeUntilAfter(t, b, time.Time{}, at(25*time.Second)); !complete.Equal(at(25 * time.Second)) {
		t.Errorf("complete until %s, though everything until 25 s was read", complete)
	}
	if complete := completeUntilAfter(t, b, at(24*time.Second), at(30*time.Second)); !complete.Equal(
		at(30 * time.Second)) {
		t.Errorf("complete until %s, though everything until 30 s was read", complete)
	}
}

// completeUntilAfter runs over the events of a time range, which must succeed, and returns the
// watermark.
func completeUntilAfter(t *testing.T, b *reconciled.Env, since, until time.Time) time.Time {
	t.Helper()
	b.WantDone(t, reconcile.Params{Scope: reconcile.Events, Since: since, Until: until})
	_, complete := b.CompleteRange(t, "", reconcile.Events)
	return complete
}
