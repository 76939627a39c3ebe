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

// addTraces starts the export of traces where the environment names a collector. It is stopped last, with what the stop of the others
// still made.
func (a *App) addTraces(ctx context.Context) {
	service := "postern"
	switch {
	case !a.Gateway:
		service = "postern-processor"
	case !a.Processor:
		service = "postern-gateway"
	}
	version, _ := telemetry.Version()
	stop := telemetry.StartTraces(ctx, telemetry.TraceOptions{Service: service, Version: version, Logger: a.Logger.With("component", "traces")})
	a.stack.Defer("traces", stop)
}

// warn tells what of the configuration is likely not meant, and shows among the metrics whether a promise was given up.
func (a *App) warn() error {
	if a.Gateway {
		for _, warning := range a.Config.Warnings() {
			a.Logger.Warn(warning)
		}
	}
	return a.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_unsafe_settings",
		Help: "Settings that are on and give up a promise, those named unsafe, and in a gateway those of the PostgreSQL server that are off by which a commit outlives its machine. A gateway's log names them at the start."},
		func() float64 { return float64(len(a.Config.Unsafe()) + len(*a.lax.Load())) }))
}

// tellLax says of a gateway's database what it does not do to keep what is acknowledged, once for as long as that is so. It is asked at the start of each session, so that another server
// is seen too.
func (a *App) tellLax(off []string) {
	if !a.Gateway { // which acknowledges nothing
		return
	}
	if before := a.lax.Swap(&off); slices.Equal(*before, off) {
		return
	}
	for _, name := range off {
		a.Logger.Warn("postgresql runs with " + name + " off: what was acknowledged may be lost with its machine. Run there: ALTER SYSTEM RESET " + name + "; SELECT pg_reload_conf()")
	}
}

// watchPool shows a pool among the metrics.
func (a *App) watchPool(role string, pool *pgxpool.Pool) error {
	return a.metrics.RegisterPool(strings.TrimPrefix(role, "postern_"), pool.Stat)
}

// watchStream shows a connection to JetStream among the metrics.
func (a *App) watchStream(name string, conn *stream.Conn) error {
	labels := prometheus.Labels{"connection": name}
	connected := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "postern_stream_connected", ConstLabels: labels,
		Help: "1 while the connection to JetStream stands, else 0."}, func() float64 {
		if conn.Connected() {
			return 1
		}
		return 0
	})
	reconnects := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "postern_stream_reconnects_total", ConstLabels: labels,
		Help: "Times that the connection to JetStream was lost and made again."}, func() float64 { return float64(conn.Connects()) })
	if err := a.metrics.Register(connected); err != nil {
		return err
	}
	return a.metrics.Register(reconnects)
}

// maxScrapers bounds the connections to the listener for scrapers.
const maxScrapers = 32

// addScrape wires the listener for a scraper elsewhere: metrics and health, and nothing that could be asked or changed.
func (a *App) addScrape(ctx context.Context) (err error) {
	if a.Config.Admin.MetricsListen == "" {
		return nil
	}
	if a.scrape, err = a.listen(ctx, "metrics", a.Config.Admin.MetricsListen); err != nil {
		return err
	}
	handler := admin.NewScrape(admin.Options{Ready: a.Ready, Metrics: a.metrics.Handler(), Logger: a.Logger})
	a.serve("metrics", netutil.LimitListener(a.scrape, maxScrapers), &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: adminTimeout, WriteTimeout: adminTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes}, "", "")
	return nil
}

// MetricsAddr is the bound address of the listener for scrapers; "" where there is none.
func (a *App) MetricsAddr() string {
	if a.scrape == nil {
		return ""
	}
	return a.scrape.Addr().String()
}

// addresses are where the process can be reached, for the log.
func (a *App) addresses(ingest, admin string) []any {
	at := []any{"ingest", ingest, "admin", admin}
	if a.scrape != nil {
		at = append(at, "metrics", a.MetricsAddr())
	}
	return at
}
