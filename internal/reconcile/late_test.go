package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
			b := newWorld(t, 240, alive(10))
			b.deliver(t, b.api.h.Events)
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
	b := newWorld(t, 241, alive(3))
	b.deliver(t, b.api.h.Events)
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
