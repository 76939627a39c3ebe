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
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/postgres"
)

// The targets of BesideDead: effects of one destination, alone and while those of another one wait
// that does not answer.
const (
	NoneDead   = "alone"
	BesideDead = "beside a dead one"
)

const (
	// toldRate is how many effects a second are planned, each in a transaction of its own; toldWarm
	// how many of them are not counted.
	toldRate = 100
	toldWarm = 2 * toldRate
	// toldWithin bounds how long one may take.
	toldWithin = time.Minute
)

// DeadBeside measures how long it takes from planning an effect to its call, alone and while so
// many effects wait for a destination that takes calls and does not answer.
func (s *Suite) DeadBeside(ctx context.Context, row string, rounds, waiting int, lasts time.Duration) (samples []Sample,
	err error) {
	databases := map[string]string{}
	for target, n := range map[string]int{NoneDead: 0, BesideDead: waiting} {
		database, err := s.ledger(ctx, "price", "dead", n)
		if database != "" {
			defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), database)) }()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row, err)
		}
		databases[target] = database
	}
	for round := range rounds {
		for i := range 2 {
			target := []string{NoneDead, BesideDead}[(i+round)%2]
			sample, err := s.beside1(ctx, databases[target], int(lasts.Seconds()*toldRate), int64(round+1)*100_000_000)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, target, err)
			}
			sample.Row, sample.Target, sample.Round = row, target, round
			samples = append(samples, sample)
			s.log.Info(row, "target", target, "round", round+1, "of", rounds, "p50", sample.P50, "p99", sample.P99,
				"more", sample.More)
		}
	}
	return samples, nil
}

// beside1 is one run over a ledger, whose events are numbered from first on.
func (s *Suite) beside1(ctx context.Context, database string, count int, first int64) (sample Sample, err error) {
	to, err := newOther(ctx)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, to.server.Close()) }()
	dead, end, err := silent(ctx)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, end()) }()
	cfg, rules, err := rulesOf(effectRules("postgres://x/y", "nats://x", to.url, dead))
	if err != nil {
		return sample, err
	}
	of, err := s.processorPool(ctx, database)
	if err != nil {
		return sample, err
	}
	defer of.Close()
	planning, err := s.processorPool(ctx, database)
	if err != nil {
		return sample, err
	}
	defer planning.Close()
	r := runner.New(runner.Options{Pool: of, ID: fmt.Sprint(first), Settings: runner.DefaultSettings,
		Logger: slog.New(slog.DiscardHandler)})
	r.Replace(rules, cfg.ResolveDestinations())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); err = errors.Join(err, <-done) }()
	var tell []effects.PlannedEffect
	for n := range count + toldWarm {
		id := first + int64(n)
		all := rules.Evaluate(&effects.Transition{Source: "shop", Number: 1, Type: "customer",
			ID: fmt.Sprint("cus_", id), New: fmt.Appendf(nil, `{"id": "cus_%d", "balance": %d}`, id, id),
			Event: effects.Event{ID: id}})
		for _, in := range all {
			if in.Rule.Name == "tell" {
				tell = append(tell, in)
			}
		}
	}
	meant, err := planAtRate(ctx, planning, r, tell)
	if err != nil {
		return sample, err
	}
	return to.latencies(ctx, meant[toldWarm:], first+toldWarm)
}

// planAtRate plans effects, one after the other, when they fall due, and says when that was.
func planAtRate(ctx context.Context, pool *pgxpool.Pool, r *runner.Runner,
	all []effects.PlannedEffect) (meant []time.Time,
	err error) {
	began := time.Now()
	for n := range all {
		at := began.Add(time.Duration(n) * time.Second / toldRate)
		time.Sleep(time.Until(at))
		err := postgres.InTx(ctx, pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
			planned, err := effects.Plan(ctx, tx, 0, all[n:n+1])
			if err == nil && planned.New != 1 {
				err = errors.New("an effect was there")
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		r.Wake([]string{"live"})
		meant = append(meant, at)
	}
	return meant, nil
}

// latencies are from when effects fell due to when their calls came.
func (o *other) latencies(ctx context.Context, meant []time.Time, first int64) (sample Sample, err error) {
	var ms []float64
	for n, at := range meant {
		path := fmt.Sprint("/", first+int64(n))
		for {
			o.mu.Lock()
			came, ok := o.came[path]
			o.mu.Unlock()
			if ok {
				ms = append(ms, float64(came.Sub(at).Microseconds())/1000)
				break
			}
			if time.Since(at) > toldWithin {
				return sample, fmt.Errorf("an effect was not carried out within %s", toldWithin)
			}
			if ctx.Err() != nil {
				return sample, ctx.Err()
			}
			time.Sleep(time.Millisecond)
		}
	}
	sample = Sample{Events: int64(len(ms)), Offered: toldRate, Seconds: time.Since(meant[0]).Seconds()}
	sample.Rate = float64(sample.Events) / sample.Seconds
	sample.quantiles(ms)
	return sample, nil
}
