package stream

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// publisherMetrics are the metrics of a publisher: the stream's lag, and its own queue and results.
type publisherMetrics struct {
	messages prometheus.Gauge
	age      prometheus.Gauge
	ratio    prometheus.Gauge
	results  *prometheus.CounterVec
	// acknowledged and failed are counters of results.
	acknowledged, failed prometheus.Counter
}

// setLag sets the gauges of the lag.
func (m *publisherMetrics) setLag(l Lag) {
	m.messages.Set(float64(l.Messages))
	m.age.Set(l.OldestAge.Seconds())
	m.ratio.Set(l.Ratio)
}

// setUnknown sets the gauges of the lag to NaN. An old value would look like a stalled stream.
func (m *publisherMetrics) setUnknown() {
	for _, g := range []prometheus.Gauge{m.messages, m.age, m.ratio} {
		g.Set(math.NaN())
	}
}

func (p *Publisher) register(reg prometheus.Registerer) error {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &p.metrics
	m.messages = gauge("postern_stream_lag_messages", "Events in the stream that no processor has acknowledged; NaN "+
		"while the stream does not respond.")
	m.age = gauge("postern_stream_lag_seconds", "Age of the oldest event in the stream that no processor has "+
		"acknowledged; NaN while the stream does not respond.")
	m.ratio = gauge("postern_stream_lag_ratio", "The lag divided by the stream's limits, from 0 to 1. Above 0.25, "+
		"gateways publish nothing, and the republisher publishes their events later.")
	m.results = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_publishes_total",
		Help: "Events to publish by result: acknowledged (JetStream acknowledged the group of up to 64 events that " +
			"contains the event), failed, withheld (lag, no connection, or a stop) or overflowed. The republisher " +
			"publishes all events that were not acknowledged."},
		[]string{"result"})
	for _, r := range []string{"acknowledged", "failed", "withheld", "overflowed"} {
		m.results.WithLabelValues(r)
	}
	m.acknowledged, m.failed = m.results.WithLabelValues("acknowledged"), m.results.WithLabelValues("failed")
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_publish_queue_events",
		Help: "Stored events that wait to be published."},
		func() float64 { return float64(p.queuedMessages.Load()) })
	bytes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_publish_queue_bytes",
		Help: "Bytes of bodies that wait to be published."},
		func() float64 { return float64(p.queuedBytes.Load()) })
	for _, c := range []prometheus.Collector{m.messages, m.age, m.ratio, m.results, waiting, bytes} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}
