package apply

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

type metrics struct {
	outcomes    *prometheus.CounterVec
	ambiguities *prometheus.CounterVec
	batches     prometheus.Histogram
	apply       prometheus.Histogram
	lag         prometheus.Histogram
}

// statuses are all outcomes that exist.
var statuses = []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous,
	versioning.Ignored, versioning.Failed, versioning.Dead}

// register builds the metrics and registers them, unless reg is nil.
func (m *metrics) register(reg prometheus.Registerer) error {
	m.build()
	for _, change := range []string{"ambiguous", "resolved", "refetch_pending"} {
		m.ambiguities.WithLabelValues(change)
	}
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.outcomes, m.ambiguities, m.batches, m.apply, m.lag} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// createSeries creates the series of the sources, so that a rate includes the first count.
func (m *metrics) createSeries(sources map[string]Source) {
	for source := range sources {
		for _, s := range statuses {
			m.outcomes.WithLabelValues(source, string(s))
		}
	}
}

func (m *metrics) build() {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, start float64, n int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(start, 2, n)})
	}
	m.outcomes = vector("postern_outcomes_total", "Committed outcomes by status. A failed event is retried, "+
		"and counts again each time.", "source", "status")
	m.ambiguities = vector("postern_object_ambiguities_total", "Objects that became ambiguous, stopped being "+
		"ambiguous, or began to need a refetch from the provider.", "change")
	m.batches = histogram("postern_apply_batch_events", "Events per apply transaction.", 1, 11)
	m.apply = histogram("postern_apply_seconds", "Time of an apply transaction.", 0.0005, 16)
	m.lag = histogram("postern_apply_lag_seconds", "Time from the receipt of an event to its first committed outcome. "+
		"The gateway's clock measures the receipt, the processor's clock the outcome.", 0.001, 24)
}

// count counts and logs a committed transaction.
func (t *transaction) count() {
	t.metrics.batches.Observe(float64(len(t.batch)))
	t.metrics.apply.Observe(t.endedAt.Sub(t.startedAt).Seconds())
	for change, n := range t.ambiguityChanges { // empty unless the target is the mirror
		t.metrics.ambiguities.WithLabelValues(change).Add(float64(n))
	}
	counts := map[versioning.Status]int{}
	var oldest time.Duration
	for _, e := range t.batch {
		if e.finished {
			continue
		}
		counts[e.outcome.status]++
		t.metrics.outcomes.WithLabelValues(e.ev.Source, string(e.outcome.status)).Inc()
		if e.attempts == 0 && t.to.Run == events.LiveRun && !e.ev.Retry {
			lag := max(t.endedAt.Sub(e.ev.ReceivedAt), 0)
			t.metrics.lag.Observe(lag.Seconds())
			oldest = max(oldest, lag)
		}
	}
	t.log(counts, oldest)
	t.logNeedsReview(counts[versioning.Dead])
}
