package telemetry

import (
	"cmp"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is the registry of one process or, in tests, of one part of it. Whoever measures registers its own metrics with it.
type Metrics struct {
	*prometheus.Registry
}

// NewMetrics returns a registry that has the collectors of the Go runtime and of the process, and says which build this is.
func NewMetrics() *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(buildInfo(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Metrics{Registry: r}
}

func buildInfo() prometheus.Collector {
	version, revision := Version()
	labels := prometheus.Labels{"version": version, "revision": cmp.Or(revision, "unknown"), "go_version": runtime.Version()}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_build_info", Help: "Always 1; the labels say what was built.", ConstLabels: labels})
	g.Set(1)
	return g
}

// maxScrapes bounds the pages that are made at once; more are answered 503.
const maxScrapes = 4

// Handler serves /metrics in the Prometheus formats. A collector that fails costs its own metrics, not the page, and is
// counted in promhttp_metric_handler_errors_total.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{Registry: m.Registry, ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes})
}
