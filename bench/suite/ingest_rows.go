package suite

import (
	"context"
	"fmt"
	"time"
)

// The rows that bounds and pictures are made of.
const (
	main64        = "closed-64"
	main256       = "closed-256"
	halfAfternoon = "half-of-afternoon"
	halfPostern   = "half-of-postern"
)

// The chapters of the report.
const (
	chapterClosed    = "Closed loop"
	chapterShapes    = "Other bodies, duplicates, sources"
	chapterOpen      = "Open loop"
	chapterFlood     = "A flood of one event"
	chapterApply     = "Applying"
	chapterSustain   = "Ingest and applying together"
	chapterGrowth    = "Growth"
	chapterSize      = "Memory and start"
	chapterDisk      = "A slow disk"
	chapterStored    = "Stored events again"
	chapterReconcile = "Reconciliation"
	chapterEffects   = "Effects"
)

// length says how many rounds a row has and how long each lasts.
type length struct {
	Rounds int
	For    time.Duration
}

// overhead is what a run of a target takes in addition to its load: creating a database, starting,
// warming up, signing.
const overhead = 3 * time.Second

func (l length) takes(targets int) time.Duration {
	return time.Duration(l.Rounds*targets) * (l.For + overhead)
}

// allTargets are the targets of ingest. storingTargets are those that store events.
var (
	allTargets     = []string{Verify, Bare, Afternoon, Postern}
	storingTargets = []string{Bare, Afternoon, Postern}
)

// closed returns the shape of a closed loop with default deliveries.
func closed(connections int) Shape {
	return Shape{Connections: connections, Body: body, Sources: 1}
}

// open returns the shape of an open loop with default deliveries. It has more connections than can
// be busy at once.
func open(rate float64) Shape {
	return Shape{Connections: 256, Rate: rate, Body: body, Sources: 1}
}

// compare returns a row in which all targets get the same load.
func compare(name, chapter string, shape Shape, l length, targets []string) Row {
	shape.For = l.For
	return Row{Name: name, Chapter: chapter, About: "closed loop, " + shape.String(), Takes: l.takes(len(targets)),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			return s.Compare(ctx, name, l.Rounds, shape, targets...)
		}}
}

// connections returns a row of the closed loop for each number of connections.
func connections(l length, targets []string, counts ...int) []Row {
	var rows []Row
	for _, n := range counts {
		rows = append(rows, compare(Closed(n), chapterClosed, closed(n), l, targets))
	}
	return rows
}

// Closed returns the name of the row of the closed loop with a number of connections.
func Closed(connections int) string { return fmt.Sprintf("closed-%d", connections) }

// shapes returns the rows with other body sizes, duplicates and sources.
func shapes(l length) []Row {
	small, large, twice, many := closed(64), closed(64), closed(64), closed(64)
	small.Body, large.Body, twice.Duplicates, many.Sources = 500, 20_000, 0.05, 10
	return []Row{
		compare("body-0.5k", chapterShapes, small, l, allTargets),
		compare("body-20k", chapterShapes, large, l, allTargets),
		compare("duplicates-5", chapterShapes, twice, l, storingTargets),
		compare("sources-10", chapterShapes, many, l, storingTargets),
	}
}

// OfferedShares are the loads of the offered rows, in percent of each target's own capacity.
var OfferedShares = []int{10, 25, 50, 75, 90}

// Offered returns the name of the row at a share of capacity.
func Offered(percent int) string { return fmt.Sprintf("offered-%d", percent) }

// offered returns the rows of the open loop, at shares of each target's own capacity.
func offered(l length, percents []int) []Row {
	var rows []Row
	for _, percent := range percents {
		name := Offered(percent)
		rows = append(rows, Row{Name: name, Chapter: chapterOpen, Takes: l.takes(len(storingTargets)),
			About: fmt.Sprintf("open loop at %d %% of each target's own capacity", percent),
			run: func(ctx context.Context, s *Suite) ([]Sample, error) {
				rates := map[string]float64{}
				for _, target := range storingTargets {
					capacity, err := s.capacity(ctx, target)
					if err != nil {
						return nil, err
					}
					rates[target] = capacity * float64(percent) / 100
				}
				return s.inTurn(name, l.Rounds, storingTargets, func(target string) (Sample, error) {
					shape := open(rates[target])
					shape.For = l.For
					return s.ingest(ctx, target, shape)
				})
			}})
	}
	return rows
}

// half returns the row at half of the capacity of one target, which it measures for several
// targets.
func half(name, of string, l length, targets ...string) Row {
	return Row{Name: name, Chapter: chapterOpen, About: "open loop at half of the capacity of " + of,
		Takes: l.takes(len(targets)),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			capacity, err := s.capacity(ctx, of)
			if err != nil {
				return nil, err
			}
			shape := open(capacity / 2)
			shape.For = l.For
			return s.Compare(ctx, name, l.Rounds, shape, targets...)
		}}
}

// halves returns the rows that the bounds of acknowledgement use.
func halves(l length) []Row {
	return []Row{
		half(halfAfternoon, Afternoon, l, Afternoon, Postern),
		half(halfPostern, Postern, l, Bare, Postern),
	}
}
