package suite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/bench/load"
	"github.com/postern-gateway/postern/internal/config"
)

// Suite runs the benchmark's rows on a machine.
type Suite struct {
	m        *load.Machine
	defaults *config.Config
	log      *slog.Logger
	files    int
	runs     int
	// Samples and Gaps have the results of the rows so far.
	Samples Samples
	Gaps    []Gap
}

// New returns a suite for a machine.
func New(m *load.Machine, log *slog.Logger) *Suite {
	return &Suite{m: m, defaults: config.Default(), log: log}
}

// Compare runs each target under a load for a number of rounds.
func (s *Suite) Compare(ctx context.Context, row string, rounds int, shape Shape, targets ...string) ([]Sample, error) {
	return s.inTurn(row, rounds, targets, func(target string) (Sample, error) { return s.ingest(ctx, target, shape) })
}

// inTurn measures each target in each round. The targets take turns, so that a disturbance of the
// machine affects them all. Another target is the first in each round.
func (s *Suite) inTurn(row string, rounds int, targets []string,
	measure func(target string) (Sample, error)) (samples []Sample, err error) {
	for round := range rounds {
		for i := range targets {
			target := targets[(i+round)%len(targets)]
			sample, err := measure(target)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, target, err)
			}
			sample.Target = target
			samples = append(samples, s.record(sample, row, round, rounds))
		}
	}
	return samples, nil
}

// record completes a sample and logs its figures.
func (s *Suite) record(sample Sample, row string, round, rounds int) Sample {
	sample.Row, sample.Round = row, round
	words := []any{"target", sample.Target, "round", fmt.Sprintf("%d of %d", round+1, rounds), "rate",
		int(sample.Rate)}
	if sample.P99 > 0 {
		words = append(words, "p50", sample.P50, "p99", sample.P99)
	}
	if sample.Errors > 0 {
		words = append(words, "errors", sample.Errors)
	}
	if sample.CPU != nil {
		words = append(words, "cpu", fmt.Sprintf("%.1f", sample.ServerCPU()))
	} else {
		words = append(words, "more", sample.More)
	}
	s.log.Info(row, words...)
	return sample
}

// drop is deferred by functions that have created a database. It removes the database and adds its
// error to theirs. There is none to remove if the name is empty.
func (s *Suite) drop(ctx context.Context, database string, err *error) {
	if database != "" {
		*err = errors.Join(*err, s.m.DropDatabase(context.WithoutCancel(ctx), database))
	}
}

// newFilled creates a database and fills it. It returns the name even if it fails.
func (s *Suite) newFilled(ctx context.Context, fill func(*pgx.Conn) error) (database string, err error) {
	if database, err = s.m.NewDatabaseQuietly(ctx); err != nil {
		return "", err
	}
	conn, err := s.m.Connect(ctx, database)
	if err != nil {
		return database, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return database, fill(conn)
}

// number returns the result of a query that returns one number.
func (s *Suite) number(ctx context.Context, database, sql string) (n float64, err error) {
	conn, err := s.m.Connect(ctx, database)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return n, conn.QueryRow(ctx, sql).Scan(&n)
}
