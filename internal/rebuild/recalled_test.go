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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// wrong is an object that a delete ended which nobody meant, and a person's look that settles it.
type wrong struct {
	*testBundle
	// began is when the look did; all times are in seconds after it.
	began time.Time
	// before was received before, since after: it counts, and only the log knows of it once the look is applied.
	before, since, look int64
}

func setupWrong(t *testing.T) *wrong {
	t.Helper()
	w := &wrong{testBundle: setup(t), began: time.Now().Add(-time.Hour).UTC().Truncate(time.Second)}
	w.before = w.tell(t, "before", -10, `"deleted": true, "final": true, "object": null`)
	w.since = w.tell(t, "since", 3, `"object": {"n": "since"}`)
	w.look = w.answer(t, "look", 4, &provider.Settlement{Before: w.began, Who: "me", Reason: "nobody meant it"})
	return w
}

func (w *wrong) at(seconds int) time.Time { return w.began.Add(time.Duration(seconds) * time.Second) }

// tell appends an event of the object.
func (w *wrong) tell(t *testing.T, key string, at int, more string) int64 {
	t.Helper()
	body := fmt.Appendf(nil, `{"id": %q, "object_id": "obj", "type": "thing.updated", "unit": 1, "rank": 1, "time": %d, %s}`, key, w.at(at).UnixMicro(), more)
	id := w.log.Append(t, w.source, []sim.Event{{Object: "obj", ReceivedAt: w.at(at), Body: body}})[0]
	w.ids = append(w.ids, id)
	return id
}

// answer appends a look that found the object alive, and settles it or not.
func (w *wrong) answer(t *testing.T, key string, at int, settles *provider.Settlement) int64 {
	t.Helper()
	l := provider.Look{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: "obj", Body: fmt.Appendf(nil, `{"unit": 1, "object": {"n": %q}}`, key)},
		Date: w.at(at), Elapsed: time.Second, Settles: settles}
	body, err := l.Encode()
	must(t, err)
	receipts, err := events.Append(t.Context(), w.db.Pool, []events.Delivery{{Source: w.source, ReceivedAt: w.at(at), Origin: events.OriginReconcile, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: body, Events: []provider.Event{{Key: key, Type: provider.LookType, ObjectType: "thing", ObjectID: "obj", Fingerprint: provider.BodyFingerprint(body)}}}})
	must(t, err)
	w.ids = append(w.ids, receipts[0][0].ID)
	return receipts[0][0].ID
}

// is checks what an object's row shows in a table.
func (w *wrong) is(t *testing.T, table, want string) {
	t.Helper()
	got := w.rows(t, `SELECT coalesce(state->>'n', 'null') || CASE WHEN deleted THEN ' deleted' ELSE '' END || CASE WHEN settled <> 0 THEN ' settled' ELSE '' END FROM `+table)
	if !slices.Equal(got, []string{want}) {
		t.Errorf("%s: %v, want %s", table, got, want)
	}
}

// madeAnew checks that a rebuild makes of what the log and the bases hold what is live.
func (w *wrong) madeAnew(t *testing.T, ids ...int64) {
	t.Helper()
	w.exec(t, `TRUNCATE staged`)
	w.exec(t, `INSERT INTO staged SELECT * FROM bases`)
	must(t,
		errOf(w.processor(t, nil).ApplyStored(t.Context(), processor.Target{Run: 500, Into: versioning.Staged}, ids,
			false)))
	w.same(t, "staged")
}

// folded has events of the log folded into the bases.
func (w *wrong) folded(t *testing.T, ids ...int64) {
	t.Helper()
	must(t, errOf(w.processor(t, nil).Fold(t.Context(), ids)))
}

func (w *wrong) same(t *testing.T, table string) {
	t.Helper()
	if diff := cmp.Diff(w.table(t, object, "objects"), w.table(t, object, table)); diff != "" {
		t.Errorf("live, and %s: %s", table, diff)
	}
}

// unable cannot read some events as long as it is on: those that hold a text.
type unable struct {
	sim.Provider
	on  atomic.Bool
	of  string
	err error
}

func (p *unable) fails(body []byte) bool { return p.on.Load() && bytes.Contains(body, []byte(p.of)) }

func (p *unable) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if p.fails(e.Body) {
		return provider.Observation{}, p.err
	}
	return p.Provider.Observe(src, e)
}

func (p *unable) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if p.fails(s.Body) {
		return provider.Observation{}, p.err
	}
	return p.Provider.Snapshot(src, s)
}

// What an object has met since a look began that settles it, and cannot be read at this moment, is not forgotten: the look fails, and is tried again.
func TestWhatCannotBeReadAgainIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := setupWrong(t)
	reads := &unable{of: `"since"`, err: errors.New("the mapping changed")}
	p := w.processor(t, reads)
	applied.Apply(t, p, events.LiveRun, []int64{w.before, w.since})
	reads.on.Store(true)
	applied.Apply(t, p, events.LiveRun, []int64{w.look})
	w.is(t, "objects", "null deleted")
	said := w.rows(t, `SELECT status || ': ' || reason FROM outcomes WHERE event_id = $1`, w.look)[0]
	if !strings.HasPrefix(said, "failed: ") || !strings.Contains(said, fmt.Sprintf("event %d of source sim: the mapping changed", w.since)) {
		t.Errorf("the look is %s", said)
	}
	reads.on.Store(false)
	w.exec(t, `UPDATE outcomes SET due = clock_now() WHERE status = 'failed'`)
	applied.Apply(t, p, events.LiveRun, []int64{w.look})
	w.is(t, "objects", "since settled")
	w.madeAnew(t, w.ids...)
	w.folded(t, w.ids...)
	w.same(t, "bases")
}

// A look that the rule refused, since it found an object alive after a final delete, counts where it was received since a look began that settles the object: live,
// in the bases, and made anew.
func TestRefusedLooksOfSinceCount(t *testing.T) {
	t.Parallel()
	w := setupWrong(t)
	refused := w.answer(t, "refused", 20, nil)
	p := w.processor(t, nil)
	applied.Apply(t, p, events.LiveRun, []int64{w.before, w.since})
	applied.Apply(t, p, events.LiveRun, []int64{refused})
	if got := w.rows(t, `SELECT status FROM outcomes WHERE event_id = $1`, refused); !slices.Equal(got, []string{"dead"}) {
		t.Fatalf("the look is %v", got)
	}
	applied.Apply(t, p, events.LiveRun, []int64{w.look})
	w.is(t, "objects", "refused settled")
	w.folded(t, w.ids...)
	w.same(t, "bases")
	w.exec(t, `TRUNCATE bases`)
	w.madeAnew(t, w.ids...)
}

// What a look that settles an object was told ahead of may be in a partition that is dropped before the look's own: the bases keep it.
func TestBasesKeepWhatALaterLookMustNotForget(t *testing.T) {
	t.Parallel()
	w := setupWrong(t)
	applied.Apply(t, w.processor(t, nil), events.LiveRun, w.ids)
	w.is(t, "objects", "since settled")
	w.folded(t, w.before, w.since)
	w.same(t, "bases")
	w.madeAnew(t, w.look) // all that is still there
	later := w.tell(t, "later", 30, `"object": {"n": "later"}`)
	applied.Apply(t, w.processor(t, nil), events.LiveRun, []int64{later})
	w.folded(t, w.look)
	w.is(t, "bases", "since settled") // and no copy once the look is in the bases
	w.folded(t, later)
	w.same(t, "bases")
}

// What was dead live and entered by a replay is met as well; what never entered waits for one.
func TestReplayedEventsOfSinceCount(t *testing.T) {
	t.Parallel()
	w := setupWrong(t)
	never := w.tell(t, "never", 5, `"object": {"n": "never"}`)
	reads := &unable{err: &provider.Dead{Reason: "not understood yet"}} // all of them
	p := w.processor(t, reads)
	reads.on.Store(true)
	applied.Apply(t, p, events.LiveRun, w.ids)
	// As a dead event is noted whose object could be told.
	w.exec(t, `UPDATE outcomes SET object = $2, object_type = 'thing', object_id = 'obj' WHERE event_id = $1`, never, versioning.Key{Source: w.source, Type: "thing", ID: "obj"}.Hash())
	reads.on.Store(false)
	applied.Apply(t, p, 77, []int64{w.before, w.since})
	applied.Apply(t, p, 77, []int64{w.look})
	w.is(t, "objects", "since settled")
	w.folded(t, w.before, w.since, w.look, never)
	w.same(t, "bases")
	w.exec(t, `TRUNCATE bases`)
	w.madeAnew(t, w.before, w.since, w.look)
}

// A look that found an object alive, and was applied live before the delete that came first, is dead where both are made anew in their order. The delete won live too, so that the swap takes nothing out of the
// mirror, and asks nobody; where the mirror shows what the look said it does.
func TestLooksThatADeleteHasOutrankedStopNoSwap(t *testing.T) {
	t.Parallel()
	for _, outranked := range []bool{true, false} {
		t.Run(fmt.Sprint(outranked), func(t *testing.T) {
			t.Parallel()
			w := &wrong{testBundle: setup(t), began: time.Now().Add(-time.Hour).UTC().Truncate(time.Second)}
			gone := w.tell(t, "gone", 0, `"deleted": true, "final": true, "object": null`)
			look := w.answer(t, "look", 20, nil)
			p := w.processor(t, nil)
			applied.Apply(t, p, events.LiveRun, []int64{look})
			if outranked {
				applied.Apply(t, p, events.LiveRun, []int64{gone})
			}
			before := w.table(t, object, "objects")
			w.start(t, "one", sim.Provider{}, quick())
			ended := w.until(t, w.ask(t, rebuild.Order{Source: w.source, Swap: true}), func(r *runs.Run) bool { return r.Status.Final() })
			if ended.Counts[string(versioning.Dead)] != 1 || done(ended) != outranked || !outranked && !strings.Contains(ended.Detail, "1 events that were applied live are dead now") {
				t.Errorf("%s with %v: %s", ended.Status, ended.Counts, ended.Detail)
			}
			equal(t, "", before, w.table(t, object, "objects"))
		})
	}
}

// unmeant is a final delete of the latest time that is let in, which nobody meant.
func unmeant(r *rand.Rand, id string) sim.Event {
	received := sim.Start + r.Int64N(6_000_000)
	return sim.Event{Object: id, ReceivedAt: time.UnixMicro(received).UTC(), Body: fmt.Appendf(nil,
		`{"object_id": %q, "type": "thing.deleted", "deleted": true, "final": true, "unit": 1, "rank": 1, "time": %d}`, id, received+3_000_000_000)}
}

// settle appends looks of any moment; the even ones settle objects.
func (b *testBundle) settle(t *testing.T, r *rand.Rand, h *sim.History) (ids []int64) {
	t.Helper()
	for i, id := range h.ObjectIDs() {
		for n := range r.IntN(5) {
			asked := sim.Look{Began: sim.Start + r.Int64N(8_000_000), Elapsed: 300_000, Settles: n%2 == 0}
			if !asked.Settles {
				asked.Began += r.Int64N(4_000_000_000) // behind what is unmeant too, so that it is refused
			}
			ids = append(ids, b.looked(t, h, id, fmt.Sprint("settle:", i, n), asked))
		}
	}
	return ids
}

// looked appends a look.
func (b *testBundle) looked(t *testing.T, h *sim.History, id, key string, asked sim.Look) int64 {
	t.Helper()
	l := h.Answer(id, asked)
	body, err := l.Encode()
	must(t, err)
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{{Source: b.source, ReceivedAt: time.UnixMicro(asked.Began).UTC().Add(l.Elapsed), Origin: events.OriginReconcile,
		Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body, Events: []provider.Event{{Key: key, Type: provider.LookType,
			ObjectType: "thing", ObjectID: id, Fingerprint: provider.BodyFingerprint(body)}}}})
	must(t, err)
	b.ids = append(b.ids, receipts[0][0].ID)
	return receipts[0][0].ID
}

// foldedInParts has the log folded into the bases in parts, in its order, and makes the objects anew from them and the parts that are left.
func (b *testBundle) foldedInParts(t *testing.T, r *rand.Rand, ids []int64, live []string) {
	t.Helper()
	ids = slices.Sorted(slices.Values(ids))
	p := b.processor(t, nil)
	for run := int64(600); len(ids) > 0; run++ {
		n := min(len(ids), 1+r.IntN(100))
		must(t, errOf(p.Fold(t.Context(), ids[:n])))
		ids = ids[n:]
		b.exec(t, `INSERT INTO runs (run, job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) OVERRIDING SYSTEM VALUE
			VALUES ($1, 'rebuild', '{}', '', '', 'cancelled', '', '{}', now(), now(), now())`, run)
		b.exec(t, `TRUNCATE staged`)
		b.exec(t, `INSERT INTO staged SELECT * FROM bases`)
		must(t, errOf(p.ApplyStored(t.Context(), processor.Target{Run: run, Into: versioning.Staged}, ids, false)))
		if diff := cmp.Diff(live, b.table(t, object, "staged")); diff != "" {
			t.Fatalf("live, and made of bases and the last %d events: %s", len(ids), diff)
		}
	}
	equal(t, "live, and bases", live, b.table(t, object, "bases"))
}

// Objects that persons had settled are made anew as they are, whatever the order was in which their events came, and so are their bases.
func TestSettledObjectsAreMadeAnew(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 31)
			b := setup(t)
			h := sim.Generate(r, options)
			evs := h.Events
			for _, id := range h.ObjectIDs() {
				if r.IntN(2) == 0 {
					evs = append(evs, unmeant(r, id))
				}
			}
			r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
			ids := b.append(t, r, b.source, evs[:len(evs)/2])
			ids = append(ids, b.settle(t, r, h)...)
			ids = append(ids, b.append(t, r, b.source, evs[len(evs)/2:])...)
			b.live(t, r, ids)
			live := b.table(t, object, "objects")
			if n := b.number(t, `SELECT count(*) FROM objects WHERE settled <> 0`); n == 0 {
				t.Fatal("no object was settled")
			}
			equal(t, "live, and in the order of the log", live, b.fold(t, nil, 500))
			b.foldedInParts(t, r, ids, live)
			b.exec(t, `TRUNCATE bases, staged`)
			b.start(t, "one", nil, quick())
			run := b.ask(t, rebuild.Order{Source: b.source})
			b.until(t, run, staged)
			equal(t, "live and staged", live, b.table(t, object, "staged"))
			must(t, rebuild.Swap(t.Context(), b.operator, run))
			if ended := b.until(t, run, done); ended.Counts[rebuild.Swapped] != 0 {
				t.Errorf("%v", ended.Counts)
			}
			b.exec(t, `UPDATE objects SET settled = 0, rule_version = 0 WHERE settled <> 0`) // as if they had been overlooked
			// Seen: a look that came before a final delete live may come after it here, and is refused.
			b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true, Seen: true}), done)
			equal(t, "swapped", live, b.table(t, object, "objects"))
		})
	}
}

// Objects that could not be found for a while, and that raised looks have found again, are made anew as they are: as they were told live in any order, from the log, from bases
// of it and what is left, and by a rebuild. The events alone say which looks were raised.
func TestRaisedLooksAreMadeAnew(t *testing.T) {
	t.Parallel()
	r := seeded(t, 32)
	b := setup(t)
	h := sim.Generate(r, sim.Options{Objects: 24, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 3_000_000, ChangeSets: 50, Deletes: 10, Hides: 60, Own: true, Still: true, Twins: 10, Late: 5_000_000})
	ids := b.append(t, r, b.source, h.Events)
	for _, id := range h.ObjectIDs() {
		for _, at := range h.Times(id) {
			ids = append(ids, b.looked(t, h, id, fmt.Sprint(id, at), sim.Look{Began: at + 1_500_000, Elapsed: 200_000, Raised: r.IntN(2) == 0}))
		}
		ids = append(ids, b.looked(t, h, id, id, sim.Look{Began: h.End(id) + 20_000_000, Elapsed: 200_000, Raised: true}))
	}
	b.live(t, r, ids)
	live := b.table(t, object, "objects")
	shown := b.rows(t, `SELECT object_id || ' ' || encode(state_hash, 'hex') FROM objects ORDER BY 1`)
	var truth []string
	for _, id := range h.ObjectIDs() {
		truth = append(truth, fmt.Sprintf("%s %x", id, h.Truth(id).Hash))
	}
	slices.Sort(truth)
	equal(t, "the truth and live", truth, shown)
	if n := b.number(t, `SELECT count(*) FROM objects WHERE NOT deleted AND version_at = version_seen - 1000000`); n == 0 {
		t.Fatal("no object is there as a raised look has found it")
	}
	equal(t, "live, and in the order of the log", live, b.fold(t, nil, 500))
	b.foldedInParts(t, r, ids, live)
	b.exec(t, `TRUNCATE bases, staged`)
	b.start(t, "one", nil, quick())
	b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true, Seen: true}), done)
	equal(t, "swapped", live, b.table(t, object, "objects"))
}

// Where a new release has only another rule's number, the rows get it before live events are held up, and the swap writes what really differs.
func TestSwapWritesWhatReallyDiffers(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{0, 1000} {
		r := seeded(t, 61)
		b := setup(t)
		b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["own version"]).Events))
		want := b.table(t, object, "objects")
		revisions := b.rows(t, `SELECT object_id || ' ' || revision FROM objects WHERE object_id <> 'obj_1' ORDER BY 1`)
		b.exec(t, `UPDATE objects SET rule_version = 0`)
		b.exec(t, `UPDATE objects SET state = '{"was": "damaged"}' WHERE object_id = 'obj_1'`)
		settings := quick()
		settings.Keys = keys
		rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, nil), Settings: settings}
		var outdated []string
		rebuild.BeforeLock(rebuilds, func() { outdated = b.rows(t, `SELECT object_id FROM objects WHERE rule_version = 0`) })
		b.carry(t, "one", rebuilds)
		ended := b.rebuilt(t, b.source)
		if diff := cmp.Diff([]string{"obj_1"}, outdated); diff != "" || ended.Counts[rebuild.Swapped] != 1 || ended.Counts[rebuild.Grown] != 1 {
			t.Errorf("%v, before the lock: %s", ended.Counts, diff)
		}
		equal(t, "", want, b.table(t, object, "objects"))
		equal(t, "revisions", revisions,
			b.rows(t, `SELECT object_id || ' ' || revision FROM objects WHERE object_id <> 'obj_1' ORDER BY 1`))
	}
}
