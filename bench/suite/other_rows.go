package suite

import (
	"context"
	"fmt"
	"time"
)

// The rows with bounds that measure more than plain ingest.
const (
	floodRow     = "flood"
	applyRow     = "apply"
	applyOwnRow  = "apply-own"
	applyHotRow  = "apply-hot"
	togetherRow  = "together-closed"
	sustainedRow = "sustained"
	growthRow    = "growth"
	idleRow      = "idle"
	largeRow     = "large"
	startsRow    = "starts"
	againRow     = "again"
	besideRow    = "beside-replay"
	storedRow    = "stored"
	scanRow      = "object-scan"
)

func flood(rounds int) Row {
	return Row{Name: floodRow, Chapter: chapterFlood, About: "256 connections, all with one event, beside 256 " +
		"connections with new ones", Takes: length{rounds, 5 * time.Second}.takes(2),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) { return s.flood(ctx, floodRow, rounds) }}
}

// apply returns a row that applies a number of events about a number of objects.
func apply(name, about string, rounds, events, objects int) Row {
	const each = 5 * time.Second // in addition to applying: copying the database, starting
	perRound := time.Duration(part(events))*time.Second/1000 + time.Duration(events)*time.Second/15_000 + 2*each
	return Row{Name: name, Chapter: chapterApply, About: fmt.Sprintf("%d events about %d objects, %s", events, objects,
		about),
		Takes: time.Duration(events)*(time.Second/8000) + time.Duration(rounds)*perRound,
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			return s.apply(ctx, name, rounds, events, objects)
		}}
}

func applies(rounds, events, fewer, few int) []Row {
	return []Row{
		apply(applyRow, "each updated ten times on average", rounds, events, events/10),
		apply(applyOwnRow, "most with one event", fewer, few, few),
		apply(applyHotRow, "which get everything", fewer, few, 10),
	}
}

// together returns the rows that run ingest and applying together. The first runs at full speed to
// find the highest rate, the second longer at a rate that must be sustained.
func together(short, long time.Duration) []Row {
	return []Row{
		{Name: togetherRow, Chapter: chapterSustain,
			About: fmt.Sprintf("closed loop, 64 connections, with the processor, %s", short),
			Takes: 2*short + overhead,
			run: func(ctx context.Context, s *Suite) ([]Sample, error) {
				shape := closed(64)
				shape.For = short
				return s.sustained(ctx, togetherRow, shape, closedGuess)
			}},
		{Name: sustainedRow, Chapter: chapterSustain, About: fmt.Sprintf("open loop, with the processor, %s", long),
			Takes: long + 30*time.Second,
			run: func(ctx context.Context, s *Suite) ([]Sample, error) {
				rate, err := s.sustainable(ctx)
				if err != nil {
					return nil, err
				}
				shape := open(rate)
				shape.For = long
				return s.sustained(ctx, sustainedRow, shape, rate)
			}},
	}
}

// closedGuess is a guess at the events per second of gateway and processor together in a closed
// loop. It only determines the number of objects.
const closedGuess = 4000

// sustainable returns the rate to try: a little above the bound or, if higher, a safe part of the
// rate at which applying kept up in the closed loop.
func (s *Suite) sustainable(ctx context.Context) (float64, error) {
	const least, safely = 1.01 * sustainedShare, 0.8 // leaves room for the checkpoints of several minutes
	alone := s.Samples.Value(main64, Postern, Rate).Median
	if alone == 0 {
		var err error
		if alone, err = s.capacity(ctx, Postern); err != nil {
			return 0, err
		}
	}
	applied := s.Samples.Value(togetherRow, Postern, More("applied_per_s")).Median
	return max(least*alone, safely*applied), nil
}

func growth(rounds, keys, events int, takes time.Duration) Row {
	return Row{Name: growthRow, Chapter: chapterGrowth, Takes: takes + length{rounds + 1, 5 * time.Second}.takes(2),
		About: fmt.Sprintf("closed loop, 64 connections, with %.1f million keys and %.1f million events stored, "+
			"beside an empty database", float64(keys)/1e6, float64(events)/1e6),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			shape := closed(64)
			shape.For = 5 * time.Second
			return s.growth(ctx, growthRow, rounds, keys, events, shape)
		}}
}

func sizes(rounds int) []Row {
	return []Row{
		{Name: idleRow, Chapter: chapterSize, About: "10,000 idle connections: silent since they were opened, and " +
			"after one delivery each", Takes: time.Minute,
			run: func(ctx context.Context, s *Suite) ([]Sample, error) { return s.idle(ctx, idleRow) }},
		{Name: largeRow, Chapter: chapterSize, About: "256 connections with bodies of 1 MiB", Takes: 20 * time.Second,
			run: func(ctx context.Context, s *Suite) ([]Sample, error) { return s.large(ctx, largeRow) }},
		starts(rounds),
	}
}

func starts(rounds int) Row {
	return Row{Name: startsRow, Chapter: chapterSize, About: "start to ready of the gateway over an existing database",
		Takes: 15*time.Second + time.Duration(rounds)*time.Second,
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			return s.starts(ctx, startsRow, rounds)
		}}
}

// slowDisks returns main rows with 2 ms more for each commit.
func slowDisks(l length) []Row {
	var rows []Row
	for _, n := range []int{64, 256} {
		name, shape := fmt.Sprintf("slow-disk-%d", n), closed(n)
		shape.For = l.For
		rows = append(rows, Row{Name: name, Chapter: chapterDisk, About: "closed loop, " + shape.String() +
			", each commit 2 ms later", Takes: l.takes(len(storingTargets)),
			run: func(ctx context.Context, s *Suite) ([]Sample, error) {
				return s.slowDisk(ctx, name, l.Rounds, shape, storingTargets...)
			}})
	}
	return rows
}
