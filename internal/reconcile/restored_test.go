package reconcile_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

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

	run := b.runner()
	s := run.Sources.All()[b.Source]
	pass := (&reconcile.Looks{Runner: run, ID: "one", Logger: slog.New(slog.DiscardHandler)}).Passes(s)
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
