package reconcile_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// quotaUsedUp is the beginning of the detail of runs and requests that wait for calls.
const quotaUsedUp = "the calls of thirty days are used: 9 of 10 (api.monthly, the rest is reserved for requests " +
	"of an operator for one object); calls resume at "

// A run without calls waits, reports that and makes no more calls. It continues where it stopped
// when days have passed or the quota is raised, and misses nothing.
func TestReconcile_quotaUsedUp_waitsAndContinues(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]reconcile.Params{"events": {Scope: reconcile.Events},
		"objects": {Scope: reconcile.Objects, Full: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 41, Objects: 8})
			b.Fake.RunSteps(60)
			b.Deliver(t, func(n int) bool { return n%3 == 0 })
			b.Fake.Advance(time.Minute)
			twelfth := make(chan struct{})
			answer := sync.OnceFunc(func() { close(twelfth) })
			api, calls := apiWithTenCalls(t, b, twelfth)
			t.Cleanup(answer)
			r := b.Runner(t, api, reconciled.SameCaller)
			r.Settings.MaxPollDelay = 20 * time.Millisecond
			r.Settings.InitialInterval, r.Settings.MaxInterval, r.Settings.MinInterval,
				r.Limits.EventRetention = 10*time.Second, 10*time.Second, time.Second, 4*time.Minute
			b.StartReconciler(t, r)
			run := b.StartRun(t, o)
			waits := func(r *runs.Run) bool { return strings.HasPrefix(r.Detail, quotaUsedUp) }
			if w := b.WaitForRun(t, run, waits); w.Status != runs.Running || w.ConsecutiveFailures != 0 ||
				calls.Load() != 9 {
				t.Errorf("after %d calls the run is %+v", calls.Load(), w)
			}
			passDays(t, b, 30)
			b.WaitForRun(t, run, waits)
			if n := calls.Load(); n != 9 {
				t.Errorf("%d calls within thirty days", n)
			}
			passDays(t, b, 1)
			b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Detail == "" })
			answer()
			testkit.Eventually(t, time.Minute, func() error {
				if n := calls.Load(); n < 18 {
					return fmt.Errorf("%d calls", n)
				}
				return nil
			})
			b.WaitForRun(t, run, waits)
			if n := calls.Load(); n != 18 {
				t.Errorf("%d calls within sixty days", n)
			}
			raiseQuota(t, b, r, api)
			if w := b.WaitForEnd(t, run); w.Status != runs.Done || w.Detail != "" {
				t.Errorf("with more calls the run is %+v", w)
			}
			if o.Scope == reconcile.Events {
				reconciled.WantNone(t, missingEvents(t, b))
			}
		})
	}
}

// A list that waits for calls is no failure of its type, even if another call is possible: the run
// waits with it and skips nothing. The same holds for an object that is requested by id.
func TestObjectScan_quotaUsedUp_skipsNoType(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/list", "/things/gone"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
			b.CopyObjects(t, "gone")
			var more atomic.Bool
			b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
				switch {
				case c.Path == path && !more.Load():
					return nil, fmt.Errorf("call it: %w", &providerapi.MonthlyBudgetError{
						Limit: 9, Monthly: 10, Wait: 10 * time.Millisecond})
				case c.Path == "/aaas":
					return b.FoundResponse(`{"things":[]}`), nil
				}
				return nil, nil
			}
			b.StartTwoTypes(t)
			run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
			b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.HasPrefix(r.Detail, quotaUsedUp) })
			times := b.API.CallCount(path)
			testkit.Eventually(t, time.Minute, func() error {
				if n := b.API.CallCount(path); n < times+2 {
					return fmt.Errorf("requested %d times", n)
				}
				return nil
			})
			if r, err := runs.Show(t.Context(), b.OperatorPool, run); err != nil || r.Status != runs.Running ||
				r.ConsecutiveFailures != 0 {
				t.Errorf("the run is %+v, %v", r, err)
			}
			more.Store(true)
			r := b.WaitForEnd(t, run)
			reconciled.WantCounts(t, r, reconciled.Counts{objectscan.NotListable: 0, objectscan.Orphans: 1,
				objectscan.Unrepaired: 0})
		})
	}
}

// Refetches without calls wait, and their requests report that. A manual refetch uses the reserved
// calls. When the quota is raised, all are made.
func TestRefetch_quotaUsedUp_waits(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 42, Objects: 8})
	b.Fake.RunSteps(60)
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(time.Minute)
	wanted := b.Fake.Create("", "customer", nil)
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(time.Minute)
	pending := reconciled.QueryOne[int](t, b.Env, `SELECT count(*) FROM objects WHERE refetch_after <> 0`)
	if pending == 0 {
		t.Fatal("no object has a pending refetch")
	}
	api, calls := apiWithTenCalls(t, b, nil)
	b.DB.Exec(t, `INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight,
		calls)
		VALUES ($1, '', 1, now(), now(), 0, '{}', jsonb_build_object(floor(extract(epoch FROM now()) / 86400)::int,
			9))`, b.Source)
	r := b.Runner(t, api, reconciled.SameCaller)
	reconciled.StartRefetcher(t, r, "one")
	waiting := func(n int) {
		t.Helper()
		reconciled.WaitForValue(t, b.Env, n, `SELECT count(*) FROM refetch_requests WHERE starts_with(error, $1)
			AND due > now() AND attempts = 0`, quotaUsedUp)
	}
	waiting(pending)
	if n := calls.Load(); n != 0 {
		t.Errorf("%d calls were made", n)
	}
	b.RequestRefetch(t, "customer", wanted, "me", "ambiguous")
	reconciled.WaitForValue(t, b.Env, 1, `SELECT count(*) FROM events WHERE origin = 'reconcile'`)
	waiting(pending)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls were made for one refetch", n)
	}
	raiseQuota(t, b, r, api)
	reconciled.WaitForValue(t, b.Env, 0, `SELECT count(*) FROM refetch_requests WHERE error <> ''`)
	reconciled.WaitForValue(t, b.Env, true, `SELECT count(DISTINCT object_id) > $1 FROM events
		WHERE origin = 'reconcile'`, pending)
}

// apiWithTenCalls returns the shop's API with ten calls a month, and the number of calls. The
// twelfth gets its response when the channel is closed.
func apiWithTenCalls(t *testing.T, b *reconciled.StripeEnv, twelfth <-chan struct{}) (*provider.API, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	api := b.APIAt(reconciled.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 12 {
			<-twelfth
		}
		b.Fake.ServeHTTP(w, r)
	}))
	api.MonthlyCalls = 10
	return api, &calls
}

// passDays lets days pass for the quota.
func passDays(t *testing.T, b *reconciled.StripeEnv, days int) {
	t.Helper()
	b.DB.Exec(t, `UPDATE rate_budgets SET calls = (SELECT coalesce(jsonb_object_agg(c.key::int - $1::int, c.value),
		'{}')
		FROM jsonb_each(calls) c)`, days)
}

// raiseQuota replaces the configuration with one that has a sufficient quota, as a reload does.
func raiseQuota(t *testing.T, b *reconciled.StripeEnv, r *reconcile.Runner, api *provider.API) {
	t.Helper()
	more := *api
	more.MonthlyCalls = 1000
	other := b.Runner(t, &more, reconciled.SameCaller)
	for _, s := range other.Sources.All() {
		r.Sources.Replace(s)
	}
}

// missingEvents returns the events of the account that are not in the log.
func missingEvents(t *testing.T, b *reconciled.StripeEnv) (missed []string) {
	t.Helper()
	log := map[string]bool{}
	for _, key := range b.DB.QueryStrings(t, `SELECT event_id FROM events`) {
		log[key] = true
	}
	for _, e := range b.Fake.Events() {
		if !log[e.ID] {
			missed = append(missed, e.ID)
		}
	}
	return missed
}
