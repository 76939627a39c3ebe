package redaction_test

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
)

// strangely is a processor that knows no source: what it applies fails until the source is configured.
func (b *testBundle) strangely(t *testing.T, ids ...int64) {
	t.Helper()
	proc, err := processor.New(processor.Options{Pool: b.pool, Settings: processor.DefaultSettings, ID: t.Name(), Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proc.ApplyStored(t.Context(), processor.Target{}, ids, false); err != nil {
		t.Fatal(err)
	}
}

// passed says that the auditor has passed all that is stored.
func (b *testBundle) passed(t *testing.T) {
	t.Helper()
	b.exec(t, `INSERT INTO checkpoints (job, run, cursor, leased_by, leased_until, updated_at) SELECT 'auditor', 0, max(id), '', now(), now() FROM events
		ON CONFLICT (job, run) DO UPDATE SET cursor = excluded.cursor`)
}

// An object goes with all that named it at the door, also where that was never applied to it, and whatever the auditor has passed.
func TestEventsThatOnlyNamedTheObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.event(t, "other", 1, "somebody@else.org")
	failed := b.store(t, "hers", body("hers", 2, "second."+email), "failed")[0]
	b.strangely(t, failed)
	dead := b.store(t, "hers", []byte(`{"object_id": "hers", "email": "`+email+`", `), "dead")[0]
	b.apply(t, 0, dead)
	ignored := b.store(t, "hers", []byte(`{"ignored": "`+email+`"}`), "ignored")[0]
	b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version) VALUES ($1, 0, $2, 0, '', '', '', 'ignored', 'of no object', 1, now(), 1)`, ignored, b.source)
	if became := b.rows(t, `SELECT string_agg(status || ' ' || object, ', ' ORDER BY event_id) FROM outcomes WHERE event_id = ANY($1)`, []int64{failed, dead, ignored})[0]; became != "failed 0, dead 0, ignored 0" {
		t.Fatal(became)
	}
	b.passed(t)
	order := redaction.Order{Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "hers"}}}
	if look, err := redaction.Look(t.Context(), b.operator, &order, nil); err != nil || look.Events != 4 || look.Objects != 1 || look.Looked != 5 || look.Shared {
		t.Errorf("%+v, %v", look, err)
	}
	if h := b.do(t, order); h.Counts[redaction.CountEvents] != 4 || h.Counts[redaction.CountSeen] != 5 {
		t.Errorf("%v", h.Counts)
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
	b.exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE status = 'failed'`)
	b.apply(t, 0, failed) // the source is configured again
	if b.state(t, "hers") != "nothing" || b.state(t, "other") != "somebody@else.org" {
		t.Errorf("hers %s, other %s", b.state(t, "hers"), b.state(t, "other"))
	}
}

// An order that takes all of an account names the account; one that does not takes nothing but what it names.
func TestAllOfNoAccount(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	b.event(t, "other", 1, "somebody@else.org")
	order := b.byEmail(t, email)
	order.All = true
	if h := b.do(t, order); h.Counts[redaction.CountEvents] != 1 || b.state(t, "other") != "somebody@else.org" || b.state(t, "hers") != "nothing" {
		t.Errorf("%v", h.Counts)
	}
}
