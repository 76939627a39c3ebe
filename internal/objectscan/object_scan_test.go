package objectscan_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
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
	kept := reconciled.RandomSubset(h.Events, percent, seed)
	newest := slices.MaxFunc(h.Events, func(a, b sim.Event) int { return cmp.Compare(a.OccurredAt, b.OccurredAt) })
	if !slices.ContainsFunc(kept, func(e sim.Event) bool { return e.Key == newest.Key }) {
		kept = append(kept, newest)
	}
	return kept
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
				for seed := range uint64(reconciled.SeedCount(2)) {
					b := reconciled.NewEmptyEnv(t, 100+seed, o)
					b.API.Version = version
					b.Deliver(t, lossyEvents(b.API.History, 50, seed))
					if len(b.Differences(t)) == 0 {
						t.Fatal("the mirror has no difference before the scan")
					}
					b.StartReconciler(t, b.Runner())
					first := b.Scan(t, reconcile.Params{})
					reconciled.WantNone(t, b.Differences(t))
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
					if want := b.API.Time.Add(-time.Millisecond).Truncate(time.Second).Add(
						-time.Second); !b.TypeCompleteUntil(t).Equal(want) {
						t.Errorf("complete until %s, want %s", b.TypeCompleteUntil(t), want)
					}
					again := b.Scan(t, reconcile.Params{Full: true})
					reconciled.WantExactCounts(t, again, reconciled.Counts{reconcile.Processed: c[reconcile.Processed] -
						c[objectscan.Orphans], objectscan.Equal: c[reconcile.Processed] - c[objectscan.Orphans]})
				}
			})
		}
	}
}

// slowAPI is an API with one slow response.
type slowAPI struct{ *reconciled.SimAPI }

func (slowAPI) MaxLatency() time.Duration { return 3 * time.Second }

// An object that counts as newer than a list may have been observed one response time before it,
// within the second of the Date header. The type is complete until before that.
func TestObjectScan_slowResponses_lowerTheWatermark(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 87, reconciled.EventTimeOptions)
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) { s.Caller = slowAPI{b.API} }))
	b.Scan(t, reconcile.Params{})
	if want := b.API.Time.Add(-time.Millisecond).Truncate(time.Second).Add(-4 * time.Second); !b.TypeCompleteUntil(
		t).Equal(want) {
		t.Errorf("complete until %s, want %s", b.TypeCompleteUntil(t), want)
	}
}

// driftCounts are the counts of a scan after AddEachDrift.
func driftCounts(repaired int64) map[string]int64 {
	all := reconciled.Counts{reconcile.Processed: 21, objectscan.Equal: 15, reconcile.Missing: 2,
		objectscan.MirrorOlder: 1, objectscan.ContentDiffers: 1, objectscan.MirrorNewer: 1, objectscan.Orphans: 1}
	if repaired > 0 {
		all[objectscan.Repaired] = repaired
	}
	return all
}

// The scan counts each kind of difference, reports it field by field, and repairs it through the
// log.
func TestObjectScan_eachKindOfDrift_isReportedAndRepaired(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 200, reconciled.LivingObjects)
	addEachDrift(t, b)
	b.StartReconciler(t, b.Runner())
	dry := b.Scan(t, reconcile.Params{DryRun: true})
	reconciled.WantExactCounts(t, dry, driftCounts(0))
	b.WantRows(t, `SELECT count(*)::text FROM events WHERE origin = 'reconcile'`, "0")
	wantIncomplete(t, b)
	calls := b.API.CallCount("/things/")
	r := b.Scan(t, reconcile.Params{})
	reconciled.WantExactCounts(t, r, driftCounts(5))
	// the list contains the whole objects that are missing in the mirror or differ at one version
	b.API.WantCalls(t, "/things/", calls+2)
	page, err := objectscan.Differences(t.Context(), b.OperatorPool, r.ID, "", "", "", 100)
	testkit.Must(t, err)
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
	for _, w := range b.Differences(t) {
		if !strings.HasPrefix(w, "obj_5 ") { // mirror_newer: nothing to repair
			t.Error(w)
		}
	}
	b.WantRows(t, `SELECT deleted || ' ' || version_final FROM objects WHERE object_id = 'gone'`, "true false")
	report := b.Report(t, r.ID)
	if len(report.Types) != 1 || report.Types[0].Phase != "done" || report.Types[0].Equal != 15 ||
		report.Types[0].Repaired != 5 || report.Source != "sim" {
		t.Errorf("%+v, %v", report, err)
	}
	b.WantRows(t, `SELECT (SELECT count(*) FROM listed_objects) || ' ' || (SELECT count(*) FROM orphans)`, "0 0")
}

// Wherever the process ends, and whatever the API returns, the run completes, skips nothing, and
// counts each object once, also those that the list omits. Its counts equal those of an undisturbed
// run.
func TestObjectScan_killsAtEachStatement_countsEachObjectOnce(t *testing.T) {
	t.Parallel()
	for i, o := range []sim.Options{versionedOptions, unversionedOptions} {
		for k, version := range []string{"", sim.ListsIDs} {
			if testing.Short() && i != k {
				continue
			}
			t.Run(fmt.Sprint(o.ObjectVersions, version), func(t *testing.T) {
				t.Parallel()
				calm, wild := reconciled.NewEmptyEnv(t, 210, o), reconciled.NewEmptyEnv(t, 210, o)
				for _, b := range []*reconciled.Env{calm, wild} {
					b.API.Version = version
					b.Deliver(t, lossyEvents(b.API.History, 50, 7))
				}
				var omitted []string // all of them are in the mirror, so that the scan reads them by id
				if version == "" {
					omitted = calm.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE NOT deleted ORDER BY 1
						LIMIT 12`)
				}
				omitFromList(calm, noFault, omitted...)
				calm.StartReconciler(t, calm.Runner())
				want := calm.Scan(t, reconcile.Params{})
				r := rand.New(rand.NewPCG(3, 52))
				omitFromList(wild, func(provider.Call) (*providerapi.Response, error) {
					switch r.IntN(20) {
					case 0:
						return nil, reconciled.ErrProviderDown
					case 1:
						return reconciled.ErrorResponse(http.StatusInternalServerError), nil
					}
					return nil, nil
				}, omitted...)
				wild.StartRunner(t, "one", 0, map[string]runs.Executor{
					reconcile.Job: reconciled.KillRepeatedly(t, wild.Runner())})
				got := wild.Scan(t, reconcile.Params{})
				testkit.Equal(t, "counts", want.Counts, got.Counts)
				if n := want.Counts[objectscan.NotListed]; (n > 0) != (len(omitted) > 0) {
					t.Errorf("%d objects are not listed, and %d were omitted", n, len(omitted))
				}
				reconciled.WantNone(t, wild.Differences(t))
				// a killed attempt may have stored refetches of a page, which the next one reads
				// again: at most all omitted objects
				if a, b := calm.RefetchCount(t), wild.RefetchCount(t); version == "" &&
					b > a+max(len(omitted), len(wild.API.History.ObjectIDs())/4) {
					t.Errorf("%d refetches, undisturbed %d", b, a)
				}
			})
		}
	}
}

// A run that would delete many objects asks for approval first and deletes nothing before it. After
// the approval it continues.
func TestObjectScan_manyOrphans_needApproval(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "thing", "gone_", 130)
	b.StartReconciler(t, b.Runner())
	dry := b.Scan(t, reconcile.Params{DryRun: true})
	reconciled.WantExactCounts(t, dry, reconciled.Counts{reconcile.Processed: 150, objectscan.Equal: 20,
		objectscan.Orphans: 130})
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	r := b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status == runs.AwaitingApproval })
	if !strings.Contains(r.Detail, "of 150 living objects of type thing") ||
		!strings.Contains(r.Detail, "postern runs approve") {
		t.Errorf("the detail is %q", r.Detail)
	}
	reconciled.WantValue(t, b, 0, reconciled.CountRefetchesSQL)
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'gone_1'`) // meanwhile
	b.Approve(t, run, "they are gone")
	r = b.WaitForEnd(t, run)
	reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 149, objectscan.Equal: 20,
		objectscan.Orphans: 129, objectscan.Repaired: 129})
	if r.Detail != "" || r.ApprovedBy != "me" {
		t.Errorf("approved by %s, the detail is %q", r.ApprovedBy, r.Detail)
	}
	reconciled.WantRunDone(t, r)
	b.WantRows(t, `SELECT count(*)::text FROM objects WHERE deleted`, "129")
	if b.TypeCompleteUntil(t).IsZero() {
		t.Error("the type is not complete")
	}
}

// A list whose cursor has expired starts again and counts nothing twice. A list that expires again
// and again fails the run.
func TestObjectScan_expiredCursor_restartsTheList(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 230, reconciled.LivingObjects)
	addEachDrift(t, b)
	times := 2
	interceptList(b, func(cursor string) *providerapi.Response {
		if cursor == "obj_14" && times > 0 {
			times--
			return b.Response(provider.Expired, nil)
		}
		return nil
	})
	b.StartReconciler(t, b.Runner())
	r := b.Scan(t, reconcile.Params{})
	reconciled.WantExactCounts(t, r, driftCounts(5))
	if report := b.Report(t, r.ID); report.Types[0].Restarts != 2 {
		t.Errorf("%+v", report)
	}
	interceptList(b, func(cursor string) *providerapi.Response {
		if cursor != "" {
			return b.Response(provider.Expired, nil)
		}
		return nil
	})
	before := b.TypeCompleteUntil(t)
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "for type thing has expired")
	if !b.TypeCompleteUntil(t).Equal(before) {
		t.Errorf("complete until %s", b.TypeCompleteUntil(t))
	}
	b.API.InterceptWith(nil)
	b.Scan(t, reconcile.Params{})
	b.WantRows(t, `SELECT count(*)::text FROM listed_objects`, "0")
}

// If the API lists changes, a scan after the first lists only the changes, from a little before the
// watermark.
func TestObjectScan_changesOnly_listsFromTheWatermark(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 240, reconciled.LivingObjects)
	b.API.Version = sim.ListsByChange
	end := b.API.Time
	b.API.SetTime(time.UnixMicro(b.API.History.LastChangeAt("obj_20")).Add(time.Second)) // soon after the change
	b.StartReconciler(t, b.Runner())
	all := b.Scan(t, reconcile.Params{})
	if all.Counts[reconcile.Processed] < 10 {
		t.Errorf("the first scan lists %v", all.Counts)
	}
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	first := b.TypeCompleteUntil(t)
	b.API.SetTime(end)
	calls := b.API.CallCount("/list")
	later := b.Scan(t, reconcile.Params{})
	if n := later.Counts[reconcile.Processed]; n == 0 && later.Counts[objectscan.Orphans] != 0 ||
		b.API.CallCount("/list") == calls {
		t.Errorf("a later scan lists %v", later.Counts)
	}
	since, changes := b.CompleteRange(t, "", "changes thing")
	if !changes.After(first) || since.Unix() != 0 {
		t.Errorf("changes are complete from %s until %s after %s", since, changes, first)
	}
	if !b.TypeCompleteUntil(t).Equal(first) {
		t.Errorf("a list of changes shows no deletion, but the type is complete until %s after %s",
			b.TypeCompleteUntil(t), first)
	}
	reconciled.WantExactCounts(t, b.Scan(t, reconcile.Params{}), reconciled.Counts{}) // nothing has changed since
	full := b.Scan(t, reconcile.Params{Full: true})
	if full.Counts[reconcile.Processed] != 20 {
		t.Errorf("a full scan lists %v", full.Counts)
	}
	if !b.TypeCompleteUntil(t).Equal(changes) {
		t.Errorf("after a full scan the type is complete until %s, want %s", b.TypeCompleteUntil(t), changes)
	}
	reconciled.WantNone(t, b.Differences(t))
	stretch := b.Scan(t, reconcile.Params{Since: end.Add(-time.Minute), Until: end})
	reconciled.WantExactCounts(t, stretch, reconciled.Counts{})
}

// Two runs at the same time have the same result.
func TestObjectScan_concurrentScans_makeMirrorEqual(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 250, unversionedOptions)
	b.Deliver(t, lossyEvents(b.API.History, 40, 9))
	b.StartReconciler(t, b.Runner())
	b.StartRunner(t, "two", 1, map[string]runs.Executor{reconcile.Job: b.Runner().Execute})
	var requested []int64
	for range 3 {
		requested = append(requested, b.StartRun(t, reconcile.Params{Scope: reconcile.Objects}))
	}
	for _, run := range requested {
		reconciled.WantCounts(t, b.WaitForEnd(t, run), reconciled.Counts{objectscan.Unrepaired: 0})
	}
	reconciled.WantNone(t, b.Differences(t))
}

// A list without an end and a type without a list fail the run with a clear message.
func TestObjectScan_brokenLists_reportTheCause(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 270, reconciled.LivingObjects)
	b.API.RespondTo(b.FoundResponse(`{"things":[],"next":"again"}`), "/list")
	b.StartReconciler(t, b.Runner())
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects, Type: "nothing"},
		`does not list objects of type "nothing"; it lists thing`)
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "the same page of type thing again and again")
	// an object that is listed and then missing stays unrepaired, and an empty id is reported
	b.API.InterceptWith(func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case c.Path == "/list":
			return b.FoundResponse(fmt.Sprintf(`{"things":[{"id":"obj_1","at":%d},{"id":""}]}`,
				b.API.Time.UnixMicro())), nil
		case strings.HasPrefix(c.Path, "/things/obj_1"):
			return b.MissingResponse(), nil
		}
		return nil, nil
	})
	left := b.Unrepaired(t, b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects}).ID)
	if len(left) != 2 || left[1].ObjectID != "obj_1" ||
		!strings.Contains(left[1].Reason, "reports it as missing when it is refetched") {
		t.Errorf("unrepaired %+v", left)
	}
	wantIncomplete(t, b)
}

// interceptList makes a function respond to requests for the list with a cursor. Nil stands for the
// response of the API.
func interceptList(b *reconciled.Env, respond func(cursor string) *providerapi.Response) {
	b.API.InterceptWith(func(c provider.Call) (*providerapi.Response, error) {
		if c.Path != "/list" {
			return nil, nil
		}
		return respond(c.Query.Get("cursor")), nil
	})
}

// startAttempts starts a runner that executes each attempt of a run with a function.
func startAttempts(t *testing.T, b *reconciled.Env, slot int, execute runs.Executor) {
	t.Helper()
	b.StartRunner(t, "one", slot, map[string]runs.Executor{reconcile.Job: execute})
}

// olderStateSQL gives an object an earlier version with another state.
const olderStateSQL = `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'),
	exact_hash = sha256('old'), tied_states = '[]', version_at = version_at - 10 WHERE object_id = $1`

// addEachDrift gives one object of the mirror each kind of difference. The others stay equal.
func addEachDrift(t *testing.T, b *reconciled.Env) {
	t.Helper()
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	b.DB.Exec(t, `UPDATE objects SET deleted = true, state = NULL, state_hash = sha256('-null'),
		exact_hash = sha256('-null'), version_at = version_at - 10, time_from = 1, time_to = 1
			WHERE object_id = 'obj_2'`)
	b.DB.Exec(t, olderStateSQL, "obj_3")
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "odd"}', state_hash = sha256('odd'), exact_hash = sha256('odd'),
		tied_states = '[]' WHERE object_id = 'obj_4'`)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "new"}', state_hash = sha256('new'), exact_hash = sha256('new'),
		tied_states = '[]', version_at = version_at + 10, time_to = 9000000000000000 WHERE object_id = 'obj_5'`)
	b.DB.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"object_id": "gone"}')).*
		FROM objects o WHERE object_id = 'obj_6'`)
}
