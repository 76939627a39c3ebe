package stream

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// publisherMetrics are what a publisher tells of the stream and of its own queue.
type publisherMetrics struct {
	messages prometheus.Gauge
	age      prometheus.Gauge
	share    prometheus.Gauge
	results  *prometheus.CounterVec
	// acknowledged and failed are of results.
	acknowledged, failed prometheus.Counter
}

// lag shows a reading.
func (m *publisherMetrics) lag(l Lag) {
	m.messages.Set(float64(l.Messages))
	m.age.Set(l.OldestAge.Seconds())
	m.share.Set(l.Share)
}

// unknown says that nobody can tell the lag now: an old number would look like a stream that stands still.
func (m *publisherMetrics) unknown() {
	for _, g := range []prometheus.Gauge{m.messages, m.age, m.share} {
		g.Set(math.NaN())
	}
}

func (p *Publisher) register(reg prometheus.Registerer) error {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &p.metrics
	m.messages = gauge("postern_stream_lag_messages", "Events in the stream that no processor has acknowledged; NaN while the stream does not answer.")
	m.age = gauge("postern_stream_lag_seconds", "Age of the oldest event in the stream that no processor has acknowledged; NaN while the stream does not answer.")
	m.share = gauge("postern_stream_lag_ratio", "Part of the stream's limits that the lag fills, 0 to 1; above 0.25 gateways publish nothing and leave it to the auditor.")
	m.results = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_publishes_total",
		Help: "Events handed to the stream by result: acknowledged (for the run of up to 64 that each was sent in), failed, withheld (lag, no connection, or a stop), overflowed. All but the first are left to the auditor."},
		[]string{"result"})
	for _, r := range []string{"acknowledged", "failed", "withheld", "overflowed"} {
		m.results.WithLabelValues(r)
	}
	m.acknowledged, m.failed = m.results.WithLabelValues("acknowledged"), m.results.WithLabelValues("failed")
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_publish_queue_events", Help: "Stored events that wait to be published."},
		func() float64 { return float64(p.count.Load()) })
	bytes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_publish_queue_bytes", Help: "Bytes of bodies that wait to be published."},
		func() float64 { return float64(p.waiting.Load()) })
	for _, c := range []prometheus.Collector{m.messages, m.age, m.share, m.results, waiting, bytes} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}
