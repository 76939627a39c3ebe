// Package reconciled creates sources whose provider API reconciliations and refetches read, with
// a fake or simulated API behind it, and checks the results. Tests of the packages that read an API
// use it.
package reconciled

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

// SimAPI is the API of the simulated provider for a history, at a time long after it.
type SimAPI struct {
	History *sim.History
	Time    time.Time
	// Intercept may respond in place of the API.
	Intercept func(c provider.Call) (*providerapi.Response, error)
	// responses replace the responses of the API by path, or by the beginning of a path that ends
	// in a star.
	responses map[string]*providerapi.Response

	// Version contains the abilities of the API.
	Version string
	// ListLag is the age of its lists.
	ListLag time.Duration

	Mu    sync.Mutex
	calls map[string]int
}

func (a *SimAPI) Now() time.Time {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.Time
}

// SetTime sets the provider's clock.
func (a *SimAPI) SetTime(now time.Time) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Time = now.UTC()
}

// InterceptWith sets intercept from now on.
func (a *SimAPI) InterceptWith(fails func(c provider.Call) (*providerapi.Response, error)) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Intercept = fails
}

// RespondTo sets the response for some paths from now on. Nil restores the response of the API.
func (a *SimAPI) RespondTo(r *providerapi.Response, paths ...string) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if a.responses == nil {
		a.responses = map[string]*providerapi.Response{}
	}
	for _, path := range paths {
		a.responses[path] = r
	}
}

// override returns the response that RespondTo has set for a path.
func (a *SimAPI) override(path string) (r *providerapi.Response, found bool) {
	for prefix, answer := range a.responses {
		begin, star := strings.CutSuffix(prefix, "*")
		if answer != nil && (prefix == path || star && strings.HasPrefix(path, begin)) {
			copied := *answer
			if !copied.Date.IsZero() {
				copied.Date = a.Time.Truncate(time.Second)
			}
			return &copied, true
		}
	}
	return nil, false
}

func (a *SimAPI) Download(context.Context, string, string, int64) (io.ReadCloser, error) {
	return nil, errors.New("the simulated API has no files")
}

func (a *SimAPI) MaxLatency() time.Duration { return 0 }

func (a *SimAPI) Skew() time.Duration { return 0 }

// CallCount returns the number of calls whose path begins with the prefix.
func (a *SimAPI) CallCount(prefix string) (n int) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	for path, times := range a.calls {
		if strings.HasPrefix(path, prefix) {
			n += times
		}
	}
	return n
}

// WantCalls checks the number of calls whose path begins with the prefix.
func (a *SimAPI) WantCalls(t *testing.T, prefix string, want int) {
	t.Helper()
	if n := a.CallCount(prefix); n != want {
		t.Errorf("%d calls of %s, want %d", n, prefix, want)
	}
}

const PageSize = 7

func (a *SimAPI) Do(_ context.Context, c provider.Call) (*providerapi.Response, error) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if a.calls == nil {
		a.calls = map[string]int{}
	}
	a.calls[c.Path]++
	if a.Intercept != nil {
		if answer, err := a.Intercept(c); answer != nil || err != nil {
			return answer, err
		}
	}
	if answer, found := a.override(c.Path); found {
		return answer, nil
	}
	status, body := http.StatusOK, []byte(`{}`)
	if id, ok := strings.CutPrefix(c.Path, "/things/"); ok {
		body = a.History.StoredRefetch(id, sim.Refetch{Began: a.Time.UnixMicro()}).Body
		// the API returns a stub for a final delete
		if !a.History.Exists(id, a.Time.UnixMicro()) && !a.History.FinalDeletes {
			status, body = http.StatusNotFound, nil
		}
	}
	if key, ok := strings.CutPrefix(c.Path, "/event/"); ok &&
		!slices.ContainsFunc(a.History.Events, func(e sim.Event) bool { return e.Key == key }) {
		status, body = http.StatusNotFound, nil
	}
	if c.Path == "/" {
		body = a.History.EventsPage(0, math.MaxInt64, "", 1)
	}
	if c.Path == "/events" {
		since, _ := strconv.ParseInt(c.Query.Get("since"), 10, 64)
		until, _ := strconv.ParseInt(c.Query.Get("until"), 10, 64)
		body = a.History.EventsPage(since, until, c.Query.Get("cursor"), PageSize)
	}
	if c.Path == "/list" {
		since, _ := strconv.ParseInt(c.Query.Get("since"), 10, 64)
		until, _ := strconv.ParseInt(c.Query.Get("until"), 10, 64)
		body = a.History.ObjectsPage(a.Time.Add(-a.ListLag).UnixMicro(), since, until, c.Query.Get("cursor"), PageSize)
	}
	return &providerapi.Response{Verdict: sim.Provider{}.Answer(status, http.Header{}, body), Body: body,
		Date: a.Time.Truncate(time.Second), Elapsed: time.Millisecond}, nil
}

type Env struct {
	*applied.Log
	Gateway *pgxpool.Pool
	API     *SimAPI
	Proc    *apply.Applier
}

// newEnvWithoutAPI makes an environment without an API.
func newEnvWithoutAPI(t *testing.T) *Env {
	t.Helper()
	b := &Env{Log: applied.New(t)}
	b.Gateway = b.DB.Role(t, "gateway")
	return b
}

// NewEmptyEnv makes a source whose provider has a history, with an empty log.
func NewEmptyEnv(t *testing.T, seed uint64, o sim.Options) *Env {
	t.Helper()
	b := newEnvWithoutAPI(t)
	b.API = &SimAPI{History: sim.Generate(rand.New(rand.NewPCG(seed, 31)), o)}
	b.API.Time = time.UnixMicro(sim.Start).Add(time.Hour).UTC()
	b.Proc = b.Applier(t, nil)
	return b
}

// NewMirroredEnv makes an environment in which all events were delivered.
func NewMirroredEnv(t *testing.T, seed uint64, o sim.Options) *Env {
	t.Helper()
	b := NewEmptyEnv(t, seed, o)
	b.Deliver(t, b.API.History.Events)
	return b
}

var EventTimeOptions = sim.Options{Objects: 8, Changes: 9, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60,
	Partial: 10, Deletes: 10}

// Deliver appends and applies some events as webhooks with the keys of the provider.
func (b *Env) Deliver(t *testing.T, evs []sim.Event) {
	t.Helper()
	ds := make([]*provider.Delivery, len(evs))
	for i, e := range evs {
		ds[i] = &provider.Delivery{Body: e.Body, ReceivedAt: e.ReceivedAt}
	}
	applied.AppendAndApply(t, b.Gateway, b.Proc, b.Sources[applied.SourceName], ds...)
}

// APISources returns the sources of the runner.
func (b *Env) APISources() *providerapi.Sources {
	s := &providerapi.Sources{}
	s.Replace(&providerapi.Source{Name: applied.SourceName, Number: b.Source,
		Config:   &provider.Source{Name: applied.SourceName},
		API:      &provider.API{Version: b.API.Version, Concurrency: 3},
		Provider: sim.Provider{}, Reader: sim.Provider{}, Caller: b.API})
	return s
}

func (b *Env) Runner() *reconcile.Runner {
	s := reconcile.DefaultSettings
	s.InitialInterval, s.MinInterval, s.MaxInterval, s.RetryDelay = 2*time.Second, time.Second, 10*time.Minute,
		10*time.Millisecond
	limits := refetch.DefaultLimits
	limits.EventRetention, limits.Overlap = time.Hour+time.Minute, 5*time.Second
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.Gateway, Applier: b.Proc,
		Sources: b.APISources(), Limits: limits}, Settings: s}
}

// OtherRunner returns the runner of another process, with the settings of r.
func OtherRunner(r *reconcile.Runner) *reconcile.Runner {
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: r.Pool, Log: r.Log, Applier: r.Applier,
		Sources: r.Sources, Limits: r.Limits, Now: r.Now}, Settings: r.Settings}
}

// StartRun requests a reconciliation of the source.
func (b *Env) StartRun(t *testing.T, o reconcile.Params) int64 {
	t.Helper()
	o.Source = b.Source
	run, err := runs.Create(t.Context(), b.OperatorPool, runs.Request{Job: reconcile.Job, Params: o, Actor: "test"})
	testkit.Must(t, err)
	return run
}

// Overwrite requests that an operator overwrites a thing with its state at the provider, and waits
// until the run has succeeded.
func (b *Env) Overwrite(t *testing.T, id, actor, reason string) {
	t.Helper()
	run, err := runs.Create(t.Context(), b.OperatorPool, runs.Request{Job: reconcile.Job, Actor: actor, Reason: reason,
		Params: reconcile.Params{Source: b.Source, Scope: reconcile.Object, Type: "thing", ID: id, Overwrite: true}})
	testkit.Must(t, err)
	WantRunDone(t, b.WaitForEnd(t, run))
}

// RunToEnd requests a reconciliation and waits until it has ended.
func (b *Env) RunToEnd(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	return b.WaitForEnd(t, b.StartRun(t, o))
}

// WantFailure runs a reconciliation that must fail with a detail that contains the words.
func (b *Env) WantFailure(t *testing.T, o reconcile.Params, words ...string) *runs.Run {
	t.Helper()
	r := b.RunToEnd(t, o)
	WantRunFailed(t, r, words...)
	return r
}

// WantDone runs a reconciliation that must succeed.
func (b *Env) WantDone(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	r := b.RunToEnd(t, o)
	WantRunDone(t, r)
	return r
}

func WantRunDone(t *testing.T, r *runs.Run) {
	t.Helper()
	if r.Status != runs.Done {
		t.Fatalf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// WantCounts checks that a run is done and has some counts. Other counts are not checked.
func WantCounts(t *testing.T, r *runs.Run, want Counts) {
	t.Helper()
	WantRunDone(t, r)
	for name, n := range want {
		if r.Counts[name] != n {
			t.Errorf("%s: %d, want %d: %v %s", name, r.Counts[name], n, r.Counts, r.Detail)
		}
	}
}

// WantRunFailed checks that a run has failed with a detail that contains the words.
func WantRunFailed(t *testing.T, r *runs.Run, words ...string) {
	t.Helper()
	for _, w := range words {
		if r.Status != runs.Failed || !strings.Contains(r.Detail, w) {
			t.Errorf("%s with %v, want a failure with %q: %s", r.Status, r.Counts, w, r.Detail)
		}
	}
}

func (b *Env) WaitForEnd(t *testing.T, run int64) *runs.Run {
	t.Helper()
	return b.WaitForRun(t, run, isFinal)
}

func isFinal(r *runs.Run) bool { return r.Status.Ended() }

// EndedOrAwaitsApproval: the run has ended or awaits an approval.
func EndedOrAwaitsApproval(r *runs.Run) bool { return isFinal(r) || r.Status == runs.AwaitingApproval }

// EndedOrDeferred: the run has ended or was deferred.
func EndedOrDeferred(r *runs.Run) bool { return isFinal(r) || r.ConsecutiveFailures > 0 }

// RunnerWith returns a runner of the source with the changes of edit.
func (b *Env) RunnerWith(edit func(*providerapi.Source)) *reconcile.Runner {
	r := b.Runner()
	r.Sources.Replace(b.SourceWith(edit))
	return r
}

// Replay applies all events again, newest first.
func (b *Env) Replay(t *testing.T) {
	t.Helper()
	applied.Apply(t, b.Proc, 77, QueryOne[[]int64](t, b, `SELECT array_agg(id ORDER BY id DESC) FROM events`))
}

// newClient makes a client for the API of a source.
func newClient(t *testing.T, pool *pgxpool.Pool, s *providerapi.Source) *providerapi.Client {
	t.Helper()
	metrics, err := providerapi.NewCallMetrics(prometheus.NewRegistry(), []string{s.Name})
	testkit.Must(t, err)
	c, err := providerapi.NewClient(providerapi.Options{Pool: pool, Number: s.Number, Source: s.Name,
		Account: s.Config.Account, Reader: s.Reader,
		API: s.API, Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	return c
}

// TraceStatements adds a tracer to the statements of a runner.
func TraceStatements(t *testing.T, r *reconcile.Runner, by pgx.QueryTracer) {
	t.Helper()
	cfg := r.Pool.Config()
	cfg.ConnConfig.Tracer = by
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	r.Pool = pool
}

// StartReconciler starts a process that executes runs with a runner.
func (b *Env) StartReconciler(t *testing.T, r *reconcile.Runner) (stop func()) {
	t.Helper()
	return b.StartRunner(t, "one", 1, map[string]runs.Executor{reconcile.Job: r.Execute})
}

// Approve approves a run.
func (b *Env) Approve(t *testing.T, run int64, why string) {
	t.Helper()
	testkit.Must(t, runs.Approve(t.Context(), b.OperatorPool, run, "me", why))
}

// SetStatus requests another status of a run.
func (b *Env) SetStatus(t *testing.T, run int64, to runs.Status) {
	t.Helper()
	testkit.Must(t, runs.ChangeStatus(t.Context(), b.OperatorPool, run, to))
}

// RequestRefetch requests a manual refetch.
func (b *Env) RequestRefetch(t *testing.T, objectType, id, who, why string) {
	t.Helper()
	k := versioning.Key{Source: b.Source, Type: objectType, ID: id}
	if _, err := refetch.Add(t.Context(), b.OperatorPool, k, who, why); err != nil {
		t.Fatal(err)
	}
}

// Report returns the drift report of an object scan.
func (b *Env) Report(t *testing.T, run int64) *objectscan.DriftReport {
	t.Helper()
	report, err := objectscan.ReportDrift(t.Context(), b.OperatorPool, run)
	testkit.Must(t, err)
	return report
}

// Unrepaired returns the differences that an object scan has not repaired.
func (b *Env) Unrepaired(t *testing.T, run int64) []objectscan.Difference {
	t.Helper()
	page, err := objectscan.Differences(t.Context(), b.OperatorPool, run, "", "unrepaired", "", 10)
	testkit.Must(t, err)
	return page.Items
}

// CompleteRange returns the time range of a watermark.
func (b *Env) CompleteRange(t *testing.T, account, what string) (since, until time.Time) {
	t.Helper()
	since, until, err := watermarks.Get(t.Context(), b.OperatorPool, b.Source, account, what)
	testkit.Must(t, err)
	return since, until
}

// QueryOne returns the single value of a query.
func QueryOne[T any](t *testing.T, b *Env, sql string, args ...any) (v T) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// WantValue checks the single value of a query.
func WantValue[T comparable](t *testing.T, b *Env, want T, sql string, args ...any) {
	t.Helper()
	if got := QueryOne[T](t, b, sql, args...); got != want {
		t.Errorf("%v, want %v: %s %v", got, want, sql, args)
	}
}

// WaitForValue waits until the single value of a query is as wanted.
func WaitForValue[T comparable](t *testing.T, b *Env, want T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if got := QueryOne[T](t, b, sql, args...); got != want {
			return fmt.Errorf("%v, want %v: %s %v", got, want, sql, args)
		}
		return nil
	})
}

// WantRows checks the values of a query of one text column.
func (b *Env) WantRows(t *testing.T, sql string, want ...string) {
	t.Helper()
	if got := b.DB.QueryStrings(t, sql); !slices.Equal(got, want) {
		t.Errorf("%q, want %q: %s", got, want, sql)
	}
}

// WantNothingChanged checks that no reconciliation has appended an event, deleted an object or
// moved a watermark.
func (b *Env) WantNothingChanged(t *testing.T) {
	t.Helper()
	b.WantRows(t, `SELECT event_id FROM events WHERE origin <> 'webhook' UNION ALL
		SELECT object_id FROM objects WHERE deleted UNION ALL SELECT subject FROM watermarks`)
}

// WantNone checks that a list of findings is empty.
func WantNone(t *testing.T, found []string) {
	t.Helper()
	if len(found) > 0 {
		t.Errorf("%d findings, the first: %s", len(found), found[0])
	}
}

// Differences returns the objects that differ from the provider's current state.
func (b *Env) Differences(t *testing.T) (wrong []string) {
	t.Helper()
	tx, err := b.DB.Pool.Begin(t.Context())
	testkit.Must(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for _, id := range b.API.History.ObjectIDs() {
		key := versioning.Key{Source: b.Source, Type: "thing", ID: id}
		objs, err := versioning.Load(t.Context(), tx, versioning.Mirror,
			[]versioning.LoadRequest{{Key: key, MinAt: -1 << 63, MaxAt: 1<<63 - 1}})
		testkit.Must(t, err)
		if o := objs[0]; o.State.Hash != b.API.History.StateAt(id, b.API.Now().UnixMicro()).Hash || o.Ambiguous ||
			o.RefetchAfter != 0 {
			wrong = append(wrong, fmt.Sprintf("%s is %s (deleted %v, ambiguous %v, refetch after %d)", id, o.State.JSON,
				o.State.Deleted, o.Ambiguous, o.RefetchAfter))
		}
	}
	return wrong
}

var ErrProviderDown = errors.New("the provider is down")
