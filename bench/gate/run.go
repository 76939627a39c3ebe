package gate

import (
	"context"
	"log/slog"

	"github.com/postern-gateway/postern/bench/plan"
	"github.com/postern-gateway/postern/bench/suite"
)

// Measure makes some rounds more, numbered after those that there are.
func Measure(ctx context.Context, s *suite.Suite, samples plan.Samples) (plan.Samples, error) {
	before := len(samples.Of(row, suite.Postern))
	more, err := s.Compare(ctx, row, rounds, Shape(), suite.Bare, suite.Postern)
	for i := range more {
		more[i].Round += before
	}
	return append(samples, more...), err
}

// Check measures and compares with a record. What looks worse is measured once more, and judged by
// all rounds: a neighbour that was noisy for half a minute shall not fail anybody's change.
func Check(ctx context.Context, s *suite.Suite, recorded Figures, log *slog.Logger) (findings []Finding, ok bool,
	err error) {
	var samples plan.Samples
	for attempt := range 2 {
		if attempt > 0 {
			log.Warn("something looks worse: measured once more")
		}
		if samples, err = Measure(ctx, s, samples); err != nil {
			return nil, false, err
		}
		now, err := Of(samples)
		if err != nil {
			return nil, false, err
		}
		if findings, ok = Compare(recorded, now); ok {
			break
		}
	}
	return findings, ok, nil
}
