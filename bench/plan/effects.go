package plan

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/suite"
)

// The rows about effects.
const (
	effectsRow  = "effects"
	planningRow = "effects-planning"
	deadRow     = "effects-beside-dead"
)

// manyEffects is how many planned effects are to slow nothing.
const manyEffects = 1_000_000

// carriedOut is how fast planned effects are carried out, among how many others are planned, and
// what a dead destination costs the others.
func carriedOut(rounds, effects, planned, waiting int) []Row {
	const beside = 10 * time.Second
	fill := func(n int) time.Duration { return time.Duration(n) * time.Second / 25_000 }
	return []Row{
		{Name: effectsRow, Chapter: chapterEffects, About: fmt.Sprintf("%d planned effects of one step, carried out "+
			"by a processor with 8 calls at once (destinations.NAME.concurrency), another side in the program that "+
			"measures", effects),
			Takes: time.Duration(rounds) * (3*time.Second + fill(effects) + time.Duration(effects)*time.Second/1000),
			run: func(ctx context.Context, r *Run) ([]suite.Sample, error) {
				return r.suite.EffectsCarriedOut(ctx, effectsRow, rounds, effects)
			}},
		{Name: planningRow, Chapter: chapterEffects, About: fmt.Sprintf("planning 200 effects of 100 changes in a "+
			"transaction, in an empty ledger and in one with %d planned effects, in turn", planned),
			Takes: fill(planned) + time.Duration(rounds)*5*time.Second,
			run: func(ctx context.Context, r *Run) ([]suite.Sample, error) {
				return r.suite.Planning(ctx, planningRow, rounds, planned)
			}},
		{Name: deadRow, Chapter: chapterEffects, About: fmt.Sprintf("100 effects a second, from when each falls due "+
			"to its call, alone and while %d wait for another destination, which takes calls and does not answer",
			waiting),
			Takes: fill(waiting) + time.Duration(2*rounds)*(beside+4*time.Second),
			run: func(ctx context.Context, r *Run) ([]suite.Sample, error) {
				return r.suite.DeadBeside(ctx, deadRow, rounds, waiting, beside)
			}},
	}
}

func effectsBounds() []Bound {
	const among, dead = "planning among a million planned effects",
		"effects beside a dead destination, for which 100,000 wait"
	return []Bound{
		value("effects of one step", effectsRow, suite.Effects, "effects/s carried out", "/s", Rate).atLeast(1000),
		ratio(among, planningRow, suite.FullLedger, suite.EmptyLedger, "p50", P50).atMost(1.2),
		worst(among, "sequential scans of the ledger", "", suite.FullLedger, More("sequential_scans"),
			planningRow).atMost(0),
		ratio(dead, deadRow, suite.BesideDead, suite.NoneDead, "p99", P99).atMost(1.2),
	}
}
