package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// OneByOne is the reference that applies one message, one transaction and one acknowledgement at a
// time.
const OneByOne = "onebyone"

const (
	// The events are divided into parts with the same load: at most mostParts, each of at least
	// eventsAPart. The reference applies only the first part, since all would take minutes.
	mostParts   = 10
	eventsAPart = 10_000
	// applyWithin limits a round. stallWithin limits the time without an acknowledgement.
	applyWithin = 20 * time.Minute
	stallWithin = 30 * time.Second
)

// Apply measures how fast events are applied from the stream. Each object has ten events on
// average.
func (s *Suite) Apply(ctx context.Context, row string, rounds, events int) ([]Sample, error) {
	return s.ApplyObjects(ctx, row, rounds, events, events/10)
}

// parts returns the number of parts of so many events.
func parts(events int) int { return max(1, min(mostParts, events/eventsAPart)) }

// Part returns how many of so many events the reference applies.
func Part(events int) int { return events / parts(events) }

// ApplyObjects is Apply with another number of objects. With at least as many objects as events,
// each event has its own object.
func (s *Suite) ApplyObjects(ctx context.Context, row string, rounds, events, objects int) (samples []Sample,
	err error) {
	if objects >= events {
		objects = 0
	}
	f, err := s.fill(ctx, events, objects)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), f.database)) }()
	for round := range rounds {
		for i := range 2 {
			target := []string{Postern, OneByOne}[(i+round)%2]
			sample, err := s.apply(ctx, target, f)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, target, err)
			}
			sample.Row, sample.Round = row, round
			samples = append(samples, sample)
			s.log.Info(row, "target", target, "round", round+1, "of", rounds, "rate", int(sample.Rate), "cpu",
				fmt.Sprintf("%.1f", sample.ServerCPU()))
		}
	}
	return samples, nil
}

// apply runs a target on a copy of the database and from the beginning of the stream.
func (s *Suite) apply(ctx context.Context, target string, f *filled) (sample Sample, err error) {
	if err := errors.Join(s.m.DeleteConsumers(ctx, eventsStream, processorConsumer, onebyoneConsumer),
		s.m.DeleteStream(ctx, changesStream)); err != nil {
		return sample, err
	}
	r := &running{}
	if r.database, err = s.m.NewDatabase(ctx, f.database); err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), r.database)) }()
	consumer, events := processorConsumer, f.events
	if target == OneByOne {
		consumer, events = onebyoneConsumer, Part(f.events)
		r.process, _, _, err = s.m.Serve(ctx, OneByOne, nil, "-database", s.m.DatabaseURL(r.database), "-nats",
			s.m.NATS(), "-goroutines", fmt.Sprint(s.defaults.Processor.Workers))
	} else {
		var file string
		if file, err = s.configure(s.m.DatabaseURL(r.database), 1); err == nil {
			r.process, _, r.processorAdmin, err = s.m.Serve(ctx, "processor", s.trace(r), "--config", file)
		}
	}
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, r.finish(&sample)) }()
	if sample, err = s.follow(ctx, r, consumer, int64(events)); err != nil {
		return sample, err
	}
	sample.Target = target
	if target == Postern {
		err = s.checkApplied(ctx, r.database, f)
	}
	return sample, err
}

// follow measures from the first acknowledged message until events messages are acknowledged.
func (s *Suite) follow(ctx context.Context, r *running, consumer string, events int64) (sample Sample, err error) {
	first, err := s.acknowledged(ctx, r.process, consumer, 1)
	if err != nil {
		return sample, err
	}
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	if first.Done() >= events {
		return sample, fmt.Errorf("all %d events were applied before anything could be measured", events)
	}
	last, err := s.acknowledged(ctx, r.process, consumer, events)
	if err != nil {
		return sample, err
	}
	sample.Events, sample.Seconds = last.Done()-first.Done(), last.At.Sub(first.At).Seconds()
	sample.Rate = float64(sample.Events) / sample.Seconds
	if r.processorAdmin != "" {
		if err := s.announced(ctx, r, first.At, &sample); err != nil {
			return sample, err
		}
	}
	return sample, s.after(ctx, r, before, &sample)
}

// acknowledged polls until that many messages are acknowledged.
func (s *Suite) acknowledged(ctx context.Context, p *load.Process, consumer string, events int64) (lag load.Lag,
	err error) {
	began, logged := time.Now(), time.Now()
	moved, done := began, int64(-1)
	for {
		if lag, err = s.m.Lag(ctx, eventsStream, consumer); err != nil {
			return lag, err
		}
		if lag.Done() >= events {
			return lag, nil
		}
		now := time.Now()
		if lag.Done() > done {
			moved, done = now, lag.Done()
		}
		if now.Sub(logged) > time.Second {
			s.log.Debug("applying", "done", done, "of", events)
			logged = now
		}
		if err := p.Ended(); err != nil {
			return lag, err
		}
		if now.Sub(moved) > stallWithin || now.Sub(began) > applyWithin {
			return lag, fmt.Errorf("%s stalled at %d of %d events, see %s", p.Name, done, events, p.Log())
		}
		select {
		case <-ctx.Done():
			return lag, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// announceWithin is how long the feed of changes may take after the last acknowledgement. Changes
// that the sender had no capacity for are sent half a minute later.
const announceWithin = 90 * time.Second

const unsentSQL = `SELECT count(*) FROM postern.outbox WHERE sent_at IS NULL`

// announced waits until all changes are in the feed. Sending them is part of applying and of its
// cost.
func (s *Suite) announced(ctx context.Context, r *running, first time.Time, sample *Sample) error {
	conn, err := s.m.Connect(ctx, r.database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	began := time.Now()
	for unsent := int64(-1); unsent != 0; {
		if err := conn.QueryRow(ctx, unsentSQL).Scan(&unsent); err != nil {
			return err
		}
		if time.Since(began) > announceWithin {
			return fmt.Errorf("the changes of %d transactions are not in the feed after %s", unsent, announceWithin)
		}
		if unsent > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	sample.more("changes_after_s", time.Since(began).Seconds())
	sample.more("rate_with_changes", float64(sample.Events)/time.Since(first).Seconds())
	lag, err := s.m.Lag(ctx, changesStream, "no consumer")
	sample.more("changes", float64(lag.Messages))
	return err
}
