package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// The names of Postern's streams and of the consumers of processor and reference.
const (
	eventsStream      = "POSTERN_EVENTS"
	changesStream     = "POSTERN_CHANGES"
	processorConsumer = "processor"
	onebyoneConsumer  = "onebyone"
)

// filled is a database and a stream with events that no processor has applied.
type filled struct {
	database   string
	events     int
	deliveries *load.Deliveries
}

const (
	// fillConnections are so few that the gateway can publish as fast as it stores. Every event
	// must get into the stream.
	fillConnections = 24
	fillWithin      = 30 * time.Minute
	body            = 2400
)

// manyPerPart is a number of events per object and part that is so large that random order
// distributes them well enough.
const manyPerPart = 100

// filling returns the supply for a stream in which each part has the same load as the whole. In a
// supply with one event per object, or with very many, random order is sufficient.
func filling(events, objects int) load.Supply {
	supply := load.Supply{Count: events, BodySize: body, Sources: sourceNames(1), Objects: objects,
		Secret: []byte(secret)}
	if objects > 0 && events < manyPerPart*objects*parts(events) {
		supply.Blocks = parts(events)
	}
	return supply
}

// fill sends events about some objects to a gateway, and leaves them in a database and in the
// stream.
func (s *Suite) fill(ctx context.Context, events, objects int) (f *filled, err error) {
	if err := s.m.Reset(ctx); err != nil {
		return nil, err
	}
	r, err := s.start(ctx, Postern, Shape{Sources: 1})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, r.stop()); err != nil {
			s.drop(ctx, r.database, &err)
		}
	}()
	s.runs++
	f = &filled{database: r.database, events: events}
	supply := filling(events, objects)
	supply.Run = fmt.Sprintf("%05d", s.runs)
	f.deliveries = load.Make(supply)
	s.log.Info("fill", "events", events, "objects", objects)
	result, err := load.Run(ctx, f.deliveries, 0, load.Options{Address: r.process.Address, Connections: fillConnections,
		For: fillWithin})
	if err != nil {
		return nil, err
	}
	if result.Answered != int64(events) {
		return nil, fmt.Errorf("fill: %d of %d events were accepted: %q", result.Answered, events, result.Errors)
	}
	sample := Sample{Events: result.Answered}
	if err := s.published(ctx, r, metrics{}, &sample); err != nil {
		return nil, err
	}
	if n := sample.More["unpublished"]; n > 0 {
		return nil, fmt.Errorf("fill: %.0f events are not in the stream", n)
	}
	return f, nil
}
