package app

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// addTraces exports traces if the environment names a collector. The export stops last, so that it
// includes the traces of the stop.
func (a *App) addTraces(ctx context.Context) {
	service := "postern"
	switch {
	case !a.Gateway:
		service = "postern-processor"
	case !a.Processor:
		service = "postern-gateway"
	}
	version, _ := telemetry.Version()
	stop := telemetry.StartTraces(ctx, telemetry.TraceOptions{Service: service, Version: version,
		Logger: a.Logger.With("component", "traces")})
	a.stack.Defer("traces", stop)
}

// registerWarnings logs likely mistakes in the configuration, and registers the metric of settings
// that reduce durability.
func (a *App) registerWarnings() error {
	if a.Gateway {
		for _, warning := range a.Config.Warnings() {
			a.Logger.Warn(warning)
		}
	}
	return a.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_unsafe_settings",
		Help: "Settings that weaken a guarantee: enabled settings whose name contains unsafe and, in a gateway, " +
			"settings of the PostgreSQL server that durable commits need and that are off. A gateway logs their " +
			"names when it starts."},
		func() float64 { return float64(len(a.Config.UnsafeSettings()) + len(*a.unsafeServerSettings.Load())) }))
}

// warnUnsafeServer logs the settings of the database that make acknowledged deliveries less
// durable. It logs them again only when they have changed. Each new connection calls it, so that it
// also checks a server that replaces the first one.
func (a *App) warnUnsafeServer(off []string) {
	if !a.Gateway { // a processor acknowledges nothing
		return
	}
	if before := a.unsafeServerSettings.Swap(&off); slices.Equal(*before, off) {
		return
	}
	for _, name := range off {
		a.Logger.Warn("postgresql runs with " + name + " off: acknowledged deliveries may be lost if its machine " +
			"fails. Run on that server: ALTER SYSTEM RESET " + name + "; SELECT pg_reload_conf()")
	}
}

// registerPoolMetrics registers the metrics of a pool.
func (a *App) registerPoolMetrics(role string, pool *pgxpool.Pool) error {
	return a.metrics.RegisterPool(strings.TrimPrefix(role, "postern_"), pool.Stat)
}

// registerStreamMetrics registers the metrics of a connection to JetStream.
func (a *App) registerStreamMetrics(name string, conn *stream.Conn) error {
	labels := prometheus.Labels{"connection": name}
	connected := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_stream_connected", ConstLabels: labels,
		Help: "1 while connected to JetStream, else 0."}, func() float64 {
		if conn.Connected() {
			return 1
		}
		return 0
	})
	reconnects := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "postern_stream_reconnects_total",
		ConstLabels: labels,
		Help:        "How often the connection to JetStream was lost and opened again."}, func() float64 {
		return float64(conn.Reconnects())
	})
	if err := a.metrics.Register(connected); err != nil {
		return err
	}
	return a.metrics.Register(reconnects)
}

// maxMetricsConns limits the connections to the metrics listener.
const maxMetricsConns = 32

// addMetricsListener adds a listener for scrapers on other machines, with metrics and health only.
func (a *App) addMetricsListener(ctx context.Context) (err error) {
	if a.Config.Admin.MetricsListen == "" {
		return nil
	}
	if a.metricsListener, err = a.listen(ctx, "metrics", a.Config.Admin.MetricsListen); err != nil {
		return err
	}
	handler := admin.NewScrape(admin.Options{Ready: a.Ready, Metrics: a.metrics.Handler(), Logger: a.Logger})
	a.serve("metrics", netutil.LimitListener(a.metricsListener, maxMetricsConns),
		&http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: adminTimeout,
			WriteTimeout: adminTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes}, "", "")
	return nil
}

// MetricsAddr returns the bound address of the metrics listener, or "" without one.
func (a *App) MetricsAddr() string {
	if a.metricsListener == nil {
		return ""
	}
	return a.metricsListener.Addr().String()
}

// addresses returns the addresses of the process for the log.
func (a *App) addresses(ingest, admin string) []any {
	attrs := []any{"ingest", ingest, "admin", admin}
	if a.metricsListener != nil {
		attrs = append(attrs, "metrics", a.MetricsAddr())
	}
	return attrs
}
