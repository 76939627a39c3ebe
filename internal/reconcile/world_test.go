package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// api is the simulated provider's API over a history, at a moment long after it.
type api struct {
	h   *sim.History
	now time.Time
	// fails may answer in the place of the API.
	fails func(c provider.Call) (*reconcile.Response, error)
	// answers are responses in the place of the API's, by their path or, with a star, by its beginning.
	answers map[string]*reconcile.Response

	// version says what the API can do.
	version string
	// late is how old its lists are.
	late time.Duration

	mu    sync.Mutex
	calls map[string]int
}

func (a *api) Now() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// set moves the provider's clock.
func (a *api) set(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = now.UTC()
}

// meets has calls meet something from now on.
func (a *api) meets(fails func(c provider.Call) (*reconcile.Response, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = fails
}

// on has the API answer calls of some paths so from now on; nil: as it does by itself.
func (a *api) on(r *reconcile.Response, paths ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answers == nil {
		a.answers = map[string]*reconcile.Response{}
	}
	for _, path := range paths {
		a.answers[path] = r
	}
}

// instead is what on has said of a path.
func (a *api) instead(path string) (r *reconcile.Response, found bool) {
	for prefix, answer := range a.answers {
		begin, star := strings.CutSuffix(prefix, "*")
		if answer != nil && (prefix == path || star && strings.HasPrefix(path, begin)) {
			copied := *answer
			if !copied.Date.IsZero() {
				copied.Date = a.now.Truncate(time.Second)
			}
			return &copied, true
		}
	}
	return nil, false
}

func (a *api) Download(context.Context, string, string, int64) (io.ReadCloser, error) {
	return nil, errors.New("the simulated API has no files")
}

func (a *api) Longest() time.Duration { return 0 }

func (a *api) Skew() time.Duration { return 0 }

// made says how often a path was called.
func (a *api) made(prefix string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, times := range a.calls {
		if strings.HasPrefix(path, prefix) {
			n += times
		}
	}
	return n
}

// called holds that paths were called so often.
func (a *api) called(t *testing.T, prefix string, want int) {
	t.Helper()
	if n := a.made(prefix); n != want {
		t.Errorf("%d calls of %s, want %d", n, prefix, want)
	}
}

const pageSize = 7

func (a *api) Do(_ context.Context, c provider.Call) (*reconcile.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[string]int{}
	}
	a.calls[c.Path]++
	if a.fails != nil {
		if answer, err := a.fails(c); answer != nil || err != nil {
			return answer, err
		}
	}
	if answer, found := a.instead(c.Path); found {
		return answer, nil
	}
	status, body := http.StatusOK, []byte(`{}`)
	if id, ok := strings.CutPrefix(c.Path, "/things/"); ok {
		body = a.h.Answer(id, sim.Look{Began: a.now.UnixMicro()}).Body
		if !a.h.There(id, a.now.UnixMicro()) && !a.h.Final { // for good, it would be a stub
			status, body = http.StatusNotFound, nil
		}
	}
	if key, ok := strings.CutPrefix(c.Path, "/event/"); ok && !slices.ContainsFunc(a.h.Events, func(e sim.Event) bool { return e.Key == key }) {
		status, body = http.StatusNotFound, nil
	}
	if c.Path == "/" {
		body = a.h.Page(0, math.MaxInt64, "", 1)
	}
	if c.Path == "/events" {
		since, _ := strconv.ParseInt(c.Query.Get("since"), 10, 64)
		until, _ := strconv.ParseInt(c.Query.Get("until"), 10, 64)
		body = a.h.Page(since, until, c.Query.Get("cursor"), pageSize)
	}
	if c.Path == "/list" {
		since, _ := strconv.ParseInt(c.Query.Get("since"), 10, 64)
		until, _ := strconv.ParseInt(c.Query.Get("until"), 10, 64)
		body = a.h.List(a.now.Add(-a.late).UnixMicro(), since, until, c.Query.Get("cursor"), pageSize)
	}
	return &reconcile.Response{Verdict: sim.Provider{}.Answer(status, http.Header{}, body), Body: body, Date: a.now.Truncate(time.Second), Elapsed: time.Millisecond}, nil
}

type world struct {
	*applied.Log
	gateway *pgxpool.Pool
	api     *api
	proc    *processor.Processor
}

// bare is a world without an API of its own.
func bare(t *testing.T) *world {
	t.Helper()
	b := &world{Log: applied.New(t)}
	b.gateway = b.DB.Role(t, "gateway")
	return b
}

// newWorld is a source whose provider has had a history, of which nothing is in the log yet.
func newWorld(t *testing.T, seed uint64, o sim.Options) *world {
	t.Helper()
	b := bare(t)
	b.api = &api{h: sim.Generate(rand.New(rand.NewPCG(seed, 31)), o)}
	b.api.now = time.UnixMicro(sim.Start).Add(time.Hour).UTC()
	b.proc = b.Processor(t, nil)
	return b
}

// newMirror is a world all of whose events were delivered.
func newMirror(t *testing.T, seed uint64, o sim.Options) *world {
	t.Helper()
	b := newWorld(t, seed, o)
	b.deliver(t, b.api.h.Events)
	return b
}

var eventTime = sim.Options{Objects: 8, Changes: 9, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60, Partial: 10, Deletes: 10}

// deliver stores and applies some events as webhooks under the provider's own keys.
func (b *world) deliver(t *testing.T, evs []sim.Event) {
	t.Helper()
	ds := make([]*provider.Delivery, len(evs))
	for i, e := range evs {
		ds[i] = &provider.Delivery{Body: e.Body, ReceivedAt: e.ReceivedAt}
	}
	applied.Deliver(t, b.gateway, b.proc, b.Sources[applied.Name], ds...)
}

// sources are what runs reconcile.
func (b *world) sources() *reconcile.Sources {
	s := &reconcile.Sources{}
	s.Replace(&reconcile.Source{Name: applied.Name, Number: b.Source, Config: &provider.Source{Name: applied.Name}, API: &provider.API{Version: b.api.version, Concurrency: 3},
		Provider: sim.Provider{}, Reader: sim.Provider{}, Caller: b.api})
	return s
}

func (b *world) runner() *reconcile.Runner {
	s := reconcile.DefaultSettings
	s.Span, s.MinSpan, s.MaxSpan, s.Again = 2*time.Second, time.Second, 10*time.Minute, 10*time.Millisecond
	s.Kept, s.Overlap = time.Hour+time.Minute, 5*time.Second
	return &reconcile.Runner{Pool: b.Pool, Log: b.gateway, Processor: b.proc, Sources: b.sources(), Settings: s}
}

// order asks for a reconciliation of the source.
func (b *world) order(t *testing.T, o reconcile.Order) int64 {
	t.Helper()
	o.Source = b.Source
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// ask orders a reconciliation and waits until it has ended.
func (b *world) ask(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	return b.ended(t, b.order(t, o))
}

// fails orders a reconciliation that must fail, for a reason with some words in it.
func (b *world) fails(t *testing.T, o reconcile.Order, words ...string) *runs.Run {
	t.Helper()
	r := b.ask(t, o)
	failed(t, r, words...)
	return r
}

// done orders a reconciliation that must be done.
func (b *world) done(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	r := b.ask(t, o)
	isDone(t, r)
	return r
}

func isDone(t *testing.T, r *runs.Run) {
	t.Helper()
	if r.Status != runs.Done {
		t.Fatalf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// has holds that a run is done and has some counts, whatever the others are.
func has(t *testing.T, r *runs.Run, want counts) {
	t.Helper()
	isDone(t, r)
	for name, n := range want {
		if r.Counts[name] != n {
			t.Errorf("%s: %d, want %d: %v %s", name, r.Counts[name], n, r.Counts, r.Detail)
		}
	}
}

// failed holds that a run has failed, for a reason with some words in it.
func failed(t *testing.T, r *runs.Run, words ...string) {
	t.Helper()
	for _, w := range words {
		if r.Status != runs.Failed || !strings.Contains(r.Detail, w) {
			t.Errorf("%s with %v, want it failed for %q: %s", r.Status, r.Counts, w, r.Detail)
		}
	}
}

func (b *world) ended(t *testing.T, run int64) *runs.Run {
	t.Helper()
	return b.Until(t, run, final)
}

func final(r *runs.Run) bool { return r.Status.Final() }

// halted: it has ended or waits for an approval.
func halted(r *runs.Run) bool { return final(r) || r.Status == runs.Proposed }

// troubled: it has ended or was put off.
func troubled(r *runs.Run) bool { return final(r) || r.Troubles > 0 }

// runnerOf is one of the source as edit changes it.
func (b *world) runnerOf(edit func(*reconcile.Source)) *reconcile.Runner {
	r := b.runner()
	r.Sources.Replace(b.source(edit))
	return r
}

// replay applies all events once more, last things first.
func (b *world) replay(t *testing.T) {
	t.Helper()
	applied.Apply(t, b.proc, 77, one[[]int64](t, b, `SELECT array_agg(id ORDER BY id DESC) FROM events`))
}

// newClient calls the API of a source.
func newClient(t *testing.T, pool *pgxpool.Pool, s *reconcile.Source) *reconcile.Client {
	t.Helper()
	metrics, err := reconcile.NewMetrics(prometheus.NewRegistry(), []string{s.Name})
	if err != nil {
		t.Fatal(err)
	}
	c, err := reconcile.NewClient(reconcile.Options{Pool: pool, Number: s.Number, Source: s.Name, Account: s.Config.Account, Reader: s.Reader,
		API: s.API, Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// traced has a runner's statements be traced.
func traced(t *testing.T, r *reconcile.Runner, by pgx.QueryTracer) {
	t.Helper()
	cfg := r.Pool.Config()
	cfg.ConnConfig.Tracer = by
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r.Pool = pool
}

// carry has a runner carry out runs.
func (b *world) carry(t *testing.T, r *reconcile.Runner) (stop func()) {
	t.Helper()
	return b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: r.Carry})
}

// approve lets a proposed run go on.
func (b *world) approve(t *testing.T, run int64, why string) {
	t.Helper()
	if err := runs.Approve(t.Context(), b.Operator, run, "me", why); err != nil {
		t.Fatal(err)
	}
}

// turn asks for another status of a run.
func (b *world) turn(t *testing.T, run int64, to runs.Status) {
	t.Helper()
	if err := runs.Change(t.Context(), b.Operator, run, to); err != nil {
		t.Fatal(err)
	}
}

// wish asks for a look.
func (b *world) wish(t *testing.T, objectType, id, who, why string) {
	t.Helper()
	k := versioning.Key{Source: b.Source, Type: objectType, ID: id}
	if _, err := reconcile.Wish(t.Context(), b.Operator, k, who, why); err != nil {
		t.Fatal(err)
	}
}

// report is what a sweep has found.
func (b *world) report(t *testing.T, run int64) *reconcile.Report {
	t.Helper()
	report, err := reconcile.Drift(t.Context(), b.Operator, run)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// left are the objects that a sweep has left.
func (b *world) left(t *testing.T, run int64) []reconcile.Difference {
	t.Helper()
	page, err := reconcile.Differences(t.Context(), b.Operator, run, "", "left", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// provenOf is from when until when something is proven.
func (b *world) provenOf(t *testing.T, account, what string) (since, until time.Time) {
	t.Helper()
	since, until, err := reconcile.Watermark(t.Context(), b.Operator, b.Source, account, what)
	if err != nil {
		t.Fatal(err)
	}
	return since, until
}

// one is the single value of a query.
func one[T any](t *testing.T, b *world, sql string, args ...any) (v T) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// is holds that the single value of a query is as wanted.
func is[T comparable](t *testing.T, b *world, want T, sql string, args ...any) {
	t.Helper()
	if got := one[T](t, b, sql, args...); got != want {
		t.Errorf("%v, want %v: %s %v", got, want, sql, args)
	}
}

// eventually waits until the single value of a query is as wanted.
func eventually[T comparable](t *testing.T, b *world, want T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if got := one[T](t, b, sql, args...); got != want {
			return fmt.Errorf("%v, want %v: %s %v", got, want, sql, args)
		}
		return nil
	})
}

// rows holds that a query has these texts.
func (b *world) rows(t *testing.T, sql string, want ...string) {
	t.Helper()
	if got := b.DB.Rows(t, sql); !slices.Equal(got, want) {
		t.Errorf("%q, want %q: %s", got, want, sql)
	}
}

// unchanged holds that no reconciliation has appended, deleted or proven anything.
func (b *world) unchanged(t *testing.T) {
	t.Helper()
	b.rows(t, `SELECT event_id FROM events WHERE origin <> 'webhook' UNION ALL
		SELECT object_id FROM objects WHERE deleted UNION ALL SELECT what FROM watermarks`)
}

// none holds that there is none of what a test has found.
func none(t *testing.T, found []string) {
	t.Helper()
	if len(found) > 0 {
		t.Errorf("%d are found, the first: %s", len(found), found[0])
	}
}

// wrong says which objects are not what the provider has now.
func (b *world) wrong(t *testing.T) (wrong []string) {
	t.Helper()
	tx, err := b.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for _, id := range b.api.h.ObjectIDs() {
		key := versioning.Key{Source: b.Source, Type: "thing", ID: id}
		objs, err := versioning.Load(t.Context(), tx, versioning.Mirror, []versioning.Wanted{{Key: key, Lo: -1 << 63, Hi: 1<<63 - 1}})
		if err != nil {
			t.Fatal(err)
		}
		if o := objs[0]; o.State.Hash != b.api.h.State(id, b.api.Now().UnixMicro()).Hash || o.Ambiguous || o.LookAfter != 0 {
			wrong = append(wrong, fmt.Sprintf("%s is %s (deleted %v, ambiguous %v, look after %d)", id, o.State.JSON, o.State.Deleted, o.Ambiguous, o.LookAfter))
		}
	}
	return wrong
}

var errDown = errors.New("the provider is down")
