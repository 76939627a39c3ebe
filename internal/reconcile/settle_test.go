package reconcile_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// calendar is a world whose mirror is right on its day 0, when what could be told of its objects was told.
type calendar struct {
	*world
	first time.Time
}

func newCalendar(t *testing.T, version string) *calendar {
	t.Helper()
	b := &calendar{world: newWorld(t, 300, living)}
	b.api.version, b.first = version, b.api.Now()
	b.deliver(t, b.api.h.Events)
	if w := b.wrong(t); len(w) > 0 {
		t.Fatal(w)
	}
	return b
}

// day is the beginning of a day on the provider's clock.
func (b *calendar) day(n int) int64 { return b.first.AddDate(0, 0, n).UnixMicro() }

// sweeps sweeps on a day, which mends so many objects and leaves none.
func (b *calendar) sweeps(t *testing.T, day int, mended int64) {
	t.Helper()
	b.api.set(time.UnixMicro(b.day(day)))
	r := b.sweep(t, reconcile.Order{})
	if c := r.Counts; c[reconcile.Mended] != mended || c[reconcile.Left] != 0 || c[reconcile.Ahead] != 0 {
		t.Errorf("day %d: counts %v, want %d mended", day, c, mended)
	}
	for _, w := range b.wrong(t) {
		t.Errorf("day %d: %s", day, w)
	}
	if want := b.api.Now().Add(-time.Millisecond).Truncate(time.Second).Add(-time.Second); b.proven(t).Before(want) {
		t.Errorf("day %d: proven until %s, want %s", day, b.proven(t), want)
	}
}

// What could not be found for a while and is there again, as it was or changed, with an own version that has moved or not, is mended by the next sweep, as often as it
// happens, and nothing of it is left to a person. A replay of all of it, last things first, changes nothing.
func TestHiddenObjectsComeBack(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", sim.Named, sim.Numbered, sim.Both} {
		t.Run("list "+version, func(t *testing.T) {
			t.Parallel()
			b := newCalendar(t, version)
			for i, id := range []string{"obj_1", "obj_2", "obj_3", "obj_4"} {
				b.api.h.Hide(id, b.day(1), b.day(3))
				if i >= 2 {
					b.api.h.Edit(id, b.day(3)+1, i == 3)
				}
			}
			b.carry(t, b.runner())
			b.sweeps(t, 2, 4)
			b.sweeps(t, 4, 4)
			b.sweeps(t, 5, 0)
			b.api.h.Edit("obj_2", b.day(6), true)
			b.api.h.Edit("obj_3", b.day(6), false)
			b.api.h.Hide("obj_1", b.day(6), b.day(8))
			b.sweeps(t, 7, 3)
			b.sweeps(t, 9, 1)
			b.sweeps(t, 10, 0)
			b.replay(t)
			for _, w := range b.wrong(t) {
				t.Errorf("after a replay: %s", w)
			}
		})
	}
}

// tells delivers the webhook of an object whose own version may stand still, as it is at a time.
func (b *calendar) tells(t *testing.T, id string, at int64) {
	t.Helper()
	var is struct {
		Version int64
		Object  json.RawMessage
	}
	if err := json.Unmarshal(b.api.h.Answer(id, sim.Look{Began: at}).Body, &is); err != nil {
		t.Fatal(err)
	}
	b.deliver(t, []sim.Event{{Object: id, ReceivedAt: time.UnixMicro(at), Body: fmt.Appendf(nil, `{"id": "told", "object_id": %q, "type": "thing.updated", "own": true, "still": true,
		"unit": 1, "rank": 1, "time": %d, "object": %s}`, id, is.Version, is.Object)}})
}

// Whoever wishes for a look finds again what is there again. Of an object that then changes and keeps its version, the webhook owes a look.
func TestHiddenObjectsAreLookedAt(t *testing.T) {
	t.Parallel()
	b := newCalendar(t, "")
	b.looking(t, 2)
	b.carry(t, b.runner())
	b.api.h.Hide("obj_1", b.day(1), b.day(3))
	looks := func(day int, do func()) {
		t.Helper()
		b.api.set(time.UnixMicro(b.day(day)))
		do()
		b.settled(t)
		for _, w := range b.wrong(t) {
			t.Errorf("day %d: %s", day, w)
		}
	}
	wish := func() {
		b.wish(t, "thing", "obj_1", "ada", "is it there?")
	}
	looks(2, wish)
	looks(4, wish)
	b.api.h.Edit("obj_1", b.day(5), false)
	looks(6, func() { b.tells(t, "obj_1", b.day(5)+1) })
	looks(7, func() {
		b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true})
	})
	b.sweeps(t, 8, 0)
	said := b.DB.Rows(t, `SELECT o.status || CASE WHEN convert_from(e.body, 'UTF8')::jsonb ? 'raised' THEN ', raised' ELSE '' END FROM events e JOIN outcomes o ON o.event_id = e.id AND o.run = 0 WHERE e.event_type = $1 ORDER BY e.id`,
		provider.LookType)
	if want := []string{"applied", "applied, raised", "applied, raised", "unchanged"}; !slices.Equal(said, want) {
		t.Errorf("looks are %q, want %q", said, want)
	}
}

// A person's look wins over a delete for good, and says whose it was; nothing of before brings the tombstone back, and the life goes on.
func TestSettle(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 100, sim.Options{Objects: 2, Changes: 5, Contents: 4, Unit: 1_000_000, Gap: 3_000_000})
	b.api.set(time.Now()) // what is received now is not of before
	b.deliver(t, b.api.h.Events)
	deleted := sim.Event{Object: "obj_1", ReceivedAt: time.Now(), Body: fmt.Appendf(nil, `{"id": "unmeant", "object_id": "obj_1", "type": "thing.deleted", "deleted": true, "final": true,
		"unit": 1, "rank": 1, "time": %d}`, time.Now().Add(50*time.Minute).UnixMicro())}
	b.deliver(t, []sim.Event{deleted})
	b.carry(t, b.runner())
	b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1"})
	if w := b.wrong(t); len(w) != 1 || !strings.HasPrefix(w[0], "obj_1 is") {
		t.Fatalf("%q: a mere look is to change nothing", w)
	}
	settle := reconcile.Order{Source: b.Source, What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true}
	for range 2 { // a second time is another word of a person's, and changes nothing
		run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: settle, Who: "ada@office", Reason: "nobody meant it"})
		if err != nil {
			t.Fatal(err)
		}
		isDone(t, b.ended(t, run))
		none(t, b.wrong(t))
	}
	said := b.DB.Rows(t, `SELECT o.status || ', ' || o.reason || ', ' || convert_from(e.body, 'UTF8') FROM events e JOIN outcomes o ON o.event_id = e.id
		WHERE e.event_type = 'postern.look' AND e.event_id LIKE 'settle:%' ORDER BY e.id`)
	if len(said) != 2 || !strings.HasPrefix(said[0], "applied, a person had this look settle the object, whatever it was (final, at") ||
		!strings.HasPrefix(said[1], "unchanged, a person had this look settle the object, which was the same") || !strings.Contains(said[0], `"who":"ada@office","reason":"nobody meant it"`) {
		t.Errorf("%q", said)
	}
	b.replay(t) // a replay
	none(t, b.wrong(t))
	b.deliver(t, []sim.Event{{Object: "obj_1", ReceivedAt: time.Now(), Body: fmt.Appendf(nil, `{"id": "next", "object_id": "obj_1", "type": "thing.updated", "object": {"next": true},
		"unit": 1000000, "rank": 1, "time": %d}`, time.Now().Add(time.Minute).UnixMicro())}})
	if got := b.DB.Rows(t, `SELECT state::text FROM objects WHERE object_id = 'obj_1'`); got[0] != `{"next": true}` {
		t.Errorf("%s", got)
	}
}

// parts is a provider whose API answers parts of objects alone.
type parts struct{ sim.Provider }

func (parts) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	return provider.Observation{ObjectType: s.ObjectType, ObjectID: s.ObjectID, Partial: "a part of it"}, nil
}

// What the API answers without a whole state settles nothing: the run fails and nothing is appended.
func TestSettleNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 101, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000, Own: true, Integer: true})
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Reader = parts{} }))
	run := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true})
	if run.Status != runs.Failed || !strings.Contains(run.Detail, "what the API answers can settle nothing") {
		t.Errorf("%s: %s", run.Status, run.Detail)
	}
	b.rows(t, `SELECT count(*)::text FROM events WHERE event_type = 'postern.look'`, "0")
}

// A person's word ends an object of a counter's that the API has no more: a mere look only says so. Nothing of before brings it back, and what is received since is a reason to refetch.
func TestSettleOfACounterThatIsGone(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 102, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000, Own: true, Integer: true})
	src := b.Sources[applied.Name]
	src.Looker = counters{}
	b.proc.Replace(map[string]processor.Source{applied.Name: src})
	b.api.set(time.Now())
	b.deliver(t, b.api.h.Events)
	b.api.on(b.missing(), "/things/*")
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Reader = counters{} }))
	shown := func(want string) {
		t.Helper()
		if got := b.DB.Rows(t, `SELECT deleted || ', ' || ambiguous || ', owed: ' || (look_after <> 0) || ', ' || version_final FROM objects WHERE object_id = 'obj_1'`)[0]; got != want {
			t.Errorf("deleted, ambiguous, owed, final: %s, want %s", got, want)
		}
	}
	b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1"})
	shown("false, false, owed: true, false")
	for range 2 {
		b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true})
		shown("true, false, owed: false, false")
	}
	b.replay(t) // a replay
	shown("true, false, owed: false, false")
	b.deliver(t, []sim.Event{{Object: "obj_1", ReceivedAt: time.Now(), Body: []byte(`{"id": "next", "object_id": "obj_1", "type": "thing.updated", "object": {"next": true}, "unit": 1, "rank": 1, "own": true, "time": 1}`)}})
	shown("true, false, owed: true, false") // a number does not tell whether it is from before: the API is asked
	b.api.on(nil, "/things/*")
	b.api.set(time.Now().Add(time.Minute))
	b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1"})
	shown("false, false, owed: false, false")
}

// A provider that was restored from a backup answers an older version than its own webhooks told. The object scan reports that
// as drift, refetches are suspended after some attempts, and after an operator's overwrite a late event from before the restore
// does not win.
func TestReconcile_restoredProvider_isReportedUntilAnOperatorOverwrites(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 140, sim.Options{Objects: 1, Changes: 6, Contents: 1_000_000, Unit: 1_000_000, Gap: 3_000_000, Own: true})
	h := b.api.h
	last := len(h.Events) - 1
	if last < 2 {
		t.Fatalf("%d events: too few to restore anything", last+1)
	}
	b.deliver(t, h.Events[:last])
	h.Restore("obj_1", h.End("obj_1")+1_000_000, 0)
	b.api.set(time.Now())
	b.carry(t, b.runner())
	b.sweep(t, reconcile.Order{})
	if got := b.DB.Rows(t, `SELECT kind || ', ' || result || ', ' || reason FROM drifts`); len(got) != 1 ||
		!strings.HasPrefix(got[0], "different, left, ambiguous: the provider's API answers an older version (2023-11-14T22:13:2") {
		t.Fatalf("drift: %q", got)
	}

	pass := passes(b, b.runner())
	const suspended = `SELECT error FROM hints WHERE due = 'infinity'`
	for n := 0; len(b.DB.Rows(t, suspended)) == 0; n++ {
		if n == 30 {
			t.Fatalf("not suspended: %q", b.DB.Rows(t, `SELECT attempts || ' ' || error FROM hints`))
		}
		b.api.set(time.Now().Add(time.Duration(n) * time.Minute))
		b.DB.Exec(t, `UPDATE hints SET due = now()`)
		if _, err := pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.DB.Rows(t, suspended)[0]; !strings.Contains(got, "restored from a backup") || !strings.Contains(got, "postern objects settle") {
		t.Errorf("the reason of the suspended refetch: %q", got)
	}
	if n := one[int](t, b, countLooks); n < 8 {
		t.Errorf("suspended after %d refetches", n)
	}

	settle := reconcile.Order{Source: b.Source, What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true}
	asked, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: settle, Who: "ada", Reason: "the provider was restored"})
	if err != nil {
		t.Fatal(err)
	}
	if r := b.ended(t, asked); r.Status != runs.Done || len(b.wrong(t)) != 0 {
		t.Fatalf("overwrite: %s: %s: %q", r.Status, r.Detail, b.wrong(t))
	}
	late := h.Events[last]
	late.ReceivedAt = time.Now()
	b.deliver(t, []sim.Event{late})
	if w := b.wrong(t); len(w) != 0 {
		t.Errorf("after a late event from before the restore: %q", w)
	}
	if got := b.DB.Rows(t, `SELECT o.status || ': ' || o.reason FROM outcomes o ORDER BY o.event_id DESC LIMIT 1`); !strings.HasPrefix(got[0],
		"stale: the provider stamped it before ") {
		t.Errorf("the late event is %q", got)
	}
}
