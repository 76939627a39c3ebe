package processor

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
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

func (m *metrics) register(reg prometheus.Registerer) error {
	m.build()
	preset(m.republished, causeMissing, causeDue)
	preset(m.changes, "acknowledged", "failed")
	for _, c := range append(m.backlog.build(), m.republished, m.republishBehind, m.lastPass, m.changes, m.requeued,
		m.foreignMessages, m.partitions) {
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
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m.republished = vector("postern_republisher_events_total", "cause", "Events that the republisher published "+
		"again, by cause: missing (no outcome) or due (failed, and due for the next attempt).")
	m.republishBehind = gauge("postern_republisher_behind_seconds", "Age of the oldest event without an outcome that "+
		"the republisher's last pass found among the events that are old enough to be published again; 0 if there was "+
		"none. It is 0 in a process that is not the republisher.")
	m.lastPass = gauge("postern_republisher_last_pass_timestamp_seconds",
		"Unix time when this process last ended a pass of the republisher; 0 if never.")
	m.changes = vector("postern_changes_total", "result", "Changes published to the feed by result: acknowledged, or "+
		"failed (Postern sends them again later).")
	m.requeued = counter("postern_messages_requeued_total", "Messages requeued to the stream because of an "+
		"infrastructure failure.")
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
