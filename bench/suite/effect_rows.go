package suite

import (
	"context"
	"fmt"
	"time"
)

// The rows about effects.
const (
	effectsRow  = "effects"
	planningRow = "effects-planning"
	deadRow     = "effects-silent-destination"
)

// manyEffects is a number of planned effects that must not slow down planning.
const manyEffects = 1_000_000

// effectRows measure three things: how fast planned effects are executed, how long planning takes
// in a full ledger, and how a destination that never responds delays the effects of another.
func effectRows(rounds, effects, planned, waiting int) []Row {
	const lasts = 10 * time.Second
	fill := func(n int) time.Duration { return time.Duration(n) * time.Second / 25_000 }
	return []Row{
		{Name: effectsRow, Chapter: chapterEffects, About: fmt.Sprintf("%d planned effects of one step, executed "+
			"by a processor with 8 concurrent calls, the destination in the benchmark program", effects),
			Takes: time.Duration(rounds) * (3*time.Second + fill(effects) + time.Duration(effects)*time.Second/1000),
			run: func(ctx context.Context, s *Suite) ([]Sample, error) {
				return s.executeEffects(ctx, effectsRow, rounds, effects)
			}},
		{Name: planningRow, Chapter: chapterEffects, About: fmt.Sprintf("planning 200 effects of 100 changes in a "+
			"transaction, in an empty ledger and in one with %d planned effects, in turn", planned),
			Takes: fill(planned) + time.Duration(rounds)*5*time.Second,
			run: func(ctx context.Context, s *Suite) ([]Sample, error) {
				return s.planning(ctx, planningRow, rounds, planned)
			}},
		{Name: deadRow, Chapter: chapterEffects, About: fmt.Sprintf("100 effects a second, from when each falls due "+
			"to its call, alone and while %d wait for another destination, which accepts calls and does not respond",
			waiting),
			Takes: fill(waiting) + time.Duration(2*rounds)*(lasts+4*time.Second),
			run: func(ctx context.Context, s *Suite) ([]Sample, error) {
				return s.silentDestination(ctx, deadRow, rounds, waiting, lasts)
			}},
	}
}

func effectsBounds() []bound {
	const among, dead = "planning among a million planned effects",
		"effects beside a silent destination, for which 100,000 wait"
	return []bound{
		value("effects of one step", effectsRow, effectsTarget, "effects/s executed", "/s", Rate).atLeast(1000),
		ratio(among, planningRow, fullLedger, emptyLedger, "p50", P50).atMost(1.2),
		worst(among, "sequential scans of the ledger", "", fullLedger, More("sequential_scans"),
			planningRow).atMost(0),
		ratio(dead, deadRow, oneSilent, noneSilent, "p99", P99).atMost(1.2),
	}
}
