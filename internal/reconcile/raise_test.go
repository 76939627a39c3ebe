package reconcile_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
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
			b.Carry(t, "one", 1, b.jobs())
			b.sweeps(t, 2, 4)
			b.sweeps(t, 4, 4)
			b.sweeps(t, 5, 0)
			b.api.h.Edit("obj_2", b.day(6), true)
			b.api.h.Edit("obj_3", b.day(6), false)
			b.api.h.Hide("obj_1", b.day(6), b.day(8))
			b.sweeps(t, 7, 3)
			b.sweeps(t, 9, 1)
			b.sweeps(t, 10, 0)
			var ids []int64
			if err := b.DB.Pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id DESC) FROM events`).Scan(&ids); err != nil {
				t.Fatal(err)
			}
			applied.Apply(t, b.proc, 77, ids)
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
	b.Carry(t, "one", 1, b.jobs())
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
		if _, err := reconcile.Wish(t.Context(), b.Operator, versioning.Key{Source: b.Source, Type: "thing", ID: "obj_1"}, "ada", "is it there?"); err != nil {
			t.Fatal(err)
		}
	}
	looks(2, wish)
	looks(4, wish)
	b.api.h.Edit("obj_1", b.day(5), false)
	looks(6, func() { b.tells(t, "obj_1", b.day(5)+1) })
	looks(7, func() {
		if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true}); r.Status != runs.Done {
			t.Fatalf("%s: %s", r.Status, r.Detail)
		}
	})
	b.sweeps(t, 8, 0)
	said := b.DB.Rows(t, `SELECT o.status || CASE WHEN convert_from(e.body, 'UTF8')::jsonb ? 'raised' THEN ', raised' ELSE '' END FROM events e JOIN outcomes o ON o.event_id = e.id AND o.run = 0 WHERE e.event_type = $1 ORDER BY e.id`,
		provider.LookType)
	if want := []string{"applied", "applied, raised", "applied, raised", "unchanged"}; !slices.Equal(said, want) {
		t.Errorf("looks are %q, want %q", said, want)
	}
}
