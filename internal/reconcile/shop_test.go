package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// shop is a source of Stripe's, whose account lives in a fake that real clients call.
type shop struct {
	*applied.Log
	fake   *stripefake.Fake
	config *provider.Source
}

// newShop has a source that is pinned to an account, or to none.
func newShop(t *testing.T, pinned string, o stripefake.Options) *shop {
	t.Helper()
	b := &shop{Log: applied.New(t), fake: stripefake.New(t, o), config: &provider.Source{Name: applied.Name, Account: pinned}}
	s := b.Sources[applied.Name]
	s.Config, s.Provider = b.config, stripe.Stripe{}
	b.Sources[applied.Name] = s
	return b
}

// deliver stores and applies webhooks of the account that the choice lets through, and returns how many were not.
func (b *shop) deliver(t *testing.T, lost func(n int) bool) (missing int64) {
	t.Helper()
	var ds []*provider.Delivery
	n := 0
	b.fake.Deliver(func(d *provider.Delivery) bool {
		if n++; lost(n) {
			missing++
		} else {
			ds = append(ds, d)
		}
		return true
	})
	applied.Deliver(t, b.DB.Role(t, "gateway"), b.Processor(t, nil), b.Sources[applied.Name], ds...)
	return missing
}

// runner is one of a process of its own: with its own connections and client, whose calls go through watch.
func (b *shop) runner(t *testing.T, api *provider.API, watch func(reconcile.Caller) reconcile.Caller) *reconcile.Runner {
	t.Helper()
	metrics, err := reconcile.NewMetrics(prometheus.NewRegistry(), []string{applied.Name})
	if err != nil {
		t.Fatal(err)
	}
	pool := b.DB.Role(t, "processor")
	c, err := reconcile.NewClient(reconcile.Options{Pool: pool, Number: b.Source, Source: applied.Name, Account: b.config.Account, Reader: stripe.Stripe{}, API: api, Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	sources := &reconcile.Sources{}
	sources.Replace(&reconcile.Source{Name: applied.Name, Number: b.Source, Config: b.config, API: api, Provider: stripe.Stripe{}, Reader: stripe.Stripe{}, Caller: watch(c)})
	s := reconcile.DefaultSettings
	s.Again, s.Settle = 10*time.Millisecond, time.Second
	return &reconcile.Runner{Pool: pool, Log: b.DB.Role(t, "gateway"), Processor: b.Processor(t, nil).On(pool), Sources: sources, Settings: s}
}

func (b *shop) api(url string) *provider.API {
	return &provider.API{BaseURL: url, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)}, Version: stripefake.Version, Rate: 1000, Concurrency: 3, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
}

func asIs(c reconcile.Caller) reconcile.Caller { return c }

// The account that a source is pinned to is not named by its webhooks, and so not by what is listed of it: one event is one, whoever tells it.
func TestThePinnedAccountsEventsAreItsWebhooks(t *testing.T) {
	t.Parallel()
	b := newShop(t, stripefake.Own, stripefake.Options{Seed: 3, Objects: 8})
	b.fake.Live(60)
	missing := b.deliver(t, func(n int) bool { return n%3 == 0 })
	b.fake.Advance(time.Minute)
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, b.api(b.fake.URL), asIs).Carry})
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, Account: stripefake.Own, What: reconcile.Events}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
	all := int64(len(b.fake.Events()))
	if r.Status != runs.Done || r.Counts[reconcile.Missing] != missing || r.Counts[reconcile.Present] != all-missing || missing == 0 {
		t.Errorf("%s with %v, want %d missing of %d: %s", r.Status, r.Counts, missing, all, r.Detail)
	}
	if of := b.DB.Rows(t, `SELECT DISTINCT account FROM events ORDER BY 1`); !slices.Equal(of, []string{stripefake.Own, stripefake.Own + "/test"}) {
		t.Errorf("events are of the accounts %q", of)
	}
	if budgets := b.DB.Rows(t, `SELECT account FROM budgets`); !slices.Equal(budgets, []string{""}) {
		t.Errorf("budgets of the accounts %q, want the key's own alone", budgets)
	}
}

// front stands before the fake: it notes when requests come, and answers some that there were too many, with the time to wait.
type front struct {
	fake *stripefake.Fake
	// refuse are the requests to be refused, by their number.
	refuse []int

	mu         sync.Mutex
	arrivals   []time.Time
	refused    []time.Time
	here, most int
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.arrivals = append(f.arrivals, time.Now())
	refuse := slices.Contains(f.refuse, len(f.arrivals))
	if refuse {
		f.refused = append(f.refused, time.Now())
	}
	f.here++
	f.most = max(f.most, f.here)
	f.mu.Unlock()
	if refuse {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	} else {
		<-time.After(50 * time.Millisecond) // so that calls meet
		f.fake.ServeHTTP(w, r)
	}
	f.mu.Lock()
	f.here--
	f.mu.Unlock()
}

// told notes when processes knew that there were too many calls.
type told struct {
	reconcile.Caller
	mu *sync.Mutex
	at *[]time.Time
}

func (c told) Do(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
	r, err := c.Caller.Do(ctx, call)
	if r != nil && r.Verdict.Kind == provider.Throttled {
		c.mu.Lock()
		*c.at = append(*c.at, time.Now())
		c.mu.Unlock()
	}
	return r, err
}

// Four processes with runs and looks stay within one rate and one number of calls at once, and all of them wait where one was told to.
func TestFourProcessesReconcileWithinOneBudget(t *testing.T) {
	t.Parallel()
	const rate, places, asked = 50, 3, 6
	b := newShop(t, "", stripefake.Options{Seed: 5, Objects: 12})
	b.fake.Live(150)
	b.deliver(t, func(n int) bool { return n%2 == 0 })
	b.fake.Advance(time.Minute)
	f := &front{fake: b.fake, refuse: []int{40, 120}}
	api := b.api(serve(t, f.ServeHTTP))
	api.Rate, api.Concurrency = rate, places
	var mu sync.Mutex
	var knew []time.Time
	var ask []int64
	for i := range asked {
		run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Events}, Who: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		ask = append(ask, run)
	}
	for i := range 4 {
		r := b.runner(t, api, func(c reconcile.Caller) reconcile.Caller { return told{c, &mu, &knew} })
		r.Settings.Span, r.Settings.MaxSpan, r.Settings.MinSpan, r.Settings.Kept = 4*time.Second, 4*time.Second, time.Second, 4*time.Minute
		b.Carry(t, fmt.Sprint("process ", i), 1, map[string]runs.Carry{reconcile.Job: r.Carry})
		looksOf(t, r, fmt.Sprint("process ", i))
	}
	for _, run := range ask {
		if r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() }); r.Status != runs.Done {
			t.Errorf("run %d is %s: %s", run, r.Status, r.Detail)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	if f.most > places || len(f.arrivals) < 3*rate {
		t.Errorf("%d calls, %d at once, want %d at most", len(f.arrivals), f.most, places)
	}
	// A call that has begun may be held up on its way; those are no more than the places.
	for i, first := range f.arrivals {
		if n := count(f.arrivals[i:], first.Add(time.Second)); n > rate+places {
			t.Errorf("%d calls in the second from the %d. call on", n, i)
		}
	}
	if len(f.refused) != len(f.refuse) || len(knew) != len(f.refuse) {
		t.Fatalf("%d calls were refused, %d processes knew", len(f.refused), len(knew))
	}
	for i, at := range f.refused {
		if n := count(f.arrivals, at.Add(time.Second)) - count(f.arrivals, knew[i]); n > places-1 {
			t.Errorf("%d calls came within the second that the provider had asked for", n)
		}
	}
}
