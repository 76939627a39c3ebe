package suite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// The targets of planning: an empty ledger, and one with many planned effects.
const (
	emptyLedger = "empty"
	fullLedger  = "planned"
)

const (
	// planBatch is how many changes one transaction plans effects of, two of each. planBatches is
	// how many such transactions a round has in each ledger. planWarm is how many more come before
	// each round.
	planBatch   = 100
	planBatches = 100
	planWarm    = 30
)

// planner plans effects in one ledger.
type planner struct {
	database string
	pool     *pgxpool.Pool
	rules    *effects.Rules
	events   int64
}

// ledgers creates two databases: one without effects, and one with planned effects to a destination
// to which nothing is sent. It passes their names to do.
func (s *Suite) ledgers(ctx context.Context, planned int, do func(empty, full string) error) (err error) {
	empty, err := s.ledger(ctx, "price", "dead", 0)
	defer s.drop(ctx, empty, &err)
	if err != nil {
		return err
	}
	full, err := s.ledger(ctx, "price", "dead", planned)
	defer s.drop(ctx, full, &err)
	if err != nil {
		return err
	}
	return do(empty, full)
}

// planning measures how long planning takes within a transaction. It uses an empty ledger and one
// with planned effects, in turn.
func (s *Suite) planning(ctx context.Context, row string, rounds, planned int) (samples []Sample, err error) {
	_, rules, err := rulesOf(effectRules("postgres://x/y", "nats://x", "http://127.0.0.1:1", "http://127.0.0.1:1"))
	if err != nil {
		return nil, err
	}
	return samples, s.ledgers(ctx, planned, func(empty, full string) error {
		planners := map[string]*planner{emptyLedger: {database: empty, rules: rules, events: 10_000_000},
			fullLedger: {database: full, rules: rules, events: 10_000_000}}
		if err := s.m.Reset(ctx); err != nil {
			return err
		}
		for round := range rounds {
			found, err := s.planRound(ctx, planners, round)
			if err != nil {
				return fmt.Errorf("%s: %w", row, err)
			}
			for _, sample := range found {
				samples = append(samples, s.record(sample, row, round, rounds))
			}
		}
		return nil
	})
}

// planRound measures one round of planning in each ledger, in turn.
func (s *Suite) planRound(ctx context.Context, ledgers map[string]*planner, round int) (samples []Sample, err error) {
	targets := []string{emptyLedger, fullLedger}
	took, scans := map[string][]float64{}, map[string]float64{}
	for _, target := range targets {
		p := ledgers[target]
		if scans[target], err = s.scans(ctx, p.database); err != nil {
			return nil, err
		}
		if p.pool, err = s.processorPool(ctx, p.database); err != nil {
			return nil, err
		}
		defer p.pool.Close()
	}
	for n := -planWarm; n < planBatches; n++ {
		for i := range targets {
			target := targets[(i+n+planWarm+round)%len(targets)]
			ms, err := ledgers[target].plan(ctx)
			if err != nil {
				return nil, err
			}
			if n >= 0 {
				took[target] = append(took[target], ms)
			}
		}
	}
	for _, target := range targets {
		p := ledgers[target]
		p.pool.Close() // a session reports its counters at its end
		after, err := s.scans(ctx, p.database)
		if err != nil {
			return nil, err
		}
		seconds := 0.0
		for _, ms := range took[target] {
			seconds += ms / 1000
		}
		sample := rated(planBatches*planBatch*2, seconds)
		sample.Target = target
		sample.quantiles(took[target])
		sample.more("sequential_scans", after-scans[target])
		samples = append(samples, sample)
	}
	return samples, nil
}

// plan plans the effects of a batch of changes and returns the milliseconds that this took within
// its transaction. One in ten changes is about an object of which the full ledger has effects.
func (p *planner) plan(ctx context.Context) (ms float64, err error) {
	var all []effects.PlannedEffect
	for range planBatch {
		p.events++
		object := p.events
		if p.events%10 == 0 {
			object = p.events % 1000 // the full ledger has an effect to supersede
		}
		all = append(all, p.rules.Evaluate(&effects.Transition{Source: "shop", Number: 1, Type: "customer",
			ID:    fmt.Sprint("cus_old", object),
			New:   fmt.Appendf(nil, `{"id": "cus_old%d", "object": "customer", "balance": %d}`, object, p.events),
			Event: effects.Event{ID: p.events, Key: fmt.Sprint("evt_", p.events)}})...)
	}
	err = postgres.InTx(ctx, p.pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		began := time.Now()
		n, err := effects.Plan(ctx, tx, 0, all)
		ms = float64(time.Since(began).Microseconds()) / 1000
		if err == nil && n.New != 2*planBatch {
			err = fmt.Errorf("%d of %d effects were planned", n.New, 2*planBatch)
		}
		return err
	})
	return ms, err
}

// quantiles adds latencies in milliseconds to a sample.
func (s *Sample) quantiles(ms []float64) {
	sorted := slices.Sorted(slices.Values(ms))
	at := func(share float64) float64 { return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))] }
	s.P50, s.P99, s.P999, s.Max = at(0.5), at(0.99), at(0.999), sorted[len(sorted)-1]
}

const scansSQL = `SELECT coalesce(sum(seq_scan), 0)::float8 FROM pg_stat_user_tables WHERE relname = 'effects'`

// scans returns how many sequential scans the ledger had.
func (s *Suite) scans(ctx context.Context, database string) (n float64, err error) {
	conn, err := s.onlySession(ctx, database)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return n, conn.QueryRow(ctx, scansSQL).Scan(&n)
}
