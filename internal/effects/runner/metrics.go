package runner

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/lifecycle"
)

// Metrics are what is counted of effects; nil counts nothing. What the database says every processor tells the same, so take the max, not the sum.
type Metrics struct {
	attempts             *prometheus.CounterVec
	states, oldest, due  *prometheus.GaugeVec
	unknown, unknownFrom prometheus.Gauge
	// told are the destinations of due so far; measure owns it.
	told []string
}

const (
	// measureEvery spaces the readings, measureWithin bounds one.
	measureEvery  = 10 * time.Second
	measureWithin = 5 * time.Second
	// countMost bounds what is counted: beyond it the number tells nobody more. doubtsMost bounds the steps in doubt that are.
	countMost  = 100_000
	doubtsMost = 10_000

	asTold = " As the database says every 10 s, the same in every processor; NaN while it does not answer."
)

// The results of attempts.
const resultReview = "review"

var results = []string{string(effects.StepDone), string(effects.StepFailed), string(effects.Unknown), resultReview}

// counted are the states of effects that are not over.
var counted = []effects.State{effects.Waiting, effects.Planned, effects.Running, effects.Failed, effects.Review}

// NewMetrics registers the metrics of effects.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	gauges := func(name, label, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help + asTold}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help + asTold})
	}
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_effect_attempts_total",
			Help: "Attempts of steps of effects, and questions whether one was done, by what came of them: done, failed or unknown (both tried again), or review (a person must see to it)."}, []string{"destination", "result"}),
		states:      gauges("postern_effects", "state", fmt.Sprintf("Effects that are not over, each state counted up to %d.", countMost)),
		oldest:      gauges("postern_effects_oldest_seconds", "state", "How long ago the oldest effect was planned that waits for an approval (waiting), or that a person must see to (review); 0 where there is none."),
		due:         gauges("postern_effects_due_seconds", "destination", "For how long the oldest effect has been due whose next step goes to a destination, or has been there and waits for its rule, which is not configured; 0 where there is none."),
		unknown:     gauge("postern_effect_steps_unknown", fmt.Sprintf("Steps of which nobody knows whether they were done, also while one is tried again, counted up to %d.", doubtsMost)),
		unknownFrom: gauge("postern_effect_steps_unknown_seconds", "For how long nobody has known of the oldest of these steps whether it was done, since the first attempt that may have done it; 0 where there is none."),
	}
	for _, c := range []prometheus.Collector{m.attempts, m.states, m.oldest, m.due, m.unknown, m.unknownFrom} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	m.lost(nil)
	return m, nil
}

// know makes the series of destinations, so that a rate can be told from the first attempt on.
func (m *Metrics) know(destinations []string) {
	if m == nil {
		return
	}
	for _, name := range destinations {
		for _, result := range results {
			m.attempts.WithLabelValues(name, result)
		}
	}
}

// ended counts what came of attempts at a destination.
func (m *Metrics) ended(destination string, all []ending) {
	if m == nil {
		return
	}
	for i := range all {
		switch e := &all[i]; {
		case e.state == effects.Review:
			m.attempts.WithLabelValues(destination, resultReview).Inc()
		case e.step != "":
			m.attempts.WithLabelValues(destination, string(e.stepIs)).Inc()
		}
	}
}

// tell takes the series of other destinations away.
func (m *Metrics) tell(destinations []string) {
	for _, name := range m.told {
		if !slices.Contains(destinations, name) {
			m.due.DeleteLabelValues(name)
		}
	}
	m.told = destinations
}

// lost says that nothing is known.
func (m *Metrics) lost(destinations []string) {
	for _, state := range counted {
		m.states.WithLabelValues(string(state)).Set(math.NaN())
	}
	for _, state := range []effects.State{effects.Waiting, effects.Review} {
		m.oldest.WithLabelValues(string(state)).Set(math.NaN())
	}
	for _, name := range destinations {
		m.due.WithLabelValues(name).Set(math.NaN())
	}
	m.unknown.Set(math.NaN())
	m.unknownFrom.Set(math.NaN())
}

// Doubts are steps s of which nobody knows whether they were done, also while one is done again or asked about, of effects that are not over. They are read by a small index, and each effect is looked up, whatever the planner
// thinks of the size of the tables.
const Doubts = `effect_steps s
CROSS JOIN LATERAL (SELECT FROM effects e WHERE e.effect = s.effect AND e.state NOT IN ('done', 'rejected', 'expired', 'superseded') OFFSET 0) e
WHERE (s.state = 'unknown' OR s.state = 'reserved' AND s.known_since < s.reserved_at)`

const (
	// statesSQL reads small partial indexes only, each up to a bound.
	statesSQL = `
SELECT (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'waiting' LIMIT $1) w), (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'planned' AND state IN ('planned', 'failed') LIMIT $1) p),
  (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'running' LIMIT $1) r), (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'failed' AND state IN ('waiting', 'failed', 'review') LIMIT $1) f),
  (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'review' LIMIT $1) v),
  coalesce((SELECT extract(epoch FROM clock_now() - planned_at) FROM effects WHERE state = 'waiting' ORDER BY effect LIMIT 1), 0)::float8,
  coalesce((SELECT extract(epoch FROM clock_now() - planned_at) FROM effects WHERE state = 'review' ORDER BY effect LIMIT 1), 0)::float8`

	unknownSQL = `
SELECT count(*), coalesce(extract(epoch FROM clock_now() - min(u.at)), 0)::float8
FROM (SELECT coalesce(s.known_since, s.reserved_at) AS at FROM ` + Doubts + ` ORDER BY s.effect LIMIT $1) u`

	dueSQL = `
SELECT d.name, coalesce((SELECT extract(epoch FROM clock_now() - e.due) FROM effects e WHERE e.destination = d.name AND e.state IN ('planned', 'failed') ORDER BY e.due LIMIT 1), 0)::float8
FROM unnest($1::text[]) AS d(name)`

	// strayedSQL tells since when the oldest effects are there that wait for their rule, at destinations that are configured.
	strayedSQL = `SELECT s.destination, extract(epoch FROM clock_now() - min(s.since))::float8 FROM ` + Strays + ` s WHERE s.destination = ANY($1::text[]) GROUP BY s.destination`
)

// measure reads how much there is until ctx ends.
func (r *Runner) measure(ctx context.Context) {
	tick := time.NewTicker(r.Settings.MeasureEvery)
	defer tick.Stop()
	for {
		names := r.names()
		r.Metrics.tell(names)
		if err := r.read(ctx, names); err != nil {
			r.Metrics.lost(names)
			r.Logger.Debug("how many effects there are is not known", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// names are the destinations in use.
func (r *Runner) names() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.destinations {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (r *Runner) read(ctx context.Context, names []string) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "count effects", measureWithin)
	defer cancel()
	m := r.Metrics
	var n [5]int64
	var waits, review, since float64
	var unknown int64
	if err := r.Pool.QueryRow(ctx, statesSQL, countMost).Scan(&n[0], &n[1], &n[2], &n[3], &n[4], &waits, &review); err != nil {
		return err
	}
	if err := r.Pool.QueryRow(ctx, unknownSQL, doubtsMost).Scan(&unknown, &since); err != nil {
		return err
	}
	due, err := r.dues(ctx, names)
	if err != nil {
		return err
	}
	for name, age := range due {
		m.due.WithLabelValues(name).Set(age)
	}
	for i, state := range counted {
		m.states.WithLabelValues(string(state)).Set(float64(n[i]))
	}
	m.oldest.WithLabelValues(string(effects.Waiting)).Set(max(waits, 0))
	m.oldest.WithLabelValues(string(effects.Review)).Set(max(review, 0))
	m.unknown.Set(float64(unknown))
	m.unknownFrom.Set(max(since, 0))
	return nil
}

// dues says for how long, in seconds, something has been to be done at each of some destinations.
func (r *Runner) dues(ctx context.Context, names []string) (map[string]float64, error) {
	all := map[string]float64{}
	for _, sql := range []string{dueSQL, strayedSQL} {
		rows, err := r.Pool.Query(ctx, sql, names)
		if err != nil {
			return nil, err
		}
		var name string
		var age float64
		if _, err := pgx.ForEachRow(rows, []any{&name, &age}, func() error {
			all[name] = max(all[name], age)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}
