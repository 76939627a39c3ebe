package gate

import (
	"context"
	"log/slog"

	"github.com/postern-gateway/postern/bench/plan"
	"github.com/postern-gateway/postern/bench/suite"
)

// Measure appends some rounds. It numbers them after the existing ones.
func Measure(ctx context.Context, s *suite.Suite, samples plan.Samples) (plan.Samples, error) {
	before := len(samples.Of(row, suite.Postern))
	more, err := s.Compare(ctx, row, rounds, Shape(), suite.Bare, suite.Postern)
	for i := range more {
		more[i].Round += before
	}
	return append(samples, more...), err
}

// Check measures and compares with a record. If a figure looks worse, it measures once more and
// compares the medians of all rounds, so that a neighbour that was busy for half a minute does not
// fail a change.
func Check(ctx context.Context, s *suite.Suite, recorded Figures, log *slog.Logger) (findings []Finding, ok bool,
	err error) {
	var samples plan.Samples
	for attempt := range 2 {
		if attempt > 0 {
			log.Warn("a figure looks worse: measure once more")
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
