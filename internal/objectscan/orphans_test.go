package objectscan_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// A missing object of one type does not delete an object of another type with the same id, even if
// the next attempt begins with another type.
func TestObjectScan_sameIDOfOtherType_writesNoTombstones(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "aaa", "obj_", 150)
	last := reconciled.QueryOne[string](t, b, `SELECT object_id FROM objects WHERE object_type = 'aaa'
		ORDER BY object_id OFFSET 120 LIMIT 1`)
	r := b.RunnerReading(reconciled.TwoTypes{})
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/aaas":
			return b.Response(provider.Found, []byte(`{"things":[]}`)), nil
		case c.Path == "/aaa/obj_1":
			return b.MissingResponse(), nil
		case c.Path == "/aaa/"+last: // from the next attempt on, the source lists things only
			r.Sources.Replace(b.SourceWith(func(*providerapi.Source) {}))
			// without a Date, so that the scan stops
			return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Body: b.ObjectBody()}, nil
		case strings.HasPrefix(c.Path, "/aaa/"):
			return b.Response(provider.Found, b.ObjectBody()), nil
		}
		return nil, nil
	}
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.StartReconciler(t, r)
	reconciled.WantCounts(t, b.WaitForEnd(t, run), reconciled.Counts{objectscan.Orphans: 0})
	if b.API.CallCount("/aaa/"+last) == 0 {
		t.Errorf("%s was not requested: the test is too easy", last)
	}
	b.WantRows(t, `SELECT object_type || ' ' || object_id FROM objects WHERE deleted`)
	reconciled.WantNone(t, b.Differences(t))
}

// The objects listed for a type that was rejected later do not count as listed for the next type.
func TestObjectScan_listedObjects_countForTheirTypeOnly(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "gone_", 1)
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path != "/aaas":
			return nil, nil
		case c.Query.Get("cursor") != "":
			return reconciled.ErrorResponse(http.StatusForbidden), nil
		}
		return b.Response(provider.Found, fmt.Appendf(nil,
			`{"things":[{"id":"gone_1","answer":%s},{"id":"obj_1","answer":%[1]s}],"next":"x"}`, b.ObjectBody())), nil
	}
	b.StartTwoTypes(t)
	r := b.Scan(t, reconcile.Params{})
	report := b.Report(t, r.ID)
	if len(report.Types) != 2 {
		t.Fatalf("%+v", report)
	}
	if thing := report.Types[1]; thing.ObjectType != "thing" || thing.Checked != 20 || thing.Orphans != 1 ||
		thing.Repaired != 1 {
		t.Errorf("%+v", thing)
	}
	b.WantRows(t, `SELECT object_type || ' ' || object_id FROM objects WHERE deleted`, "thing gone_1")
}

// The objects listed by another, unfinished scan do not count as listed for this one: they may have
// been deleted since.
func TestObjectScan_listedObjects_countForTheirRunOnly(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "gone_", 1)
	before := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.SetStatus(t, before, runs.Paused)
	b.DB.Exec(t, `INSERT INTO listed_objects (run, object_type, object)
		VALUES ($1, 'thing', hashtextextended('gone_1', 0))`, before)
	b.StartReconciler(t, b.Runner())
	reconciled.WantExactCounts(t, b.Scan(t, reconcile.Params{}),
		reconciled.Counts{reconcile.Processed: 21, objectscan.Equal: 20, objectscan.Orphans: 1, objectscan.Repaired: 1})
	reconciled.WantValue(t, b, 1, `SELECT count(*) FROM listed_objects`)
}

// A run that ends or is paused during the check of orphans has not asked for approval. The next
// attempt asks before the first tombstone.
func TestObjectScan_pausedRun_stillAsksForApproval(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "gone_", 90)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	var paused atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if strings.HasPrefix(c.Path, "/things/gone_") && !paused.Swap(true) {
			if err := runs.ChangeStatus(t.Context(), b.OperatorPool, run, runs.Paused); err != nil {
				t.Error(err)
			}
		}
		return nil, nil
	}
	r := b.Runner()
	r.Settings.RetryDelay = 0 // so that the run notices the pause at each step
	b.StartReconciler(t, r)
	b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.LeaseOwner == "" })
	b.SetStatus(t, run, runs.Queued)
	got := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval)
	if n := b.RefetchCount(t); got.Status != runs.AwaitingApproval || n != 0 ||
		!strings.Contains(got.Detail, "90 of 110 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", got.Status, n, got.Detail)
	}
}

// The operator sees the number of all missing objects before the approval. An object that existed
// at that time stays, whatever the API returns later.
func TestObjectScan_approval_coversOnlyReportedOrphans(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "more_", 480)
	var all atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch id, ok := strings.CutPrefix(c.Path, "/things/more_"); {
		case !ok:
			return nil, nil
		case all.Load() || strings.HasSuffix(id, "7"):
			return b.MissingResponse(), nil
		}
		return b.Response(provider.Found, b.ObjectBody()), nil
	}
	b.StartReconciler(t, b.Runner())
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	r := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval)
	if n := b.RefetchCount(t); n != 0 || !strings.Contains(r.Detail, "48 of 500 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", r.Status, n, r.Detail)
	}
	all.Store(true) // as if the key had lost access to its account
	b.Approve(t, run, "they are gone")
	reconciled.WantExactCounts(t, b.WaitForEnd(t, run), reconciled.Counts{reconcile.Processed: 500,
		objectscan.Equal: 452, objectscan.NotListed: 432, objectscan.Orphans: 48, objectscan.Repaired: 48})
}

// A few more missing objects after the approval need no new one. Many more need another approval.
func TestObjectScan_manyMoreOrphansThanApproved_asksAgain(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "gone_", 30)
	b.StartReconciler(t, b.Runner())
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	for _, c := range []struct {
		requested string
		upTo      int
	}{{"30 of 50 living objects", 51}, {"51 of 71 living objects", 71}} {
		r := b.WaitForRun(t, run, func(r *runs.Run) bool {
			return r.Status.Ended() || r.Status == runs.AwaitingApproval && strings.Contains(r.Detail, c.requested)
		})
		if n := b.RefetchCount(t); r.Status != runs.AwaitingApproval || n != 0 {
			t.Fatalf("%s with %d tombstones, without a request for %s: %s", r.Status, n, c.requested, r.Detail)
		}
		b.DB.Exec(t, addLivingSQL+" ON CONFLICT DO NOTHING", "thing", "gone_", 1, c.upTo)
		b.Approve(t, run, "they are gone")
	}
	reconciled.WantExactCounts(t, b.WaitForEnd(t, run), reconciled.Counts{reconcile.Processed: 91, objectscan.Equal: 20,
		objectscan.Orphans: 71, objectscan.Repaired: 71})
}

// A scan counts and repairs single unusual objects, and moves the watermark if none is unrepaired.
func TestObjectScan_singleAnomalies_areCountedAndRepaired(t *testing.T) {
	t.Parallel()
	oneMissing := reconciled.Counts{reconcile.Processed: 21, objectscan.Equal: 20, objectscan.Orphans: 1,
		objectscan.Repaired: 1}
	for name, c := range map[string]struct {
		// spoil changes the mirror, or the responses of the API, at a time of the API's clock.
		spoil    func(t *testing.T, b *reconciled.Env, now time.Time)
		want     map[string]int64
		complete bool
		// deleted are the deleted objects after the scan, and reason is part of the reason of an
		// unrepaired object, "" for none.
		deleted []string
		reason  string
	}{
		"equal": {func(*testing.T, *reconciled.Env, time.Time) {},
			reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 20}, true, nil, ""},
		"missing, with a late event while the list is read": {func(t *testing.T, b *reconciled.Env, _ time.Time) {
			addUnknownObjects(t, b, "thing", "gone_", 1)
			const lateSQL = `UPDATE objects SET updated_at = clock_now(), revision = revision + 1
				WHERE object_id = 'gone_1'`
			read := sync.OnceFunc(func() { b.DB.Exec(t, lateSQL) })
			interceptList(b, func(string) *providerapi.Response {
				read()
				return nil
			})
		}, oneMissing, true, []string{"gone_1"}, ""},
		// If the version may not advance, a row is assumed valid until its event was received.
		"missing, with an event that was received late": {func(t *testing.T, b *reconciled.Env, now time.Time) {
			addUnknownObjects(t, b, "thing", "gone_", 1)
			b.DB.Exec(t, `UPDATE objects SET time_to = $1 WHERE object_id = 'gone_1'`, now.Add(time.Minute).UnixMicro())
		}, oneMissing, true, []string{"gone_1"}, ""},
		"deleted late and created again": {func(t *testing.T, b *reconciled.Env, now time.Time) {
			b.DB.Exec(t, `UPDATE objects SET deleted = true, state = NULL, state_hash = sha256('-null'),
				exact_hash = sha256('-null'), tied_states = '[]', version_at = version_at - 10, time_to = $1
				WHERE object_id = 'obj_2'`, now.Add(time.Minute).UnixMicro())
		}, reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 19, reconcile.Missing: 1,
			objectscan.Repaired: 1}, true, nil, ""},
		"created after the start of the list": {func(t *testing.T, b *reconciled.Env, now time.Time) {
			addUnknownObjects(t, b, "thing", "new_", 1)
			b.DB.Exec(t, `UPDATE objects SET version_at = $1, time_from = $1, time_to = $1 WHERE object_id = 'new_1'`,
				now.UnixMicro())
			// a refetch would leave it unrepaired
			b.API.RespondTo(reconciled.ErrorResponse(http.StatusForbidden), "/things/new_1")
		}, reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 20}, true, nil, ""},
		// the API still knows an event that a webhook brought
		"missing, and the API lists no event any more": {func(t *testing.T, b *reconciled.Env, _ time.Time) {
			b.CopyObjects(t, "gone")
			b.API.RespondTo(b.FoundResponse(string(b.API.History.EventsPage(math.MaxInt64-1, math.MaxInt64, "", 1))),
				"/")
		}, oneMissing, true, []string{"gone"}, ""},
		"twenty missing, without approval": {func(t *testing.T, b *reconciled.Env, _ time.Time) {
			addUnknownObjects(t, b, "thing", "gone_", 20)
		}, reconciled.Counts{reconcile.Processed: 40, objectscan.Equal: 20, objectscan.Orphans: 20,
			objectscan.Repaired: 20}, true, nil, ""},
		// nothing shows whether the key may read it
		"listed, and missing by id": {func(t *testing.T, b *reconciled.Env, _ time.Time) {
			b.DB.Exec(t, olderStateSQL, "obj_3")
			b.API.RespondTo(b.MissingResponse(), "/things/obj_3")
		}, reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 19, objectscan.ContentDiffers: 1,
			objectscan.Unrepaired: 1}, false, nil, "missing"},
		"one missing, and one that fails": {func(t *testing.T, b *reconciled.Env, _ time.Time) {
			b.CopyObjects(t, "gone", "too_large")
			b.API.RespondTo(reconciled.ErrorResponse(http.StatusBadGateway), "/things/too_large")
		}, reconciled.Counts{reconcile.Processed: 22, objectscan.Equal: 20, objectscan.ContentDiffers: 1,
			objectscan.Unrepaired: 1, objectscan.Orphans: 1, objectscan.Repaired: 1}, false, []string{"gone"}, "502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
			c.spoil(t, b, b.API.Time)
			b.StartReconciler(t, b.Runner())
			r := b.Scan(t, reconcile.Params{Type: "thing"})
			reconciled.WantExactCounts(t, r, c.want)
			// Events have times in seconds, so that a watermark is never within a second.
			if until := b.TypeCompleteUntil(t); until.IsZero() == c.complete || until != until.Truncate(time.Second) {
				t.Errorf("complete until %s", until)
			}
			if c.deleted != nil {
				b.WantRows(t, `SELECT object_id FROM objects WHERE deleted`, c.deleted...)
			}
			if left := b.Unrepaired(t, r.ID); (len(left) == 1) != (c.reason != "") ||
				len(left) > 0 && !strings.Contains(left[0].Reason, c.reason) {
				t.Errorf("unrepaired: %+v", left)
			}
			if c.reason == "" && name != "created after the start of the list" {
				reconciled.WantNone(t, b.Differences(t))
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
func newInterruptedRepair(t *testing.T, then func(b *reconciled.Env)) (*reconciled.Env, int64) {
	t.Helper()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "gone_", 25)
	addUnknownObjects(t, b, "thing", "here_", 2554)
	src := b.Sources[applied.SourceName]
	src.Provider = unreadableMissing{}
	b.Proc.Replace(map[string]apply.Source{applied.SourceName: src})
	var list strings.Builder
	for n := range 2554 {
		fmt.Fprintf(&list, `{"id":"here_%d","answer":%s},`, n+1, b.ObjectBody())
	}
	for n := range 20 {
		id := fmt.Sprintf("obj_%d", n+1)
		fmt.Fprintf(&list, `{"id":%q,"answer":%s},`, id,
			b.API.History.StoredRefetch(id, sim.Refetch{Began: b.API.Time.UnixMicro()}).Body)
	}
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/list":
			return b.Response(provider.Found,
				fmt.Appendf(nil, `{"things":[%s]}`, strings.TrimSuffix(list.String(), ","))), nil
		case strings.HasPrefix(c.Path, "/things/gone_"):
			return b.MissingResponse(), nil
		}
		return nil, nil
	}
	e := &cancelAtStatement{sql: testkit.Statement("internal/objectscan", "SET phase = 'done'"),
		then: func() { then(b) }}
	r := b.Runner()
	reconciled.TraceStatements(t, r, e)
	startAttempts(t, b, 1, func(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
		ctx, e.cancel = context.WithCancel(ctx)
		defer e.cancel()
		return r.Execute(ctx, h, log)
	})
	return b, b.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"})
}

// Tombstones of the run itself do not count for the approval: one in a hundred is few, also when
// fewer objects remain.
func TestObjectScan_ownTombstones_needNoApproval(t *testing.T) {
	t.Parallel()
	b, run := newInterruptedRepair(t, func(b *reconciled.Env) { addOrphans(t, b, 26, 26) })
	r := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval)
	reconciled.WantRunDone(t, r)
	reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 2600, objectscan.Equal: 2574,
		objectscan.Orphans: 26, objectscan.Repaired: 25, objectscan.Unrepaired: 1})
}

// An unrepaired orphan counts once, however often the mirror is read. Most objects are deleted
// while a tombstone is pending, so that an approval is needed and the mirror is read again.
func TestObjectScan_unrepairedOrphan_countsOnce(t *testing.T) {
	t.Parallel()
	b, run := newInterruptedRepair(t, func(b *reconciled.Env) {
		addOrphans(t, b, 26, 55)
		b.DB.Exec(t, `DELETE FROM objects WHERE object_id LIKE 'here_%'`)
	})
	wantApprovalRequest(t, b, run, 0, "30 of 51 living objects of type thing")
	b.Approve(t, run, "they are gone")
	r := b.WaitForEnd(t, run)
	reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 2629, objectscan.Equal: 2574,
		objectscan.Orphans: 55, objectscan.Repaired: 54, objectscan.Unrepaired: 1})
	reconciled.WantRunDone(t, r)
	b.WantRows(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`, "gone_7")
	wantIncomplete(t, b)
}

// An object that an event changed after the API reported it missing is no orphan and not repaired.
// It counts once as newer.
func TestObjectScan_orphanUpdatedMeanwhile_isMirrorNewer(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "gone_", 2)
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if strings.HasPrefix(c.Path, "/things/gone_") {
			if c.Path == "/things/gone_2" { // a webhook restores it, later than this response
				b.DB.Exec(t, `UPDATE objects SET version_at = $1, time_from = $1, time_to = $1
					WHERE object_id = 'gone_2'`, b.API.Time.Add(time.Minute).UnixMicro())
			}
			return b.MissingResponse(), nil
		}
		return nil, nil
	}
	b.StartReconciler(t, b.Runner())
	r := b.WaitForEnd(t, b.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing"}))
	reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 22, objectscan.Equal: 20,
		objectscan.Orphans: 1, objectscan.MirrorNewer: 1, objectscan.Repaired: 1})
	reconciled.WantRunDone(t, r)
	b.WantRows(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`, "gone_2")
	b.WantRows(t, `SELECT object_id || ' ' || kind || ' ' || result FROM drifts`, "gone_1 orphan repaired")
}

// addUnknownObjects adds n old objects of a type to the mirror that the API does not have.
func addUnknownObjects(t *testing.T, b *reconciled.Env, objectType, prefix string, n int) {
	t.Helper()
	b.DB.Exec(t, addLivingSQL, objectType, prefix, 1, n)
}

// addLivingSQL adds old existing objects to the mirror, with a type, a prefix and the numbers of a
// range.
const addLivingSQL = `INSERT INTO objects SELECT (o).*
	FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text, 'object_id', $2::text || n)) AS o
FROM objects o, generate_series($3::int, $4::int) n WHERE o.object_type = 'thing' AND o.object_id = 'obj_6') o`

// addOrphans adds orphans to the run, as if there were more than one batch.
func addOrphans(t *testing.T, b *reconciled.Env, from, to int) {
	t.Helper()
	b.DB.Exec(t, addLivingSQL, "thing", "gone_", from, to)
	b.DB.Exec(t, `INSERT INTO orphans (run, object_type, object_id, missing_at, elapsed_us) SELECT run, 'thing',
		'gone_' || n, $1, 0 FROM runs, generate_series($2::int, $3::int) n`, b.API.Time, from, to)
}
