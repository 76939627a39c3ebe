package suite

import (
	"context"
	"time"
)

// Targets of rows that compare Postern with itself.
const (
	newEvents   = "new events"
	oneEvent    = "one event"
	emptyTarget = "empty"
	grownTarget = "grown"
)

// floodFor is how long each target of the flood runs.
const floodFor = 5 * time.Second

// flood measures 256 connections with new events, and 256 connections that all send one event.
func (s *Suite) flood(ctx context.Context, row string, rounds int) ([]Sample, error) {
	return s.inTurn(row, rounds, []string{newEvents, oneEvent}, func(target string) (Sample, error) {
		shape := Shape{Connections: 256, Body: body, Sources: 1, For: floodFor}
		if target == oneEvent {
			shape.Duplicates = 1
		}
		return s.ingest(ctx, Postern, shape)
	})
}
