package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// aaaAndThing is a provider of two types. Type "aaa" is scanned first, with the list /aaas and
// objects below /aaa/. The other type is "thing".
type aaaAndThing struct{ sim.Provider }

func (aaaAndThing) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"aaa": {}, "thing": {}}
}

func (p aaaAndThing) ListObjects(src *provider.Source, api *provider.API, account, objectType string, since,
	until time.Time, cursor string) provider.Call {
	c := p.Provider.ListObjects(src, api, account, objectType, since, until, cursor)
	if objectType == "aaa" {
		c.Path = "/aaas"
	}
	return c
}

func (aaaAndThing) Fetch(_ *provider.Source, _ *provider.API, _, objectType, id string) (provider.Call, bool) {
	if objectType == "aaa" {
		return provider.Call{Path: "/aaa/" + id}, true
	}
	return provider.Call{Path: "/things/" + id}, objectType == "thing"
}

// startAAAAndThing starts a reconciler for the two types.
func (b *testEnv) startAAAAndThing(t *testing.T) {
	t.Helper()
	b.startReconciler(t, b.runnerWith(func(s *providerapi.Source) {
		s.Provider, s.Reader = aaaAndThing{},
			aaaAndThing{}
	}))
}

// counts are the counts of a run, without zeros.
type counts = map[string]int64

// addUnknownObjects adds n old objects of a type to the mirror that the API does not have.
func (b *testEnv) addUnknownObjects(t *testing.T, objectType, prefix string, n int) {
	t.Helper()
	b.DB.Exec(t, addLivingSQL, objectType, prefix, 1, n)
}

// missingResponse returns the API's response for a missing object.
func (b *testEnv) missingResponse() *providerapi.Response { return b.response(provider.Missing, nil) }

// response returns a response of the API.
func (b *testEnv) response(kind provider.VerdictKind, body []byte) *providerapi.Response {
	return &providerapi.Response{Verdict: provider.Verdict{Kind: kind}, Date: b.api.now.Truncate(time.Second),
		Body: body}
}

// objectBody returns the API's body of an object.
func (b *testEnv) objectBody() []byte {
	return b.api.history.StoredRefetch("obj_6", sim.Refetch{Began: b.api.now.UnixMicro()}).Body
}

// addLivingSQL adds old existing objects to the mirror, with a type, a prefix and the numbers of a
// range.
const addLivingSQL = `INSERT INTO objects SELECT (o).*
	FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text, 'object_id', $2::text || n)) AS o
FROM objects o, generate_series($3::int, $4::int) n WHERE o.object_type = 'thing' AND o.object_id = 'obj_6') o`

// A missing object of one type does not delete an object of another type with the same id, even if
// the next attempt begins with another type.
func TestObjectScan_sameIDOfOtherType_writesNoTombstones(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "aaa", "obj_", 150)
	last := queryOne[string](t, b, `SELECT object_id FROM objects WHERE object_type = 'aaa'
		ORDER BY object_id OFFSET 120
		LIMIT 1`)
	r := b.runnerWith(func(s *providerapi.Source) { s.Provider, s.Reader = aaaAndThing{}, aaaAndThing{} })
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/aaas":
			return b.response(provider.Found, []byte(`{"things":[]}`)), nil
		case c.Path == "/aaa/obj_1":
			return b.missingResponse(), nil
		case c.Path == "/aaa/"+last: // from the next attempt on, the source lists things only
			r.Sources.Replace(b.sourceWith(func(*providerapi.Source) {}))
			// without a Date, so that the scan stops
			return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Body: b.objectBody()}, nil
		case strings.HasPrefix(c.Path, "/aaa/"):
			return b.response(provider.Found, b.objectBody()), nil
		}
		return nil, nil
	}
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.startReconciler(t, r)
	wantCounts(t, b.waitForEnd(t, run), counts{objectscan.Orphans: 0})
	if deleted := b.DB.QueryStrings(t,
		`SELECT object_type || ' ' || object_id FROM objects WHERE deleted`); b.api.callCount("/aaa/"+
		last) == 0 || len(deleted) > 0 {
		t.Errorf("deleted are %q", deleted)
	}
	wantNone(t, b.differences(t))
}

// The objects listed for a type that was rejected later do not count as listed for the next type.
func TestObjectScan_listedObjects_countForTheirTypeOnly(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "gone_", 1)
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path != "/aaas":
			return nil, nil
		case c.Query.Get("cursor") != "":
			return errorResponse(http.StatusForbidden), nil
		}
		return b.response(provider.Found,
			fmt.Appendf(nil, `{"things":[{"id":"gone_1","answer":%s},{"id":"obj_1","answer":%[1]s}],"next":"x"}`,
				b.objectBody())), nil
	}
	b.startAAAAndThing(t)
	r := b.scan(t, reconcile.Params{})
	report := b.report(t, r.ID)
	if len(report.Types) != 2 {
		t.Fatalf("%+v", report)
	}
	if thing := report.Types[1]; thing.ObjectType != "thing" || thing.Checked != 20 || thing.Orphans != 1 ||
		thing.Repaired != 1 {
		t.Errorf("%+v", thing)
	}
	b.wantRows(t, `SELECT object_type || ' ' || object_id FROM objects WHERE deleted`, "thing gone_1")
}

// The objects listed by another, unfinished scan do not count as listed for this one: they may have
// been deleted since.
func TestObjectScan_listedObjects_countForTheirRunOnly(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "gone_", 1)
	before := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.setStatus(t, before, runs.Paused)
	b.DB.Exec(t, `INSERT INTO listed_objects (run, object_type, object)
		VALUES ($1, 'thing', hashtextextended('gone_1', 0))`,
		before)
	b.startReconciler(t, b.runner())
	wantExactCounts(t, b.scan(t, reconcile.Params{}),
		counts{reconcile.Processed: 21, objectscan.Equal: 20, objectscan.Orphans: 1, objectscan.Repaired: 1})
	wantValue(t, b, 1, `SELECT count(*) FROM listed_objects`)
}

// A run that ends or is paused during the check of orphans has not asked for approval. The next
// attempt asks before the first tombstone.
func TestObjectScan_pausedRun_stillAsksForApproval(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "gone_", 90)
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	var paused atomic.Bool
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		if strings.HasPrefix(c.Path, "/things/gone_") && !paused.Swap(true) {
			if err := runs.ChangeStatus(t.Context(), b.OperatorPool, run, runs.Paused); err != nil {
				t.Error(err)
			}
		}
		return nil, nil
	}
	r := b.runner()
	r.Settings.RetryDelay = 0 // so that the run notices the pause at each step
	b.startReconciler(t, r)
	b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.LeaseOwner == "" })
	b.setStatus(t, run, runs.Queued)
	got := b.WaitForRun(t, run, endedOrAwaitsApproval)
	if n := b.refetchCount(t); got.Status != runs.AwaitingApproval || n != 0 ||
		!strings.Contains(got.Detail, "90 of 110 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", got.Status, n, got.Detail)
	}
}

// The operator sees the number of all missing objects before the approval. An object that existed
// at that time stays, whatever the API returns later.
func TestObjectScan_approval_coversOnlyReportedOrphans(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "more_", 480)
	var all atomic.Bool
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch id, ok := strings.CutPrefix(c.Path, "/things/more_"); {
		case !ok:
			return nil, nil
		case all.Load() || strings.HasSuffix(id, "7"):
			return b.missingResponse(), nil
		}
		return b.response(provider.Found, b.objectBody()), nil
	}
	b.startReconciler(t, b.runner())
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	r := b.WaitForRun(t, run, endedOrAwaitsApproval)
	if n := b.refetchCount(t); n != 0 || !strings.Contains(r.Detail, "48 of 500 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", r.Status, n, r.Detail)
	}
	all.Store(true) // as if the key had lost access to its account
	b.approve(t, run, "they are gone")
	wantExactCounts(t, b.waitForEnd(t, run), counts{reconcile.Processed: 500, objectscan.Equal: 452,
		objectscan.NotListed: 432, objectscan.Orphans: 48, objectscan.Repaired: 48})
}

// A few more missing objects after the approval need no new one. Many more need another approval.
func TestObjectScan_manyMoreOrphansThanApproved_asksAgain(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "gone_", 30)
	b.startReconciler(t, b.runner())
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	for _, c := range []struct {
		requested string
		upTo      int
	}{{"30 of 50 living objects", 51}, {"51 of 71 living objects", 71}} {
		r := b.WaitForRun(t, run, func(r *runs.Run) bool {
			return r.Status.Ended() || r.Status == runs.AwaitingApproval && strings.Contains(r.Detail, c.requested)
		})
		if n := b.refetchCount(t); r.Status != runs.AwaitingApproval || n != 0 {
			t.Fatalf("%s with %d tombstones, without a request for %s: %s", r.Status, n, c.requested, r.Detail)
		}
		b.DB.Exec(t, addLivingSQL+" ON CONFLICT DO NOTHING", "thing", "gone_", 1, c.upTo)
		b.approve(t, run, "they are gone")
	}
	wantExactCounts(t, b.waitForEnd(t, run),
		counts{reconcile.Processed: 91, objectscan.Equal: 20, objectscan.Orphans: 71, objectscan.Repaired: 71})
}

// A scan counts and repairs single unusual objects, and moves the watermark if none is unrepaired.
func TestObjectScan_singleAnomalies_areCountedAndRepaired(t *testing.T) {
	t.Parallel()
	const oldSQL = `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'),
		exact_hash = sha256('old'),
		tied_states = '[]', version_at = version_at - 10 WHERE object_id = 'obj_3'`
	for name, c := range map[string]struct {
		// spoil changes the mirror, or the responses of the API, at a time of the API's clock.
		spoil    func(t *testing.T, b *testEnv, now time.Time)
		want     map[string]int64
		complete bool
		// deleted are the deleted objects after the scan, and reason is part of the reason of an
		// unrepaired object, "" for none.
		deleted []string
		reason  string
	}{
		"equal": {func(*testing.T, *testEnv, time.Time) {}, counts{reconcile.Processed: 20, objectscan.Equal: 20}, true,
			nil, ""},
		"missing, with a late event while the list is read": {func(t *testing.T, b *testEnv, _ time.Time) {
			b.addUnknownObjects(t, "thing", "gone_", 1)
			const lateSQL = `UPDATE objects SET updated_at = clock_now(), revision = revision + 1
				WHERE object_id = 'gone_1'`
			read := sync.OnceFunc(func() { b.DB.Exec(t, lateSQL) })
			b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
				if c.Path == "/list" {
					read()
				}
				return nil, nil
			}
		}, counts{reconcile.Processed: 21, objectscan.Equal: 20, objectscan.Orphans: 1, objectscan.Repaired: 1}, true,
			[]string{"gone_1"}, ""},
		// If the version may not advance, a row is assumed valid until its event was received.
		"missing, with an event that was received late": {func(t *testing.T, b *testEnv, now time.Time) {
			b.addUnknownObjects(t, "thing", "gone_", 1)
			b.DB.Exec(t, `UPDATE objects SET time_to = $1 WHERE object_id = 'gone_1'`, now.Add(time.Minute).UnixMicro())
		}, counts{reconcile.Processed: 21, objectscan.Equal: 20, objectscan.Orphans: 1, objectscan.Repaired: 1}, true,
			[]string{"gone_1"}, ""},
		"deleted late and created again": {func(t *testing.T, b *testEnv, now time.Time) {
			b.DB.Exec(t, `UPDATE objects SET deleted = true, state = NULL, state_hash = sha256('-null'),
				exact_hash = sha256('-null'), tied_states = '[]', version_at = version_at - 10, time_to = $1
				WHERE object_id = 'obj_2'`, now.Add(time.Minute).UnixMicro())
		}, counts{reconcile.Processed: 20, objectscan.Equal: 19, reconcile.Missing: 1, objectscan.Repaired: 1}, true,
			nil,
			""},
		"created after the start of the list": {func(t *testing.T, b *testEnv, now time.Time) {
			b.addUnknownObjects(t, "thing", "new_", 1)
			b.DB.Exec(t, `UPDATE objects SET version_at = $1, time_from = $1, time_to = $1 WHERE object_id = 'new_1'`,
				now.UnixMicro())
			b.api.respondTo(errorResponse(http.StatusForbidden), "/things/new_1") // a refetch would leave it unrepaired
		}, counts{reconcile.Processed: 20, objectscan.Equal: 20}, true, nil, ""},
		"twenty missing, without approval": {func(t *testing.T, b *testEnv, _ time.Time) {
			b.addUnknownObjects(t, "thing", "gone_", 20)
		}, counts{reconcile.Processed: 40, objectscan.Equal: 20, objectscan.Orphans: 20, objectscan.Repaired: 20}, true,
			nil, ""},
		// nothing shows whether the key may read it
		"listed, and missing by id": {func(t *testing.T, b *testEnv, _ time.Time) {
			b.DB.Exec(t, oldSQL)
			b.api.respondTo(b.missingResponse(), "/things/obj_3")
		}, counts{reconcile.Processed: 20, objectscan.Equal: 19, objectscan.ContentDiffers: 1,
			objectscan.Unrepaired: 1},
			false, nil, "missing"},
		"one missing, and one that fails": {func(t *testing.T, b *testEnv, _ time.Time) {
			b.copyObjects(t, "gone", "too_large")
			b.api.respondTo(errorResponse(http.StatusBadGateway), "/things/too_large")
		}, counts{reconcile.Processed: 22, objectscan.Equal: 20, objectscan.ContentDiffers: 1, objectscan.Unrepaired: 1,
			objectscan.Orphans: 1, objectscan.Repaired: 1}, false, []string{"gone"}, "502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 220, livingObjects)
			c.spoil(t, b, b.api.now)
			b.startReconciler(t, b.runner())
			r := b.scan(t, reconcile.Params{Type: "thing"})
			wantExactCounts(t, r, c.want)
			// Events have times in seconds, so that a watermark is never within a second.
			if until := b.typeCompleteUntil(t); until.IsZero() == c.complete || until != until.Truncate(time.Second) {
				t.Errorf("complete until %s", until)
			}
			if c.deleted != nil {
				b.wantRows(t, `SELECT object_id FROM objects WHERE deleted`, c.deleted...)
			}
			if left := b.unrepaired(t, r.ID); (len(left) == 1) != (c.reason != "") ||
				len(left) > 0 && !strings.Contains(left[0].Reason, c.reason) {
				t.Errorf("unrepaired: %+v", left)
			}
			if c.reason == "" && name != "created after the start of the list" {
				wantNone(t, b.differences(t))
			}
		})
	}
}

// unreadableMissing cannot read the missing response of one object, so that its tombstone is a dead
// event and the object stays.
type unreadableMissing struct{ sim.Provider }

func (p unreadableMissing) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if s.ObjectID == "gone_7" && s.Missing {
		return provider.Observation{}, &provider.Dead{Reason: "a defect"}
	}
	return p.Provider.Snapshot(src, s)
}

// cancelAtStatement cancels the first attempt that executes a statement, and calls then.
type cancelAtStatement struct {
	sql    string
	cancel context.CancelFunc
	then   func()
}

func (e *cancelAtStatement) TraceQueryStart(ctx context.Context, _ *pgx.Conn,
	d pgx.TraceQueryStartData) context.Context {
	if d.SQL == e.sql {
		e.sql = ""
		e.cancel()
		e.then()
	}
	return ctx
}

func (e *cancelAtStatement) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// newInterruptedRepair makes a run in which 25 of 2,599 objects are missing and one of them gets no
// tombstone. Its first process ends after the tombstones.
func newInterruptedRepair(t *testing.T, then func(b *testEnv)) (*testEnv, int64) {
	t.Helper()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "gone_", 25)
	b.addUnknownObjects(t, "thing", "here_", 2554)
	src := b.Sources[applied.SourceName]
	src.Provider = unreadableMissing{}
	b.proc.Replace(map[string]apply.Source{applied.SourceName: src})
	var list strings.Builder
	for n := range 2554 {
		fmt.Fprintf(&list, `{"id":"here_%d","answer":%s},`, n+1, b.objectBody())
	}
	for n := range 20 {
		id := fmt.Sprintf("obj_%d", n+1)
		fmt.Fprintf(&list, `{"id":%q,"answer":%s},`, id,
			b.api.history.StoredRefetch(id, sim.Refetch{Began: b.api.now.UnixMicro()}).Body)
	}
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/list":
			return b.response(provider.Found,
				fmt.Appendf(nil, `{"things":[%s]}`, strings.TrimSuffix(list.String(), ","))), nil
		case strings.HasPrefix(c.Path, "/things/gone_"):
			return b.missingResponse(), nil
		}
		return nil, nil
	}
	e := &cancelAtStatement{sql: testkit.Statement("internal/objectscan", "SET phase = 'done'"),
		then: func() { then(b) }}
	r := b.runner()
	traceStatements(t, r, e)
	b.StartRunner(t, "one", 1, map[string]runs.Executor{reconcile.Job: func(ctx context.Context, h *runs.Lease,
		log *slog.Logger) (runs.Status, error) {
		ctx, e.cancel = context.WithCancel(ctx)
		defer e.cancel()
		return r.Execute(ctx, h, log)
	}})
	return b, b.startRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
}

// addOrphans adds orphans to the run, as if there were more than one batch.
func (b *testEnv) addOrphans(t *testing.T, from, to int) {
	t.Helper()
	b.DB.Exec(t, addLivingSQL, "thing", "gone_", from, to)
	b.DB.Exec(t, `INSERT INTO orphans (run, object_type, object_id, missing_at, elapsed_us) SELECT run, 'thing',
		'gone_' || n,
		$1, 0 FROM runs, generate_series($2::int, $3::int) n`, b.api.now, from, to)
}

// Tombstones of the run itself do not count for the approval: one in a hundred is few, also when
// fewer objects remain.
func TestObjectScan_ownTombstones_needNoApproval(t *testing.T) {
	t.Parallel()
	b, run := newInterruptedRepair(t, func(b *testEnv) { b.addOrphans(t, 26, 26) })
	r := b.WaitForRun(t, run, endedOrAwaitsApproval)
	if r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	wantExactCounts(t, r, counts{reconcile.Processed: 2600, objectscan.Equal: 2574, objectscan.Orphans: 26,
		objectscan.Repaired: 25, objectscan.Unrepaired: 1})
}

// An unrepaired orphan counts once, however often the mirror is read. Most objects are deleted
// while a tombstone is pending, so that an approval is needed and the mirror is read again.
func TestObjectScan_unrepairedOrphan_countsOnce(t *testing.T) {
	t.Parallel()
	b, run := newInterruptedRepair(t, func(b *testEnv) {
		b.addOrphans(t, 26, 55)
		b.DB.Exec(t, `DELETE FROM objects WHERE object_id LIKE 'here_%'`)
	})
	b.wantApprovalRequest(t, run, 0, "30 of 51 living objects of type thing")
	b.approve(t, run, "they are gone")
	r := b.waitForEnd(t, run)
	wantExactCounts(t, r, counts{reconcile.Processed: 2629, objectscan.Equal: 2574, objectscan.Orphans: 55,
		objectscan.Repaired: 54, objectscan.Unrepaired: 1})
	if alive := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`); len(
		alive) != 1 || alive[0] != "gone_7" || r.Status != runs.Done || !b.typeCompleteUntil(t).IsZero() {
		t.Errorf("%s, existing are %q, complete until %s", r.Status, alive, b.typeCompleteUntil(t))
	}
}

// An object that an event changed after the API reported it missing is no orphan and not repaired.
// It counts once as newer.
func TestObjectScan_orphanUpdatedMeanwhile_isMirrorNewer(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "gone_", 2)
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		if strings.HasPrefix(c.Path, "/things/gone_") {
			if c.Path == "/things/gone_2" { // a webhook restores it, later than this response
				b.DB.Exec(t, `UPDATE objects SET version_at = $1, time_from = $1, time_to = $1
					WHERE object_id = 'gone_2'`, b.api.now.Add(time.Minute).UnixMicro())
			}
			return b.missingResponse(), nil
		}
		return nil, nil
	}
	b.startReconciler(t, b.runner())
	r := b.waitForEnd(t, b.startRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"}))
	equal := queryOne[int64](t, b, `SELECT count(*) FROM objects WHERE object_id LIKE 'obj%' AND NOT deleted`)
	wantExactCounts(t, r, counts{reconcile.Processed: equal + 2, objectscan.Equal: equal, objectscan.Orphans: 1,
		objectscan.MirrorNewer: 1, objectscan.Repaired: 1})
	if alive := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`); len(
		alive) != 1 || alive[0] != "gone_2" || r.Status != runs.Done {
		t.Errorf("%s, existing are %q", r.Status, alive)
	}
	b.wantRows(t, `SELECT object_id || ' ' || kind || ' ' || result FROM drifts`, "gone_1 orphan repaired")
}
