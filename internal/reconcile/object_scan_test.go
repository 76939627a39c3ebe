package reconcile_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// versionedOptions make histories of objects with their own versions, unversionedOptions of objects
// without.
var (
	versionedOptions = sim.Options{Objects: 40, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 2_000_000,
		ObjectVersions: true, Deletes: 10}
	unversionedOptions = sim.Options{Objects: 40, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 2_000_000, Deletes: 10}
)

// lossyEvents returns some of the events of a history. It includes the newest event: without it the
// scan believes no object to be missing.
func lossyEvents(h *sim.History, percent int, seed uint64) []sim.Event {
	kept := randomSubset(h.Events, percent, seed)
	newest := slices.MaxFunc(h.Events, func(a, b sim.Event) int { return cmp.Compare(a.OccurredAt, b.OccurredAt) })
	if !slices.ContainsFunc(kept, func(e sim.Event) bool { return e.Key == newest.Key }) {
		kept = append(kept, newest)
	}
	return kept
}

// scan scans all objects and returns the run, which must be done.
func (b *testEnv) scan(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	o.Scope = reconcile.Objects
	r := b.runToEnd(t, o)
	if r.Status != runs.Done {
		t.Fatalf("the run is %s: %s", r.Status, r.Detail)
	}
	return r
}

// wantExactCounts compares the counts of a run that are not 0.
func wantExactCounts(t *testing.T, r *runs.Run, want map[string]int64) {
	t.Helper()
	got := nonzero(maps.Clone(r.Counts))
	if d := diff.Diff(want, got); d != "" {
		t.Errorf("counts (-want +got): %s", d)
	}
}

// typeCompleteUntil returns the watermark of the type.
func (b *testEnv) typeCompleteUntil(t *testing.T) time.Time {
	t.Helper()
	_, until := b.completeRange(t, "", "type thing")
	return until
}

// For any lost webhooks and any list format, the mirror equals the provider's objects after a scan.
// A second scan finds no difference.
func TestObjectScan_lossyWebhooks_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]sim.Options{"own versions": versionedOptions, "no versions": unversionedOptions} {
		for _, version := range []string{"", sim.ListsIDs, sim.ListsVersions, sim.ListsObjectsAndVersions,
			sim.ListsByChange} {
			if version == sim.ListsVersions || version == sim.ListsObjectsAndVersions {
				if !o.ObjectVersions {
					continue
				}
				o.Unit = 1 // two states with one version cannot be distinguished by their version
			}
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(seedCount(2)) {
					b := newEmptyEnv(t, 100+seed, o)
					b.api.version = version
					b.deliver(t, lossyEvents(b.api.history, 50, seed))
					if len(b.differences(t)) == 0 {
						t.Fatal("the mirror has no difference before the scan")
					}
					b.startReconciler(t, b.runner())
					first := b.scan(t, reconcile.Params{})
					wantNone(t, b.differences(t))
					c := first.Counts
					if differing := c[reconcile.Missing] + c[objectscan.MirrorOlder] + c[objectscan.ContentDiffers] +
						c[objectscan.Orphans]; differing == 0 || c[objectscan.Repaired] != differing ||
						c[objectscan.Unrepaired] != 0 {
						t.Errorf("counts %v", c)
					}
					if c[objectscan.Equal]+c[reconcile.Missing]+c[objectscan.MirrorOlder]+c[objectscan.MirrorNewer]+
						c[objectscan.ContentDiffers]+c[objectscan.Orphans] != c[reconcile.Processed] {
						t.Errorf("the kinds of difference do not add up: %v", c)
					}
					if want := b.api.now.Add(-time.Millisecond).Truncate(time.Second).Add(
						-time.Second); !b.typeCompleteUntil(
						t).Equal(want) {
						t.Errorf("complete until %s, want %s", b.typeCompleteUntil(t), want)
					}
					again := b.scan(t, reconcile.Params{Full: true})
					wantExactCounts(t, again,
						counts{reconcile.Processed: c[reconcile.Processed] - c[objectscan.Orphans],
							objectscan.Equal: c[reconcile.Processed] - c[objectscan.Orphans]})
				}
			})
		}
	}
}

// slowAPI is an API with one slow response.
type slowAPI struct{ *simAPI }

func (slowAPI) MaxLatency() time.Duration { return 3 * time.Second }

// An object that counts as newer than a list may have been observed one response time before it,
// within the second of the Date header. The type is complete until before that.
func TestObjectScan_slowResponses_lowerTheWatermark(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 87, eventTimeOptions)
	b.startReconciler(t, b.runnerWith(func(s *providerapi.Source) { s.Caller = slowAPI{b.api} }))
	b.scan(t, reconcile.Params{})
	if want := b.api.now.Add(-time.Millisecond).Truncate(time.Second).Add(-4 * time.Second); !b.typeCompleteUntil(
		t).Equal(want) {
		t.Errorf("complete until %s, want %s", b.typeCompleteUntil(t), want)
	}
}

// livingObjects are objects with their own versions that are never deleted.
var livingObjects = sim.Options{Objects: 20, Changes: 1, Contents: 4, Unit: 1, Gap: 2_000_000, ObjectVersions: true}

// addEachDrift gives one object of the mirror each kind of difference. The others stay equal.
func (b *testEnv) addEachDrift(t *testing.T) {
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

// driftCounts are the counts of a scan after addEachDrift.
func driftCounts(repaired int64) map[string]int64 {
	all := counts{reconcile.Processed: 21, objectscan.Equal: 15, reconcile.Missing: 2, objectscan.MirrorOlder: 1,
		objectscan.ContentDiffers: 1, objectscan.MirrorNewer: 1, objectscan.Orphans: 1}
	if repaired > 0 {
		all[objectscan.Repaired] = repaired
	}
	return all
}

// The scan counts each kind of difference, reports it field by field, and repairs it through the
// log.
func TestObjectScan_eachKindOfDrift_isReportedAndRepaired(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 200, livingObjects)
	b.addEachDrift(t)
	b.startReconciler(t, b.runner())
	dry := b.scan(t, reconcile.Params{DryRun: true})
	wantExactCounts(t, dry, driftCounts(0))
	if n := b.DB.QueryStrings(t, `SELECT count(*)::text FROM events WHERE origin = 'reconcile'`)[0]; n != "0" ||
		!b.typeCompleteUntil(t).IsZero() {
		t.Errorf("a dry run has appended %s events, and the type is complete until %s", n, b.typeCompleteUntil(t))
	}
	calls := b.api.callCount("/things/")
	r := b.scan(t, reconcile.Params{})
	wantExactCounts(t, r, driftCounts(5))
	// the list contains the whole objects that are missing in the mirror or differ at one version
	if made := b.api.callCount("/things/") - calls; made != 2 {
		t.Errorf("%d objects were requested by id", made)
	}
	page, err := objectscan.Differences(t.Context(), b.OperatorPool, r.ID, "", "", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	var reported []string
	for _, d := range page.Items {
		var paths []string
		for _, f := range d.Fields {
			paths = append(paths, f.Path)
		}
		reported = append(reported, strings.TrimSpace(fmt.Sprintf("%s %s %s %t %s", d.ObjectID, d.Kind, d.Result,
			d.EventID != nil, strings.Join(paths, " "))))
	}
	want := []string{"gone orphan repaired true", "obj_1 missing repaired true",
		"obj_2 missing repaired true version deleted state",
		"obj_3 mirror_older repaired true version state.deep", "obj_4 content_differs repaired true state.deep"}
	for i := range reported {
		if i >= len(want) || !strings.HasPrefix(reported[i], want[i]) {
			t.Errorf("reported %q, want %q", reported, want)
			break
		}
	}
	for _, w := range b.differences(t) {
		if !strings.HasPrefix(w, "obj_5 ") { // mirror_newer: nothing to repair
			t.Error(w)
		}
	}
	b.wantRows(t, `SELECT deleted || ' ' || version_final FROM objects WHERE object_id = 'gone'`, "true false")
	report := b.report(t, r.ID)
	if len(report.Types) != 1 || report.Types[0].Phase != "done" || report.Types[0].Equal != 15 ||
		report.Types[0].Repaired != 5 || report.Source != "sim" {
		t.Errorf("%+v, %v", report, err)
	}
	b.wantRows(t, `SELECT (SELECT count(*) FROM listed_objects) || ' ' || (SELECT count(*) FROM orphans)`, "0 0")
}

// cancelAfterStatements cancels an attempt after a number of its statements.
type cancelAfterStatements struct {
	mu        sync.Mutex
	remaining int
	cancel    context.CancelFunc
}

func (d *cancelAfterStatements) TraceQueryStart(ctx context.Context, _ *pgx.Conn,
	_ pgx.TraceQueryStartData) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.remaining--; d.remaining == 0 {
		d.cancel()
	}
	return ctx
}

func (d *cancelAfterStatements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// killedJob executes runs with the environment's own runner, and kills each attempt.
func (b *testEnv) killedJob(t *testing.T) runs.Executor {
	t.Helper()
	return killRepeatedly(t, b.runner())
}

// statementsPerAttempt is how many more statements each attempt executes than the one before.
func statementsPerAttempt() int {
	if testing.Short() {
		return 7
	}
	return 1
}

// seedCount returns how many histories a test uses: one in a short run.
func seedCount(all int) int {
	if testing.Short() {
		return 1
	}
	return all
}

// killRepeatedly executes runs with a runner. Each attempt executes statementsPerAttempt more
// statements than the one before.
func killRepeatedly(t *testing.T, r *reconcile.Runner) runs.Executor {
	t.Helper()
	d := &cancelAfterStatements{}
	traceStatements(t, r, d)
	attempt := 0
	return func(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		attempt += statementsPerAttempt()
		d.mu.Lock()
		d.remaining, d.cancel = attempt, cancel
		d.mu.Unlock()
		return r.Execute(ctx, h, log)
	}
}

// Wherever the process ends, and whatever the API returns, the run completes, skips nothing, and
// counts each object once. Its counts equal those of an undisturbed run.
func TestObjectScan_killsAtEachStatement_countsEachObjectOnce(t *testing.T) {
	t.Parallel()
	for i, o := range []sim.Options{versionedOptions, unversionedOptions} {
		for k, version := range []string{"", sim.ListsIDs} {
			if testing.Short() && i != k {
				continue
			}
			t.Run(fmt.Sprint(o.ObjectVersions, version), func(t *testing.T) {
				t.Parallel()
				calm, wild := newEmptyEnv(t, 210, o), newEmptyEnv(t, 210, o)
				for _, b := range []*testEnv{calm, wild} {
					b.api.version = version
					b.deliver(t, lossyEvents(b.api.history, 50, 7))
				}
				calm.startReconciler(t, calm.runner())
				want := calm.scan(t, reconcile.Params{})
				r := rand.New(rand.NewPCG(3, 52))
				wild.api.intercept = func(provider.Call) (*providerapi.Response, error) {
					switch r.IntN(20) {
					case 0:
						return nil, errProviderDown
					case 1:
						return &providerapi.Response{Verdict: provider.ClassifyStatus(http.StatusInternalServerError,
							http.Header{}, nil)}, nil
					}
					return nil, nil
				}
				wild.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: wild.killedJob(t)})
				got := wild.scan(t, reconcile.Params{})
				if d := diff.Diff(want.Counts, got.Counts); d != "" {
					t.Errorf("counts (-undisturbed +killed): %s", d)
				}
				wantNone(t, wild.differences(t))
				if a, b := calm.refetchCount(t), wild.refetchCount(t); version == "" &&
					b > a+len(wild.api.history.ObjectIDs())/4 {
					t.Errorf("%d refetches, undisturbed %d", b, a)
				}
			})
		}
	}
}

// refetchCount returns the number of refetches in the log.
func (b *testEnv) refetchCount(t *testing.T) int {
	t.Helper()
	return queryOne[int](t, b, countRefetchesSQL)
}

// A run that would delete many objects asks for approval first and deletes nothing before it. After
// the approval it continues.
func TestObjectScan_manyOrphans_needApproval(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 220, livingObjects)
	b.addUnknownObjects(t, "thing", "gone_", 130)
	b.startReconciler(t, b.runner())
	dry := b.scan(t, reconcile.Params{DryRun: true})
	wantExactCounts(t, dry, counts{reconcile.Processed: 150, objectscan.Equal: 20, objectscan.Orphans: 130})
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	r := b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status == runs.AwaitingApproval })
	if !strings.Contains(r.Detail, "of 150 living objects of type thing") ||
		!strings.Contains(r.Detail, "postern runs approve") {
		t.Errorf("the detail is %q", r.Detail)
	}
	wantValue(t, b, 0, countRefetchesSQL)
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'gone_1'`) // meanwhile
	b.approve(t, run, "they are gone")
	r = b.waitForEnd(t, run)
	wantExactCounts(t, r, counts{reconcile.Processed: 149, objectscan.Equal: 20, objectscan.Orphans: 129,
		objectscan.Repaired: 129})
	if r.Detail != "" || r.ApprovedBy != "me" {
		t.Errorf("approved by %s, the detail is %q", r.ApprovedBy, r.Detail)
	}
	if deleted := b.DB.QueryStrings(t, `SELECT count(*)::text FROM objects WHERE deleted`)[0]; r.Status != runs.Done ||
		deleted != "129" || b.typeCompleteUntil(t).IsZero() {
		t.Errorf("%s: %s, %s deleted, complete until %s", r.Status, r.Detail, deleted, b.typeCompleteUntil(t))
	}
}

// A list whose cursor has expired starts again and counts nothing twice. A list that expires again
// and again fails the run.
func TestObjectScan_expiredCursor_restartsTheList(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 230, livingObjects)
	b.addEachDrift(t)
	times := 2
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path == "/list" && c.Query.Get("cursor") == "obj_14" && times > 0 {
			times--
			return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Expired,
				Detail: "that was long ago"}}, nil
		}
		return nil, nil
	}
	b.startReconciler(t, b.runner())
	r := b.scan(t, reconcile.Params{})
	wantExactCounts(t, r, driftCounts(5))
	if report, err := objectscan.ReportDrift(t.Context(), b.OperatorPool, r.ID); err != nil ||
		report.Types[0].Restarts != 2 {
		t.Errorf("%+v, %v", report, err)
	}
	b.api.interceptWith(func(c provider.Call) (*providerapi.Response, error) {
		if c.Query.Get("cursor") != "" {
			return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Expired}}, nil
		}
		return nil, nil
	})
	before := b.typeCompleteUntil(t)
	b.wantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "for type thing has expired")
	if !b.typeCompleteUntil(t).Equal(before) {
		t.Errorf("complete until %s", b.typeCompleteUntil(t))
	}
	b.api.interceptWith(nil)
	b.scan(t, reconcile.Params{})
	b.wantRows(t, `SELECT count(*)::text FROM listed_objects`, "0")
}

// If the API lists changes, a scan after the first lists only the changes, from a little before the
// watermark.
func TestObjectScan_changesOnly_listsFromTheWatermark(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 240, livingObjects)
	b.api.version = sim.ListsByChange
	end := b.api.now
	b.api.setTime(time.UnixMicro(b.api.history.LastChangeAt("obj_20")).Add(time.Second)) // soon after the change
	b.startReconciler(t, b.runner())
	all := b.scan(t, reconcile.Params{})
	if all.Counts[reconcile.Processed] < 10 {
		t.Errorf("the first scan lists %v", all.Counts)
	}
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	first := b.typeCompleteUntil(t)
	b.api.setTime(end)
	calls := b.api.callCount("/list")
	later := b.scan(t, reconcile.Params{})
	if n := later.Counts[reconcile.Processed]; n == 0 && later.Counts[objectscan.Orphans] != 0 ||
		b.api.callCount("/list") == calls {
		t.Errorf("a later scan lists %v", later.Counts)
	}
	since, changes := b.completeRange(t, "", "changes thing")
	if !changes.After(first) || since.Unix() != 0 {
		t.Errorf("changes are complete from %s until %s after %s", since, changes, first)
	}
	if !b.typeCompleteUntil(t).Equal(first) {
		t.Errorf("a list of changes shows no deletion, but the type is complete until %s after %s",
			b.typeCompleteUntil(t), first)
	}
	wantExactCounts(t, b.scan(t, reconcile.Params{}), counts{}) // nothing has changed since
	full := b.scan(t, reconcile.Params{Full: true})
	if full.Counts[reconcile.Processed] != 20 {
		t.Errorf("a full scan lists %v", full.Counts)
	}
	if !b.typeCompleteUntil(t).Equal(changes) {
		t.Errorf("after a full scan the type is complete until %s, want %s", b.typeCompleteUntil(t), changes)
	}
	wantNone(t, b.differences(t))
	stretch := b.scan(t, reconcile.Params{Since: end.Add(-time.Minute), Until: end})
	wantExactCounts(t, stretch, counts{})
}

// Two runs at the same time have the same result.
func TestObjectScan_concurrentScans_makeMirrorEqual(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 250, unversionedOptions)
	b.deliver(t, lossyEvents(b.api.history, 40, 9))
	b.startReconciler(t, b.runner())
	b.StartRunner(t, "two", 1, b.jobs())
	var requested []int64
	for range 3 {
		run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
		requested = append(requested, run)
	}
	for _, run := range requested {
		wantCounts(t, b.waitForEnd(t, run), counts{objectscan.Unrepaired: 0})
	}
	wantNone(t, b.differences(t))
}

// A list without an end and a type without a list fail the run with a clear message.
func TestObjectScan_brokenLists_reportTheCause(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 270, livingObjects)
	b.api.respondTo(&providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now,
		Body: []byte(`{"things":[],"next":"again"}`)}, "/list")
	b.startReconciler(t, b.runner())
	b.wantFailure(t, reconcile.Params{Scope: reconcile.Objects, Type: "nothing"},
		`does not list objects of type "nothing"; it lists thing`)
	b.wantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "the same page of type thing again and again")
	// an object that is listed and then missing stays unrepaired, and an empty id is reported
	b.api.interceptWith(func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/list":
			return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now,
				Body: fmt.Appendf(nil, `{"things":[{"id":"obj_1","at":%d},{"id":""}]}`, b.api.now.UnixMicro())}, nil
		case strings.HasPrefix(c.Path, "/things/obj_1"):
			return &providerapi.Response{Verdict: provider.Verdict{Kind: provider.Missing}, Date: b.api.now}, nil
		}
		return nil, nil
	})
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() })
	left := b.unrepaired(t, run)
	if len(left) != 2 || left[1].ObjectID != "obj_1" ||
		!strings.Contains(left[1].Reason, "reports it as missing when it is refetched") ||
		!b.typeCompleteUntil(t).IsZero() {
		t.Errorf("unrepaired %+v, complete until %s", left, b.typeCompleteUntil(t))
	}
}
