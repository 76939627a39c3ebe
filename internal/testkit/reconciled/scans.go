package reconciled

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Scan scans all objects and returns the run, which must be done.
func (b *Env) Scan(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	o.Scope = reconcile.Objects
	r := b.RunToEnd(t, o)
	if r.Status != runs.Done {
		t.Fatalf("the run is %s: %s", r.Status, r.Detail)
	}
	return r
}

// WantExactCounts compares the counts of a run that are not 0.
func WantExactCounts(t *testing.T, r *runs.Run, want map[string]int64) {
	t.Helper()
	got := Nonzero(maps.Clone(r.Counts))
	if d := diff.Diff(want, got); d != "" {
		t.Errorf("counts (-want +got): %s", d)
	}
}

// TypeCompleteUntil returns the watermark of the type.
func (b *Env) TypeCompleteUntil(t *testing.T) time.Time {
	t.Helper()
	_, until := b.CompleteRange(t, "", "type thing")
	return until
}

// LivingObjects are objects with their own versions that are never deleted.
var LivingObjects = sim.Options{Objects: 20, Changes: 1, Contents: 4, Unit: 1, Gap: 2_000_000, ObjectVersions: true}

// CancelAfterStatements cancels an attempt after a number of its statements.
type CancelAfterStatements struct {
	Mu        sync.Mutex
	Remaining int
	Cancel    context.CancelFunc
}

func (d *CancelAfterStatements) TraceQueryStart(ctx context.Context, _ *pgx.Conn,
	_ pgx.TraceQueryStartData) context.Context {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Remaining--; d.Remaining == 0 {
		d.Cancel()
	}
	return ctx
}

func (d *CancelAfterStatements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// StatementsPerAttempt is how many more statements each attempt executes than the one before.
func StatementsPerAttempt() int {
	if testing.Short() {
		return 7
	}
	return 1
}

// SeedCount returns how many histories a test uses: one in a short run.
func SeedCount(all int) int {
	if testing.Short() {
		return 1
	}
	return all
}

// KillRepeatedly executes runs with a runner. Each attempt executes StatementsPerAttempt more
// statements than the one before.
func KillRepeatedly(t *testing.T, r *reconcile.Runner) runs.Executor {
	t.Helper()
	d := &CancelAfterStatements{}
	TraceStatements(t, r, d)
	attempt := 0
	return func(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		attempt += StatementsPerAttempt()
		d.Mu.Lock()
		d.Remaining, d.Cancel = attempt, cancel
		d.Mu.Unlock()
		return r.Execute(ctx, h, log)
	}
}

// RefetchCount returns the number of refetches in the log.
func (b *Env) RefetchCount(t *testing.T) int {
	t.Helper()
	return QueryOne[int](t, b, CountRefetchesSQL)
}

// Counts are the counts of a run, without zeros.
type Counts = map[string]int64

// MissingResponse returns the API's response for a missing object.
func (b *Env) MissingResponse() *providerapi.Response { return b.Response(provider.Missing, nil) }

// Response returns a response of the API.
func (b *Env) Response(kind provider.VerdictKind, body []byte) *providerapi.Response {
	return &providerapi.Response{Verdict: provider.Verdict{Kind: kind}, Date: b.API.Time.Truncate(time.Second),
		Body: body}
}

// ObjectBody returns the API's body of an object.
func (b *Env) ObjectBody() []byte {
	return b.API.History.StoredRefetch("obj_6", sim.Refetch{Began: b.API.Time.UnixMicro()}).Body
}

// FoundResponse is a response of the environment's API with this body.
func (b *Env) FoundResponse(body string) *providerapi.Response {
	return b.Response(provider.Found, []byte(body))
}

// TwoTypes lists two types: "aaa", at /aaas and with objects below /aaa/, and then "thing".
type TwoTypes struct{ sim.Provider }

func (TwoTypes) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"aaa": {}, "thing": {}}
}

func (p TwoTypes) ListObjects(src *provider.Source, api *provider.API, account, objectType string, since,
	until time.Time, cursor string) provider.Call {
	c := p.Provider.ListObjects(src, api, account, objectType, since, until, cursor)
	if objectType == "aaa" {
		c.Path = "/aaas"
	}
	return c
}

func (p TwoTypes) Fetch(src *provider.Source, api *provider.API, account, objectType, id string) (provider.Call, bool) {
	if objectType == "aaa" {
		return provider.Call{Path: "/aaa/" + id}, true
	}
	return p.Provider.Fetch(src, api, account, objectType, id)
}

// RunnerReading returns a runner of the source whose events and responses p reads.
func (b *Env) RunnerReading(p interface {
	provider.Provider
	provider.Reader
}) *reconcile.Runner {
	return b.RunnerWith(func(s *providerapi.Source) { s.Provider, s.Reader = p, p })
}

// StartTwoTypes starts runs that scan two types.
func (b *Env) StartTwoTypes(t *testing.T) {
	t.Helper()
	b.StartReconciler(t, b.RunnerReading(TwoTypes{}))
}

// CopyObjects adds objects to the mirror that the provider does not have.
func (b *Env) CopyObjects(t *testing.T, ids ...string) {
	t.Helper()
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM unnest($1::text[]) AS d(id),
		LATERAL (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', d.id)) AS o FROM objects o
			WHERE object_id = 'obj_6') o`, ids)
}
