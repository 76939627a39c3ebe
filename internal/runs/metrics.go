package runs

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Metrics are the metrics of runs and schedules.
type Metrics struct {
	endedRuns       *prometheus.CounterVec
	deferredRuns    *prometheus.CounterVec
	openRuns        *prometheus.GaugeVec
	queueAge        prometheus.Gauge
	scheduleMetrics scheduleCollector
	// openLabels are the label values of openRuns so far; only Watch uses them.
	openLabels map[[2]string]bool
}

const helpSource = " Every processor reads this value from the database every 10 s and reports the same"

// NewMetrics registers the metrics of the runs of some jobs.
func NewMetrics(reg prometheus.Registerer, jobs []string) (*Metrics, error) {
	m := &Metrics{openLabels: map[[2]string]bool{},
		endedRuns: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_runs_total",
			Help: "Ended runs by status: done, failed or cancelled. The processor that publishes the end of a run " +
				"counts it."}, []string{"job", "status"}),
		deferredRuns: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_runs_deferred_total",
			Help: "How often a run was deferred after a temporary error. postern runs show prints the " +
				"error."}, []string{"job"}),
		openRuns: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_runs_open",
			Help: "Runs that have not ended." + helpSource + "; NaN while the database does not respond."},
			[]string{"job", "status"}),
		queueAge: prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_runs_waiting_seconds",
			Help: "Age of the oldest queued run; 0 if none is queued." + helpSource +
				"; NaN while the database does not respond."}),
	}
	for _, job := range jobs {
		m.deferredRuns.WithLabelValues(job)
		for _, status := range []Status{Done, Failed, Cancelled} {
			m.endedRuns.WithLabelValues(job, string(status))
		}
		for _, status := range []Status{Queued, Running, Paused} {
			m.setOpenRuns([2]string{job, string(status)}, 0)
		}
	}
	for _, c := range []prometheus.Collector{m.endedRuns, m.deferredRuns, m.openRuns, m.queueAge, &m.scheduleMetrics} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) countEnded(r *Run) { m.endedRuns.WithLabelValues(r.Job, string(r.Status)).Inc() }

func (m *Metrics) countDeferred(job string) { m.deferredRuns.WithLabelValues(job).Inc() }

const (
	openCountsSQL = `SELECT job, status, count(*), coalesce(extract(epoch FROM clock_now() - min(created_at)),
		0)::float8
		FROM runs WHERE ended_at IS NULL GROUP BY job, status`

	scheduleSamplesSQL = `
SELECT name, skipped, coalesce(extract(epoch FROM succeeded_at), 0)::float8 FROM schedules
	WHERE configured_at > clock_now() - $1::interval ORDER BY name`
)

// metricsTimeout limits one read.
const metricsTimeout = 5 * time.Second

// Watch reads the metrics from the tables at an interval until ctx ends.
func (m *Metrics) Watch(ctx context.Context, pool *pgxpool.Pool, every time.Duration, log *slog.Logger) error {
	return lifecycle.Repeat(ctx, every, nil, func(err error) {
		log.Debug("cannot read the metrics of runs", "error", err)
	}, func(ctx context.Context) (bool, error) { return false, m.Read(ctx, pool) })
}

// Read reads the metrics once.
func (m *Metrics) Read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "read the metrics of runs", metricsTimeout)
	defer cancel()
	err := m.readOpenRuns(ctx, pool)
	if err == nil {
		err = m.readSchedules(ctx, pool)
	}
	if err != nil {
		m.queueAge.Set(math.NaN())
		for labels := range m.openLabels {
			m.setOpenRuns(labels, math.NaN())
		}
		m.scheduleMetrics.invalidate()
	}
	return err
}

func (m *Metrics) readSchedules(ctx context.Context, pool *pgxpool.Pool) error {
	samples, err := postgres.Collect(ctx, pool, pgx.RowToStructByPos[scheduleSample], scheduleSamplesSQL,
		confirmedWithin)
	if err == nil {
		m.scheduleMetrics.set(samples)
	}
	return err
}

func (m *Metrics) readOpenRuns(ctx context.Context, pool *pgxpool.Pool) error {
	var job, status string
	var n int64
	var oldest, queueAge float64
	found := map[[2]string]float64{}
	err := postgres.ForEach(ctx, pool, openCountsSQL, nil, []any{&job, &status, &n, &oldest}, func() error {
		found[[2]string{job, status}] = float64(n)
		if Status(status) == Queued {
			queueAge = max(queueAge, oldest)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for labels := range m.openLabels {
		m.setOpenRuns(labels, 0)
	}
	for labels, n := range found {
		m.setOpenRuns(labels, n)
	}
	m.queueAge.Set(queueAge)
	return nil
}

func (m *Metrics) setOpenRuns(labels [2]string, n float64) {
	m.openLabels[labels] = true
	m.openRuns.WithLabelValues(labels[0], labels[1]).Set(n)
}

// scheduleSample are the measured values of one schedule.
type scheduleSample struct {
	Name      string
	Skipped   int64
	Succeeded float64
}

// scheduleCollector exports the values of all schedules as last read.
type scheduleCollector struct {
	mu      sync.Mutex
	samples []scheduleSample
}

var (
	skippedDesc = prometheus.NewDesc("postern_schedule_skipped_total", "Planned times at which no run started, "+
		"because one was still open or no processor was running in time."+helpSource+".", []string{"schedule"}, nil)
	succeededDesc = prometheus.NewDesc("postern_schedule_last_success_timestamp_seconds",
		"Unix time when the last successful run of the schedule ended; 0 if never."+helpSource+
			"; NaN while the database does not respond.", []string{"schedule"}, nil)
)

func (n *scheduleCollector) set(samples []scheduleSample) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.samples = samples
}

// invalidate keeps the counters. A scraper then sees the increase with the next successful read.
func (n *scheduleCollector) invalidate() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.samples {
		n.samples[i].Succeeded = math.NaN()
	}
}

// Describe implements prometheus.Collector.
func (n *scheduleCollector) Describe(out chan<- *prometheus.Desc) {
	out <- skippedDesc
	out <- succeededDesc
}

// Collect implements prometheus.Collector.
func (n *scheduleCollector) Collect(out chan<- prometheus.Metric) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.samples {
		out <- prometheus.MustNewConstMetric(skippedDesc, prometheus.CounterValue, float64(s.Skipped), s.Name)
		out <- prometheus.MustNewConstMetric(succeededDesc, prometheus.GaugeValue, s.Succeeded, s.Name)
	}
}
