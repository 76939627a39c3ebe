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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// back is the second event of an object that has changed and changed back, of which a webhook has told the first state alone.
func (b *world) back(t *testing.T) (late sim.Event) {
	t.Helper()
	at := sim.Start + 1_000_000
	event := func(key, state string, after int64) sim.Event {
		happened := at + after*1_000_000
		return sim.Event{Key: key, Object: "late_1", Happened: happened, ReceivedAt: time.UnixMicro(happened).UTC(),
			Body: fmt.Appendf(nil, `{"id":%q,"object_id":"late_1","type":"thing.updated","unit":1000000,"rank":1,"time":%d,"object":{"state":%q}}`, key, happened, state)}
	}
	first, late, last := event("late_a", "A", 0), event("late_b", "B", 5), event("late_c", "A", 10)
	b.api.h.Events = append([]sim.Event{first, late, last}, b.api.h.Events...)
	b.deliver(t, []sim.Event{first})
	src := b.Sources[applied.Name]
	src.Reads = func(_, objectType, _ string) bool { return objectType == "thing" }
	b.proc.Replace(map[string]processor.Source{applied.Name: src})
	return late
}

// An object that was the same when it was swept is so again after an event from before the sweep has come late, whenever that comes: after the sweep, or while it reads on. Until then it owes a look.
func TestAProvenStateOutlivesALateEvent(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprint("during the sweep: ", during), func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 240, alive(10))
			late := b.back(t)
			object := []byte(`{"unit":1000000,"object":{"state":"A"}}`)
			pages := 0
			b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
				switch {
				case c.Path == "/things/late_1":
					return b.answer(provider.Found, object), nil
				case c.Path != "/list":
					return nil, nil
				case c.Query.Get("cursor") == "":
					return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[{"id":"late_1","answer":%s}],"next":"obj_1"}`, object)), nil
				case c.Query.Get("cursor") == "obj_1":
					if pages++; pages == 1 && during {
						b.swept(t, "late_1")
						b.deliver(t, []sim.Event{late})
					}
				}
				return nil, nil
			}
			r := b.runner()
			b.carry(t, r)
			if swept := b.sweep(t, reconcile.Order{}); swept.Counts[reconcile.Equal] == 0 || swept.Counts[reconcile.Left] != 0 || b.proven(t).IsZero() {
				t.Fatalf("%v, proven until %s", swept.Counts, b.proven(t))
			}
			if !during {
				b.deliver(t, []sim.Event{late})
			}
			const stateSQL = `SELECT state ->> 'state' FROM objects WHERE object_id = 'late_1'`
			if got := one[string](t, b, stateSQL); got != "B" {
				t.Fatalf("the late event came to nothing: the state is %s", got)
			}
			if hints := b.DB.Rows(t, `SELECT object_id || ' ' || reason FROM hints`); strings.Join(hints, "") != "late_1 an event came late" {
				t.Errorf("hints %q", hints)
			}
			looksOf(t, r, "one")
			testkit.Eventually(t, time.Minute, func() error {
				if got, left := one[string](t, b, stateSQL), b.DB.Rows(t, `SELECT object_id FROM hints`); got != "A" || len(left) > 0 {
					return fmt.Errorf("the state is %s, hints of %q", got, left)
				}
				return nil
			})
		})
	}
}

// swept waits until a sweep has met an object.
func (b *world) swept(t *testing.T, id string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := one[int](t, b, `SELECT count(*) FROM listed WHERE object = hashtextextended($1, 0)`, id); n == 0 {
			return fmt.Errorf("%s is not met yet", id)
		}
		return nil
	})
}

// A sweep reads nothing before the events that are being applied, and do not know of it, are; batches that come meanwhile go on.
func TestASweepWaitsForEventsUnderWay(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 241, alive(3))
	tx, err := b.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock_shared($1, $2)`, versioning.SourceLock, b.Source); err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" && !done.Load() {
			t.Error("a page was read before")
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	testkit.Eventually(t, time.Minute, func() error {
		if one[int](t, b, `SELECT count(*) FROM sweeps`) == 0 {
			return errors.New("no sweep has begun")
		}
		return nil
	})
	for n := range int64(20) { // batches that come do not take the sweep for a swap
		e := stream.Event{Source: applied.Name, Stored: provider.Stored{ID: 1<<40 + n, Key: fmt.Sprint("k", n), Type: "thing", Origin: events.OriginWebhook, ReceivedAt: b.api.now, Body: b.api.h.Events[0].Body}}
		if err := b.proc.Apply(t.Context(), 5, []stream.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := b.ended(t, run); r.Status != runs.Done || b.api.made("/list") == 0 {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
}

// An event that does not come makes a look, after a wait; one that is late makes none.
func TestLostEventsAreLookedFor(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 110, sim.Options{Objects: 2, Changes: 40, Contents: 1000, Unit: 1000, Gap: 700_000, ChangeSets: 100})
	patient := func(wait time.Duration) {
		b.proc.Replace(map[string]processor.Source{applied.Name: {Number: b.Source, Config: &provider.Source{Name: applied.Name}, Provider: sim.Provider{}, Stragglers: wait,
			Reads: func(_, objectType, _ string) bool { return objectType == "thing" }}})
	}
	of := b.api.h.Of("obj_1")
	if len(of) < 5 {
		t.Fatalf("%d events", len(of))
	}
	hints := func() string { return b.DB.Rows(t, `SELECT count(*)::text FROM hints`)[0] }
	patient(time.Hour)
	b.deliver(t, of[:1])
	b.deliver(t, of[2:3])
	if n := hints(); n != "1" {
		t.Fatalf("%s hints for what has not come", n)
	}
	b.looking(t, 2)
	b.deliver(t, of[3:4])
	b.deliver(t, of[1:2])
	if n := hints(); n != "0" {
		t.Errorf("%s hints for what was late", n)
	}
	b.deliver(t, b.api.h.Of("obj_2"))
	if n := b.api.made("/things/"); n != 0 {
		t.Fatalf("%d looks while nothing was lost", n)
	}
	patient(time.Millisecond)
	b.deliver(t, of[5:])
	b.settled(t)
	if n := b.api.made("/things/obj_1"); n != 1 || b.api.made("/things/") != 1 {
		t.Errorf("%d looks for an event that was lost", n)
	}
	none(t, b.wrong(t))
}

// changes is until when the changes of the type are proven.
func (b *world) changes(t *testing.T) time.Time {
	t.Helper()
	_, until := b.provenOf(t, "", "changes thing")
	return until
}

// What changed is asked for from before what is proven, by the overlap and by how late the list may be: what changed then may not have been in it.
func TestChangesAreAskedForFromBefore(t *testing.T) {
	t.Parallel()
	for version, lag := range map[string]time.Duration{sim.ByChange: 0, sim.ByChange + "," + sim.Late: sim.ListLag} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 241, living)
			b.api.version = version
			b.carry(t, b.runner())
			b.sweep(t, reconcile.Order{})
			var mu sync.Mutex
			var since int64
			b.api.meets(func(c provider.Call) (*reconcile.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				if c.Path == "/list" {
					since, _ = strconv.ParseInt(c.Query.Get("since"), 10, 64)
				}
				return nil, nil
			})
			proven := b.changes(t)
			b.api.set(b.api.Now().Add(time.Hour))
			b.sweep(t, reconcile.Order{})
			mu.Lock()
			defer mu.Unlock()
			if from, want := time.UnixMicro(since).UTC(), proven.Add(-b.runner().Settings.Overlap-lag); proven.IsZero() || !from.Equal(want) {
				t.Errorf("asked from %s, want %s: proven until %s", from, want, proven)
			}
		})
	}
}

// An object that was deleted after the time that a late list is of, and that a webhook told of, is asked for where the list tells names or versions alone, and not left, which would prove nothing: it is gone there too.
func TestDeletedSinceALateList(t *testing.T) {
	t.Parallel()
	for version, o := range map[string]sim.Options{sim.Named: unowned, sim.Numbered: owned} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 260, o)
			gone := slices.DeleteFunc(b.api.h.ObjectIDs(), func(id string) bool { return b.api.h.There(id, 1<<62) })
			if len(gone) == 0 {
				t.Fatal("nothing is deleted")
			}
			last := slices.MaxFunc(gone, func(a, c string) int { return cmp.Compare(b.api.h.End(a), b.api.h.End(c)) })
			b.api.version, b.api.late = sim.Late+","+version, sim.ListLag
			b.api.set(time.UnixMicro(b.api.h.End(last)).Add(2 * time.Second))
			b.carry(t, b.runner())
			r := b.sweep(t, reconcile.Order{})
			const leftSQL = `SELECT o.object_id || ': ' || d.reason FROM drifts d JOIN objects o USING (object_type, object_id) WHERE d.result = 'left' AND o.deleted AND NOT o.ambiguous`
			if left := b.DB.Rows(t, leftSQL); len(left) > 0 || !one[bool](t, b, `SELECT deleted FROM objects WHERE object_id = $1`, last) {
				t.Errorf("%v, left are %q", r.Counts, left)
			}
			if version == sim.Numbered && b.proven(t).IsZero() {
				t.Errorf("the type is not proven: %v", r.Counts)
			}
		})
	}
}

// Where no list can be asked for what changed, a time is refused, and not ignored.
func TestATimeThatNoListKnowsIsRefused(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 30})
	b.fake.Create("", "customer", nil)
	b.deliver(t, every)
	b.fake.Advance(2 * time.Hour)
	for _, o := range []reconcile.Order{{Type: "customer", Since: b.fake.Now().Add(-time.Minute)}, {Until: b.fake.Now().Add(-time.Minute)}} {
		o.What = reconcile.Objects
		failed(t, b.asked(t, b.api(b.fake.URL), o), "Leave since and until out")
	}
	none(t, b.DB.Rows(t, `SELECT what FROM watermarks`))
}

// Changes of a time that does not touch what is proven prove nothing of what lies between.
func TestAGapOfChangesIsNotProven(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 242, living)
	b.api.version = sim.ByChange
	b.carry(t, b.runner())
	b.sweep(t, reconcile.Order{})
	proven := b.changes(t)
	b.api.set(b.api.Now().Add(3 * time.Hour))
	b.sweep(t, reconcile.Order{Since: proven.Add(time.Hour), Until: proven.Add(2 * time.Hour)})
	if until := b.changes(t); proven.IsZero() || !until.Equal(proven) {
		t.Errorf("proven until %s, and nobody has asked for the hour after %s", until, proven)
	}
	b.sweep(t, reconcile.Order{Since: proven, Until: proven.Add(2 * time.Hour)})
	if until := b.changes(t); !until.Equal(proven.Add(2 * time.Hour)) {
		t.Errorf("proven until %s, though all was asked for from %s until two hours later", until, proven)
	}
}

// What a late list tells is no reason to touch what changed since, and proves nothing of the time that it does not know.
func TestLateList(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 260, unowned)
	b.api.version, b.api.late = sim.Late, sim.ListLag
	var end int64
	for _, id := range b.api.h.ObjectIDs() {
		end = max(end, b.api.h.End(id))
	}
	b.api.set(time.UnixMicro(end).Add(2 * time.Second))
	before := b.wrong(t)
	b.carry(t, b.runner())
	r := b.sweep(t, reconcile.Order{})
	if r.Counts[reconcile.Ahead] == 0 {
		t.Errorf("nothing is ahead of a late list: %v", r.Counts)
	}
	for _, w := range b.wrong(t) {
		id, _, _ := strings.Cut(w, " ")
		if !slices.ContainsFunc(before, func(was string) bool { return strings.HasPrefix(was, id+" ") }) {
			t.Errorf("made wrong: %s", w)
		}
	}
	if until := b.proven(t); until.After(b.api.now.Add(-sim.ListLag)) {
		t.Errorf("proven until %s, of a list that may be of %s", until, b.api.now.Add(-sim.ListLag))
	}
}
