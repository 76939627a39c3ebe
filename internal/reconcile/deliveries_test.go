package reconcile_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// failingCaller is a Caller whose n-th call fails, as if the process had ended there.
type failingCaller struct {
	providerapi.Caller
	mu     sync.Mutex
	calls  int
	failAt int
}

func (b *failingCaller) Do(ctx context.Context, c provider.Call) (*providerapi.Response, error) {
	b.mu.Lock()
	b.calls++
	broken := b.calls == b.failAt
	b.mu.Unlock()
	if broken {
		return nil, reconciled.ErrProviderDown
	}
	return b.Caller.Do(ctx, c)
}

// lossyHooks are the options of a GitHub whose webhooks are lost in a percentage of cases.
func lossyHooks(seed uint64, lost int) githubfake.Options {
	return githubfake.Options{Seed: seed, Start: time.Now().Add(-2 * time.Hour),
		Webhooks: githubfake.Webhooks{LostUnacknowledged: lost}}
}

const appendedSQL = `SELECT count(*) FROM events WHERE origin = 'reconcile' AND event_type <> 'postern.refetch'`

// Missing deliveries are read from the API, whenever a process ends. Each is counted once and has
// the headers of the webhook. A dry run before requests no body, appends nothing and moves no
// watermark.
func TestReconcile_missedGitHubDeliveries_areAppendedOnce(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 100} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			o := lossyHooks(uint64(at), 30)
			o.Webhooks.LostAcknowledged = 10
			f := reconciled.NewGitHubEnv(t, o, nil)
			f.Fake.RunSteps(150)
			received := f.Deliver(t)
			f.Fake.Advance(time.Hour)
			f.StartThrough(t, &failingCaller{Caller: f.APISource.Caller, failAt: at})
			bodyCalls := func() (n int) {
				for _, call := range f.Fake.Requests() {
					if strings.Contains(call, "/deliveries/") {
						n++
					}
				}
				return n
			}
			dry := f.WantDone(t, reconcile.Params{Scope: reconcile.Events, DryRun: true})
			if c := dry.Counts; c[reconcile.Present] != int64(received) || c[reconcile.Missing] < 30 ||
				c[reconcile.Undelivered] == 0 || c[reconcile.Undelivered] >= c[reconcile.Missing] ||
				f.Count(t, appendedSQL) != 0 || bodyCalls() != 0 {
				t.Errorf("a dry run counts %v after %d calls for bodies", c, bodyCalls())
			}
			f.WantRows(t, `SELECT subject FROM watermarks`)
			r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
			reconciled.WantCounts(t, r, reconciled.Counts{reconcile.Processed: int64(f.Fake.SentCount()),
				reconcile.Present: int64(received), reconcile.Conflicting: 0, reconcile.UnreadEvents: 0,
				reconcile.Undelivered: dry.Counts[reconcile.Undelivered]})
			if missing := r.Counts[reconcile.Missing]; missing < 30 || missing != dry.Counts[reconcile.Missing] ||
				missing != r.Counts[reconcile.Processed]-int64(received) || missing != f.Count(t, appendedSQL) {
				t.Errorf("%s with %v, %d were appended: %s", r.Status, r.Counts, f.Count(t, appendedSQL), r.Detail)
			}
			if n := f.Count(t, appendedSQL+` AND headers ->> 'X-Github-Delivery' = event_id
				AND headers ->> 'X-Github-Hook-Id' <> '' AND NOT headers ? 'X-Hub-Signature-256'
					AND event_type LIKE headers ->> 'X-Github-Event' || '.%'`); n != f.Count(t, appendedSQL) {
				t.Errorf("%d events have the headers of webhooks", n)
			}
			_, until := f.CompleteRange(t, "", reconcile.Events)
			if now := f.Fake.Now(); until.Before(now.Add(-time.Minute)) || until.After(now) {
				t.Errorf("complete until %s, and it is %s", until, now)
			}
			fetched := bodyCalls()
			if again := at != 0; fetched != int(r.Counts[reconcile.Missing]) &&
				!(again && fetched <= int(r.Counts[reconcile.Missing])+100) {
				t.Errorf("%d bodies were fetched for %d events", fetched, r.Counts[reconcile.Missing])
			}
		})
	}
}

// The webhook of an event that the API has already returned has the same content in other bytes: it
// is a duplicate.
func TestReconcile_redeliveredEvent_isADuplicate(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, lossyHooks(1, 100), nil)
	f.Fake.RunSteps(150) // enough for more than one page
	f.Fake.Advance(time.Hour)
	f.StartThrough(t, f.APISource.Caller)
	first := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
	if first.Status != runs.Done || first.Counts[reconcile.Undelivered] != first.Counts[reconcile.Missing] ||
		first.Counts[reconcile.Missing] < 30 {
		t.Fatalf("%s with %v: %s", first.Status, first.Counts, first.Detail)
	}
	f.Fake.Redeliver()
	n := int64(f.Fake.Deliver(func(d *provider.Delivery) bool {
		if duplicate, conflict := f.Receive(t, d); !duplicate || conflict {
			t.Errorf("%s: duplicate %t, conflict %t", d.Header.Get("X-GitHub-Delivery"), duplicate, conflict)
		}
		return true
	}))
	f.Fake.Advance(time.Minute)
	again := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Events, Since: f.Fake.Now().Add(-3 * time.Hour)})
	if n != first.Counts[reconcile.Missing] || again.Counts[reconcile.Processed] != n ||
		again.Counts[reconcile.Present] != n || again.Counts[reconcile.Undelivered] != 0 {
		t.Errorf("%d were redelivered; then %v", n, again.Counts)
	}
}

// A body that the API does not return fails the run, and the watermark stays. If the source allows
// it, GitHub is asked to send the event again, and the log has it then.
func TestReconcile_unreadableDeliveryBodies_failTheRun(t *testing.T) {
	t.Parallel()
	for _, redeliver := range []bool{false, true} {
		t.Run(fmt.Sprint(redeliver), func(t *testing.T) {
			t.Parallel()
			f := reconciled.NewGitHubEnv(t, lossyHooks(2, 100), func(api *provider.API) {
				api.Key.Value, api.Redeliver = []byte(githubfake.WriteKey), redeliver
			})
			f.Fake.RunSteps(5)
			f.Fake.HideSentDeliveries()
			f.Fake.RunSteps(5)
			f.Fake.Advance(time.Hour)
			f.StartThrough(t, f.APISource.Caller)
			r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
			unread := r.Counts[reconcile.UnreadEvents]
			if r.Status != runs.Failed || unread < 5 || r.Counts[reconcile.Missing] < 5 ||
				r.Counts[reconcile.Processed] != unread+r.Counts[reconcile.Missing] ||
				!strings.Contains(r.Detail, "answered 404") {
				t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
			}
			f.WantRows(t, `SELECT subject FROM watermarks`)
			sent := int64(f.Deliver(t))
			f.Fake.Advance(time.Minute)
			if !redeliver {
				if sent != 0 {
					t.Errorf("%d were redelivered", sent)
				}
				return
			}
			again := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
			if sent != unread || r.Counts[reconcile.Redelivered] != unread || again.Status != runs.Done ||
				again.Counts[reconcile.Missing] != 0 {
				t.Errorf("%d were redelivered; then %s with %v: %s", sent, again.Status, again.Counts, again.Detail)
			}
		})
	}
}

// A body that cannot be read during an outage is retried: the run waits for the API and gets all
// bodies. If only the bodies fail, they are counted as unread and the run fails.
func TestReconcile_deliveryBodiesDuringOutage_waitForTheAPI(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprint("everything fails: ", all), func(t *testing.T) {
			t.Parallel()
			f := reconciled.NewGitHubEnv(t, lossyHooks(2, 100), func(api *provider.API) {
				api.Webhooks = api.Webhooks[:1] // so that no other call follows the bodies
			})
			f.Fake.RunSteps(20)
			f.Fake.Advance(time.Hour)
			var down, well atomic.Bool
			f.StartThrough(t, reconciled.InterceptingCaller{Caller: f.APISource.Caller,
				Intercept: func(c provider.Call) *providerapi.Response {
					body := strings.Contains(c.Path, "/deliveries/")
					if body {
						down.Store(all)
					}
					if !well.Load() && (body || down.Load()) {
						return reconciled.ErrorResponse(http.StatusBadGateway)
					}
					return nil
				}})
			run := f.StartRun(t, reconcile.Params{Scope: reconcile.Events})
			r := f.WaitForRun(t, run, reconciled.EndedOrDeferred)
			if !all {
				if r.Status != runs.Failed || r.Counts[reconcile.UnreadEvents] < 5 ||
					r.Counts[reconcile.Missing] != 0 || !strings.Contains(r.Detail, "502") {
					t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
				}
				return
			}
			if r.Status.Ended() || r.Counts[reconcile.UnreadEvents] != 0 {
				t.Fatalf("%s with %v: %s", r.Status, r.Counts, r.Detail)
			}
			well.Store(true)
			r = f.WaitForEnd(t, run)
			if r.Status != runs.Done || r.Counts[reconcile.UnreadEvents] != 0 || r.Counts[reconcile.Missing] < 5 {
				t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
			}
		})
	}
}

// A run that cannot start reports the remedy.
func TestReconcile_deliveriesNotConfigured_reportsTheRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range map[string]struct {
		edit func(*provider.API)
		says string
	}{
		"an account": {nil, "ask without an account"},
		"no webhook": {func(api *provider.API) { api.Webhooks = nil }, "name it under api.hooks"},
		"another webhook": {func(api *provider.API) { api.Webhooks = []string{"repos/octo-fake/kettle-0/hooks/7"} },
			"finds no webhook repos/octo-fake/kettle-0/hooks/7, or the key may not read it"},
		"a wrong key": {func(api *provider.API) { api.Key.Value = []byte("github_pat_wrong") },
			"the key is wrong or revoked"},
	} {
		f := reconciled.NewGitHubEnv(t, githubfake.Options{}, c.edit)
		f.StartThrough(t, f.APISource.Caller)
		o := reconcile.Params{Scope: reconcile.Events}
		if c.edit == nil {
			o.Account = "octo-fake"
		}
		f.WantFailure(t, o, c.says)
	}
}

// GitHub stores deliveries for three days. The watermark of a first run starts no earlier.
func TestReconcile_deliveriesOlderThanRetention_areNotComplete(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Seed: 5, Start: time.Now().Add(-4 * 24 * time.Hour),
		Webhooks: githubfake.Webhooks{LostUnacknowledged: 100}}, nil)
	f.Fake.RunSteps(20)
	f.Fake.Advance(3*24*time.Hour + time.Hour)
	f.Fake.RunSteps(20)
	f.Fake.Advance(time.Hour)
	f.StartThrough(t, f.APISource.Caller)
	r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Events})
	since, _ := f.CompleteRange(t, "", reconcile.Events)
	if oldest := f.Fake.Now().Add(-3 * 24 * time.Hour); since.Before(oldest.Add(-time.Minute)) ||
		r.Status != runs.Done || r.Counts[reconcile.Missing] > 20 || r.Counts[reconcile.Missing] < 10 {
		t.Errorf("complete since %s, and GitHub has deliveries since %s; %s with %v", since, oldest, r.Status, r.Counts)
	}
}
