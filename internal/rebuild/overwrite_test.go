package rebuild_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// overwrittenObject is an object with an unintended delete, and an operator's refetch that
// overwrites it.
type overwrittenObject struct {
	*testBundle
	// began is the start of the refetch. All times are in seconds after it.
	began time.Time
	// before was received before the refetch began, since after it. since still counts, and only
	// the log contains it after the overwrite is applied.
	before, since, overwrite int64
}

// newObject returns the object without events.
func newObject(t *testing.T) *overwrittenObject {
	t.Helper()
	return &overwrittenObject{testBundle: setup(t), began: time.Now().Add(-time.Hour).UTC().Truncate(time.Second)}
}

func newOverwrittenObject(t *testing.T) *overwrittenObject {
	t.Helper()
	w := newObject(t)
	w.before = w.appendEvent(t, "before", -10, `"deleted": true, "final": true, "object": null`)
	w.since = w.appendEvent(t, "since", 3, `"object": {"n": "since"}`)
	w.overwrite = w.appendRefetch(t, "refetch", 4, &provider.Overwrite{Before: w.began, Actor: "me",
		Reason: "an unintended delete"})
	return w
}

func (w *overwrittenObject) at(seconds int) time.Time {
	return w.began.Add(time.Duration(seconds) * time.Second)
}

// appendEvent appends an event of the object.
func (w *overwrittenObject) appendEvent(t *testing.T, key string, at int, more string) int64 {
	t.Helper()
	body := fmt.Appendf(nil,
		`{"id": %q, "object_id": "obj", "type": "thing.updated", "unit": 1, "rank": 1, "time": %d, %s}`, key,
		w.at(at).UnixMicro(), more)
	id := w.log.Append(t, w.source, []sim.Event{{Object: "obj", ReceivedAt: w.at(at), Body: body}})[0]
	w.ids = append(w.ids, id)
	return id
}

// appendRefetch appends a refetch that found the object, with or without an overwrite.
func (w *overwrittenObject) appendRefetch(t *testing.T, key string, at int, overwrite *provider.Overwrite) int64 {
	t.Helper()
	refetch := provider.Refetch{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: "obj",
		Body: fmt.Appendf(nil, `{"unit": 1, "object": {"n": %q}}`, key)},
		Date: w.at(at), Elapsed: time.Second, Overwrite: overwrite}
	return w.appendStoredRefetch(t, key, w.at(at), &refetch)
}

// checkObject checks an object's row in a table.
func (w *overwrittenObject) checkObject(t *testing.T, table, want string) {
	t.Helper()
	got := w.rows(t, `SELECT coalesce(state->>'n', 'null') || CASE WHEN deleted THEN ' deleted' ELSE '' END || CASE
		WHEN overwritten_at <> 0 THEN ' overwritten' ELSE '' END FROM `+table)
	if !slices.Equal(got, []string{want}) {
		t.Errorf("%s: %v, want %s", table, got, want)
	}
}

// checkRebuilt checks that the retained objects and these events of the log give the live object.
func (w *overwrittenObject) checkRebuilt(t *testing.T, ids ...int64) {
	t.Helper()
	w.exec(t, `TRUNCATE staged_objects`)
	w.exec(t, `INSERT INTO staged_objects SELECT * FROM retained_objects`)
	must(t, errOf(w.applier(t, nil).ApplyStored(t.Context(),
		apply.Target{Run: 500, Staging: &apply.Staging{Table: versioning.Staged}}, ids,
		false)))
	w.checkSame(t, "staged_objects")
}

// reduce reduces events of the log into the retained objects.
func (w *overwrittenObject) reduce(t *testing.T, ids ...int64) {
	t.Helper()
	must(t, errOf(w.applier(t, nil).Reduce(t.Context(), ids)))
}

func (w *overwrittenObject) checkSame(t *testing.T, table string) {
	t.Helper()
	if diff := cmp.Diff(w.tableRows(t, objectColumns, "objects"), w.tableRows(t, objectColumns, table)); diff != "" {
		t.Errorf("live and %s: %s", table, diff)
	}
}

// switchableProvider cannot read events that contain a text, as long as it is on.
type switchableProvider struct {
	sim.Provider
	on   atomic.Bool
	text string
	err  error
}

func (p *switchableProvider) fails(body []byte) bool {
	return p.on.Load() && bytes.Contains(body, []byte(p.text))
}

func (p *switchableProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	if p.fails(e.Body) {
		return provider.Observation{}, p.err
	}
	return p.Provider.Observe(src, e)
}

func (p *switchableProvider) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if p.fails(s.Body) {
		return provider.Observation{}, p.err
	}
	return p.Provider.Snapshot(src, s)
}

// If an event since the start of an overwriting refetch cannot be read at the moment, it is not
// lost: the refetch fails and is retried.
func TestOverwrite_historyUnreadable_isRetried(t *testing.T) {
	t.Parallel()
	w := newOverwrittenObject(t)
	reads := &switchableProvider{text: `"since"`, err: errors.New("the mapping changed")}
	p := w.applier(t, reads)
	applied.Apply(t, p, events.LiveRun, []int64{w.before, w.since})
	reads.on.Store(true)
	applied.Apply(t, p, events.LiveRun, []int64{w.overwrite})
	w.checkObject(t, "objects", "null deleted")
	outcome := w.rows(t, `SELECT status || ': ' || reason FROM outcomes WHERE event_id = $1`, w.overwrite)[0]
	if !strings.HasPrefix(outcome, "failed: ") ||
		!strings.Contains(outcome, fmt.Sprintf("event %d of source sim: the mapping changed", w.since)) {
		t.Errorf("the refetch is %s", outcome)
	}
	reads.on.Store(false)
	w.exec(t, `UPDATE outcomes SET due = clock_now() WHERE status = 'failed'`)
	applied.Apply(t, p, events.LiveRun, []int64{w.overwrite})
	w.checkObject(t, "objects", "since overwritten")
	w.checkRebuilt(t, w.ids...)
	w.reduce(t, w.ids...)
	w.checkSame(t, "retained_objects")
}

// The rule rejected a refetch because it found an object after a final delete. The refetch counts
// if it was received since the start of an overwriting refetch: live, in the retained objects, and
// in a rebuild.
func TestOverwrite_rejectedRefetchSince_counts(t *testing.T) {
	t.Parallel()
	w := newOverwrittenObject(t)
	rejected := w.appendRefetch(t, "rejected", 20, nil)
	p := w.applier(t, nil)
	applied.Apply(t, p, events.LiveRun, []int64{w.before, w.since})
	applied.Apply(t, p, events.LiveRun, []int64{rejected})
	equal(t, "the refetch", []string{"dead"}, w.rows(t, `SELECT status FROM outcomes WHERE event_id = $1`, rejected))
	applied.Apply(t, p, events.LiveRun, []int64{w.overwrite})
	w.checkObject(t, "objects", "rejected overwritten")
	w.reduce(t, w.ids...)
	w.checkSame(t, "retained_objects")
	w.exec(t, `TRUNCATE retained_objects`)
	w.checkRebuilt(t, w.ids...)
}

// Events since the start of an overwriting refetch may be in a partition that is dropped before the
// partition of the refetch. The retained objects keep them.
func TestReduce_overwriteInLaterPartition_keepsHistory(t *testing.T) {
	t.Parallel()
	w := newOverwrittenObject(t)
	applied.Apply(t, w.applier(t, nil), events.LiveRun, w.ids)
	w.checkObject(t, "objects", "since overwritten")
	w.reduce(t, w.before, w.since)
	w.checkSame(t, "retained_objects")
	w.checkRebuilt(t, w.overwrite) // all events that are still in the log
	later := w.appendEvent(t, "later", 30, `"object": {"n": "later"}`)
	applied.Apply(t, w.applier(t, nil), events.LiveRun, []int64{later})
	w.reduce(t, w.overwrite)
	w.checkObject(t, "retained_objects", "since overwritten") // no copy once the retained objects contain the refetch
	w.reduce(t, later)
	w.checkSame(t, "retained_objects")
}

// An event that was dead live and was applied by a replay is part of the history too. An event that
// was never applied is not.
func TestOverwrite_replayedEventsSince_count(t *testing.T) {
	t.Parallel()
	w := newOverwrittenObject(t)
	never := w.appendEvent(t, "never", 5, `"object": {"n": "never"}`)
	reads := &switchableProvider{err: &provider.Dead{Reason: "not understood yet"}} // all of them
	p := w.applier(t, reads)
	reads.on.Store(true)
	applied.Apply(t, p, events.LiveRun, w.ids)
	// As the outcome of a dead event whose object is known.
	w.exec(t, `UPDATE outcomes SET object = $2, object_type = 'thing', object_id = 'obj' WHERE event_id = $1`, never,
		versioning.Key{Source: w.source, Type: "thing", ID: "obj"}.Hash())
	reads.on.Store(false)
	applied.Apply(t, p, 77, []int64{w.before, w.since})
	applied.Apply(t, p, 77, []int64{w.overwrite})
	w.checkObject(t, "objects", "since overwritten")
	w.reduce(t, w.before, w.since, w.overwrite, never)
	w.checkSame(t, "retained_objects")
	w.exec(t, `TRUNCATE retained_objects`)
	w.checkRebuilt(t, w.before, w.since, w.overwrite)
}

// A refetch that found an object was applied live before an earlier delete arrived. A rebuild
// applies both in their order, so the refetch is dead there. If the delete won live too, the swap
// removes nothing and needs no acceptance. If the mirror still shows the refetch, the swap does.
func TestSwap_refetchOverriddenByDelete_swaps(t *testing.T) {
	t.Parallel()
	for _, overridden := range []bool{true, false} {
		t.Run(fmt.Sprint(overridden), func(t *testing.T) {
			t.Parallel()
			w := newObject(t)
			deletion := w.appendEvent(t, "gone", 0, `"deleted": true, "final": true, "object": null`)
			refetch := w.appendRefetch(t, "refetch", 20, nil)
			p := w.applier(t, nil)
			applied.Apply(t, p, events.LiveRun, []int64{refetch})
			if overridden {
				applied.Apply(t, p, events.LiveRun, []int64{deletion})
			}
			before := w.tableRows(t, objectColumns, "objects")
			w.start(t, "one", sim.Provider{}, quickSettings())
			ended := w.awaitRun(t, w.request(t, rebuild.Params{Source: w.source, Swap: true}),
				func(r *runs.Run) bool { return r.Status.Ended() })
			if ended.Counts[string(versioning.Dead)] != 1 || done(ended) != overridden || !overridden &&
				!strings.Contains(ended.Detail, "1 events that were applied live are dead now") {
				t.Errorf("%s with %v: %s", ended.Status, ended.Counts, ended.Detail)
			}
			equal(t, "", before, w.tableRows(t, objectColumns, "objects"))
		})
	}
}

// finalDelete is an unintended final delete with the latest accepted time.
func finalDelete(r *rand.Rand, id string) sim.Event {
	received := sim.Start + r.Int64N(6_000_000)
	return sim.Event{Object: id, ReceivedAt: time.UnixMicro(received).UTC(), Body: fmt.Appendf(nil,
		`{"object_id": %q, "type": "thing.deleted", "deleted": true, "final": true, "unit": 1, "rank": 1, "time": %d}`,
		id, received+3_000_000_000)}
}

// appendRefetches appends refetches at random times; the even ones overwrite their objects.
func (b *testBundle) appendRefetches(t *testing.T, r *rand.Rand, h *sim.History) (ids []int64) {
	t.Helper()
	for i, id := range h.ObjectIDs() {
		for n := range r.IntN(5) {
			spec := sim.Refetch{Began: sim.Start + r.Int64N(8_000_000), Elapsed: 300_000, Overwrites: n%2 == 0}
			if !spec.Overwrites {
				spec.Began += r.Int64N(4_000_000_000) // after the unintended delete too, so that it is rejected
			}
			ids = append(ids, b.appendRefetch(t, h, id, fmt.Sprint("overwrite:", i, n), spec))
		}
	}
	return ids
}

// appendRefetch appends a refetch of a history.
func (b *testBundle) appendRefetch(t *testing.T, h *sim.History, id, key string, spec sim.Refetch) int64 {
	t.Helper()
	refetch := h.StoredRefetch(id, spec)
	return b.appendStoredRefetch(t, key, time.UnixMicro(spec.Began).UTC().Add(refetch.Elapsed), refetch)
}

// appendStoredRefetch appends a refetch under a key.
func (b *testBundle) appendStoredRefetch(t *testing.T, key string, received time.Time,
	refetch *provider.Refetch) int64 {
	t.Helper()
	body, err := refetch.Encode()
	must(t, err)
	receipts, err := events.Append(t.Context(), b.db.Pool,
		[]events.Delivery{{Source: b.source, ReceivedAt: received, Origin: events.OriginReconcile,
			Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body,
			Events: []provider.Event{{Key: key, Type: provider.RefetchType, ObjectType: refetch.ObjectType,
				ObjectID: refetch.ObjectID, Fingerprint: provider.BodyFingerprint(body)}}}})
	must(t, err)
	b.ids = append(b.ids, receipts[0][0].ID)
	return receipts[0][0].ID
}

// checkReducedInParts reduces the log into the retained objects in parts, in its order. After each
// part it checks that these objects and the rest of the log give the live objects.
func (b *testBundle) checkReducedInParts(t *testing.T, r *rand.Rand, ids []int64, live []string) {
	t.Helper()
	ids = slices.Sorted(slices.Values(ids))
	p := b.applier(t, nil)
	for run := int64(600); len(ids) > 0; run++ {
		n := min(len(ids), 1+r.IntN(100))
		must(t, errOf(p.Reduce(t.Context(), ids[:n])))
		ids = ids[n:]
		b.exec(t, `INSERT INTO runs (run, job, params, actor, reason, status, detail, counts, created_at, ended_at,
			updated_at) OVERRIDING SYSTEM VALUE
			VALUES ($1, 'rebuild', '{}', '', '', 'cancelled', '', '{}', now(), now(), now())`, run)
		b.exec(t, `TRUNCATE staged_objects`)
		b.exec(t, `INSERT INTO staged_objects SELECT * FROM retained_objects`)
		must(t, errOf(p.ApplyStored(t.Context(),
			apply.Target{Run: run, Staging: &apply.Staging{Table: versioning.Staged}}, ids, false)))
		if diff := cmp.Diff(live, b.tableRows(t, objectColumns, "staged_objects")); diff != "" {
			t.Fatalf("live, and from retained objects and the last %d events: %s", len(ids), diff)
		}
	}
	equal(t, "live and retained objects", live, b.tableRows(t, objectColumns, "retained_objects"))
}

// A rebuild and the retained objects give the same overwritten objects, whatever the order of their
// events.
func TestRebuild_overwrittenObjects_areTheSame(t *testing.T) {
	t.Parallel()
	for name, options := range kindsOf("partial events", "event time", "own version") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRand(t, 31)
			b := setup(t)
			h := sim.Generate(r, options)
			evs := h.Events
			for _, id := range h.ObjectIDs() {
				if r.IntN(2) == 0 {
					evs = append(evs, finalDelete(r, id))
				}
			}
			r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
			ids := b.append(t, r, b.source, evs[:len(evs)/2])
			ids = append(ids, b.appendRefetches(t, r, h)...)
			ids = append(ids, b.append(t, r, b.source, evs[len(evs)/2:])...)
			b.applyLiveShuffled(t, r, ids)
			live := b.tableRows(t, objectColumns, "objects")
			if n := b.number(t, `SELECT count(*) FROM objects WHERE overwritten_at <> 0`); n == 0 {
				t.Fatal("no object was overwritten")
			}
			equal(t, "live and in the order of the log", live, b.mirrorFromLog(t, nil, 500))
			b.checkReducedInParts(t, r, ids, live)
			b.exec(t, `TRUNCATE retained_objects, staged_objects`)
			b.start(t, "one", nil, quickSettings())
			run := b.stage(t)
			equal(t, "live and staged", live, b.tableRows(t, objectColumns, "staged_objects"))
			if ended := b.swap(t, run); ended.Counts[rebuild.Swapped] != 0 {
				t.Errorf("%v", ended.Counts)
			}
			// as if the overwrites had been missed
			b.exec(t, `UPDATE objects SET overwritten_at = 0, rule_version = 0 WHERE overwritten_at <> 0`)
			// AcceptDead: a refetch that came before a final delete live may come after it here,
			// and is rejected.
			b.awaitRun(t, b.request(t, rebuild.Params{Source: b.source, Swap: true, AcceptDead: true}), done)
			equal(t, "swapped", live, b.tableRows(t, objectColumns, "objects"))
		})
	}
}

// Objects that were not found for a while, and that re-versioned refetches have found again, are
// the same in every way: live in any order, from the log, from retained objects and the rest, and
// from a rebuild. A stored refetch itself says whether it was re-versioned.
func TestRebuild_reversionedRefetches_giveTheSame(t *testing.T) {
	t.Parallel()
	r := newRand(t, 32)
	b := setup(t)
	h := sim.Generate(r, sim.Options{Objects: 24, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 3_000_000,
		ChangeSets: 50, Deletes: 10, TemporarilyMissing: 60, ObjectVersions: true, VersionMayNotAdvance: true,
		DuplicateEvents: 10, MaxDelay: 5_000_000})
	ids := b.append(t, r, b.source, h.Events)
	for _, id := range h.ObjectIDs() {
		for _, at := range h.ChangeTimes(id) {
			ids = append(ids, b.appendRefetch(t, h, id, fmt.Sprint(id, at),
				sim.Refetch{Began: at + 1_500_000, Elapsed: 200_000, Reversioned: r.IntN(2) == 0}))
		}
		ids = append(ids, b.appendRefetch(t, h, id, id, sim.Refetch{Began: h.LastChangeAt(id) + 20_000_000,
			Elapsed: 200_000, Reversioned: true}))
	}
	b.applyLiveShuffled(t, r, ids)
	live := b.tableRows(t, objectColumns, "objects")
	shown := b.rows(t, `SELECT object_id || ' ' || encode(state_hash, 'hex') FROM objects ORDER BY 1`)
	var truth []string
	for _, id := range h.ObjectIDs() {
		truth = append(truth, fmt.Sprintf("%s %x", id, h.FinalState(id).Hash))
	}
	slices.Sort(truth)
	equal(t, "the true and the live states", truth, shown)
	const reversionedSQL = `SELECT count(*) FROM objects WHERE NOT deleted AND version_at = version_seen - 1000000`
	if n := b.number(t, reversionedSQL); n == 0 {
		t.Fatal("no object has the version of a re-versioned refetch")
	}
	equal(t, "live and in the order of the log", live, b.mirrorFromLog(t, nil, 500))
	b.checkReducedInParts(t, r, ids, live)
	b.exec(t, `TRUNCATE retained_objects, staged_objects`)
	b.start(t, "one", nil, quickSettings())
	b.awaitRun(t, b.request(t, rebuild.Params{Source: b.source, Swap: true, AcceptDead: true}), done)
	equal(t, "swapped", live, b.tableRows(t, objectColumns, "objects"))
}

// If a new release has changed only the rule version, the rows get the new one, and the swap
// replaces only real differences.
func TestSwap_onlyRuleVersionDiffers_writesRealDifferences(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 1000} {
		b, _ := setupApplied(t, 61, providerKinds["own version"])
		want := b.tableRows(t, objectColumns, "objects")
		const ofOthers = `SELECT object_id || ' ' || revision FROM objects WHERE object_id <> 'obj_1' ORDER BY 1`
		revisions := b.rows(t, ofOthers)
		b.exec(t, `UPDATE objects SET rule_version = 0`)
		b.exec(t, `UPDATE objects SET state = '{"was": "damaged"}' WHERE object_id = 'obj_1'`)
		b.start(t, "one", nil, batchesOf(size))
		ended := b.rebuildAndSwap(t, b.source)
		if ended.Counts[rebuild.Swapped] != 1 || ended.Counts[rebuild.RevisionsGrown] != 1 {
			t.Errorf("%v", ended.Counts)
		}
		equal(t, "", want, b.tableRows(t, objectColumns, "objects"))
		equal(t, "revisions", revisions, b.rows(t, ofOthers))
	}
}
