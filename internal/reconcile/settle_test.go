package reconcile_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

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

// What the API answers without a whole state settles nothing: the run fails and nothing is appended.
func TestSettleNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 101, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000, Own: true, Integer: true})
	b.deliver(t, b.api.h.Events)
	b.api.fails = func(provider.Call) (*reconcile.Response, error) {
		body, err := json.Marshal(map[string]any{"integer": true})
		return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now, Body: body}, err
	}
	b.Carry(t, "one", 1, b.jobs())
	r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1", Settle: true})
	if r.Status != runs.Failed || !strings.Contains(r.Detail, "what the API answers can settle nothing") {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	if n := b.DB.Rows(t, `SELECT count(*)::text FROM events WHERE event_type = 'postern.look'`); n[0] != "0" {
		t.Errorf("%s looks", n[0])
	}
}
