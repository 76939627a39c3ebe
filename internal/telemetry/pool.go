package telemetry

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// pool collects the state of a PostgreSQL connection pool at each scrape.
type pool struct {
	stat   func() *pgxpool.Stat
	open   *prometheus.Desc
	max    *prometheus.Desc
	waits  *prometheus.Desc
	waited *prometheus.Desc
	opened *prometheus.Desc
}

// RegisterPool registers the metrics of a connection pool. role is the role of its connections.
func (m *Metrics) RegisterPool(role string, stat func() *pgxpool.Stat) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"role": role})
	}
	return m.Register(&pool{stat: stat,
		open: desc("postern_database_connections", "Connections to PostgreSQL by role and state: in_use, "+
			"idle, or opening.", "state"),
		max:    desc("postern_database_connections_limit", "Maximum number of connections of the pool."),
		waits:  desc("postern_database_waits_total", "Number of waits for a free connection."),
		waited: desc("postern_database_wait_seconds_total", "Time spent waiting for a free connection."),
		opened: desc("postern_database_connects_total", "Connections opened since the start."),
	})
}

// Describe implements prometheus.Collector.
func (p *pool) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.open, p.max, p.waits, p.waited, p.opened} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *pool) Collect(ch chan<- prometheus.Metric) {
	s := p.stat()
	gauge := func(d *prometheus.Desc, v int32, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	gauge(p.open, s.AcquiredConns(), "in_use")
	gauge(p.open, s.IdleConns(), "idle")
	gauge(p.open, s.ConstructingConns(), "opening")
	gauge(p.max, s.MaxConns())
	ch <- prometheus.MustNewConstMetric(p.waits, prometheus.CounterValue, float64(s.EmptyAcquireCount()))
	ch <- prometheus.MustNewConstMetric(p.waited, prometheus.CounterValue, s.EmptyAcquireWaitTime().Seconds())
	ch <- prometheus.MustNewConstMetric(p.opened, prometheus.CounterValue, float64(s.NewConnsCount()))
}
