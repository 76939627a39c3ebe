package suite

import (
	"context"
	"fmt"
	"time"
)

// reapply measures how fast stored events are applied again.
func reapply(rounds, events int) Row {
	return Row{Name: againRow, Chapter: chapterStored,
		About: fmt.Sprintf("%d events about %d objects: applied live, replayed, and rebuilt", events,
			events/10),
		Takes: time.Duration(events)*(time.Second/8000) + time.Duration(rounds)*(10*time.Second+3*time.Duration(events)*
			time.Second/12_000),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			return s.reapply(ctx, againRow, rounds, events)
		}}
}

// duringReplay measures how a replay affects ingest.
func duringReplay(rounds, events int) Row {
	const each = 8 * time.Second
	return Row{Name: besideRow, Chapter: chapterStored,
		About: fmt.Sprintf("open loop at a quarter of the capacity, with the processor, alone and while it replays "+
			"%d events", events),
		Takes: time.Duration(events)*(time.Second/6000) + time.Duration(2*rounds)*(each+4*overhead),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			capacity, err := s.capacity(ctx, Postern)
			if err != nil {
				return nil, err
			}
			shape := open(capacity / 4)
			shape.For = each
			return s.ingestDuringReplay(ctx, besideRow, rounds, events, shape)
		}}
}

// largeLog measures queries and exports of a large log.
func largeLog(rounds, events, exported int, takes time.Duration) Row {
	return Row{Name: storedRow, Chapter: chapterStored, Takes: takes,
		About: fmt.Sprintf("%.1f million events stored: the preview of a replay, and an export of %.1f million, "+
			"beside psql", float64(events)/1e6, float64(exported)/1e6),
		run: func(ctx context.Context, s *Suite) ([]Sample, error) {
			return s.largeLog(ctx, storedRow, rounds, events, exported)
		}}
}

func storedBounds() []bound {
	const large = "a log of 10 million events"
	seconds := More("seconds")
	return []bound{
		ratio("replay", againRow, replayTarget, liveTarget, "events/s", Rate).atLeast(1),
		ratio("rebuild", againRow, rebuildTarget, liveTarget, "events/s", Rate).atLeast(1),
		ratio("responses during a replay at full speed, a quarter of capacity", besideRow, replayingTarget, aloneTarget,
			"p99", P99).atMost(2),
		value(large+", preview's estimate", storedRow, previewTarget, "seconds of the whole command", "s",
			seconds).atMost(1),
		ratio(large+", counted", storedRow, exactTarget, psqlCountTarget, "seconds", seconds).atMost(1.5),
		ratio(large+", export, uncompressed", storedRow, exportTarget, psqlCopyTarget, "events/s", Rate).atLeast(0.5),
		ratio(large+", memory of an export", storedRow, exportTarget, exportFewTarget,
			"memory of one ten times as large", More("peak_mib")).atMost(1.25),
	}
}
