package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// The names in JetStream of what is measured, and of the reference's consumer.
const (
	eventsStream      = "POSTERN_EVENTS"
	changesStream     = "POSTERN_CHANGES"
	processorConsumer = "processor"
	onebyoneConsumer  = "onebyone"
)

// filled is a database and a stream of events that no processor has seen.
type filled struct {
	database   string
	events     int
	deliveries *load.Deliveries
}

const (
	// fillConnections are few, so that the gateway can publish as fast as it stores: here
	// everything must be in the stream.
	fillConnections = 24
	fillWithin      = 30 * time.Minute
	body            = 2400
)

// hot is how many events an object has in each part, chosen at random, where nobody needs to care
// that every part has as many.
const hot = 100

// filling is what a stream is filled with: events of which each part has as many about each of its
// objects as the whole has. What has one event only, or more than enough, is so in any order.
func filling(events, objects int) load.Supply {
	supply := load.Supply{Count: events, BodySize: body, Sources: sourceNames(1), Objects: objects,
		Secret: []byte(secret)}
	if objects > 0 && events < hot*objects*parts(events) {
		supply.Blocks = parts(events)
	}
	return supply
}

// fill has a gateway take events about some objects, and leaves them in a database and in the
// stream.
func (s *Suite) fill(ctx context.Context, events, objects int) (f *filled, err error) {
	if err := s.m.Settle(ctx); err != nil {
		return nil, err
	}
	r, err := s.start(ctx, Postern, Shape{Sources: 1})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, r.stop()); err != nil {
			err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), r.database))
		}
	}()
	s.runs++
	f = &filled{database: r.database, events: events}
	supply := filling(events, objects)
	supply.Run = fmt.Sprintf("%05d", s.runs)
	f.deliveries = load.Make(supply)
	s.log.Info("fill", "events", events, "objects", objects)
	result, err := load.Run(ctx, f.deliveries, 0, load.Options{Address: r.address, Connections: fillConnections,
		For: fillWithin, Progress: s.progress})
	if err != nil {
		return nil, err
	}
	if result.Answered != int64(events) {
		return nil, fmt.Errorf("fill: %d of %d events taken: %q", result.Answered, events, result.Errors)
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
