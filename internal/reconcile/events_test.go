package reconcile_test

import (
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
	reconciled.WantCounts(t, r, reconciled.Counts{reconcile.Processed: int64(len(all)),
		reconcile.Missing: int64(len(all) - len(kept)), reconcile.Present: int64(len(kept))})
	since, until := b.CompleteRange(t, "", reconcile.Events)
	if want := b.API.Time.Add(-refetch.DefaultLimits.ListDelay).Truncate(time.Second); !until.Equal(want) ||
		since.After(b.API.Time.Add(-time.Hour)) {
		t.Errorf("complete from %s until %s, want %s", since, until, want)
	}
	reconciled.WantValue(t, b, len(all)-len(kept), `SELECT count(*) FROM events WHERE origin = 'reconcile'`)
	b.Deliver(t, all) // webhooks that arrive late are duplicates
	reconciled.WantValue(t, b, len(all), `SELECT count(*) FROM events`)
	if again := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}); again.Counts[reconcile.Missing] != 0 {
		t.Errorf("a second run finds %d missing", again.Counts[reconcile.Missing])
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
	reconciled.WantValue(t, b, 1, `SELECT count(*) FROM watermarks WHERE subject = 'events'`)
}

// A gap between two time ranges holds the watermark until it is read.
func TestReconcile_gapBetweenRanges_isNotComplete(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 4, reconciled.EventTimeOptions)
	b.StartReconciler(t, b.Runner())
	wantCompleteAfterRuns(t, b, []eventRange{{0, 2, 2},
		{4, 6, 2}, // 2 s to 4 s was not read
		{2, 6, 6}})
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
	b.Overwrite(t, "obj_1", "ada", "it is wrong")
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
		reconciled.WantCounts(t, f.RunToEnd(t, params), reconciled.Counts{reconcile.Missing: missing})
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
	wantCompleteAfterRuns(t, b, []eventRange{{0, 20, 20}})
	other := *r.Sources.All()[b.Source]
	config := *other.Config
	config.Accounts = []string{"*"}
	other.Config = &config
	r.Sources.Replace(&other)
	wantCompleteAfterRuns(t, b, []eventRange{{0, 10, 20},
		{15, 30, 20}, // 10 s to 15 s was not read
		{0, 25, 25}, {24, 30, 30}})
}

// eventRange is a time range of events, in seconds from the start of the history, where 0 is no
// bound. The watermark after a run over it is complete.
type eventRange struct{ since, until, complete int }

// wantCompleteAfterRuns runs over the events of time ranges and checks the watermark after each.
func wantCompleteAfterRuns(t *testing.T, b *reconciled.Env, ranges []eventRange) {
	t.Helper()
	at := func(seconds int) time.Time {
		if seconds == 0 {
			return time.Time{}
		}
		return time.UnixMicro(sim.Start).Add(time.Duration(seconds) * time.Second).UTC().Truncate(time.Second)
	}
	for _, r := range ranges {
		if got := completeUntilAfter(t, b, at(r.since), at(r.until)); !got.Equal(at(r.complete)) {
			t.Errorf("complete until %s after a run from %d s to %d s, want %d s", got, r.since, r.until, r.complete)
		}
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
