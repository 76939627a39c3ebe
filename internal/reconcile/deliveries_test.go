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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// forge is a source of GitHub's over a fake of it.
type forge struct {
	*world
	fake   *githubfake.Fake
	config *provider.Source
	reads  *reconcile.Source
}

// breaking is a Caller whose n-th call meets trouble of ours, as if the process had ended there.
type breaking struct {
	reconcile.Caller
	mu    sync.Mutex
	calls int
	at    int
}

func (b *breaking) Do(ctx context.Context, c provider.Call) (*reconcile.Response, error) {
	b.mu.Lock()
	b.calls++
	broken := b.calls == b.at
	b.mu.Unlock()
	if broken {
		return nil, errDown
	}
	return b.Caller.Do(ctx, c)
}

// newForge makes a source with a client of its own; edit changes its API.
func newForge(t *testing.T, o githubfake.Options, edit func(*provider.API)) *forge {
	t.Helper()
	f := &forge{world: bare(t), fake: githubfake.New(t, o), config: &provider.Source{Name: "code"}}
	known, err := events.RegisterSources(t.Context(), f.Pool, map[string]string{"code": "github"})
	if err != nil {
		t.Fatal(err)
	}
	f.Source = known.Number["code"]
	f.Sources["code"] = processor.Source{Number: f.Source, Config: f.config, Provider: github.GitHub{}}
	f.proc = f.Processor(t, nil)
	api := &provider.API{BaseURL: f.fake.URL, Key: provider.Secret{Name: "api.key", Value: []byte(githubfake.Key)}, Rate: 1000, Timeout: 30 * time.Second, MaxBytes: 1 << 20,
		Hooks: f.fake.Hooks(), Repositories: f.fake.Repositories()}
	if edit != nil {
		edit(api)
	}
	if err := (github.GitHub{}).CompleteAPI(api); err != nil {
		t.Fatal(err)
	}
	f.reads = &reconcile.Source{Name: "code", Number: f.Source, Config: f.config, API: api, Provider: github.GitHub{}, Reader: github.GitHub{}}
	f.reads.Caller = newClient(t, f.Pool, f.reads)
	return f
}

// through starts what carries out the runs, the way to the API being c.
func (f *forge) through(t *testing.T, c reconcile.Caller) {
	t.Helper()
	source := *f.reads
	source.Caller = c
	r := f.runner()
	r.Sources.Replace(&source)
	f.carry(t, r)
}

// run orders a reconciliation and waits until it has ended.
func (f *forge) run(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	o.Source = f.Source
	id := f.order(t, o)
	return f.ended(t, id)
}

// take stores and applies a delivery as the gateway and the processor do, and says whether it was a duplicate, or a conflict.
func (f *forge) take(t *testing.T, d *provider.Delivery) (duplicate, conflict bool) {
	t.Helper()
	d.ReceivedAt = f.fake.Now()
	r := applied.Take(t, f.gateway, f.Sources["code"], d)[0]
	if !r.Duplicate {
		applied.Apply(t, f.proc, 0, []int64{r.ID})
	}
	return r.Duplicate, r.Conflict
}

// deliver takes what is due.
func (f *forge) deliver(t *testing.T) int {
	t.Helper()
	return f.fake.Deliver(func(d *provider.Delivery) bool { f.take(t, d); return true })
}

func (f *forge) count(t *testing.T, sql string, args ...any) (n int64) {
	t.Helper()
	if err := f.DB.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const appendedSQL = `SELECT count(*) FROM events WHERE origin = 'reconcile' AND event_type <> 'postern.look'`

// What GitHub has sent and the log lacks is taken through the API, wherever a process ends on the way, and counted once; with the headers that the webhook would have had.
func TestMissedDeliveries(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 5, 150} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			f := newForge(t, githubfake.Options{Seed: uint64(at), Start: time.Now().Add(-2 * time.Hour), Webhooks: githubfake.Webhooks{Lost: 30, Swallowed: 10}}, nil)
			f.fake.Live(250)
			received := f.deliver(t)
			f.fake.Advance(time.Hour)
			f.through(t, &breaking{Caller: f.reads.Caller, at: at})
			r := f.run(t, reconcile.Order{What: reconcile.Events})
			want := counts{reconcile.Seen: int64(f.fake.Sent()), reconcile.Present: int64(received), reconcile.Conflicting: 0, reconcile.Unread: 0}
			for name, n := range want {
				if r.Counts[name] != n {
					t.Errorf("%s: %d, want %d", name, r.Counts[name], n)
				}
			}
			if missing := r.Counts[reconcile.Missing]; r.Status != runs.Done || missing < 50 || missing != r.Counts[reconcile.Seen]-int64(received) || missing != f.count(t, appendedSQL) {
				t.Errorf("%s with %v, %d were appended: %s", r.Status, r.Counts, f.count(t, appendedSQL), r.Detail)
			}
			if n := f.count(t, appendedSQL+` AND headers ->> 'X-Github-Delivery' = event_id AND headers ->> 'X-Github-Hook-Id' <> '' AND NOT headers ? 'X-Hub-Signature-256' AND event_type LIKE headers ->> 'X-Github-Event' || '.%'`); n != f.count(t, appendedSQL) {
				t.Errorf("%d events have the headers that webhooks have", n)
			}
			_, until := f.provenOf(t, "", reconcile.Events)
			if now := f.fake.Now(); until.Before(now.Add(-time.Minute)) || until.After(now) {
				t.Errorf("proven until %s, and it is %s", until, now)
			}
			fetched := 0
			for _, call := range f.fake.Requests() {
				if strings.Contains(call, "/deliveries/") {
					fetched++
				}
			}
			if again := at != 0; fetched != int(r.Counts[reconcile.Missing]) && !(again && fetched <= int(r.Counts[reconcile.Missing])+100) {
				t.Errorf("%d bodies were fetched for %d events", fetched, r.Counts[reconcile.Missing])
			}
		})
	}
}

// What comes by the webhook after the API has told of it says the same in other bytes: a duplicate.
func TestRedeliveryIsADuplicate(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 1, Start: time.Now().Add(-2 * time.Hour), Webhooks: githubfake.Webhooks{Lost: 100}}, nil)
	f.fake.Live(150) // so many that both times do not fit on one page
	f.fake.Advance(time.Hour)
	f.through(t, f.reads.Caller)
	first := f.run(t, reconcile.Order{What: reconcile.Events})
	if first.Status != runs.Done || first.Counts[reconcile.Undelivered] != first.Counts[reconcile.Missing] || first.Counts[reconcile.Missing] < 30 {
		t.Fatalf("%s with %v: %s", first.Status, first.Counts, first.Detail)
	}
	f.fake.Redeliver()
	n := int64(f.fake.Deliver(func(d *provider.Delivery) bool {
		if duplicate, conflict := f.take(t, d); !duplicate || conflict {
			t.Errorf("%s: duplicate %t, conflict %t", d.Header.Get("X-GitHub-Delivery"), duplicate, conflict)
		}
		return true
	}))
	f.fake.Advance(time.Minute)
	again := f.run(t, reconcile.Order{What: reconcile.Events, Since: f.fake.Now().Add(-3 * time.Hour)})
	if n != first.Counts[reconcile.Missing] || again.Counts[reconcile.Seen] != n || again.Counts[reconcile.Present] != n || again.Counts[reconcile.Undelivered] != 0 {
		t.Errorf("%d came again; then %v", n, again.Counts)
	}
}

// What the API does not give fails the run and proves nothing; GitHub is asked to send it again where the source says so, and then the log has it.
func TestDeliveriesThatAreNotGiven(t *testing.T) {
	t.Parallel()
	for _, redeliver := range []bool{false, true} {
		t.Run(fmt.Sprint(redeliver), func(t *testing.T) {
			t.Parallel()
			f := newForge(t, githubfake.Options{Seed: 2, Start: time.Now().Add(-2 * time.Hour), Webhooks: githubfake.Webhooks{Lost: 100}}, func(api *provider.API) {
				api.Key.Value, api.Redeliver = []byte(githubfake.WriteKey), redeliver
			})
			f.fake.Live(5)
			f.fake.Withhold()
			f.fake.Live(5)
			f.fake.Advance(time.Hour)
			f.through(t, f.reads.Caller)
			r := f.run(t, reconcile.Order{What: reconcile.Events})
			unread := r.Counts[reconcile.Unread]
			if r.Status != runs.Failed || unread < 5 || r.Counts[reconcile.Missing] < 5 || r.Counts[reconcile.Seen] != unread+r.Counts[reconcile.Missing] || !strings.Contains(r.Detail, "answered 404") {
				t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
			}
			f.rows(t, `SELECT what FROM watermarks`)
			sent := int64(f.deliver(t))
			f.fake.Advance(time.Minute)
			if !redeliver {
				if sent != 0 {
					t.Errorf("%d were sent again", sent)
				}
				return
			}
			again := f.run(t, reconcile.Order{What: reconcile.Events})
			if sent != unread || r.Counts[reconcile.Redelivered] != unread || again.Status != runs.Done || again.Counts[reconcile.Missing] != 0 {
				t.Errorf("%d were sent again; then %s with %v: %s", sent, again.Status, again.Counts, again.Detail)
			}
		})
	}
}

// A body that cannot be read while nothing answers is not given up: the run waits until the API is well, and has all of them. Where the API is well but for the bodies, they are unread, and the run fails.
func TestDeliveriesWhileNothingAnswers(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprint("all is down: ", all), func(t *testing.T) {
			t.Parallel()
			f := newForge(t, githubfake.Options{Seed: 2, Start: time.Now().Add(-2 * time.Hour), Webhooks: githubfake.Webhooks{Lost: 100}}, func(api *provider.API) {
				api.Hooks = api.Hooks[:1] // so that no other call comes behind the bodies
			})
			f.fake.Live(20)
			f.fake.Advance(time.Hour)
			var down, well atomic.Bool
			f.through(t, meddling{f.reads.Caller, func(c provider.Call) *reconcile.Response {
				body := strings.Contains(c.Path, "/deliveries/")
				if body {
					down.Store(all)
				}
				if !well.Load() && (body || down.Load()) {
					return failing(http.StatusBadGateway)
				}
				return nil
			}})
			run := f.order(t, reconcile.Order{What: reconcile.Events})
			r := f.Until(t, run, troubled)
			if !all {
				if r.Status != runs.Failed || r.Counts[reconcile.Unread] < 5 || r.Counts[reconcile.Missing] != 0 || !strings.Contains(r.Detail, "502") {
					t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
				}
				return
			}
			if r.Status.Final() || r.Counts[reconcile.Unread] != 0 {
				t.Fatalf("%s with %v: %s", r.Status, r.Counts, r.Detail)
			}
			well.Store(true)
			r = f.ended(t, run)
			if r.Status != runs.Done || r.Counts[reconcile.Unread] != 0 || r.Counts[reconcile.Missing] < 5 {
				t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
			}
		})
	}
}

// A dry run asks for no body, appends nothing and proves nothing.
func TestDryRunOverDeliveries(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 4, Start: time.Now().Add(-2 * time.Hour), Webhooks: githubfake.Webhooks{Lost: 50}}, nil)
	f.fake.Live(150)
	received := int64(f.deliver(t))
	f.fake.Advance(time.Hour)
	f.through(t, f.reads.Caller)
	r := f.run(t, reconcile.Order{What: reconcile.Events, DryRun: true})
	if c := r.Counts; r.Status != runs.Done || c[reconcile.Present] != received || c[reconcile.Missing] == 0 || c[reconcile.Missing] != c[reconcile.Undelivered] || f.count(t, appendedSQL) != 0 {
		t.Errorf("%s with %v: %s", r.Status, c, r.Detail)
	}
	for _, call := range f.fake.Requests() {
		if strings.Contains(call, "/deliveries/") {
			t.Errorf("asked for %s", call)
		}
	}
	f.rows(t, `SELECT what FROM watermarks`)
}

// A run that cannot begin says what to do.
func TestDeliveriesRefused(t *testing.T) {
	t.Parallel()
	for _, c := range map[string]struct {
		edit func(*provider.API)
		says string
	}{
		"an account":      {nil, "ask without one"},
		"no webhook":      {func(api *provider.API) { api.Hooks = nil }, "name it under api.hooks"},
		"another webhook": {func(api *provider.API) { api.Hooks = []string{"repos/octo-fake/kettle-0/hooks/7"} }, "there is no webhook repos/octo-fake/kettle-0/hooks/7, or the key may not read it"},
		"a wrong key":     {func(api *provider.API) { api.Key.Value = []byte("github_pat_wrong") }, "the key is wrong, or was revoked"},
	} {
		f := newForge(t, githubfake.Options{}, c.edit)
		f.through(t, f.reads.Caller)
		o := reconcile.Order{What: reconcile.Events}
		if c.edit == nil {
			o.Account = "octo-fake"
		}
		f.fails(t, o, c.says)
	}
}

// GitHub forgets after three days: a run that begins anew proves no more than that.
func TestDeliveriesOlderThanKept(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 5, Start: time.Now().Add(-4 * 24 * time.Hour), Webhooks: githubfake.Webhooks{Lost: 100}}, nil)
	f.fake.Live(20)
	f.fake.Advance(3*24*time.Hour + time.Hour)
	f.fake.Live(20)
	f.fake.Advance(time.Hour)
	f.through(t, f.reads.Caller)
	r := f.run(t, reconcile.Order{What: reconcile.Events})
	since, _ := f.provenOf(t, "", reconcile.Events)
	if oldest := f.fake.Now().Add(-3 * 24 * time.Hour); since.Before(oldest.Add(-time.Minute)) ||
		r.Status != runs.Done || r.Counts[reconcile.Missing] > 20 || r.Counts[reconcile.Missing] < 10 {
		t.Errorf("proven since %s, and GitHub knows from %s; %s with %v", since, oldest, r.Status, r.Counts)
	}
}
