package reconcile_test

import (
	"fmt"
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

// A person's look wins over a delete for good, and says whose it was; nothing of before brings the tombstone back, and the life goes on.
func TestSettle(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 100, sim.Options{Objects: 2, Changes: 5, Contents: 4, Unit: 1_000_000, Gap: 3_000_000})
	b.api.set(time.Now()) // what is received now is not of before
	b.deliver(t, b.api.h.Events)
	deleted := sim.Event{Object: "obj_1", ReceivedAt: time.Now(), Body: fmt.Appendf(nil, `{"id": "unmeant", "object_id": "obj_1", "type": "thing.deleted", "deleted": true, "final": true,
		"unit": 1, "rank": 1, "time": %d}`, time.Now().Add(50*time.Minute).UnixMicro())}
	b.deliver(t, []sim.Event{deleted})
	b.Carry(t, "one", 1, b.jobs())
	if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1"}); r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	if w := b.wrong(t); len(w) != 1 || !strings.HasPrefix(w[0], "obj_1 is") {
		t.Fatalf("%q: a mere look is to change nothing", w)
	}
	settle := reconcile.Order{Source: b.Source, What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true}
	for range 2 { // a second time is another word of a person's, and changes nothing
		run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: settle, Who: "ada@office", Reason: "nobody meant it"})
		if err != nil {
			t.Fatal(err)
		}
		if r := b.ended(t, run); r.Status != runs.Done {
			t.Fatalf("%s: %s", r.Status, r.Detail)
		}
		if w := b.wrong(t); len(w) > 0 {
			t.Errorf("%q", w)
		}
	}
	said := b.DB.Rows(t, `SELECT o.status || ', ' || o.reason || ', ' || convert_from(e.body, 'UTF8') FROM events e JOIN outcomes o ON o.event_id = e.id
		WHERE e.event_type = 'postern.look' AND e.event_id LIKE 'settle:%' ORDER BY e.id`)
	if len(said) != 2 || !strings.HasPrefix(said[0], "applied, a person had this look settle the object, whatever it was (final, at") ||
		!strings.HasPrefix(said[1], "unchanged, a person had this look settle the object, which was the same") || !strings.Contains(said[0], `"who":"ada@office","reason":"nobody meant it"`) {
		t.Errorf("%q", said)
	}
	var ids []int64
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id DESC) FROM events`).Scan(&ids); err != nil {
		t.Fatal(err)
	}
	applied.Apply(t, b.proc, 77, ids) // a replay
	if w := b.wrong(t); len(w) > 0 {
		t.Errorf("after a replay: %q", w)
	}
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
	b := newWorld(t, 101, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000, Own: true, Integer: true})
	b.deliver(t, b.api.h.Events)
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Reader = parts{} }))
	b.carry(t, r)
	run := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true})
	if run.Status != runs.Failed || !strings.Contains(run.Detail, "what the API answers can settle nothing") {
		t.Errorf("%s: %s", run.Status, run.Detail)
	}
	if n := b.DB.Rows(t, `SELECT count(*)::text FROM events WHERE event_type = 'postern.look'`); n[0] != "0" {
		t.Errorf("%s looks", n[0])
	}
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
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if !strings.HasPrefix(c.Path, "/things/") {
			return nil, nil
		}
		return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Missing}, Date: b.api.now}, nil
	}
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Reader = counters{} }))
	b.carry(t, r)
	shown := func(want string) {
		t.Helper()
		if got := b.DB.Rows(t, `SELECT deleted || ', ' || ambiguous || ', owed: ' || (look_after <> 0) || ', ' || version_final FROM objects WHERE object_id = 'obj_1'`)[0]; got != want {
			t.Errorf("deleted, ambiguous, owed, final: %s, want %s", got, want)
		}
	}
	if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1"}); r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	shown("false, false, owed: true, false")
	for range 2 {
		if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true}); r.Status != runs.Done {
			t.Fatalf("%s: %s", r.Status, r.Detail)
		}
		shown("true, false, owed: false, false")
	}
	var ids []int64
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id DESC) FROM events`).Scan(&ids); err != nil {
		t.Fatal(err)
	}
	applied.Apply(t, b.proc, 77, ids) // a replay
	shown("true, false, owed: false, false")
	b.deliver(t, []sim.Event{{Object: "obj_1", ReceivedAt: time.Now(), Body: []byte(`{"id": "next", "object_id": "obj_1", "type": "thing.updated", "object": {"next": true}, "unit": 1, "rank": 1, "own": true, "time": 1}`)}})
	shown("true, false, owed: true, false") // a number does not tell whether it is from before: the API is asked
	b.api.fails = nil
	b.api.set(time.Now().Add(time.Minute))
	if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1"}); r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	shown("false, false, owed: false, false")
}
