package objectscan_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// An object is equal in a scan. A late event from before the scan changes it, after the scan or
// during it. A refetch then corrects it.
func TestObjectScan_lateEvent_isCorrectedByRefetch(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprint("during the scan: ", during), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 240, reconciled.LivingOptions(10))
			late := addLateEvent(t, b)
			object := []byte(`{"unit":1000000,"object":{"state":"A"}}`)
			pages := 0
			b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
				switch {
				case c.Path == "/things/late_1":
					return b.Response(provider.Found, object), nil
				case c.Path != "/list":
					return nil, nil
				case c.Query.Get("cursor") == "":
					return b.Response(provider.Found,
						fmt.Appendf(nil, `{"things":[{"id":"late_1","answer":%s}],"next":"obj_1"}`, object)), nil
				case c.Query.Get("cursor") == "obj_1":
					if pages++; pages == 1 && during {
						reconciled.WaitForValue(t, b, 1, `SELECT count(*) FROM listed_objects
							WHERE object = hashtextextended('late_1', 0)`)
						b.Deliver(t, []sim.Event{late})
					}
				}
				return nil, nil
			}
			r := b.Runner()
			b.StartReconciler(t, r)
			if scanned := b.Scan(t, reconcile.Params{}); scanned.Counts[objectscan.Equal] == 0 ||
				scanned.Counts[objectscan.Unrepaired] != 0 || b.TypeCompleteUntil(t).IsZero() {
				t.Fatalf("%v, complete until %s", scanned.Counts, b.TypeCompleteUntil(t))
			}
			if !during {
				b.Deliver(t, []sim.Event{late})
			}
			const stateSQL = `SELECT state ->> 'state' FROM objects WHERE object_id = 'late_1'`
			if got := reconciled.QueryOne[string](t, b, stateSQL); got != "B" {
				t.Fatalf("the late event had no effect: the state is %s", got)
			}
			b.WantRows(t, `SELECT object_id || ' ' || reason FROM refetch_requests`, "late_1 an event came late")
			reconciled.StartRefetcher(t, r, "one")
			reconciled.WaitForValue(t, b, "A", stateSQL)
			reconciled.WaitForValue(t, b, 0, `SELECT count(*) FROM refetch_requests`)
		})
	}
}

// A scan reads nothing before the open apply transactions, which do not know of it, have ended. New
// batches are not blocked.
func TestObjectScan_openBatches_areWaitedFor(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 241, reconciled.LivingOptions(3))
	tx := testkit.OpenTx(t, b.DB.Pool, `SELECT pg_advisory_xact_lock_shared($1, $2)`, versioning.SourceLock, b.Source)
	var done atomic.Bool
	interceptList(b, func(string) *providerapi.Response {
		if !done.Load() {
			t.Error("a page was read too early")
		}
		return nil
	})
	b.StartReconciler(t, b.Runner())
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	reconciled.WaitForValue(t, b, 1, `SELECT count(*) FROM object_scans`)
	for n := range int64(20) { // new batches do not take the scan for a swap
		e := stream.Event{Source: applied.SourceName, StoredEvent: provider.StoredEvent{ID: 1<<40 + n,
			Key:  fmt.Sprint("k", n),
			Type: "thing", Origin: events.OriginWebhook, ReceivedAt: b.API.Time, Body: b.API.History.Events[0].Body}}
		testkit.Must(t, b.Proc.Apply(t.Context(), 5, []stream.Event{e}))
	}
	done.Store(true)
	testkit.Must(t, tx.Commit(t.Context()))
	if r := b.WaitForEnd(t, run); r.Status != runs.Done || b.API.CallCount("/list") == 0 {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
}

// A lost event requests a refetch after the grace time. A late event requests none.
func TestRefetch_lostEvent_isRequestedAfterGrace(t *testing.T) {
	t.Parallel()
	const requestsSQL = `SELECT count(*) FROM refetch_requests`
	b := reconciled.NewEmptyEnv(t, 110, sim.Options{Objects: 2, Changes: 40, Contents: 1000, Unit: 1000, Gap: 700_000,
		ChangeSets: 100})
	patient := func(wait time.Duration) {
		b.Proc.Replace(map[string]apply.Source{applied.SourceName: {Number: b.Source,
			Config: &provider.Source{Name: applied.SourceName}, Provider: sim.Provider{}, LateEventGrace: wait,
			ReadsByID: func(_, objectType, _ string) bool { return objectType == "thing" }}})
	}
	of := b.API.History.EventsOf("obj_1")
	if len(of) < 5 {
		t.Fatalf("%d events", len(of))
	}
	patient(time.Hour)
	b.Deliver(t, of[:1])
	b.Deliver(t, of[2:3])
	reconciled.WantValue(t, b, 1, requestsSQL) // for a lost event
	b.StartRefetchers(t, 2)
	b.Deliver(t, of[3:4])
	b.Deliver(t, of[1:2])
	reconciled.WantValue(t, b, 0, requestsSQL) // none for a late event
	b.Deliver(t, b.API.History.EventsOf("obj_2"))
	b.API.WantCalls(t, "/things/", 0) // while no event was lost
	patient(time.Millisecond)
	b.Deliver(t, of[5:])
	b.WaitForRefetches(t)
	b.API.WantCalls(t, "/things/obj_1", 1) // for a lost event
	b.API.WantCalls(t, "/things/", 1)
	reconciled.WantNone(t, b.Differences(t))
}

// A scan of changes starts before the watermark, by the overlap and the lag of the list, because
// the list may have missed changes at that time.
func TestObjectScan_changesOnly_startsBeforeWatermark(t *testing.T) {
	t.Parallel()
	for version, lag := range map[string]time.Duration{sim.ListsByChange: 0, sim.ListsByChange + "," +
		sim.ListsLate: sim.MaxListLag} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewEmptyEnv(t, 241, reconciled.LivingObjects)
			b.API.Version = version
			b.StartReconciler(t, b.Runner())
			b.Scan(t, reconcile.Params{})
			var since atomic.Int64
			b.API.InterceptWith(func(c provider.Call) (*providerapi.Response, error) {
				if c.Path == "/list" {
					n, err := strconv.ParseInt(c.Query.Get("since"), 10, 64)
					since.Store(n)
					return nil, err
				}
				return nil, nil
			})
			complete := changesCompleteUntil(t, b)
			b.API.SetTime(b.API.Now().Add(time.Hour))
			b.Scan(t, reconcile.Params{})
			if from, want := time.UnixMicro(since.Load()).UTC(),
				complete.Add(-b.Runner().Limits.Overlap-lag); complete.IsZero() || !from.Equal(want) {
				t.Errorf("requested from %s, want %s: complete until %s", from, want, complete)
			}
		})
	}
}

// An object that was deleted after the time of a late list, with a webhook, is refetched if the
// list has ids or versions only. It counts as equal instead of unrepaired, which would hold the
// watermark.
func TestObjectScan_deletedAfterLateList_isRefetched(t *testing.T) {
	t.Parallel()
	for version, o := range map[string]sim.Options{sim.ListsIDs: unversionedOptions,
		sim.ListsVersions: versionedOptions} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 260, o)
			gone := slices.DeleteFunc(b.API.History.ObjectIDs(),
				func(id string) bool { return b.API.History.Exists(id, 1<<62) })
			if len(gone) == 0 {
				t.Fatal("nothing is deleted")
			}
			last := slices.MaxFunc(gone, func(a, c string) int {
				return cmp.Compare(b.API.History.LastChangeAt(a), b.API.History.LastChangeAt(c))
			})
			b.API.Version, b.API.ListLag = sim.ListsLate+","+version, sim.MaxListLag
			b.API.SetTime(time.UnixMicro(b.API.History.LastChangeAt(last)).Add(2 * time.Second))
			b.StartReconciler(t, b.Runner())
			r := b.Scan(t, reconcile.Params{})
			const leftSQL = `SELECT o.object_id || ': ' || d.reason FROM drifts d JOIN objects o USING (object_type,
				object_id) WHERE d.result = 'unrepaired' AND o.deleted AND NOT o.ambiguous`
			if left := b.DB.QueryStrings(t, leftSQL); len(left) > 0 ||
				!reconciled.QueryOne[bool](t, b, `SELECT deleted FROM objects
				WHERE object_id = $1`, last) {
				t.Errorf("%v, unrepaired: %q", r.Counts, left)
			}
			if version == sim.ListsVersions && b.TypeCompleteUntil(t).IsZero() {
				t.Errorf("the type has no watermark: %v", r.Counts)
			}
		})
	}
}

// If no list can be limited to changes, a time range is rejected.
func TestObjectScan_timeRangeUnsupported_isRejected(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 30})
	b.Fake.Create("", "customer", nil)
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(2 * time.Hour)
	for _, o := range []reconcile.Params{{Type: "customer", Since: b.Fake.Now().Add(-time.Minute)},
		{Until: b.Fake.Now().Add(-time.Minute)}} {
		o.Scope = reconcile.Objects
		reconciled.WantRunFailed(t, b.RunOnce(t, b.APIAt(b.Fake.URL), o), "Leave since and until out")
	}
	reconciled.WantNone(t, b.DB.QueryStrings(t, `SELECT subject FROM watermarks`))
}

// A scan of changes whose time range does not touch the watermark does not move it. A range that
// ends before it begins is rejected.
func TestObjectScan_gapInChanges_isNotComplete(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 242, reconciled.LivingObjects)
	b.API.Version = sim.ListsByChange
	b.StartReconciler(t, b.Runner())
	b.Scan(t, reconcile.Params{})
	complete := changesCompleteUntil(t, b)
	b.API.SetTime(b.API.Now().Add(3 * time.Hour))
	b.Scan(t, reconcile.Params{Since: complete.Add(time.Hour), Until: complete.Add(2 * time.Hour)})
	if until := changesCompleteUntil(t, b); complete.IsZero() || !until.Equal(complete) {
		t.Errorf("complete until %s, and the hour after %s was not read", until, complete)
	}
	b.Scan(t, reconcile.Params{Since: complete, Until: complete.Add(2 * time.Hour)})
	if until := changesCompleteUntil(t, b); !until.Equal(complete.Add(2 * time.Hour)) {
		t.Errorf("complete until %s, though two hours from %s were read", until, complete)
	}
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects, Until: complete}, "since")
}

// A late list does not change objects that changed since, and the watermark is not later than the
// list.
func TestObjectScan_lateList_keepsNewerState(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 260, unversionedOptions)
	b.API.Version, b.API.ListLag = sim.ListsLate, sim.MaxListLag
	var end int64
	for _, id := range b.API.History.ObjectIDs() {
		end = max(end, b.API.History.LastChangeAt(id))
	}
	b.API.SetTime(time.UnixMicro(end).Add(2 * time.Second))
	before := b.Differences(t)
	b.StartReconciler(t, b.Runner())
	r := b.Scan(t, reconcile.Params{})
	if r.Counts[objectscan.MirrorNewer] == 0 {
		t.Errorf("no object is newer than a late list: %v", r.Counts)
	}
	for _, w := range b.Differences(t) {
		id, _, _ := strings.Cut(w, " ")
		if !slices.ContainsFunc(before, func(was string) bool { return strings.HasPrefix(was, id+" ") }) {
			t.Errorf("the scan made a difference: %s", w)
		}
	}
	if until := b.TypeCompleteUntil(t); until.After(b.API.Time.Add(-sim.MaxListLag)) {
		t.Errorf("complete until %s, with a list that may be from %s", until, b.API.Time.Add(-sim.MaxListLag))
	}
}

// addLateEvent makes an object that changed and changed back, of which a webhook has brought the
// first state only. It returns the second event.
func addLateEvent(t *testing.T, b *reconciled.Env) (late sim.Event) {
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

// changesCompleteUntil returns the watermark of the changes of the type.
func changesCompleteUntil(t *testing.T, b *reconciled.Env) time.Time {
	t.Helper()
	_, until := b.CompleteRange(t, "", "changes thing")
	return until
}
