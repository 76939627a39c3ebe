package ingest

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	deliveries  *prometheus.CounterVec
	events      *prometheus.CounterVec
	rejections  *prometheus.CounterVec
	dropped     *prometheus.CounterVec
	contentKeys *prometheus.CounterVec
	faults      prometheus.Counter
	ack         prometheus.Histogram
	batches     prometheus.Histogram
}

func (m *metrics) build() {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m.deliveries = counter("postern_deliveries_total", "Deliveries by source and result; an unknown source has the label \"\".", "source", "result")
	m.events = counter("postern_events_total", "Events of accepted deliveries: stored, duplicate or conflict.", "source", "result")
	m.rejections = counter("postern_rejections_total", "Refused deliveries by reason.", "source", "reason")
	m.dropped = counter("postern_rejections_dropped_total", "Refused deliveries not kept, since too many came at once.", "source")
	m.contentKeys = counter("postern_content_keys_total", "Events whose delivery named no key; they are deduplicated by content.", "source")
	m.faults = prometheus.NewCounter(prometheus.CounterOpts{Name: "postern_faults_total", Help: "Panics while handling a request."})
	m.ack = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "postern_ack_seconds", Help: "Time from the first byte handled to the receipt.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)})
	m.batches = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "postern_append_batch_deliveries", Help: "Deliveries per append.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10)})
}

func (m *metrics) register(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.deliveries, m.events, m.rejections, m.dropped, m.contentKeys, m.faults, m.ack, m.batches} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}
