package plan

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/suite"
)

// sweptObjects are how many objects the full plan compares.
const sweptObjects = 1_000_000

// sweep is how fast objects that have not changed are compared with the provider's list.
func sweep(rounds, objects int) Row {
	return Row{Name: sweepRow, Chapter: chapterReconcile, About: fmt.Sprintf("%d objects of 1 KB, none of them "+
		"changed, compared with what a local API lists, 100 a page, beside a loop that only gets and parses the pages",
		objects),
		Takes: time.Duration(objects)*(time.Second/20_000) + time.Duration(rounds)*
			(2*time.Second+time.Duration(objects)*(time.Second/50_000+11*time.Second/300_000)),
		run: func(ctx context.Context, r *Run) ([]suite.Sample, error) {
			return r.suite.Sweep(ctx, sweepRow, rounds, objects)
		}}
}

func sweepBounds() []Bound {
	const million = "a sweep of a million objects"
	return []Bound{
		ratio(million, sweepRow, suite.Sweep, suite.Fetch, "objects/s", Rate).atLeast(0.5),
		ratio(million+", memory", sweepRow, suite.Sweep, suite.SweepFew, "processor's memory of one ten times as large",
			Memory("processor")).atMost(1.25),
		worst(million+", calls", "calls beyond one for each page", "", suite.Sweep, More("calls_beside_pages"),
			sweepRow).atMost(5),
	}
}
