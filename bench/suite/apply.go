package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// oneByOne is the reference that applies one message, one transaction and one acknowledgement at a
// time.
const oneByOne = "onebyone"

const (
	// The events are divided into parts with the same load: at most mostParts, each of at least
	// eventsAPart. The reference applies only the first part, since all would take minutes.
	mostParts   = 10
	eventsAPart = 10_000
	// applyWithin limits a round. stallWithin limits the time without an acknowledgement.
	applyWithin = 20 * time.Minute
	stallWithin = 30 * time.Second
)

// parts returns the number of parts of so many events.
func parts(events int) int { return max(1, min(mostParts, events/eventsAPart)) }

// part returns how many of so many events the reference applies.
func part(events int) int { return events / parts(events) }

// apply measures how fast events about a number of objects are applied from the stream. With at
// least as many objects as events, each event has its own object.
func (s *Suite) apply(ctx context.Context, row string, rounds, events, objects int) (_ []Sample, err error) {
	if objects >= events {
		objects = 0
	}
	f, err := s.fill(ctx, events, objects)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer s.drop(ctx, f.database, &err)
	return s.inTurn(row, rounds, []string{Postern, oneByOne},
		func(target string) (Sample, error) { return s.applyOnce(ctx, target, f) })
}

// applyOnce runs a target on a copy of the database and from the beginning of the stream.
func (s *Suite) applyOnce(ctx context.Context, target string, f *filled) (sample Sample, err error) {
	database, err := s.rewind(ctx, f)
	if err != nil {
		return sample, err
	}
	defer s.drop(ctx, database, &err)
	start, consumer, events := s.startProcessor, processorConsumer, f.events
	if target == oneByOne {
		start, consumer, events = s.startOneByOne, onebyoneConsumer, part(f.events)
	}
	r, err := start(ctx, database)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, r.finish(&sample)) }()
	if sample, err = s.follow(ctx, r, consumer, int64(events)); err == nil && target == Postern {
		err = s.checkApplied(ctx, database, f)
	}
	return sample, err
}

// rewind makes the next process apply the events again from the beginning: it deletes all
// consumers and the changes, and returns a copy of the database.
func (s *Suite) rewind(ctx context.Context, f *filled) (database string, err error) {
	if err := errors.Join(s.m.DeleteConsumers(ctx, eventsStream, processorConsumer, onebyoneConsumer),
		s.m.DeleteStream(ctx, changesStream)); err != nil {
		return "", err
	}
	return s.m.NewDatabase(ctx, f.database)
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
	sample = rated(last.Done()-first.Done(), last.At.Sub(first.At).Seconds())
	if r.process.Name == "processor" {
		if err := s.announced(ctx, r, first.At, &sample); err != nil {
			return sample, err
		}
	}
	return sample, s.after(ctx, r, before, &sample)
}

// acknowledged polls until that many messages are acknowledged.
func (s *Suite) acknowledged(ctx context.Context, p *load.Process, consumer string, events int64) (lag load.Lag,
	err error) {
	began := time.Now()
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
	began := time.Now()
	for ; ; time.Sleep(20 * time.Millisecond) {
		unsent, err := s.number(ctx, r.database, unsentSQL)
		if err != nil {
			return err
		}
		if unsent == 0 {
			break
		}
		if time.Since(began) > announceWithin {
			return fmt.Errorf("the changes of %.0f transactions are not in the feed after %s", unsent, announceWithin)
		}
	}
	sample.more("changes_after_s", time.Since(began).Seconds())
	sample.more("rate_with_changes", float64(sample.Events)/time.Since(first).Seconds())
	lag, err := s.m.Lag(ctx, changesStream, "none")
	sample.more("changes", float64(lag.Messages))
	return err
}
