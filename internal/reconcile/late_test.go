package reconcile_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// addLateEvent makes an object that changed and changed back, of which a webhook has brought the
// first state only. It returns the second event.
func (b *testEnv) addLateEvent(t *testing.T) (late sim.Event) {
	t.Helper()
	at := sim.Start + 1_000_000
	event := func(key, state string, after int64) sim.Event {
		happened := at + after*1_000_000
		return sim.Event{Key: key, Object: "late_1", OccurredAt: happened, ReceivedAt: time.UnixMicro(happened).UTC(),
			Body: fmt.Appendf(nil, `{"id":%q,"object_id":"late_1","type":"thing.updated","unit":1000000,"rank":1,`+
				`"time":%d,"object":{"state":%q}}`, key, happened, state)}
	}
	first, late, last := event("late_a", "A", 0), event("late_b", "B", 5), event("late_c", "A", 10)
	b.api.history.Events = append([]sim.Event{first, late, last}, b.api.history.Events...)
	b.deliver(t, []sim.Event{first})
	src := b.Sources[applied.SourceName]
	src.ReadsByID = func(_, objectType, _ string) bool { return objectType == "thing" }
	b.proc.Replace(map[string]apply.Source{applied.SourceName: src})
	return late
}

// An object is equal in a scan. A late event from before the scan changes it, after the scan or
// during it. A refetch then corrects it.
func TestObjectScan_lateEvent_isCorrectedByRefetch(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprint("during the scan: ", during), func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 240, livingOptions(10))
			late := b.addLateEvent(t)
			object := []byte(`{"unit":1000000,"object":{"state":"A"}}`)
			pages := 0
			b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
				switch {
				case c.Path == "/things/late_1":
					return b.response(provider.Found, object), nil
				case c.Path != "/list":
					return nil, nil
				case c.Query.Get("cursor") == "":
					return b.response(provider.Found,
						fmt.Appendf(nil, `{"things":[{"id":"late_1","answer":%s}],"next":"obj_1"}`, object)), nil
				case c.Query.Get("cursor") == "obj_1":
					if pages++; pages == 1 && during {
						b.waitUntilListed(t, "late_1")
						b.deliver(t, []sim.Event{late})
					}
				}
				return nil, nil
			}
			r := b.runner()
			b.startReconciler(t, r)
			if scanned := b.scan(t, reconcile.Params{}); scanned.Counts[objectscan.Equal] == 0 ||
				scanned.Counts[objectscan.Unrepaired] != 0 || b.typeCompleteUntil(t).IsZero() {
				t.Fatalf("%v, complete until %s", scanned.Counts, b.typeCompleteUntil(t))
			}
			if !during {
				b.deliver(t, []sim.Event{late})
			}
			const stateSQL = `SELECT state ->> 'state' FROM objects WHERE object_id = 'late_1'`
			if got := queryOne[string](t, b, stateSQL); got != "B" {
				t.Fatalf("the late event had no effect: the state is %s", got)
			}
			requests := b.DB.QueryStrings(t, `SELECT object_id || ' ' || reason FROM refetch_requests`)
			if strings.Join(requests, "") != "late_1 an event came late" {
				t.Errorf("requests %q", requests)
			}
			startRefetcher(t, r, "one")
			testkit.Eventually(t, time.Minute, func() error {
				if got, left := queryOne[string](t, b, stateSQL), b.DB.QueryStrings(t,
					`SELECT object_id FROM refetch_requests`); got != "A" || len(left) > 0 {
					return fmt.Errorf("the state is %s, requests for %q", got, left)
				}
				return nil
			})
		})
	}
}

// waitUntilListed waits until a scan has listed an object.
func (b *testEnv) waitUntilListed(t *testing.T, id string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := queryOne[int](t, b, `SELECT count(*) FROM listed_objects WHERE object = hashtextextended($1, 0)`,
			id); n == 0 {
			return fmt.Errorf("%s is not listed yet", id)
		}
		return nil
	})
}

// A scan reads nothing before the open apply transactions, which do not know of it, have ended. New
// batches are not blocked.
func TestObjectScan_openBatches_areWaitedFor(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 241, livingOptions(3))
	tx, err := b.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock_shared($1, $2)`, versioning.SourceLock,
		b.Source); err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		if c.Path == "/list" && !done.Load() {
			t.Error("a page was read too early")
		}
		return nil, nil
	}
	b.startReconciler(t, b.runner())
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	testkit.Eventually(t, time.Minute, func() error {
		if queryOne[int](t, b, `SELECT count(*) FROM object_scans`) == 0 {
			return errors.New("no scan has started")
		}
		return nil
	})
	for n := range int64(20) { // new batches do not take the scan for a swap
		e := stream.Event{Source: applied.SourceName, StoredEvent: provider.StoredEvent{ID: 1<<40 + n,
			Key:  fmt.Sprint("k", n),
			Type: "thing", Origin: events.OriginWebhook, ReceivedAt: b.api.now, Body: b.api.history.Events[0].Body}}
		if err := b.proc.Apply(t.Context(), 5, []stream.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := b.waitForEnd(t, run); r.Status != runs.Done || b.api.callCount("/list") == 0 {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
}

// A lost event requests a refetch after the grace time. A late event requests none.
func TestRefetch_lostEvent_isRequestedAfterGrace(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 110, sim.Options{Objects: 2, Changes: 40, Contents: 1000, Unit: 1000, Gap: 700_000,
		ChangeSets: 100})
	patient := func(wait time.Duration) {
		b.proc.Replace(map[string]apply.Source{applied.SourceName: {Number: b.Source,
			Config: &provider.Source{Name: applied.SourceName}, Provider: sim.Provider{}, LateEventGrace: wait,
			ReadsByID: func(_, objectType, _ string) bool { return objectType == "thing" }}})
	}
	of := b.api.history.EventsOf("obj_1")
	if len(of) < 5 {
		t.Fatalf("%d events", len(of))
	}
	requests := func() string { return b.DB.QueryStrings(t, `SELECT count(*)::text FROM refetch_requests`)[0] }
	patient(time.Hour)
	b.deliver(t, of[:1])
	b.deliver(t, of[2:3])
	if n := requests(); n != "1" {
		t.Fatalf("%s requests for a lost event", n)
	}
	b.startRefetchers(t, 2)
	b.deliver(t, of[3:4])
	b.deliver(t, of[1:2])
	if n := requests(); n != "0" {
		t.Errorf("%s requests for a late event", n)
	}
	b.deliver(t, b.api.history.EventsOf("obj_2"))
	if n := b.api.callCount("/things/"); n != 0 {
		t.Fatalf("%d refetches while no event was lost", n)
	}
	patient(time.Millisecond)
	b.deliver(t, of[5:])
	b.waitForRefetches(t)
	if n := b.api.callCount("/things/obj_1"); n != 1 || b.api.callCount("/things/") != 1 {
		t.Errorf("%d refetches for a lost event", n)
	}
	wantNone(t, b.differences(t))
}

// changesCompleteUntil returns the watermark of the changes of the type.
func (b *testEnv) changesCompleteUntil(t *testing.T) time.Time {
	t.Helper()
	_, until := b.completeRange(t, "", "changes thing")
	return until
}

// A scan of changes starts before the watermark, by the overlap and the lag of the list, because
// the list may have missed changes at that time.
func TestObjectScan_changesOnly_startsBeforeWatermark(t *testing.T) {
	t.Parallel()
	for version, lag := range map[string]time.Duration{sim.ListsByChange: 0, sim.ListsByChange + "," +
		sim.ListsLate: sim.MaxListLag} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newEmptyEnv(t, 241, livingObjects)
			b.api.version = version
			b.startReconciler(t, b.runner())
			b.scan(t, reconcile.Params{})
			var mu sync.Mutex
			var since int64
			b.api.interceptWith(func(c provider.Call) (*providerapi.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				if c.Path == "/list" {
					since, _ = strconv.ParseInt(c.Query.Get("since"), 10, 64)
				}
				return nil, nil
			})
			complete := b.changesCompleteUntil(t)
			b.api.setTime(b.api.Now().Add(time.Hour))
			b.scan(t, reconcile.Params{})
			mu.Lock()
			defer mu.Unlock()
			if from, want := time.UnixMicro(since).UTC(),
				complete.Add(-b.runner().Limits.Overlap-lag); complete.IsZero() || !from.Equal(want) {
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
			b := newMirroredEnv(t, 260, o)
			gone := slices.DeleteFunc(b.api.history.ObjectIDs(),
				func(id string) bool { return b.api.history.Exists(id, 1<<62) })
			if len(gone) == 0 {
				t.Fatal("nothing is deleted")
			}
			last := slices.MaxFunc(gone,
				func(a, c string) int {
					return cmp.Compare(b.api.history.LastChangeAt(a), b.api.history.LastChangeAt(c))
				})
			b.api.version, b.api.listLag = sim.ListsLate+","+version, sim.MaxListLag
			b.api.setTime(time.UnixMicro(b.api.history.LastChangeAt(last)).Add(2 * time.Second))
			b.startReconciler(t, b.runner())
			r := b.scan(t, reconcile.Params{})
			const leftSQL = `SELECT o.object_id || ': ' || d.reason FROM drifts d JOIN objects o USING (object_type,
				object_id) WHERE d.result = 'unrepaired' AND o.deleted AND NOT o.ambiguous`
			if left := b.DB.QueryStrings(t, leftSQL); len(left) > 0 ||
				!queryOne[bool](t, b, `SELECT deleted FROM objects
				WHERE object_id = $1`, last) {
				t.Errorf("%v, unrepaired: %q", r.Counts, left)
			}
			if version == sim.ListsVersions && b.typeCompleteUntil(t).IsZero() {
				t.Errorf("the type has no watermark: %v", r.Counts)
			}
		})
	}
}

// If no list can be limited to changes, a time range is rejected.
func TestObjectScan_timeRangeUnsupported_isRejected(t *testing.T) {
	t.Parallel()
	b := newStripeEnv(t, "", stripefake.Options{Seed: 30})
	b.fake.Create("", "customer", nil)
	b.deliver(t, loseNone)
	b.fake.Advance(2 * time.Hour)
	for _, o := range []reconcile.Params{{Type: "customer", Since: b.fake.Now().Add(-time.Minute)},
		{Until: b.fake.Now().Add(-time.Minute)}} {
		o.Scope = reconcile.Objects
		wantRunFailed(t, b.runOnce(t, b.apiAt(b.fake.URL), o), "Leave since and until out")
	}
	wantNone(t, b.DB.QueryStrings(t, `SELECT subject FROM watermarks`))
}

// A scan of changes whose time range does not touch the watermark does not move it.
func TestObjectScan_gapInChanges_isNotComplete(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 242, livingObjects)
	b.api.version = sim.ListsByChange
	b.startReconciler(t, b.runner())
	b.scan(t, reconcile.Params{})
	complete := b.changesCompleteUntil(t)
	b.api.setTime(b.api.Now().Add(3 * time.Hour))
	b.scan(t, reconcile.Params{Since: complete.Add(time.Hour), Until: complete.Add(2 * time.Hour)})
	if until := b.changesCompleteUntil(t); complete.IsZero() || !until.Equal(complete) {
		t.Errorf("complete until %s, and the hour after %s was not read", until, complete)
	}
	b.scan(t, reconcile.Params{Since: complete, Until: complete.Add(2 * time.Hour)})
	if until := b.changesCompleteUntil(t); !until.Equal(complete.Add(2 * time.Hour)) {
		t.Errorf("complete until %s, though two hours from %s were read", until, complete)
	}
}

// A late list does not change objects that changed since, and the watermark is not later than the
// list.
func TestObjectScan_lateList_keepsNewerState(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 260, unversionedOptions)
	b.api.version, b.api.listLag = sim.ListsLate, sim.MaxListLag
	var end int64
	for _, id := range b.api.history.ObjectIDs() {
		end = max(end, b.api.history.LastChangeAt(id))
	}
	b.api.setTime(time.UnixMicro(end).Add(2 * time.Second))
	before := b.differences(t)
	b.startReconciler(t, b.runner())
	r := b.scan(t, reconcile.Params{})
	if r.Counts[objectscan.MirrorNewer] == 0 {
		t.Errorf("no object is newer than a late list: %v", r.Counts)
	}
	for _, w := range b.differences(t) {
		id, _, _ := strings.Cut(w, " ")
		if !slices.ContainsFunc(before, func(was string) bool { return strings.HasPrefix(was, id+" ") }) {
			t.Errorf("the scan made a difference: %s", w)
		}
	}
	if until := b.typeCompleteUntil(t); until.After(b.api.now.Add(-sim.MaxListLag)) {
		t.Errorf("complete until %s, with a list that may be from %s", until, b.api.now.Add(-sim.MaxListLag))
	}
}
