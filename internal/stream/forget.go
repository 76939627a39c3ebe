package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// forgetAtOnce is how many messages are looked at between two questions whether their events are gone.
const forgetAtOnce = 1000

// forgetIdle is when the server forgets the consumer of a walk: no process needs the right to delete consumers.
const forgetIdle = 30 * time.Second

// fetchWithin bounds the wait for messages that are there.
const fetchWithin = 5 * time.Second

// Forgotten says what is to be forgotten.
type Forgotten struct {
	// Events are those of some events, by our ids.
	Events func(ctx context.Context, ids []int64) ([]int64, error)
	// Change tells of a change that such an event made whether it is; nil: all are.
	Change func(ctx context.Context, envelope []byte) (bool, error)
}

// Forget erases the messages that a stream (EventsStream, ChangesStream, ReplaysStream) holds of
// events, and returns how many. It reads the headers of all messages that are in the stream when it
// begins. A stream that does not exist is an empty one. Forget may be repeated.
//
// Each server that has a copy overwrites an erased message in its files. No server overwrites a
// message that left the stream before, the Raft log of a cluster, and files that it encrypts; a
// server that is down deletes later without overwriting. docs/decisions/0028 has the measurements.
func (c *Conn) Forget(ctx context.Context, name string, what Forgotten) (n int64, err error) {
	s, err := c.js.Stream(ctx, name)
	if Gone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read stream %s: %w", name, err)
	}
	state := s.CachedInfo().State
	if state.Msgs == 0 {
		return 0, nil
	}
	cons, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Description: "Postern: looks for messages of redacted events", AckPolicy: jetstream.AckNonePolicy,
		DeliverPolicy: jetstream.DeliverAllPolicy, HeadersOnly: true, Replicas: 1, InactiveThreshold: forgetIdle})
	if err != nil {
		return 0, fmt.Errorf("look through stream %s: %w", name, err)
	}
	// No more is asked for than there is: a fetch that waits for more would go on after us.
	for at, pending := uint64(0), cons.CachedInfo().NumPending; at < state.LastSeq && pending > 0; {
		var found map[int64][]uint64
		if found, at, pending, err = headers(cons, int(min(pending, forgetAtOnce))); err != nil {
			return n, fmt.Errorf("look through stream %s: %w", name, err)
		}
		some, err := what.forget(ctx, s, found)
		if n += some; err != nil {
			return n, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	return n, nil
}

// headers are the sequences of the next messages by event, the last of them, and how many are left behind it.
func headers(cons jetstream.Consumer, most int) (found map[int64][]uint64, at, pending uint64, err error) {
	batch, err := cons.Fetch(most, jetstream.FetchMaxWait(fetchWithin))
	if err != nil {
		return nil, 0, 0, err
	}
	found = map[int64][]uint64{}
	for msg := range batch.Messages() {
		meta, bad := msg.Metadata()
		if bad != nil {
			err = bad // and the rest is read all the same: the fetch ends with it
			continue
		}
		at, pending = meta.Sequence.Stream, meta.NumPending
		if id, bad := strconv.ParseInt(msg.Headers().Get("Postern-Id"), 10, 64); bad == nil {
			found[id] = append(found[id], at)
		}
	}
	if err = errors.Join(err, batch.Error()); err == nil && at == 0 {
		err = fmt.Errorf("no message came within %s", fetchWithin)
	}
	return found, at, pending, err
}

// forget erases those of some messages that are to be forgotten.
func (f Forgotten) forget(ctx context.Context, s jetstream.Stream, found map[int64][]uint64) (n int64, err error) {
	ids, err := f.Events(ctx, slices.Collect(maps.Keys(found)))
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		for _, sequence := range found[id] {
			deleted, err := f.one(ctx, s, sequence)
			if err != nil {
				return n, fmt.Errorf("erase message %d of event %d: %w", sequence, id, err)
			}
			if deleted {
				n++
			}
		}
	}
	return n, nil
}

// one erases a message, and returns false where the stream has it no more.
func (f Forgotten) one(ctx context.Context, s jetstream.Stream, sequence uint64) (deleted bool, err error) {
	if f.Change != nil {
		msg, err := s.GetMsg(ctx, sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if yes, err := f.Change(ctx, msg.Data); err != nil || !yes {
			return false, err
		}
	}
	if err := s.SecureDeleteMsg(ctx, sequence); err != nil {
		if _, now := s.GetMsg(ctx, sequence); errors.Is(now, jetstream.ErrMsgNotFound) {
			return false, nil
		}
		return false, err
	}
	return true, nil
}
