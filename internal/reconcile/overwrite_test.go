package reconcile_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

// dayEnv is an environment whose mirror equals the provider on day 0.
type dayEnv struct {
	*reconciled.Env
	first time.Time
}

func newDayEnv(t *testing.T, version string) *dayEnv {
	t.Helper()
	b := &dayEnv{Env: reconciled.NewEmptyEnv(t, 300, reconciled.LivingObjects)}
	b.API.Version, b.first = version, b.API.Now()
	b.Deliver(t, b.API.History.Events)
	if w := b.Differences(t); len(w) > 0 {
		t.Fatal(w)
	}
	return b
}

// day returns the start of a day on the provider's clock.
func (b *dayEnv) day(n int) int64 { return b.first.AddDate(0, 0, n).UnixMicro() }

// scanOnDay scans on a day. The scan must repair a number of objects and leave none unrepaired.
func (b *dayEnv) scanOnDay(t *testing.T, day int, repaired int64) {
	t.Helper()
	b.API.SetTime(time.UnixMicro(b.day(day)))
	r := b.Scan(t, reconcile.Params{})
	if c := r.Counts; c[objectscan.Repaired] != repaired || c[objectscan.Unrepaired] != 0 ||
		c[objectscan.MirrorNewer] != 0 {
		t.Errorf("day %d: counts %v, want %d repaired", day, c, repaired)
	}
	for _, w := range b.Differences(t) {
		t.Errorf("day %d: %s", day, w)
	}
	if want := b.API.Now().Add(-time.Millisecond).Truncate(time.Second).Add(-time.Second); b.TypeCompleteUntil(
		t).Before(want) {
		t.Errorf("day %d: complete until %s, want %s", day, b.TypeCompleteUntil(t), want)
	}
}

// An object that was hidden and is found again, changed or not and with a new version or not, is
// repaired by the next scan each time. No operator is needed. A replay of all events changes
// nothing.
func TestObjectScan_hiddenObjects_areRestored(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", sim.ListsIDs, sim.ListsVersions, sim.ListsObjectsAndVersions} {
		t.Run("list "+version, func(t *testing.T) {
			t.Parallel()
			b := newDayEnv(t, version)
			for i, id := range []string{"obj_1", "obj_2", "obj_3", "obj_4"} {
				b.API.History.Hide(id, b.day(1), b.day(3))
				if i >= 2 {
					b.API.History.EditSilently(id, b.day(3)+1, i == 3)
				}
			}
			b.StartReconciler(t, b.Runner())
			b.scanOnDay(t, 2, 4)
			b.scanOnDay(t, 4, 4)
			b.scanOnDay(t, 5, 0)
			b.API.History.EditSilently("obj_2", b.day(6), true)
			b.API.History.EditSilently("obj_3", b.day(6), false)
			b.API.History.Hide("obj_1", b.day(6), b.day(8))
			b.scanOnDay(t, 7, 3)
			b.scanOnDay(t, 9, 1)
			b.scanOnDay(t, 10, 0)
			b.Replay(t)
			for _, w := range b.Differences(t) {
				t.Errorf("after a replay: %s", w)
			}
		})
	}
}

// deliverStateAt delivers the webhook of an object with its state at a time. Its version may not
// advance.
func (b *dayEnv) deliverStateAt(t *testing.T, id string, at int64) {
	t.Helper()
	var is struct {
		Version int64
		Object  json.RawMessage
	}
	testkit.Must(t, json.Unmarshal(b.API.History.StoredRefetch(id, sim.Refetch{Began: at}).Body, &is))
	b.Deliver(t, []sim.Event{{Object: id, ReceivedAt: time.UnixMicro(at),
		Body: fmt.Appendf(nil, `{"id": "told", "object_id": %q, "type": "thing.updated", "own": true, "still": true,
		"unit": 1, "rank": 1, "time": %d, "object": %s}`, id, is.Version, is.Object)}})
}

// A manual refetch finds an object again. A webhook about a change without a new version then
// requests a refetch.
func TestRefetch_hiddenObject_isRestored(t *testing.T) {
	t.Parallel()
	b := newDayEnv(t, "")
	b.StartRefetchers(t, 2)
	b.StartReconciler(t, b.Runner())
	b.API.History.Hide("obj_1", b.day(1), b.day(3))
	refetches := func(day int, do func()) {
		t.Helper()
		b.API.SetTime(time.UnixMicro(b.day(day)))
		do()
		b.WaitForRefetches(t)
		for _, w := range b.Differences(t) {
			t.Errorf("day %d: %s", day, w)
		}
	}
	request := func() {
		b.RequestRefetch(t, "thing", "obj_1", "ada", "is it there?")
	}
	refetches(2, request)
	refetches(4, request)
	b.API.History.EditSilently("obj_1", b.day(5), false)
	refetches(6, func() { b.deliverStateAt(t, "obj_1", b.day(5)+1) })
	refetches(7, func() {
		b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_1", Overwrite: true})
	})
	b.scanOnDay(t, 8, 0)
	got := b.DB.QueryStrings(t, `SELECT o.status || CASE WHEN convert_from(e.body, 'UTF8')::jsonb ? 'reversioned' THEN
		', reversioned'
		ELSE '' END FROM events e JOIN outcomes o ON o.event_id = e.id AND o.run = 0 WHERE e.event_type = $1
			ORDER BY e.id`, provider.RefetchType)
	if want := []string{"applied", "applied, reversioned", "applied, reversioned", "unchanged"}; !slices.Equal(got,
		want) {
		t.Errorf("the refetches are %q, want %q", got, want)
	}
}

// An operator's overwrite wins over a final delete and records the operator. Older events do not
// restore the tombstone, and later events apply.
func TestOverwrite_finalDelete_isOverwritten(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 100, sim.Options{Objects: 2, Changes: 5, Contents: 4, Unit: 1_000_000,
		Gap: 3_000_000})
	b.API.SetTime(time.Now()) // events that are received from now on are newer
	b.Deliver(t, b.API.History.Events)
	deleted := sim.Event{Object: "obj_1", ReceivedAt: time.Now(),
		Body: fmt.Appendf(nil, `{"id": "unmeant", "object_id": "obj_1", "type": "thing.deleted", "deleted": true,
			"final": true, "unit": 1, "rank": 1, "time": %d}`, time.Now().Add(50*time.Minute).UnixMicro())}
	b.Deliver(t, []sim.Event{deleted})
	b.StartReconciler(t, b.Runner())
	b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_1"})
	if w := b.Differences(t); len(w) != 1 || !strings.HasPrefix(w[0], "obj_1 is") {
		t.Fatalf("%q: a refetch must not change it", w)
	}
	for range 2 { // a second overwrite is another event and changes nothing
		b.Overwrite(t, "obj_1", "ada@office", "nobody meant it")
		reconciled.WantNone(t, b.Differences(t))
	}
	got := b.DB.QueryStrings(t, `SELECT o.status || ', ' || o.reason || ', ' || convert_from(e.body, 'UTF8')
		FROM events e
		JOIN outcomes o ON o.event_id = e.id
		WHERE e.event_type = 'postern.refetch' AND e.event_id LIKE 'overwrite:%' ORDER BY e.id`)
	if len(got) != 2 || !strings.HasPrefix(got[0], "applied, an operator overwrote the object with this refetch; the "+
		"version before was (final, at") || !strings.HasPrefix(got[1], "unchanged, an operator overwrote the object "+
		"with this refetch, which found the same state") || !strings.Contains(got[0],
		`"actor":"ada@office","reason":"nobody meant it"`) {
		t.Errorf("%q", got)
	}
	b.Replay(t) // all events again
	reconciled.WantNone(t, b.Differences(t))
	b.Deliver(t, []sim.Event{{Object: "obj_1", ReceivedAt: time.Now(),
		Body: fmt.Appendf(nil, `{"id": "next", "object_id": "obj_1", "type": "thing.updated", "object": {"next": true},
		"unit": 1000000, "rank": 1, "time": %d}`, time.Now().Add(time.Minute).UnixMicro())}})
	if got := b.DB.QueryStrings(t,
		`SELECT state::text FROM objects WHERE object_id = 'obj_1'`); got[0] != `{"next": true}` {
		t.Errorf("%s", got)
	}
}

// partReader is a provider whose API returns parts of objects only.
type partReader struct{ sim.Provider }

func (partReader) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	return provider.Observation{ObjectType: s.ObjectType, ObjectID: s.ObjectID, Partial: "a part of it"}, nil
}

// A partial response cannot overwrite: the run fails and appends nothing.
func TestOverwrite_partialResponse_fails(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 101, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000,
		Gap: 700_000, ObjectVersions: true, VersionIsCounter: true})
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) { s.Reader = partReader{} }))
	run := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_1", Overwrite: true})
	if run.Status != runs.Failed || !strings.Contains(run.Detail, "the API's response cannot overwrite anything") {
		t.Errorf("%s: %s", run.Status, run.Detail)
	}
	b.WantRows(t, `SELECT count(*)::text FROM events WHERE event_type = 'postern.refetch'`, "0")
}

// An operator's overwrite deletes an object with a counter that the API does not have. A refetch
// only reports it. Older events do not restore it, and later events request a refetch.
func TestOverwrite_missingCounterObject_isDeleted(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 102, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000,
		ObjectVersions: true, VersionIsCounter: true})
	src := b.Sources[applied.SourceName]
	src.RefetchReader = reconciled.CounterReader{}
	b.Proc.Replace(map[string]apply.Source{applied.SourceName: src})
	b.API.SetTime(time.Now())
	b.Deliver(t, b.API.History.Events)
	b.API.RespondTo(b.MissingResponse(), "/things/*")
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) { s.Reader = reconciled.CounterReader{} }))
	shown := func(want string) {
		t.Helper()
		got := b.DB.QueryStrings(t, `SELECT deleted || ', ' || ambiguous || ', refetch pending: ' ||
			(refetch_after <> 0) || ', ' || version_final FROM objects WHERE object_id = 'obj_1'`)[0]
		if got != want {
			t.Errorf("deleted, ambiguous, pending, final: %s, want %s", got, want)
		}
	}
	b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_1"})
	shown("false, false, refetch pending: true, false")
	for range 2 {
		b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_1", Overwrite: true})
		shown("true, false, refetch pending: false, false")
	}
	b.Replay(t) // all events again
	shown("true, false, refetch pending: false, false")
	b.Deliver(t, []sim.Event{{Object: "obj_1", ReceivedAt: time.Now(),
		Body: []byte(`{"id": "next", "object_id": "obj_1", "type": "thing.updated", "object": {"next": true}, ` +
			`"unit": 1, "rank": 1, "own": true, "time": 1}`)}})
	// A counter does not tell whether it is older, so that a refetch is needed.
	shown("true, false, refetch pending: true, false")
	b.API.RespondTo(nil, "/things/*")
	b.API.SetTime(time.Now().Add(time.Minute))
	b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_1"})
	shown("false, false, refetch pending: false, false")
}

// A provider that was restored from a backup returns an older version than its webhooks. The object
// scan reports that as drift, and refetches are suspended after some attempts. After an operator's
// overwrite a late event from before the restore does not win.
func TestReconcile_restoredProvider_isReportedUntilAnOperatorOverwrites(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 140,
		sim.Options{Objects: 1, Changes: 6, Contents: 1_000_000, Unit: 1_000_000, Gap: 3_000_000, ObjectVersions: true})
	h := b.API.History
	last := len(h.Events) - 1
	if last < 2 {
		t.Fatalf("%d events: too few to restore anything", last+1)
	}
	b.Deliver(t, h.Events[:last])
	h.Restore("obj_1", h.LastChangeAt("obj_1")+1_000_000, 0)
	b.API.SetTime(time.Now())
	b.StartReconciler(t, b.Runner())
	b.Scan(t, reconcile.Params{})
	if got := b.DB.QueryStrings(t, `SELECT kind || ', ' || result || ', ' || reason FROM drifts`); len(got) != 1 ||
		!strings.HasPrefix(got[0], "content_differs, unrepaired, ambiguous: the provider's API returned an older "+
			"version (2023-11-14T22:13:2") {
		t.Fatalf("drift: %q", got)
	}

	pass := reconciled.RefetchPasses(b, b.Runner())
	const suspended = `SELECT error FROM refetch_requests WHERE due = 'infinity'`
	for n := 0; len(b.DB.QueryStrings(t, suspended)) == 0; n++ {
		if n == 30 {
			t.Fatalf("not suspended: %q", b.DB.QueryStrings(t, `SELECT attempts || ' ' || error FROM refetch_requests`))
		}
		b.API.SetTime(time.Now().Add(time.Duration(n) * time.Minute))
		b.DB.Exec(t, `UPDATE refetch_requests SET due = now()`)
		if _, err := pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.DB.QueryStrings(t, suspended)[0]; !strings.Contains(got, "restored from a backup") ||
		!strings.Contains(got, "postern objects overwrite") {
		t.Errorf("the reason of the suspended refetch: %q", got)
	}
	if n := reconciled.QueryOne[int](t, b, reconciled.CountRefetchesSQL); n < 8 {
		t.Errorf("suspended after %d refetches", n)
	}

	b.Overwrite(t, "obj_1", "ada", "the provider was restored")
	reconciled.WantNone(t, b.Differences(t))
	late := h.Events[last]
	late.ReceivedAt = time.Now()
	b.Deliver(t, []sim.Event{late})
	if w := b.Differences(t); len(w) != 0 {
		t.Errorf("after a late event from before the restore: %q", w)
	}
	if got := b.DB.QueryStrings(t, `SELECT o.status || ': ' || o.reason FROM outcomes o ORDER BY o.event_id DESC
		LIMIT 1`); !strings.HasPrefix(got[0], "stale: the provider stamped it before ") {
		t.Errorf("the late event is %q", got)
	}
}
