package telemetry

import (
	"cmp"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is the registry of one process or, in tests, of a part of it. Each package registers its
// own metrics.
type Metrics struct {
	*prometheus.Registry
}

// NewMetrics returns a registry with the collectors of the Go runtime and of the process, and with
// the build information.
func NewMetrics() *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(buildInfo(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Metrics{Registry: r}
}

func buildInfo() prometheus.Collector {
	version, revision := Version()
	labels := prometheus.Labels{"version": version, "revision": cmp.Or(revision, "unknown"),
		"go_version": runtime.Version()}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_build_info",
		Help: "Always 1; the labels describe the build.", ConstLabels: labels})
	g.Set(1)
	return g
}

// maxScrapes limits simultaneous requests; more get status 503.
const maxScrapes = 4

// Handler serves /metrics in the Prometheus formats. If a collector fails, only its metrics are
// missing, and promhttp_metric_handler_errors_total counts the error.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{Registry: m.Registry,
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes})
}
