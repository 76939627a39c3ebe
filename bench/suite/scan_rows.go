package suite

import (
	"context"
	"fmt"
	"time"
)

// scannedObjects is how many objects the full plan compares.
const scannedObjects = 1_000_000

// objectScan measures how fast an object scan compares unchanged objects with the mirror.
func objectScan(rounds, objects int) Row {
	return Row{Name: scanRow, Chapter: chapterReconcile, About: fmt.Sprintf("%d objects of 1 KB, none of them "+
		"changed, compared with what a local API lists, 100 a page, beside a loop that only fetches and parses the "+
		"pages", objects),
		Takes: time.Duration(objects)*(time.Second/20_000) + time.Duration(rounds)*
			(2*time.Second+time.Duration(objects)*(time.Second/50_000+11*time.Second/300_000)),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			return s.objectScan(ctx, scanRow, rounds, objects)
		}}
}

func scanBounds() []bound {
	const million = "an object scan of a million objects"
	return []bound{
		ratio(million, scanRow, scanTarget, fetchTarget, "objects/s", Rate).atLeast(0.5),
		ratio(million+", memory", scanRow, scanTarget, scanFewTarget, "processor's memory of one ten times as large",
			Memory("processor")).atMost(1.25),
		worst(million+", calls", "calls beyond one for each page", "", scanTarget, More("calls_beside_pages"),
			scanRow).atMost(5),
	}
}
