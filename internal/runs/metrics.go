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
)

// Metrics are what is counted of runs and schedules.
type Metrics struct {
	endedRuns *prometheus.CounterVec
	offRuns   *prometheus.CounterVec
	open      *prometheus.GaugeVec
	waiting   prometheus.Gauge
	schedules numbers
	// known are the labels of open so far; Watch owns it.
	known map[[2]string]bool
}

const asTold = " As the database says every 10 s, the same in every processor"

// NewMetrics registers the metrics of runs of some jobs.
func NewMetrics(reg prometheus.Registerer, jobs []string) (*Metrics, error) {
	m := &Metrics{known: map[[2]string]bool{},
		endedRuns: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_runs_total",
			Help: "Runs that have ended, done, failed or cancelled, each counted once by the processor that told of it."}, []string{"job", "status"}),
		offRuns: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_runs_put_off_total",
			Help: "Times that a run met trouble of our own and was left for a later try; postern runs show says what it was."}, []string{"job"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_runs_open", Help: "Runs that have not ended." + asTold + "; NaN while it does not answer."},
			[]string{"job", "status"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_runs_waiting_seconds",
			Help: "How long the oldest run that waits has been there; 0 where none does." + asTold + "; NaN while it does not answer."}),
	}
	for _, job := range jobs {
		m.offRuns.WithLabelValues(job)
		for _, status := range []Status{Done, Failed, Cancelled} {
			m.endedRuns.WithLabelValues(job, string(status))
		}
		for _, status := range []Status{Waiting, Running, Paused} {
			m.setOpen([2]string{job, string(status)}, 0)
		}
	}
	for _, c := range []prometheus.Collector{m.endedRuns, m.offRuns, m.open, m.waiting, &m.schedules} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) ended(r *Run) { m.endedRuns.WithLabelValues(r.Job, string(r.Status)).Inc() }

func (m *Metrics) putOff(job string) { m.offRuns.WithLabelValues(job).Inc() }

const (
	openCountsSQL = `SELECT job, status, count(*), coalesce(extract(epoch FROM clock_now() - min(made_at)), 0)::float8 FROM runs WHERE ended_at IS NULL GROUP BY job, status`

	scheduleNumbersSQL = `
SELECT name, skipped, coalesce(extract(epoch FROM succeeded_at), 0)::float8 FROM schedules WHERE seen_at > clock_now() - $1::interval ORDER BY name`
)

// watchWithin bounds one reading.
const watchWithin = 5 * time.Second

// Watch reads what the tables say of runs and schedules now and then, until ctx ends.
func (m *Metrics) Watch(ctx context.Context, pool *pgxpool.Pool, every time.Duration, log *slog.Logger) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := m.Read(ctx, pool); err != nil {
			log.Debug("what there is of runs is not known", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Read reads it once.
func (m *Metrics) Read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "read what there is of runs", watchWithin)
	defer cancel()
	err := m.readOpen(ctx, pool)
	if err == nil {
		err = m.readSchedules(ctx, pool)
	}
	if err != nil {
		m.waiting.Set(math.NaN())
		for labels := range m.known {
			m.setOpen(labels, math.NaN())
		}
		m.schedules.forget()
	}
	return err
}

func (m *Metrics) readSchedules(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, scheduleNumbersSQL, plannedWithin)
	if err != nil {
		return err
	}
	read, err := pgx.CollectRows(rows, pgx.RowToStructByPos[scheduleNumbers])
	if err == nil {
		m.schedules.set(read)
	}
	return err
}

func (m *Metrics) readOpen(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, openCountsSQL)
	if err != nil {
		return err
	}
	var job, status string
	var n int64
	var oldest, waiting float64
	found := map[[2]string]float64{}
	_, err = pgx.ForEachRow(rows, []any{&job, &status, &n, &oldest}, func() error {
		found[[2]string{job, status}] = float64(n)
		if Status(status) == Waiting {
			waiting = max(waiting, oldest)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for labels := range m.known {
		m.setOpen(labels, 0)
	}
	for labels, n := range found {
		m.setOpen(labels, n)
	}
	m.waiting.Set(waiting)
	return nil
}

func (m *Metrics) setOpen(labels [2]string, n float64) {
	m.known[labels] = true
	m.open.WithLabelValues(labels[0], labels[1]).Set(n)
}

// scheduleNumbers are what is measured of a schedule.
type scheduleNumbers struct {
	Name      string
	Skipped   int64
	Succeeded float64
}

// numbers are those of all schedules, as they were last read.
type numbers struct {
	mu   sync.Mutex
	read []scheduleNumbers
}

var (
	skippedDesc = prometheus.NewDesc("postern_schedule_skipped_total",
		"Planned times that no run was entered for, since one was still open or nobody was there in time."+asTold+".", []string{"schedule"}, nil)
	succeededDesc = prometheus.NewDesc("postern_schedule_last_success_timestamp_seconds",
		"When the last run of the schedule that succeeded was done, Unix time; 0 if never."+asTold+"; NaN while it does not answer.", []string{"schedule"}, nil)
)

func (n *numbers) set(read []scheduleNumbers) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.read = read
}

// forget leaves of each what only grows: an increase that comes with the next reading is seen then.
func (n *numbers) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.read {
		n.read[i].Succeeded = math.NaN()
	}
}

// Describe is prometheus.Collector's.
func (n *numbers) Describe(out chan<- *prometheus.Desc) { out <- skippedDesc; out <- succeededDesc }

// Collect is prometheus.Collector's.
func (n *numbers) Collect(out chan<- prometheus.Metric) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.read {
		out <- prometheus.MustNewConstMetric(skippedDesc, prometheus.CounterValue, float64(s.Skipped), s.Name)
		out <- prometheus.MustNewConstMetric(succeededDesc, prometheus.GaugeValue, s.Succeeded, s.Name)
	}
}
