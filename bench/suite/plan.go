package suite

import (
	"slices"
	"time"
)

// Full returns every row, which take about an hour and twenty minutes. rounds, if positive,
// replaces the five rounds of the main rows.
func Full(rounds int) []Row {
	most := length{Rounds: 5, For: 5 * time.Second}
	if rounds > 0 {
		most.Rounds = rounds
	}
	fewer := min(3, most.Rounds)
	matrix := length{Rounds: fewer, For: 3 * time.Second}
	return slices.Concat(
		connections(most, allTargets, 1, 16, 64, 256),
		shapes(matrix),
		offered(matrix, OfferedShares),
		halves(most),
		[]Row{flood(most.Rounds)},
		applies(most.Rounds, 200_000, fewer, 100_000),
		together(30*time.Second, 5*time.Minute),
		sizes(most.Rounds),
		slowDisks(length{Rounds: fewer, For: most.For}),
		[]Row{reapply(most.Rounds, 200_000), duringReplay(fewer, 400_000)},
		[]Row{growth(most.Rounds, 20_000_000, 5_000_000, 8*time.Minute),
			largeLog(fewer, 10_000_000, 500_000, 15*time.Minute), objectScan(fewer, scannedObjects)},
		effectRows(fewer, 15_000, manyEffects, 100_000),
	)
}

// Quick returns the rows of a run that takes under three minutes, including the builds. It shows
// large changes and is not for publication. rounds, if positive, replaces the two rounds of the
// main rows.
func Quick(rounds int) []Row {
	short := length{Rounds: 2, For: 2 * time.Second}
	if rounds > 0 {
		short.Rounds = rounds
	}
	once := length{Rounds: 1, For: 2 * time.Second}
	return slices.Concat(
		connections(short, storingTargets, 64, 256),
		halves(once),
		[]Row{flood(1), apply(applyRow, "each updated ten times on average", 1, 40_000, 4_000), starts(2),
			objectScan(1, 50_000)},
	)
}
