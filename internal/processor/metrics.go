package processor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

type metrics struct {
	outcomes        *prometheus.CounterVec
	ambiguities     *prometheus.CounterVec
	batches         prometheus.Histogram
	apply           prometheus.Histogram
	lag             prometheus.Histogram
	republished     *prometheus.CounterVec
	republishBehind prometheus.Gauge
	lastPass        prometheus.Gauge
	changes         *prometheus.CounterVec
	requeued        prometheus.Counter
	foreignMessages prometheus.Counter
	// partitions is the time until which the log has partitions without interruption.
	partitions prometheus.Gauge
	backlog    backlogMetrics
}

// statuses are all outcomes that exist.
var statuses = []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous,
	versioning.Ignored, versioning.Failed, versioning.Dead}

func (m *metrics) register(reg prometheus.Registerer) error {
	m.build()
	for _, s := range statuses {
		m.outcomes.WithLabelValues(string(s))
	}
	preset(m.ambiguities, "ambiguous", "resolved", "refetch_pending")
	preset(m.republished, causeMissing, causeDue)
	preset(m.changes, "acknowledged", "failed")
	for _, c := range append(m.backlog.build(), m.outcomes, m.ambiguities, m.batches, m.apply, m.lag, m.republished,
		m.republishBehind, m.lastPass, m.changes, m.requeued, m.foreignMessages, m.partitions) {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) build() {
	vector := func(name, label, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	histogram := func(name, help string, start float64, n int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(start, 2, n)})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m.outcomes = vector("postern_outcomes_total", "status", "Committed outcomes by status. A failed event is retried, "+
		"and counts again each time.")
	m.ambiguities = vector("postern_object_ambiguities_total", "change",
		"Objects that became ambiguous, stopped being ambiguous, or began to need a refetch from the provider.")
	m.batches = histogram("postern_apply_batch_events", "Events per apply transaction.", 1, 11)
	m.apply = histogram("postern_apply_seconds", "Time of an apply transaction.", 0.0005, 16)
	m.lag = histogram("postern_apply_lag_seconds", "Time from the receipt of an event to its first committed outcome. "+
		"The gateway's clock measures the receipt, the processor's clock the outcome.", 0.001, 24)
	m.republished = vector("postern_republisher_events_total", "cause", "Events that the republisher published "+
		"again, by cause: missing (no outcome) or due (failed, and due for the next attempt).")
	m.republishBehind = gauge("postern_republisher_behind_seconds", "Age of the oldest event without an outcome that "+
		"the republisher's last pass found; 0 if there was none. It is 0 in a process that is not the republisher.")
	m.lastPass = gauge("postern_republisher_last_pass_timestamp_seconds",
		"Unix time when this process last ended a pass of the republisher; 0 if never.")
	m.changes = vector("postern_changes_total", "result", "Changes published to the feed by result: acknowledged, or "+
		"failed (Postern sends them again later).")
	m.requeued = counter("postern_messages_requeued_total", "Messages requeued to the stream because of an "+
		"infrastructure failure or a swap.")
	m.partitions = gauge("postern_partitions_until_timestamp_seconds", "Unix time until which the log has partitions "+
		"without a gap. It is checked every minute, and 0 before the first check. Partitions are created 8 days ahead.")
	m.foreignMessages = counter("postern_messages_unknown_source_total",
		"Messages in the stream of events that Postern did not publish. The processor drops them.")
}

// preset creates the series of a closed set of labels, so that a rate includes the first count.
func preset(v *prometheus.CounterVec, labels ...string) {
	for _, l := range labels {
		v.WithLabelValues(l)
	}
}

// applied counts and logs a committed batch.
func (p *Processor) applied(b *appliedBatch) {
	p.metrics.batches.Observe(float64(len(b.items)))
	p.metrics.apply.Observe(b.endedAt.Sub(b.startedAt).Seconds())
	for change, n := range b.ambiguityChanges { // empty unless the target is the mirror
		p.metrics.ambiguities.WithLabelValues(change).Add(float64(n))
	}
	counts := map[versioning.Status]int{}
	var oldest time.Duration
	for _, it := range b.items {
		if it.finished {
			continue
		}
		counts[it.outcome.status]++
		p.metrics.outcomes.WithLabelValues(string(it.outcome.status)).Inc()
		if it.attempts == 0 && b.Run == events.LiveRun && !it.ev.Retry {
			lag := max(b.endedAt.Sub(it.ev.ReceivedAt), 0)
			p.metrics.lag.Observe(lag.Seconds())
			oldest = max(oldest, lag)
		}
	}
	p.logBatch(b, counts, oldest)
	p.logNeedsReview(b, counts[versioning.Dead])
}
