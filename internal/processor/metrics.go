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
	// partitions is until when the log has partitions.
	partitions prometheus.Gauge
	backlog    backlogMetrics
}

// statuses are all outcomes that exist.
var statuses = []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous,
	versioning.Ignored, versioning.Failed,
	versioning.Dead}

func (m *metrics) register(reg prometheus.Registerer) error {
	m.build()
	for _, s := range statuses {
		m.outcomes.WithLabelValues(string(s))
	}
	preset(m.ambiguities, "ambiguous", "settled", "look_owed")
	preset(m.republished, causeMissing, causeDue)
	preset(m.changes, "acknowledged", "failed")
	for _, c := range append(m.backlog.build(), m.outcomes, m.ambiguities, m.batches, m.apply, m.lag, m.republished,
		m.republishBehind,
		m.lastPass, m.changes, m.requeued, m.foreignMessages, m.partitions) {
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
	m.outcomes = vector("postern_outcomes_total", "status", "Outcomes committed, by status; a failed event is "+
		"retried and counts again each time.")
	m.ambiguities = vector("postern_object_doubts_total", "doubt",
		"Objects that became ambiguous, stopped being ambiguous, or came to need a refetch from the provider.")
	m.batches = histogram("postern_apply_batch_events", "Events per apply transaction.", 1, 11)
	m.apply = histogram("postern_apply_seconds", "Time of an apply transaction.", 0.0005, 16)
	m.lag = histogram("postern_apply_lag_seconds", "Time from an event's receipt to its first committed outcome, "+
		"by the clocks of gateway and processor.", 0.001, 24)
	m.republished = vector("postern_audited_events_total", "cause",
		"Events published again by the republisher: without an outcome, or failed and due.")
	m.republishBehind = gauge("postern_auditor_behind_seconds", "Age of the oldest event that the republisher's "+
		"last pass found without an outcome; 0 if there was none, and in a process that is not the republisher.")
	m.lastPass = gauge("postern_auditor_last_pass_timestamp_seconds",
		"When this process last ended a pass of the republisher, Unix time; 0 if never.")
	m.changes = vector("postern_changes_total", "result", "Changes published to the feed: acknowledged or failed "+
		"(sent again later).")
	m.requeued = counter("postern_messages_handed_back_total", "Messages requeued to the stream because of an "+
		"infrastructure failure or a swap.")
	m.partitions = gauge("postern_partitions_until_timestamp_seconds", "Until when the log has partitions without "+
		"interruption, Unix time, checked every minute; 0 before the first check. They are created 8 days ahead.")
	m.foreignMessages = counter("postern_messages_foreign_total",
		"Messages in the stream of events that postern did not publish and that were dropped.")
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
