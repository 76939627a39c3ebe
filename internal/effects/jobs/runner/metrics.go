package runner

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Metrics are the metrics of effects; nil counts nothing. The gauges come from the database and are
// the same in every processor, so take the max, not the sum.
type Metrics struct {
	attempts             *prometheus.CounterVec
	states, oldest, due  *prometheus.GaugeVec
	unknown, unknownFrom prometheus.Gauge
	// destinations are the series of due so far; only measure uses them.
	destinations []string
}

const (
	// measureEvery is the interval of the readings, measureTimeout bounds one of them.
	measureEvery   = 10 * time.Second
	measureTimeout = 5 * time.Second
	// maxCounted bounds the number of effects that are counted, maxUnknown the number of steps with
	// an unknown outcome.
	maxCounted = 100_000
	maxUnknown = 10_000

	sourceNote = " Every processor reads this value from the database every 10 s and reports the same; NaN while the " +
		"database does not respond."
)

// The results of attempts.
const resultReview = "needs_review"

var results = []string{string(effects.StepDone), string(effects.StepFailed), string(effects.Unknown),
	string(effects.Checking), string(effects.Skipped), resultReview}

// openStates are the states of effects that have not ended.
var openStates = []effects.State{effects.AwaitingApproval, effects.Planned, effects.Running, effects.Failed,
	effects.Review}

// NewMetrics registers the metrics of effects.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	gauges := func(name, label, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help + sourceNote}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help + sourceNote})
	}
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_effect_attempts_total",
			Help: "Attempts and checks of effect steps by result: done, failed or unknown (Postern retries both), " +
				"checking (a check before the first attempt did not find the step, so it is sent, or got no " +
				"conclusive response and is retried), skipped (the condition of the step was false, so nothing " +
				"was sent), or needs_review (an operator must act)."},
			[]string{"destination", "result"}),
		states: gauges("postern_effects", "state", fmt.Sprintf("Effects that have not ended, by state. Each state is "+
			"counted up to %d.", maxCounted)),
		oldest: gauges("postern_effects_oldest_seconds", "state", "Age of the oldest effect that awaits approval "+
			"(awaiting_approval) or needs an operator (needs_review); 0 if there is none."),
		due: gauges("postern_effects_due_seconds", "destination", "How long the oldest step to a destination has been "+
			"due; 0 if there is none. For an effect whose rule is not configured, the age of the effect counts."),
		unknown: gauge("postern_effect_steps_unknown",
			fmt.Sprintf("Effect steps with an unknown outcome, including steps that are being retried, counted up to "+
				"%d.", maxUnknown)),
		unknownFrom: gauge("postern_effect_steps_unknown_seconds", "Age of the oldest unknown outcome of an "+
			"effect step; 0 if there is none. It counts from the first attempt that may have executed the step."),
	}
	for _, c := range []prometheus.Collector{m.attempts, m.states, m.oldest, m.due, m.unknown, m.unknownFrom} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	m.setUnknown(nil)
	return m, nil
}

// register creates the series of destinations, so that a rate is right from the first attempt on.
func (m *Metrics) register(destinations []string) {
	if m == nil {
		return
	}
	for _, name := range destinations {
		for _, result := range results {
			m.attempts.WithLabelValues(name, result)
		}
	}
}

// countResults counts the results of attempts at a destination.
func (m *Metrics) countResults(destination string, all []result) {
	if m == nil {
		return
	}
	for i := range all {
		switch e := &all[i]; {
		case e.state == effects.Review:
			m.attempts.WithLabelValues(destination, resultReview).Inc()
		case e.notFoundBefore:
			m.attempts.WithLabelValues(destination, string(effects.Checking)).Inc()
		case e.step != "":
			m.attempts.WithLabelValues(destination, string(e.stepState)).Inc()
		}
	}
}

// countSkipped counts skipped steps, at the destinations that get no request.
func (m *Metrics) countSkipped(all []skippedStep) {
	if m == nil {
		return
	}
	for i := range all {
		m.attempts.WithLabelValues(all[i].step.Destination, string(effects.Skipped)).Inc()
	}
}

// setDestinations deletes the series of other destinations.
func (m *Metrics) setDestinations(destinations []string) {
	for _, name := range m.destinations {
		if !slices.Contains(destinations, name) {
			m.due.DeleteLabelValues(name)
		}
	}
	m.destinations = destinations
}

// setUnknown sets all gauges to NaN.
func (m *Metrics) setUnknown(destinations []string) {
	for _, state := range openStates {
		m.states.WithLabelValues(string(state)).Set(math.NaN())
	}
	for _, state := range []effects.State{effects.AwaitingApproval, effects.Review} {
		m.oldest.WithLabelValues(string(state)).Set(math.NaN())
	}
	for _, name := range destinations {
		m.due.WithLabelValues(name).Set(math.NaN())
	}
	m.unknown.Set(math.NaN())
	m.unknownFrom.Set(math.NaN())
}

const (
	// statesSQL reads only small partial indexes, each up to a bound.
	statesSQL = `
SELECT (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'awaiting_approval' LIMIT $1) w), (SELECT count(*)
	FROM (SELECT FROM effects WHERE state = 'planned' AND state IN ('planned', 'failed') LIMIT $1) p),
  (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'running' LIMIT $1) r), (SELECT count(*)
  	FROM (SELECT FROM effects WHERE state = 'failed' AND state IN ('awaiting_approval', 'failed', 'needs_review')
  		LIMIT $1) f),
  (SELECT count(*) FROM (SELECT FROM effects WHERE state = 'needs_review' LIMIT $1) v),
  coalesce((SELECT extract(epoch FROM clock_now() - planned_at) FROM effects WHERE state = 'awaiting_approval'
  	ORDER BY effect
  	LIMIT 1), 0)::float8,
  coalesce((SELECT extract(epoch FROM clock_now() - planned_at) FROM effects WHERE state = 'needs_review'
  	ORDER BY effect
  	LIMIT 1), 0)::float8`

	unknownSQL = `
SELECT count(*), coalesce(extract(epoch FROM clock_now() - min(u.at)), 0)::float8
FROM (SELECT coalesce(s.first_attempt_at, s.reserved_at) AS at FROM ` + effects.UnknownStepsSQL +
		` ORDER BY s.effect LIMIT $1) u`

	dueSQL = `
SELECT d.name, coalesce((SELECT extract(epoch FROM clock_now() - e.due) FROM effects e WHERE e.destination = d.name
	AND e.state IN ('planned', 'failed') ORDER BY e.due LIMIT 1), 0)::float8
FROM unnest($1::text[]) AS d(name)`

	// detachedAgeSQL reads the age of the oldest effects that wait for their rule, at configured
	// destinations.
	detachedAgeSQL = `SELECT s.destination, extract(epoch FROM clock_now() - min(s.since))::float8 FROM ` +
		DetachedSQL + ` s WHERE s.destination = ANY($1::text[]) GROUP BY s.destination`
)

// measure updates the gauges until ctx ends.
func (r *Runner) measure(ctx context.Context) {
	_ = lifecycle.Repeat(ctx, r.Settings.MetricsEvery, nil, func(err error) {
		r.Logger.Debug("effects not counted", "error", err)
	}, func(ctx context.Context) (bool, error) {
		names := r.destinationNames()
		r.Metrics.setDestinations(names)
		err := r.readMetrics(ctx, names)
		if err != nil {
			r.Metrics.setUnknown(names)
		}
		return false, err
	})
}

// destinationNames returns the destinations in use.
func (r *Runner) destinationNames() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.destinations {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (r *Runner) readMetrics(ctx context.Context, names []string) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "count effects", measureTimeout)
	defer cancel()
	m := r.Metrics
	var n [5]int64
	var waits, review, since float64
	var unknown int64
	if err := r.Pool.QueryRow(ctx, statesSQL, maxCounted).Scan(&n[0], &n[1], &n[2], &n[3], &n[4], &waits,
		&review); err != nil {
		return err
	}
	if err := r.Pool.QueryRow(ctx, unknownSQL, maxUnknown).Scan(&unknown, &since); err != nil {
		return err
	}
	due, err := r.readDue(ctx, names)
	if err != nil {
		return err
	}
	for name, age := range due {
		m.due.WithLabelValues(name).Set(age)
	}
	for i, state := range openStates {
		m.states.WithLabelValues(string(state)).Set(float64(n[i]))
	}
	m.oldest.WithLabelValues(string(effects.AwaitingApproval)).Set(max(waits, 0))
	m.oldest.WithLabelValues(string(effects.Review)).Set(max(review, 0))
	m.unknown.Set(float64(unknown))
	m.unknownFrom.Set(max(since, 0))
	return nil
}

// readDue returns for how many seconds a step has been due, or an effect has been detached, at each
// of the destinations.
func (r *Runner) readDue(ctx context.Context, names []string) (map[string]float64, error) {
	all := map[string]float64{}
	for _, sql := range []string{dueSQL, detachedAgeSQL} {
		var name string
		var age float64
		if err := postgres.ForEach(ctx, r.Pool, sql, []any{names}, []any{&name, &age}, func() error {
			all[name] = max(all[name], age)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}
