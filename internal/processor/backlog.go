package processor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/lifecycle"
)

// backlogMetrics are gauges of pending work, read from tables. Every processor reports the same
// values: aggregate with max, not with sum.
type backlogMetrics struct {
	failed, dead, unsent, oldest, unnumbered prometheus.Gauge
	lagChanges, lagSeconds                   *prometheus.GaugeVec
}

func (m *backlogMetrics) build() []prometheus.Collector {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help +
			" Every processor reads this value from the database every 10 s and reports the same; NaN while the " +
			"database does not respond."})
	}
	m.failed = gauge("postern_failed_events", fmt.Sprintf("Events that failed and wait for their next attempt, "+
		"counted up to %d.", maxCount))
	m.dead = gauge("postern_dead_events", fmt.Sprintf("Dead events that no run has applied. They need an operator. "+
		"Counted up to %d.", maxCount))
	m.unsent = gauge("postern_changes_unsent_batches",
		fmt.Sprintf("Apply transactions whose changes are not in the feed yet, counted up to %d.", maxCount))
	m.oldest = gauge("postern_changes_unsent_seconds", "Age of the oldest change that is not in the feed yet; 0 "+
		"if there is none.")
	m.unnumbered = gauge("postern_changes_unnumbered_seconds", "Age of the oldest change without a number, which "+
		"readers by HTTP and SQL do not see yet; 0 if there is none.")
	lag := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: fmt.Sprintf("%s Of the first %d feed "+
			"cursors by name. Every processor reports the same.", help, maxCursorLabels)}, []string{"cursor"})
	}
	m.lagChanges = lag("postern_feed_cursor_lag_changes", "Changes after a feed cursor, at most: how far a reader of "+
		"changes is behind.")
	m.lagSeconds = lag("postern_feed_cursor_lag_seconds", "Age of the oldest change after a feed cursor; 0 if "+
		"there is none.")
	return []prometheus.Collector{m.failed, m.dead, m.unsent, m.oldest, m.unnumbered, m.lagChanges, m.lagSeconds}
}

const (
	// backlogInterval is the time between two reads, backlogTimeout bounds one.
	backlogInterval = 10 * time.Second
	backlogTimeout  = 5 * time.Second
	// maxCount bounds each count. A larger number would not help the operator.
	maxCount = 100_000
	// maxCursorLabels bounds the series of feed cursors.
	maxCursorLabels = 100
)

// backlogSQL reads only small partial indexes, each up to a bound.
const backlogSQL = `
SELECT (SELECT count(*) FROM (SELECT FROM outcomes WHERE status = 'failed' AND run = 0 LIMIT $1) f),
  (SELECT count(*) FROM (SELECT FROM ` + apply.DeadEvents + ` LIMIT $1) d),
  (SELECT count(*) FROM (SELECT FROM outbox WHERE sent_at IS NULL LIMIT $1) u),
  coalesce((SELECT extract(epoch FROM clock_now() - min(created_at)) FROM outbox WHERE sent_at IS NULL), 0)::float8,
  coalesce((SELECT extract(epoch FROM clock_now() - o.created_at) FROM outbox o WHERE NOT o.numbered ORDER BY o.batch
  	LIMIT 1), 0)::float8`

// watchBacklog updates the gauges of pending work until ctx ends.
func (p *Processor) watchBacklog(ctx context.Context) error {
	tick := time.NewTicker(backlogInterval)
	defer tick.Stop()
	for {
		p.readBacklog(ctx)
		p.readCursors(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// readCursors updates the gauges of feed cursors, and records which are behind.
func (p *Processor) readCursors(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "observe feed cursors", backlogTimeout)
	defer cancel()
	m := &p.metrics.backlog
	found, err := changes.ObserveCursors(ctx, p.Pool, maxCursorLabels)
	m.lagChanges.Reset()
	m.lagSeconds.Reset()
	if err != nil {
		p.Logger.Debug("feed cursors not observed", "error", err)
		return
	}
	for i := range found {
		m.lagChanges.WithLabelValues(found[i].Name).Set(float64(found[i].LagChanges))
		m.lagSeconds.WithLabelValues(found[i].Name).Set(found[i].LagSeconds)
	}
}

func (p *Processor) readBacklog(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "count pending work", backlogTimeout)
	defer cancel()
	var failed, dead, unsent int64
	var oldest, unnumbered float64
	m := &p.metrics.backlog
	if err := p.Pool.QueryRow(ctx, backlogSQL, maxCount).Scan(&failed, &dead, &unsent, &oldest,
		&unnumbered); err != nil {
		for _, g := range []prometheus.Gauge{m.failed, m.dead, m.unsent, m.oldest, m.unnumbered} {
			g.Set(math.NaN())
		}
		p.Logger.Debug("pending work not counted", "error", err)
		return
	}
	m.failed.Set(float64(failed))
	m.dead.Set(float64(dead))
	m.unsent.Set(float64(unsent))
	m.oldest.Set(max(oldest, 0))
	m.unnumbered.Set(max(unnumbered, 0))
}
