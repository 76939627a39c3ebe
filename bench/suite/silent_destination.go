package suite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/postgres"
)

// The targets of silentDestination: effects of one destination, alone and while effects of another
// one wait. The other destination accepts connections and never responds.
const (
	noneSilent = "alone"
	oneSilent  = "beside a silent one"
)

const (
	// plannedRate is how many effects are planned per second, each in its own transaction.
	// warmUpEffects is how many of them come before the measurement.
	plannedRate   = 100
	warmUpEffects = 2 * plannedRate
	// callWithin limits the time from planning an effect to its call.
	callWithin = time.Minute
)

// silentDestination measures the time from planning an effect to its call, alone and while waiting
// effects wait for a destination that never responds.
func (s *Suite) silentDestination(ctx context.Context, row string, rounds, waiting int,
	lasts time.Duration) (samples []Sample, err error) {
	err = s.ledgers(ctx, waiting, func(empty, full string) (err error) {
		databases, runs := map[string]string{noneSilent: empty, oneSilent: full}, int64(0)
		samples, err = s.inTurn(row, rounds, []string{noneSilent, oneSilent}, func(target string) (Sample, error) {
			runs++
			return s.runEffects(ctx, databases[target], int(lasts.Seconds()*plannedRate), runs*100_000_000)
		})
		return err
	})
	return samples, err
}

// runEffects measures one run over a ledger. Its events are numbered from first on.
func (s *Suite) runEffects(ctx context.Context, database string, count int, first int64) (sample Sample, err error) {
	live, err := newTestDestination(ctx)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, live.server.Close()) }()
	silent, end, err := newSilentDestination(ctx)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, end()) }()
	cfg, rules, err := rulesOf(effectRules("postgres://x/y", "nats://x", live.url, silent))
	if err != nil {
		return sample, err
	}
	running, err := s.processorPool(ctx, database)
	if err != nil {
		return sample, err
	}
	defer running.Close()
	planning, err := s.processorPool(ctx, database)
	if err != nil {
		return sample, err
	}
	defer planning.Close()
	r := runner.New(runner.Options{Pool: running, ID: fmt.Sprint(first), Settings: runner.DefaultSettings,
		Logger: slog.New(slog.DiscardHandler)})
	r.Replace(rules, cfg.ResolveDestinations())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); err = errors.Join(err, <-done) }()
	var notifications []effects.PlannedEffect
	for n := range count + warmUpEffects {
		id := first + int64(n)
		all := rules.Evaluate(&effects.Transition{Source: "shop", Number: 1, Type: "customer",
			ID: fmt.Sprint("cus_", id), New: fmt.Appendf(nil, `{"id": "cus_%d", "balance": %d}`, id, id),
			Event: effects.Event{ID: id}})
		for _, in := range all {
			if in.Rule.Name == "tell" {
				notifications = append(notifications, in)
			}
		}
	}
	due, err := planAtRate(ctx, planning, r, notifications)
	if err != nil {
		return sample, err
	}
	return live.latencies(ctx, due[warmUpEffects:], first+warmUpEffects)
}

// planAtRate plans effects one after the other, each at its time, and returns these times.
func planAtRate(ctx context.Context, pool *pgxpool.Pool, r *runner.Runner,
	all []effects.PlannedEffect) (due []time.Time, err error) {
	began := time.Now()
	for n := range all {
		at := began.Add(time.Duration(n) * time.Second / plannedRate)
		time.Sleep(time.Until(at))
		err := postgres.InTx(ctx, pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
			planned, err := effects.Plan(ctx, tx, 0, all[n:n+1])
			if err == nil && planned.New != 1 {
				err = errors.New("an effect was planned already")
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		r.Wake([]string{"live"})
		due = append(due, at)
	}
	return due, nil
}

// latencies measures the times from when effects were due to when their calls arrived.
func (d *testDestination) latencies(ctx context.Context, due []time.Time, first int64) (sample Sample, err error) {
	var ms []float64
	for n, at := range due {
		path := fmt.Sprint("/", first+int64(n))
		for {
			d.mu.Lock()
			received, ok := d.receivedAt[path]
			d.mu.Unlock()
			if ok {
				ms = append(ms, float64(received.Sub(at).Microseconds())/1000)
				break
			}
			if time.Since(at) > callWithin {
				return sample, fmt.Errorf("an effect was not executed within %s", callWithin)
			}
			if ctx.Err() != nil {
				return sample, ctx.Err()
			}
			time.Sleep(time.Millisecond)
		}
	}
	sample = rated(int64(len(ms)), time.Since(due[0]).Seconds())
	sample.Offered = plannedRate
	sample.quantiles(ms)
	return sample, nil
}
