package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

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

// newWorld is a source whose provider has had a history, of which nothing is in the log yet.
func newWorld(t *testing.T, seed uint64, o sim.Options) *world {
	t.Helper()
	b := &world{Log: applied.New(t), api: &api{h: sim.Generate(rand.New(rand.NewPCG(seed, 31)), o)}}
	b.gateway = b.DB.Role(t, "gateway")
	b.api.now = time.UnixMicro(sim.Start).Add(time.Hour).UTC()
	b.proc = b.Processor(t, nil)
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

// audit applies what has no outcome yet, as the auditor has it done.
func (b *world) audit(t *testing.T) {
	t.Helper()
	var ids []int64
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(e.id ORDER BY e.id), '{}') FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`).Scan(&ids); err != nil {
		t.Fatal(err)
	}
	if len(ids) > 0 {
		applied.Apply(t, b.proc, 0, ids)
	}
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

// ask orders a reconciliation and waits until it has ended.
func (b *world) ask(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	o.Source = b.Source
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return b.ended(t, run)
}

func (b *world) ended(t *testing.T, run int64) (r *runs.Run) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if r, err = runs.Show(t.Context(), b.Operator, run); err == nil && !r.Status.Final() {
			err = fmt.Errorf("run %d is %s: %s", run, r.Status, r.Detail)
		}
		return err
	})
	return r
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
