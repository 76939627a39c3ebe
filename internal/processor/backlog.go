package processor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// backlogMetrics are what the tables say of work that is left. Every processor tells the same, so take the max, not the sum.
type backlogMetrics struct {
	failed, dead, unsent, oldest prometheus.Gauge
}

func (m *backlogMetrics) build() []prometheus.Collector {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help + " As the database says every 10 s, the same in every processor; NaN while it does not answer."})
	}
	m.failed = gauge("postern_failed_events", fmt.Sprintf("Events that failed and wait for their next attempt, counted up to %d.", countMost))
	m.dead = gauge("postern_dead_events", fmt.Sprintf("Events that need a person, since they are dead and no run has applied them, counted up to %d.", countMost))
	m.unsent = gauge("postern_changes_unsent_batches", fmt.Sprintf("Apply transactions whose changes are not in the feed yet, counted up to %d.", countMost))
	m.oldest = gauge("postern_changes_unsent_seconds", "Age of the oldest change that is not in the feed yet; 0 where all are.")
	return []prometheus.Collector{m.failed, m.dead, m.unsent, m.oldest}
}

const (
	// backlogEvery spaces the readings, backlogWithin bounds one.
	backlogEvery  = 10 * time.Second
	backlogWithin = 5 * time.Second
	// countMost bounds what is counted: beyond it the number tells nobody more.
	countMost = 100_000
)

// DeadEvents are the event_id o.event_id of events that need a person: dead as they were received, and in the mirror by no run since, the newest 100,000 dead ones being looked at. A rebuild's are in the mirror once it was swapped in.
// The offset keeps the planner to a look for each event.
const DeadEvents = `(SELECT d.event_id FROM outcomes d WHERE d.status = 'dead' AND d.run = 0 ORDER BY d.event_id DESC LIMIT 100000) o
WHERE NOT EXISTS (SELECT FROM outcomes a WHERE a.event_id = o.event_id AND a.run > 0 AND a.status NOT IN ('failed', 'dead', 'ignored')
  AND NOT EXISTS (SELECT FROM runs r WHERE r.run = a.run AND r.job = 'rebuild' AND r.status <> 'done') OFFSET 0)`

// backlogSQL reads small partial indexes only, each up to a bound.
const backlogSQL = `
SELECT (SELECT count(*) FROM (SELECT FROM outcomes WHERE status = 'failed' AND run = 0 LIMIT $1) f),
  (SELECT count(*) FROM (SELECT FROM ` + DeadEvents + ` LIMIT $1) d),
  (SELECT count(*) FROM (SELECT FROM outbox WHERE sent_at IS NULL LIMIT $1) u),
  coalesce((SELECT extract(epoch FROM clock_now() - min(made_at)) FROM outbox WHERE sent_at IS NULL), 0)::float8`

// watchBacklog reads what is left to do until ctx ends.
func (p *Processor) watchBacklog(ctx context.Context) error {
	tick := time.NewTicker(backlogEvery)
	defer tick.Stop()
	for {
		p.readBacklog(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *Processor) readBacklog(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "read what is left to do", backlogWithin)
	defer cancel()
	var failed, dead, unsent int64
	oldest := 0.0
	m := &p.metrics.backlog
	if err := p.Pool.QueryRow(ctx, backlogSQL, countMost).Scan(&failed, &dead, &unsent, &oldest); err != nil {
		for _, g := range []prometheus.Gauge{m.failed, m.dead, m.unsent, m.oldest} {
			g.Set(math.NaN())
		}
		p.Logger.Debug("what is left to do is not known", "error", err)
		return
	}
	m.failed.Set(float64(failed))
	m.dead.Set(float64(dead))
	m.unsent.Set(float64(unsent))
	m.oldest.Set(max(oldest, 0))
}
