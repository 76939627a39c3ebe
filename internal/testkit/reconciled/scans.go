package reconciled

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/watermarks"
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

// AddEachDrift gives one object of the mirror each kind of difference. The others stay equal.
func (b *Env) AddEachDrift(t *testing.T) {
	t.Helper()
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	b.DB.Exec(t, `UPDATE objects SET deleted = true, state = NULL, state_hash = sha256('-null'),
		exact_hash = sha256('-null'), version_at = version_at - 10, time_from = 1, time_to = 1
			WHERE object_id = 'obj_2'`)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'), exact_hash = sha256('old'),
		tied_states = '[]', version_at = version_at - 10 WHERE object_id = 'obj_3'`)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "odd"}', state_hash = sha256('odd'), exact_hash = sha256('odd'),
		tied_states = '[]' WHERE object_id = 'obj_4'`)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "new"}', state_hash = sha256('new'), exact_hash = sha256('new'),
		tied_states = '[]', version_at = version_at + 10, time_to = 9000000000000000 WHERE object_id = 'obj_5'`)
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, '{"object_id": "gone"}') AS o
		FROM objects o WHERE object_id = 'obj_6') o`)
}

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

// KilledJob executes runs with the environment's own runner, and kills each attempt.
func (b *Env) KilledJob(t *testing.T) runs.Executor {
	t.Helper()
	return KillRepeatedly(t, b.Runner())
}

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

// AAAAndThing is a provider of two types. Type "aaa" is scanned first, with the list /aaas and
// objects below /aaa/. The other type is "thing".
type AAAAndThing struct{ sim.Provider }

func (AAAAndThing) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"aaa": {}, "thing": {}}
}

func (p AAAAndThing) ListObjects(src *provider.Source, api *provider.API, account, objectType string, since,
	until time.Time, cursor string) provider.Call {
	c := p.Provider.ListObjects(src, api, account, objectType, since, until, cursor)
	if objectType == "aaa" {
		c.Path = "/aaas"
	}
	return c
}

func (AAAAndThing) Fetch(_ *provider.Source, _ *provider.API, _, objectType, id string) (provider.Call, bool) {
	if objectType == "aaa" {
		return provider.Call{Path: "/aaa/" + id}, true
	}
	return provider.Call{Path: "/things/" + id}, objectType == "thing"
}

// StartAAAAndThing starts a reconciler for the two types.
func (b *Env) StartAAAAndThing(t *testing.T) {
	t.Helper()
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) {
		s.Provider, s.Reader = AAAAndThing{},
			AAAAndThing{}
	}))
}

// Counts are the counts of a run, without zeros.
type Counts = map[string]int64

// AddUnknownObjects adds n old objects of a type to the mirror that the API does not have.
func (b *Env) AddUnknownObjects(t *testing.T, objectType, prefix string, n int) {
	t.Helper()
	b.DB.Exec(t, AddLivingSQL, objectType, prefix, 1, n)
}

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

// AddLivingSQL adds old existing objects to the mirror, with a type, a prefix and the numbers of a
// range.
const AddLivingSQL = `INSERT INTO objects SELECT (o).*
	FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text, 'object_id', $2::text || n)) AS o
FROM objects o, generate_series($3::int, $4::int) n WHERE o.object_type = 'thing' AND o.object_id = 'obj_6') o`

// AddOrphans adds orphans to the run, as if there were more than one batch.
func (b *Env) AddOrphans(t *testing.T, from, to int) {
	t.Helper()
	b.DB.Exec(t, AddLivingSQL, "thing", "gone_", from, to)
	b.DB.Exec(t, `INSERT INTO orphans (run, object_type, object_id, missing_at, elapsed_us) SELECT run, 'thing',
		'gone_' || n,
		$1, 0 FROM runs, generate_series($2::int, $3::int) n`, b.API.Time, from, to)
}

// sparseLists lists things through other objects that may have none.
type sparseLists struct{ sim.Provider }

func (sparseLists) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"thing": {Sparse: true}}
}

// ScanSparsePages scans a list whose cursors are numbers, up to a last one or back to another. One
// page in three contains the same object.
func (b *Env) ScanSparsePages(t *testing.T, last, back int, empty bool) *runs.Run {
	t.Helper()
	b.Deliver(t, b.API.History.Events)
	thing := fmt.Sprintf(`{"id":"obj_1","answer":%s}`, b.ObjectBody())
	b.API.Intercept = func(call provider.Call) (*providerapi.Response, error) {
		if call.Path != "/list" {
			return nil, nil
		}
		var n int
		_, _ = fmt.Sscan(call.Query.Get("cursor"), &n)
		next, object := fmt.Sprint(n+1), ""
		if n == last && back > 0 {
			next = fmt.Sprint(back)
		} else if n == last {
			next = ""
		}
		if n%3 == 2 && !empty {
			object = thing
		}
		return b.Response(provider.Found, fmt.Appendf(nil, `{"things":[%s],"next":%q}`, object, next)), nil
	}
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) {
		s.Provider, s.Reader = sparseLists{}, sparseLists{}
	}))
	return b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, DryRun: true})
}

// AddStartedScan adds a scan that an earlier process has started.
func (b *Env) AddStartedScan(t *testing.T) (run int64) {
	t.Helper()
	run = b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	source := b.APISources().All()[b.Source]
	scope := watermarks.Scope(watermarks.CallParts(sim.Provider{}.ListObjects(source.Config, source.API, "", "thing",
		time.Time{}, time.Time{}, "")))
	b.DB.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, started_at, scope, updated_at)
		VALUES ($1, $2, '', 'thing', $3, $4, now())`, run, b.Source, b.API.Time.Truncate(time.Second), scope)
	return run
}

// OmitFromList makes the API's list omit some objects. The function fails may respond in place of
// the API.
func (b *Env) OmitFromList(fails func(provider.Call) (*providerapi.Response, error), ids ...string) {
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if answer, err := fails(c); answer != nil || err != nil {
			return answer, err
		}
		if c.Path != "/list" {
			return nil, nil
		}
		var page struct {
			Things []struct {
				ID     string          `json:"id"`
				At     int64           `json:"at"`
				Answer json.RawMessage `json:"answer"`
			} `json:"things"`
			Next string `json:"next"`
		}
		if err := json.Unmarshal(b.API.History.ObjectsPage(b.API.Time.UnixMicro(), 0, 0, c.Query.Get("cursor"),
			PageSize), &page); err != nil {
			return nil, err
		}
		shown := page.Things[:0]
		for _, one := range page.Things {
			if !slices.Contains(ids, one.ID) {
				shown = append(shown, one)
			}
		}
		page.Things = shown
		body, err := json.Marshal(page)
		return b.FoundResponse(string(body)), err
	}
}

// OtherAndThing lists two types: "another", at /others, and "thing".
type OtherAndThing struct{ sim.Provider }

func (OtherAndThing) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"another": {}, "thing": {}}
}

func (p OtherAndThing) ListObjects(src *provider.Source, api *provider.API, account, objectType string, since,
	until time.Time, cursor string) provider.Call {
	c := p.Provider.ListObjects(src, api, account, objectType, since, until, cursor)
	if objectType == "another" {
		c.Path = "/others"
	}
	return c
}

// FoundResponse is a response of the environment's API with this body.
func (b *Env) FoundResponse(body string) *providerapi.Response {
	return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found},
		Date: b.API.Time.Truncate(time.Second),
		Body: []byte(body)}
}

// StartOtherAndThing starts runs that scan two types.
func (b *Env) StartOtherAndThing(t *testing.T) {
	t.Helper()
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) {
		s.Provider, s.Reader = OtherAndThing{}, OtherAndThing{}
	}))
}

// CopyObjects adds objects to the mirror that the provider does not have.
func (b *Env) CopyObjects(t *testing.T, ids ...string) {
	t.Helper()
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM unnest($1::text[]) AS d(id),
		LATERAL (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', d.id)) AS o FROM objects o
			WHERE object_id = 'obj_6') o`, ids)
}

// ListNoEvents makes the API list no events any more.
func (b *Env) ListNoEvents(list string) {
	b.API.InterceptWith(func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/":
			return b.FoundResponse(string(b.API.History.EventsPage(math.MaxInt64-1, math.MaxInt64, "", 1))), nil
		case c.Path == "/list" && list != "":
			return b.FoundResponse(list), nil
		}
		return nil, nil
	})
}

// WatermarksOf returns the watermarks of a type, with the newest run that could not list it.
func (b *Env) WatermarksOf(t *testing.T, what string) (all []watermarks.Completeness) {
	t.Helper()
	page, err := watermarks.List(t.Context(), b.OperatorPool, b.Source, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range page.Items {
		if p.Subject == what {
			all = append(all, p)
		}
	}
	return all
}

// AddLateEvent makes an object that changed and changed back, of which a webhook has brought the
// first state only. It returns the second event.
func (b *Env) AddLateEvent(t *testing.T) (late sim.Event) {
	t.Helper()
	at := sim.Start + 1_000_000
	event := func(key, state string, after int64) sim.Event {
		happened := at + after*1_000_000
		return sim.Event{Key: key, Object: "late_1", OccurredAt: happened, ReceivedAt: time.UnixMicro(happened).UTC(),
			Body: fmt.Appendf(nil, `{"id":%q,"object_id":"late_1","type":"thing.updated","unit":1000000,"rank":1,`+
				`"time":%d,"object":{"state":%q}}`, key, happened, state)}
	}
	first, late, last := event("late_a", "A", 0), event("late_b", "B", 5), event("late_c", "A", 10)
	b.API.History.Events = append([]sim.Event{first, late, last}, b.API.History.Events...)
	b.Deliver(t, []sim.Event{first})
	src := b.Sources[applied.SourceName]
	src.ReadsByID = func(_, objectType, _ string) bool { return objectType == "thing" }
	b.Proc.Replace(map[string]apply.Source{applied.SourceName: src})
	return late
}

// WaitUntilListed waits until a scan has listed an object.
func (b *Env) WaitUntilListed(t *testing.T, id string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := QueryOne[int](t, b, `SELECT count(*) FROM listed_objects WHERE object = hashtextextended($1, 0)`,
			id); n == 0 {
			return fmt.Errorf("%s is not listed yet", id)
		}
		return nil
	})
}

// ChangesCompleteUntil returns the watermark of the changes of the type.
func (b *Env) ChangesCompleteUntil(t *testing.T) time.Time {
	t.Helper()
	_, until := b.CompleteRange(t, "", "changes thing")
	return until
}

// WaitForApprovalRequest waits until a run awaits approval with the given words, and checks that no
// object of type "aaa" is deleted.
func (b *Env) WaitForApprovalRequest(t *testing.T, run int64, words ...string) {
	t.Helper()
	r := b.WaitForRun(t, run, EndedOrAwaitsApproval)
	for _, w := range words {
		if r.Status != runs.AwaitingApproval || !strings.Contains(r.Detail, w) {
			t.Errorf("%s: %s; want %q", r.Status, r.Detail, w)
		}
	}
	WantValue(t, b, 0, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`)
}

// WantApprovalRequest waits until a run with a number of approvals awaits another one with the
// given words.
func (b *Env) WantApprovalRequest(t *testing.T, run int64, approvals int, words string) {
	t.Helper()
	r := b.WaitForRun(t, run, func(r *runs.Run) bool {
		return r.Status.Ended() || r.Status == runs.AwaitingApproval && len(r.Approvals) == approvals
	})
	if r.Status != runs.AwaitingApproval || !strings.Contains(r.Detail, words) {
		t.Fatalf("%s, want %q: %s", r.Status, words, r.Detail)
	}
}
