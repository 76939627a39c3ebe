package providerapi

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
)

// CallMetrics are the metrics of calls to providers' APIs.
type CallMetrics struct {
	calls   *prometheus.CounterVec
	waiting *prometheus.HistogramVec
	elapsed *prometheus.HistogramVec
	skew    *prometheus.GaugeVec
}

// NewCallMetrics registers the metrics of calls for some sources.
func NewCallMetrics(reg prometheus.Registerer, sources []string) (*CallMetrics, error) {
	m := &CallMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_api_calls_total",
			Help: "Calls to providers' APIs by result (verdict): found, missing, throttled, rejected or failure."},
			[]string{"source", "verdict"}),
		waiting: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "postern_api_waiting_seconds",
			Help:    "Time that a call waited for the rate budget of its account, which all processes share.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"source"}),
		elapsed: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "postern_api_seconds",
			Help:    "Time from the start of a call to the first byte of its response.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 13)}, []string{"source"}),
		skew: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_api_clock_skew_seconds",
			Help: "Minimum by which the clock of the API, as its responses show it, is ahead of the clock of the " +
				"database; negative if it is behind. The value is the largest difference in the last five to ten " +
				"minutes. If it is above 1 or below -1, one of the clocks is wrong."}, []string{"source"}),
	}
	for _, source := range sources {
		for _, kind := range provider.VerdictKinds() {
			m.calls.WithLabelValues(source, string(kind))
		}
		m.waiting.WithLabelValues(source)
		m.elapsed.WithLabelValues(source)
		m.skew.WithLabelValues(source)
	}
	for _, c := range []prometheus.Collector{m.calls, m.waiting, m.elapsed, m.skew} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *CallMetrics) observeWait(source string, d time.Duration) {
	m.waiting.WithLabelValues(source).Observe(d.Seconds())
}

func (m *CallMetrics) countCall(source string, r *Response) {
	m.calls.WithLabelValues(source, string(r.Verdict.Kind)).Inc()
	if r.Status != 0 {
		m.elapsed.WithLabelValues(source).Observe((r.Elapsed - r.Widened).Seconds())
	}
}
