package reconciled

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// StartRefetchers starts processes that make refetches until the test ends.
func (b *Env) StartRefetchers(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		StartRefetcher(t, b.Runner(), fmt.Sprint("process ", i))
	}
}

// WaitForRefetches waits until no refetch is pending and no request is left.
func (b *Env) WaitForRefetches(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var pending, requests int
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM objects WHERE refetch_after <> 0),
			(SELECT count(*) FROM refetch_requests)`).Scan(&pending, &requests)
		if err == nil && pending+requests > 0 {
			err = fmt.Errorf("%d refetches are pending, %d requests are left", pending, requests)
		}
		return err
	})
}

// PartlyReadable is a provider whose API has no call for some objects.
type PartlyReadable struct {
	sim.Provider
	Unreadable func(id string) bool
}

func (p PartlyReadable) Fetch(src *provider.Source, api *provider.API, account, objectType, id string) (provider.Call,
	bool) {
	c, ok := p.Provider.Fetch(src, api, account, objectType, id)
	return c, ok && !p.Unreadable(id)
}

// GaugeValues returns the values of a registry by name and labels.
func GaugeValues(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	testkit.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue()
		}
	}
	return got
}

// CounterReader is a provider whose objects have a counter as version, so that a missing object has
// no version.
type CounterReader struct{ sim.Provider }

func (CounterReader) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if s.Missing {
		return provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID,
			Partial: "not found", Deleted: true}, nil
	}
	return sim.Provider{}.Snapshot(src, s)
}

// SourceWith returns the environment's source, changed by edit.
func (b *Env) SourceWith(edit func(*providerapi.Source)) *providerapi.Source {
	s := &providerapi.Source{Name: applied.SourceName, Number: b.Source,
		Config: &provider.Source{Name: applied.SourceName}, API: &provider.API{Concurrency: 2},
		Provider: sim.Provider{}, Reader: sim.Provider{}, Caller: b.API}
	edit(s)
	return s
}

// RefetchPasses makes refetches with a runner. Each call is one pass over the refetch requests.
func RefetchPasses(b *Env, r *reconcile.Runner) func(context.Context) (int, error) {
	l := &refetch.Refetcher{Resources: r.Resources, ID: "one", Logger: slog.New(slog.DiscardHandler)}
	return l.ForSource(r.Sources.All()[b.Source]).Pass
}

// StartRefetcher makes refetches with a runner until the test ends or stop is called.
func StartRefetcher(t *testing.T, r *reconcile.Runner, id string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	l := &refetch.Refetcher{Resources: r.Resources, ID: id, Logger: slog.New(slog.DiscardHandler),
		PollInterval: 20 * time.Millisecond}
	go func() { defer close(done); _ = l.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

const CountRefetchesSQL = `SELECT count(*) FROM events WHERE event_type = 'postern.refetch'`

// ObjectWithPendingRefetch delivers all events, and returns an object with a pending refetch.
func (b *Env) ObjectWithPendingRefetch(t *testing.T) (id string) {
	t.Helper()
	b.Deliver(t, b.API.History.Events)
	id = QueryOne[string](t, b, `SELECT object_id FROM objects WHERE refetch_after <> 0 ORDER BY object_id LIMIT 1`)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 0 WHERE object_id <> $1`, id) // the others need no refetch here
	return id
}

// WaitForRequestError waits until the only refetch request has an error with this text.
func (b *Env) WaitForRequestError(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var got string
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT error FROM refetch_requests WHERE lease_owner = ''`).Scan(&got)
		if err == nil && !strings.Contains(got, text) {
			err = fmt.Errorf("the request's error is %q", got)
		}
		return err
	})
}

// ErrorResponse is the response of a failing API.
func ErrorResponse(status int) *providerapi.Response {
	return &providerapi.Response{Verdict: provider.ClassifyStatus(status, http.Header{}, nil)}
}

// RandomSubset returns a random part of the events.
func RandomSubset(evs []sim.Event, percent int, seed uint64) (kept []sim.Event) {
	r := rand.New(rand.NewPCG(seed, 41))
	for _, e := range evs {
		if r.IntN(100) < percent {
			kept = append(kept, e)
		}
	}
	return kept
}
