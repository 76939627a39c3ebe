package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	deliveries  *prometheus.CounterVec
	events      *prometheus.CounterVec
	rejections  *prometheus.CounterVec
	dropped     *prometheus.CounterVec
	contentKeys *prometheus.CounterVec
	verified    *prometheus.CounterVec
	panics      prometheus.Counter
	quarantined prometheus.Counter
	ack         prometheus.Histogram
	batches     prometheus.Histogram
	append      prometheus.Histogram
}

func (m *metrics) create() {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m.deliveries = counter("postern_deliveries_total", "Requests to sources by source and result. The label source is "+
		"empty for an unknown source.", "source", "result")
	m.events = counter("postern_events_total", "Events of accepted deliveries by result: stored, duplicate or "+
		"conflict.", "source", "result")
	m.rejections = counter("postern_rejections_total", "Rejected deliveries by reason.", "source", "reason")
	m.dropped = counter("postern_rejections_dropped_total", "Rejected deliveries that were not stored, because too "+
		"many arrived at once.", "source")
	m.contentKeys = counter("postern_content_keys_total", "Events whose delivery has no event key. Their content is "+
		"used to detect duplicates.", "source")
	m.verified = counter("postern_verified_requests_total", "Requests with a right signature by the name of the "+
		"secret that verified them.", "source", "secret")
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{Name: "postern_panics_total",
		Help: "Panics while handling a request."})
	m.quarantined = prometheus.NewCounter(prometheus.CounterOpts{Name: "postern_spool_quarantined_total",
		Help: "Acknowledged deliveries of the spool that cannot be appended. They are in quarantine files in the " +
			"spool's folder. An operator must review them."})
	m.ack = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "postern_ack_seconds",
		Help:    "Time from the start of the request to the receipt.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)})
	m.batches = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "postern_append_batch_deliveries",
		Help:    "Deliveries per append.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10)})
	m.append = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "postern_append_seconds",
		Help:    "Time of an append, from the wait for a connection to the commit.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)})
}

// createSeries creates the series of the sources before anything is counted, so that rates include
// the first increment.
func (m *metrics) createSeries(endpoints map[string]Endpoint) {
	for source := range endpoints {
		for _, result := range []string{"accepted", "rejected"} {
			m.deliveries.WithLabelValues(source, result)
		}
		for _, result := range []string{"stored", "duplicate", "conflict"} {
			m.events.WithLabelValues(source, result)
		}
		m.dropped.WithLabelValues(source)
		m.contentKeys.WithLabelValues(source)
	}
}

func (m *metrics) register(reg prometheus.Registerer, s *Server) error {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	all := []prometheus.Collector{m.deliveries, m.events, m.rejections, m.dropped, m.contentKeys, m.verified,
		m.panics, m.quarantined, m.ack, m.batches, m.append, queueCollector{s},
		gauge("postern_body_memory_bytes", "Bytes of request bodies in memory: arriving, or verified and waiting for "+
			"a commit.", func() float64 { return float64(s.uploads.inUse() + s.memory.inUse()) }),
		gauge("postern_queue_oldest_seconds", "How long the oldest delivery that waits for a commit has waited; 0 if "+
			"the queue is empty.", func() float64 {
			_, oldest := s.appender.queue.lengths()
			return secondsSince(oldest)
		})}
	if s.Spool != nil {
		all = append(all,
			gauge("postern_spool_deliveries", "Acknowledged deliveries on the gateway's disk that are not in the log "+
				"yet.", func() float64 { return float64(s.Spool.Stats().Records) }),
			gauge("postern_spool_bytes", "Bytes of the spool's deliveries on the gateway's disk.",
				func() float64 { return float64(s.Spool.Stats().Bytes) }),
			gauge("postern_spool_oldest_seconds", "How long the oldest delivery in the spool has waited; 0 if the "+
				"spool is empty.", func() float64 { return secondsSince(s.Spool.Stats().Oldest) }),
			gauge("postern_spool_damaged_files", "Files of the spool that could not be read completely and that were "+
				"not removed yet.", func() float64 { return float64(s.Spool.Stats().Damaged) }),
			gauge("postern_spool_quarantined_files", "Files of the spool with an acknowledged delivery that the log "+
				"rejected, and that were not removed yet.",
				func() float64 { return float64(s.Spool.Stats().Quarantined) }),
			gauge("postern_spool_usable", "1 if the spool accepts deliveries, else 0.", func() float64 {
				if s.Spool.Ready() != nil {
					return 0
				}
				return 1
			}))
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// secondsSince returns how long ago a time was, 0 for the zero time.
func secondsSince(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return time.Since(at).Seconds()
}

// queueCollector reads the queue at each scrape, for every configured source and for others with
// queued deliveries.
type queueCollector struct{ s *Server }

var queueLength = prometheus.NewDesc("postern_queue_deliveries", "Verified deliveries that wait for a commit.",
	[]string{"source"}, nil)

// Describe implements prometheus.Collector.
func (queueCollector) Describe(ch chan<- *prometheus.Desc) { ch <- queueLength }

// Collect implements prometheus.Collector.
func (c queueCollector) Collect(ch chan<- prometheus.Metric) {
	waiting, _ := c.s.appender.queue.lengths()
	for source := range *c.s.endpoints.Load() {
		waiting[source] += 0 // a source without queued deliveries reports 0
	}
	for source, n := range waiting {
		ch <- prometheus.MustNewConstMetric(queueLength, prometheus.GaugeValue, float64(n), source)
	}
}
