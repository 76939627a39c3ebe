package suite

import (
	"context"
	"fmt"
	"time"
)

// Targets of rows that compare Postern with itself.
const (
	NewEvents = "new events"
	OneEvent  = "one event"
	Empty     = "empty"
	Grown     = "grown"
)

// floodFor is how long each target of the flood runs.
const floodFor = 5 * time.Second

// Flood measures 256 connections that all send one event, and 256 connections with new events.
func (s *Suite) Flood(ctx context.Context, row string, rounds int) ([]Sample, error) {
	shape := Shape{Connections: 256, Body: body, Sources: 1, For: floodFor}
	flood := shape
	flood.Duplicates = 1
	sides := []side{{NewEvents, shape}, {OneEvent, flood}}
	return s.sides(ctx, row, rounds, sides)
}

// side is one of the loads that a row compares.
type side struct {
	name  string
	shape Shape
}

// sides runs Postern under each load, in turn.
func (s *Suite) sides(ctx context.Context, row string, rounds int, sides []side) ([]Sample, error) {
	var samples []Sample
	for round := range rounds {
		for i := range sides {
			one := sides[(i+round)%len(sides)]
			sample, err := s.Ingest(ctx, Postern, one.shape)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, one.name, err)
			}
			sample.Row, sample.Round, sample.Target = row, round, one.name
			samples = append(samples, sample)
			s.log.Info(row, "target", one.name, "round", round+1, "of", rounds, "rate", int(sample.Rate), "errors",
				sample.Errors, "cpu", fmt.Sprintf("%.0f", sample.ServerCPU()))
		}
	}
	return samples, nil
}
