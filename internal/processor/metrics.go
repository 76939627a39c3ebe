package processor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

type metrics struct {
	outcomes  *prometheus.CounterVec
	doubts    *prometheus.CounterVec
	batches   prometheus.Histogram
	apply     prometheus.Histogram
	lag       prometheus.Histogram
	audited   *prometheus.CounterVec
	behind    prometheus.Gauge
	passed    prometheus.Gauge
	changes   *prometheus.CounterVec
	handBacks prometheus.Counter
	foreign   prometheus.Counter
	// partitions is until when the log has partitions.
	partitions prometheus.Gauge
	backlog    backlogMetrics
}

// statuses are all outcomes there are.
var statuses = []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous, versioning.Ignored, versioning.Failed,
	versioning.Dead}

func (m *metrics) register(reg prometheus.Registerer) error {
	m.build()
	for _, s := range statuses {
		m.outcomes.WithLabelValues(string(s))
	}
	preset(m.doubts, "ambiguous", "settled", "look_owed")
	preset(m.audited, causeMissing, causeDue)
	preset(m.changes, "acknowledged", "failed")
	for _, c := range append(m.backlog.build(), m.outcomes, m.doubts, m.batches, m.apply, m.lag, m.audited, m.behind, m.passed, m.changes, m.handBacks, m.foreign, m.partitions) {
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
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(start, 2, n)})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m.outcomes = vector("postern_outcomes_total", "status", "Outcomes committed, by status; a failed one is tried again and counts anew each time.")
	m.doubts = vector("postern_object_doubts_total", "doubt", "Objects that became ambiguous, were settled, or came to owe a look at the provider.")
	m.batches = histogram("postern_apply_batch_events", "Events per apply transaction.", 1, 11)
	m.apply = histogram("postern_apply_seconds", "Time of an apply transaction.", 0.0005, 16)
	m.lag = histogram("postern_apply_lag_seconds", "Time from an event's receipt to its first committed outcome, by the clocks of gateway and processor.", 0.001, 24)
	m.audited = vector("postern_audited_events_total", "cause", "Events published again by the auditor: missing an outcome, or failed and due.")
	m.behind = gauge("postern_auditor_behind_seconds", "Age of the oldest event that the auditor's last pass found without an outcome; 0 where there was none, and in a process that is not the auditor.")
	m.passed = gauge("postern_auditor_last_pass_timestamp_seconds", "When this process last ended a pass of the auditor, Unix time; 0 if never.")
	m.changes = vector("postern_changes_total", "result", "Changes handed to the feed: acknowledged or failed (sent again later).")
	m.handBacks = counter("postern_messages_handed_back_total", "Messages handed back to the stream for trouble of our own.")
	m.partitions = gauge("postern_partitions_until_timestamp_seconds", "Until when the log has partitions without a gap, Unix time, as of the last minute's look; 0 before the first. They are made 8 days ahead.")
	m.foreign = counter("postern_messages_foreign_total", "Messages in the stream of events that were not ours and were dropped.")
}

// preset makes the series of a closed set of labels, so that a rate can be told from the first count on.
func preset(v *prometheus.CounterVec, labels ...string) {
	for _, l := range labels {
		v.WithLabelValues(l)
	}
}

// applied counts a committed batch and logs it: at debug where all of it had its outcome already.
func (p *Processor) applied(b *committed) {
	p.metrics.batches.Observe(float64(len(b.items)))
	p.metrics.apply.Observe(b.ended.Sub(b.began).Seconds())
	for change, n := range b.doubts { // none but of the mirror
		p.metrics.doubts.WithLabelValues(change).Add(float64(n))
	}
	counts := map[versioning.Status]int{}
	var oldest time.Duration
	for _, it := range b.items {
		if it.settled {
			continue
		}
		counts[it.outcome.status]++
		p.metrics.outcomes.WithLabelValues(string(it.outcome.status)).Inc()
		if it.attempts == 0 && b.Run == events.LiveRun && !it.ev.Retry {
			lag := max(b.ended.Sub(it.ev.ReceivedAt), 0)
			p.metrics.lag.Observe(lag.Seconds())
			oldest = max(oldest, lag)
		}
	}
	p.logBatch(b, counts, oldest)
	p.tellPeople(b, counts[versioning.Dead])
}
