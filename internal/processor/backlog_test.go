package processor_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/prometheus/client_golang/prometheus"
)

// Pending work is read from the tables. While they cannot be read, the gauges are NaN.
func TestReadBacklog_pendingWork_setsGauges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	registry := prometheus.NewRegistry()
	o := b.options(t, applied.FaultyProvider{})
	o.Metrics = registry
	p := newProcessor(t, o)
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{applied.ThingEvent(1, "good"),
		applied.ThingEvent(2, "dead"), applied.ThingEvent(3, "fails"), applied.ThingEvent(4, "panics")}))
	gauge := func(name string) float64 { return metricValue(t, registry, name, "") }
	processor.ReadBacklog(t.Context(), p)
	for name, want := range map[string]float64{"postern_dead_events": 1, "postern_failed_events": 2,
		"postern_changes_unsent_batches": 1} {
		if got := gauge(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if age := gauge("postern_changes_unsent_seconds"); age <= 0 {
		t.Errorf("the unsent change is %v s old", age)
	}
	// Dead events that a run has put into the mirror need no operator any more. Those of a rebuild
	// are in the mirror after its swap.
	for _, job := range []string{"rebuild", "replay"} {
		run := b.DB.QueryStrings(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at,
			updated_at)
			VALUES ($1, '{}', '', '', 'running', '', '{}', now(), now()) RETURNING run::text`, job)[0]
		b.DB.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, attempts, at, rule_version)
			SELECT event_id, $1::text::bigint, source, 0, '', '', '', CASE $2 WHEN 'rebuild' THEN 'applied'
				ELSE 'ignored' END, '', 1, at, 1 FROM outcomes WHERE status = 'dead' AND run = 0`, run, job)
		if processor.ReadBacklog(t.Context(), p); gauge("postern_dead_events") != 1 {
			t.Errorf("%s: %v dead", job, gauge("postern_dead_events"))
		}
	}
	b.DB.Exec(t, `UPDATE outcomes SET status = 'unchanged' WHERE status = 'ignored'`)
	if processor.ReadBacklog(t.Context(), p); gauge("postern_dead_events") != 0 {
		t.Errorf("after a replay %v are dead", gauge("postern_dead_events"))
	}
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the database is unavailable"))
	processor.ReadBacklog(cancelled, p)
	if dead := gauge("postern_dead_events"); !math.IsNaN(dead) {
		t.Errorf("%v dead while the number is unknown", dead)
	}
}
