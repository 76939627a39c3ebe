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

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// simAPI is the API of the simulated provider for a history, at a time long after it.
type simAPI struct {
	history *sim.History
	now     time.Time
	// intercept may respond in place of the API.
	intercept func(c provider.Call) (*providerapi.Response, error)
	// responses replace the responses of the API by path, or by the beginning of a path that ends
	// in a star.
	responses map[string]*providerapi.Response

	// version contains the abilities of the API.
	version string
	// listLag is the age of its lists.
	listLag time.Duration

	mu    sync.Mutex
	calls map[string]int
}

func (a *simAPI) Now() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// setTime sets the provider's clock.
func (a *simAPI) setTime(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = now.UTC()
}

// interceptWith sets intercept from now on.
func (a *simAPI) interceptWith(fails func(c provider.Call) (*providerapi.Response, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.intercept = fails
}

// respondTo sets the response for some paths from now on. Nil restores the response of the API.
func (a *simAPI) respondTo(r *providerapi.Response, paths ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.responses == nil {
		a.responses = map[string]*providerapi.Response{}
	}
	for _, path := range paths {
		a.responses[path] = r
	}
}

// override returns the response that respondTo has set for a path.
func (a *simAPI) override(path string) (r *providerapi.Response, found bool) {
	for prefix, answer := range a.responses {
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

func (a *simAPI) Download(context.Context, string, string, int64) (io.ReadCloser, error) {
	return nil, errors.New("the simulated API has no files")
}

func (a *simAPI) MaxLatency() time.Duration { return 0 }

func (a *simAPI) Skew() time.Duration { return 0 }

// callCount returns the number of calls whose path begins with the prefix.
func (a *simAPI) callCount(prefix string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, times := range a.calls {
		if strings.HasPrefix(path, prefix) {
			n += times
		}
	}
	return n
}

// wantCalls checks the number of calls whose path begins with the prefix.
func (a *simAPI) wantCalls(t *testing.T, prefix string, want int) {
	t.Helper()
	if n := a.callCount(prefix); n != want {
		t.Errorf("%d calls of %s, want %d", n, prefix, want)
	}
}

const pageSize = 7

func (a *simAPI) Do(_ context.Context, c provider.Call) (*providerapi.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[string]int{}
	}
	a.calls[c.Path]++
	if a.intercept != nil {
		if answer, err := a.intercept(c); answer != nil || err != nil {
			return answer, err
		}
	}
	if answer, found := a.override(c.Path); found {
		return answer, nil
	}
	status, body := http.StatusOK, []byte(`{}`)
	if id, ok := strings.CutPrefix(c.Path, "/things/"); ok {
		body = a.history.StoredRefetch(id, sim.Refetch{Began: a.now.UnixMicro()}).Body
		// the API returns a stub for a final delete
		if !a.history.Exists(id, a.now.UnixMicro()) && !a.history.FinalDeletes {
			status, body = http.StatusNotFound, nil
		}
	}
	if key, ok := strings.CutPrefix(c.Path, "/event/"); ok &&
		!slices.ContainsFunc(a.history.Events, func(e sim.Event) bool { return e.Key == key }) {
		status, body = http.StatusNotFound, nil
	}
	if c.Path == "/" {
		body = a.history.EventsPage(0, math.MaxInt64, "", 1)
	}
	if c.Path == "/events" {
		since, _ := strconv.ParseInt(c.Query.Get("since"), 10, 64)
		until, _ := strconv.ParseInt(c.Query.Get("until"), 10, 64)
		body = a.history.EventsPage(since, until, c.Query.Get("cursor"), pageSize)
	}
	if c.Path == "/list" {
		since, _ := strconv.ParseInt(c.Query.Get("since"), 10, 64)
		until, _ := strconv.ParseInt(c.Query.Get("until"), 10, 64)
		body = a.history.ObjectsPage(a.now.Add(-a.listLag).UnixMicro(), since, until, c.Query.Get("cursor"), pageSize)
	}
	return &providerapi.Response{Verdict: sim.Provider{}.Answer(status, http.Header{}, body), Body: body,
		Date: a.now.Truncate(time.Second), Elapsed: time.Millisecond}, nil
}

type testEnv struct {
	*applied.Log
	gateway *pgxpool.Pool
	api     *simAPI
	proc    *apply.Applier
}

// newEnvWithoutAPI makes an environment without an API.
func newEnvWithoutAPI(t *testing.T) *testEnv {
	t.Helper()
	b := &testEnv{Log: applied.New(t)}
	b.gateway = b.DB.Role(t, "gateway")
	return b
}

// newEmptyEnv makes a source whose provider has a history, with an empty log.
func newEmptyEnv(t *testing.T, seed uint64, o sim.Options) *testEnv {
	t.Helper()
	b := newEnvWithoutAPI(t)
	b.api = &simAPI{history: sim.Generate(rand.New(rand.NewPCG(seed, 31)), o)}
	b.api.now = time.UnixMicro(sim.Start).Add(time.Hour).UTC()
	b.proc = b.Applier(t, nil)
	return b
}

// newMirroredEnv makes an environment in which all events were delivered.
func newMirroredEnv(t *testing.T, seed uint64, o sim.Options) *testEnv {
	t.Helper()
	b := newEmptyEnv(t, seed, o)
	b.deliver(t, b.api.history.Events)
	return b
}

var eventTimeOptions = sim.Options{Objects: 8, Changes: 9, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60,
	Partial: 10, Deletes: 10}

// deliver appends and applies some events as webhooks with the keys of the provider.
func (b *testEnv) deliver(t *testing.T, evs []sim.Event) {
	t.Helper()
	ds := make([]*provider.Delivery, len(evs))
	for i, e := range evs {
		ds[i] = &provider.Delivery{Body: e.Body, ReceivedAt: e.ReceivedAt}
	}
	applied.AppendAndApply(t, b.gateway, b.proc, b.Sources[applied.SourceName], ds...)
}

// sources returns the sources of the runner.
func (b *testEnv) sources() *providerapi.Sources {
	s := &providerapi.Sources{}
	s.Replace(&providerapi.Source{Name: applied.SourceName, Number: b.Source,
		Config:   &provider.Source{Name: applied.SourceName},
		API:      &provider.API{Version: b.api.version, Concurrency: 3},
		Provider: sim.Provider{}, Reader: sim.Provider{}, Caller: b.api})
	return s
}

func (b *testEnv) runner() *reconcile.Runner {
	s := reconcile.DefaultSettings
	s.InitialInterval, s.MinInterval, s.MaxInterval, s.RetryDelay = 2*time.Second, time.Second, 10*time.Minute,
		10*time.Millisecond
	limits := refetch.DefaultLimits
	limits.EventRetention, limits.Overlap = time.Hour+time.Minute, 5*time.Second
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.gateway, Applier: b.proc,
		Sources: b.sources(), Limits: limits}, Settings: s}
}

// otherRunner returns the runner of another process, with the settings of r.
func otherRunner(r *reconcile.Runner) *reconcile.Runner {
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: r.Pool, Log: r.Log, Applier: r.Applier,
		Sources: r.Sources, Limits: r.Limits, Now: r.Now}, Settings: r.Settings}
}

// startRun requests a reconciliation of the source.
func (b *testEnv) startRun(t *testing.T, o reconcile.Params) int64 {
	t.Helper()
	o.Source = b.Source
	run, err := runs.Create(t.Context(), b.OperatorPool, runs.Request{Job: reconcile.Job, Params: o, Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// runToEnd requests a reconciliation and waits until it has ended.
func (b *testEnv) runToEnd(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	return b.waitForEnd(t, b.startRun(t, o))
}

// wantFailure runs a reconciliation that must fail with a detail that contains the words.
func (b *testEnv) wantFailure(t *testing.T, o reconcile.Params, words ...string) *runs.Run {
	t.Helper()
	r := b.runToEnd(t, o)
	wantRunFailed(t, r, words...)
	return r
}

// wantDone runs a reconciliation that must succeed.
func (b *testEnv) wantDone(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	r := b.runToEnd(t, o)
	wantRunDone(t, r)
	return r
}

func wantRunDone(t *testing.T, r *runs.Run) {
	t.Helper()
	if r.Status != runs.Done {
		t.Fatalf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// wantCounts checks that a run is done and has some counts. Other counts are not checked.
func wantCounts(t *testing.T, r *runs.Run, want counts) {
	t.Helper()
	wantRunDone(t, r)
	for name, n := range want {
		if r.Counts[name] != n {
			t.Errorf("%s: %d, want %d: %v %s", name, r.Counts[name], n, r.Counts, r.Detail)
		}
	}
}

// wantRunFailed checks that a run has failed with a detail that contains the words.
func wantRunFailed(t *testing.T, r *runs.Run, words ...string) {
	t.Helper()
	for _, w := range words {
		if r.Status != runs.Failed || !strings.Contains(r.Detail, w) {
			t.Errorf("%s with %v, want a failure with %q: %s", r.Status, r.Counts, w, r.Detail)
		}
	}
}

func (b *testEnv) waitForEnd(t *testing.T, run int64) *runs.Run {
	t.Helper()
	return b.WaitForRun(t, run, isFinal)
}

func isFinal(r *runs.Run) bool { return r.Status.Ended() }

// endedOrAwaitsApproval: the run has ended or awaits an approval.
func endedOrAwaitsApproval(r *runs.Run) bool { return isFinal(r) || r.Status == runs.AwaitingApproval }

// endedOrDeferred: the run has ended or was deferred.
func endedOrDeferred(r *runs.Run) bool { return isFinal(r) || r.ConsecutiveFailures > 0 }

// runnerWith returns a runner of the source with the changes of edit.
func (b *testEnv) runnerWith(edit func(*providerapi.Source)) *reconcile.Runner {
	r := b.runner()
	r.Sources.Replace(b.sourceWith(edit))
	return r
}

// replay applies all events again, newest first.
func (b *testEnv) replay(t *testing.T) {
	t.Helper()
	applied.Apply(t, b.proc, 77, queryOne[[]int64](t, b, `SELECT array_agg(id ORDER BY id DESC) FROM events`))
}

// newClient makes a client for the API of a source.
func newClient(t *testing.T, pool *pgxpool.Pool, s *providerapi.Source) *providerapi.Client {
	t.Helper()
	metrics, err := providerapi.NewCallMetrics(prometheus.NewRegistry(), []string{s.Name})
	if err != nil {
		t.Fatal(err)
	}
	c, err := providerapi.NewClient(providerapi.Options{Pool: pool, Number: s.Number, Source: s.Name,
		Account: s.Config.Account, Reader: s.Reader,
		API: s.API, Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// traceStatements adds a tracer to the statements of a runner.
func traceStatements(t *testing.T, r *reconcile.Runner, by pgx.QueryTracer) {
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

// startReconciler starts a process that executes runs with a runner.
func (b *testEnv) startReconciler(t *testing.T, r *reconcile.Runner) (stop func()) {
	t.Helper()
	return b.StartRunner(t, "one", 1, map[string]runs.Executor{reconcile.Job: r.Execute})
}

// approve approves a run.
func (b *testEnv) approve(t *testing.T, run int64, why string) {
	t.Helper()
	if err := runs.Approve(t.Context(), b.OperatorPool, run, "me", why); err != nil {
		t.Fatal(err)
	}
}

// setStatus requests another status of a run.
func (b *testEnv) setStatus(t *testing.T, run int64, to runs.Status) {
	t.Helper()
	if err := runs.ChangeStatus(t.Context(), b.OperatorPool, run, to); err != nil {
		t.Fatal(err)
	}
}

// requestRefetch requests a manual refetch.
func (b *testEnv) requestRefetch(t *testing.T, objectType, id, who, why string) {
	t.Helper()
	k := versioning.Key{Source: b.Source, Type: objectType, ID: id}
	if _, err := refetch.Add(t.Context(), b.OperatorPool, k, who, why); err != nil {
		t.Fatal(err)
	}
}

// report returns the drift report of an object scan.
func (b *testEnv) report(t *testing.T, run int64) *objectscan.DriftReport {
	t.Helper()
	report, err := objectscan.ReportDrift(t.Context(), b.OperatorPool, run)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// unrepaired returns the differences that an object scan has not repaired.
func (b *testEnv) unrepaired(t *testing.T, run int64) []objectscan.Difference {
	t.Helper()
	page, err := objectscan.Differences(t.Context(), b.OperatorPool, run, "", "unrepaired", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// completeRange returns the time range of a watermark.
func (b *testEnv) completeRange(t *testing.T, account, what string) (since, until time.Time) {
	t.Helper()
	since, until, err := watermarks.Get(t.Context(), b.OperatorPool, b.Source, account, what)
	if err != nil {
		t.Fatal(err)
	}
	return since, until
}

// queryOne returns the single value of a query.
func queryOne[T any](t *testing.T, b *testEnv, sql string, args ...any) (v T) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// wantValue checks the single value of a query.
func wantValue[T comparable](t *testing.T, b *testEnv, want T, sql string, args ...any) {
	t.Helper()
	if got := queryOne[T](t, b, sql, args...); got != want {
		t.Errorf("%v, want %v: %s %v", got, want, sql, args)
	}
}

// waitForValue waits until the single value of a query is as wanted.
func waitForValue[T comparable](t *testing.T, b *testEnv, want T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if got := queryOne[T](t, b, sql, args...); got != want {
			return fmt.Errorf("%v, want %v: %s %v", got, want, sql, args)
		}
		return nil
	})
}

// wantRows checks the values of a query of one text column.
func (b *testEnv) wantRows(t *testing.T, sql string, want ...string) {
	t.Helper()
	if got := b.DB.QueryStrings(t, sql); !slices.Equal(got, want) {
		t.Errorf("%q, want %q: %s", got, want, sql)
	}
}

// wantNothingChanged checks that no reconciliation has appended an event, deleted an object or
// moved a watermark.
func (b *testEnv) wantNothingChanged(t *testing.T) {
	t.Helper()
	b.wantRows(t, `SELECT event_id FROM events WHERE origin <> 'webhook' UNION ALL
		SELECT object_id FROM objects WHERE deleted UNION ALL SELECT subject FROM watermarks`)
}

// wantNone checks that a list of findings is empty.
func wantNone(t *testing.T, found []string) {
	t.Helper()
	if len(found) > 0 {
		t.Errorf("%d findings, the first: %s", len(found), found[0])
	}
}

// differences returns the objects that differ from the provider's current state.
func (b *testEnv) differences(t *testing.T) (wrong []string) {
	t.Helper()
	tx, err := b.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for _, id := range b.api.history.ObjectIDs() {
		key := versioning.Key{Source: b.Source, Type: "thing", ID: id}
		objs, err := versioning.Load(t.Context(), tx, versioning.Mirror,
			[]versioning.LoadRequest{{Key: key, MinAt: -1 << 63, MaxAt: 1<<63 - 1}})
		if err != nil {
			t.Fatal(err)
		}
		if o := objs[0]; o.State.Hash != b.api.history.StateAt(id, b.api.Now().UnixMicro()).Hash || o.Ambiguous ||
			o.RefetchAfter != 0 {
			wrong = append(wrong, fmt.Sprintf("%s is %s (deleted %v, ambiguous %v, refetch after %d)", id, o.State.JSON,
				o.State.Deleted, o.Ambiguous, o.RefetchAfter))
		}
	}
	return wrong
}

var errProviderDown = errors.New("the provider is down")
