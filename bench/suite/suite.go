package suite

import (
	"context"
	"fmt"
	"log/slog"

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

// Compare runs each target under a load for a number of rounds. The targets take turns, so that a
// disturbance of the machine affects them all.
func (s *Suite) Compare(ctx context.Context, row string, rounds int, shape Shape, targets ...string) ([]Sample, error) {
	var samples []Sample
	for round := range rounds {
		for i := range targets {
			target := targets[(i+round)%len(targets)] // another target is the first in each round
			sample, err := s.Ingest(ctx, target, shape)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, target, err)
			}
			sample.Row, sample.Round = row, round
			samples = append(samples, sample)
			s.log.Info(row, "target", target, "round", round+1, "of", rounds, "rate", int(sample.Rate), "p50",
				sample.P50, "p99", sample.P99, "errors", sample.Errors,
				"cpu", fmt.Sprintf("%.0f", sample.ServerCPU()))
		}
	}
	return samples, nil
}
