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

// eraseBatchSize is how many messages are read before EraseFilter.Events is called for them.
const eraseBatchSize = 1000

// eraseConsumerIdle is how long the temporary consumer may be idle before the server deletes it. No
// process therefore needs the permission to delete consumers.
const eraseConsumerIdle = 30 * time.Second

// fetchTimeout bounds the wait for messages that exist.
const fetchTimeout = 5 * time.Second

// EraseFilter selects the messages to erase.
type EraseFilter struct {
	// Events returns those of the given event ids whose messages are to be erased.
	Events func(ctx context.Context, ids []int64) ([]int64, error)
	// Change returns true if a change of such an event is to be erased; nil erases all of them.
	Change func(ctx context.Context, envelope []byte) (bool, error)
}

// EraseMessages erases the selected messages of a stream (EventsStream, ChangesStream,
// ReplaysStream), and returns how many. It reads the headers of all messages that are in the stream
// at the start. A missing stream counts as empty. EraseMessages may be repeated.
//
// Each server that has a replica overwrites an erased message in its files. Servers do not
// overwrite messages that left the stream before, a cluster's Raft log, or encrypted files. A
// server that is down deletes later, without overwriting. Overwriting a message rewrites its block
// of 8 MiB: 6 ms instead of 0.1 ms for a delete (nats-server 2.15.2, 2026-11-25).
func (c *Conn) EraseMessages(ctx context.Context, name string, filter EraseFilter) (n int64, err error) {
	s, err := c.js.Stream(ctx, name)
	if IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read stream %s: %w", name, err)
	}
	state := s.CachedInfo().State
	if state.Msgs == 0 {
		return 0, nil
	}
	cons, err := s.CreateConsumer(ctx,
		jetstream.ConsumerConfig{Description: "Postern: finds messages of redacted events",
			AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy, HeadersOnly: true,
			Replicas: 1, InactiveThreshold: eraseConsumerIdle})
	if err != nil {
		return 0, fmt.Errorf("read the messages of stream %s: %w", name, err)
	}
	// Never request more messages than there are: such a fetch would continue after this function
	// returns.
	for last, pending := uint64(0), cons.CachedInfo().NumPending; last < state.LastSeq && pending > 0; {
		var found map[int64][]uint64
		if found, last, pending, err = nextMessages(cons, int(min(pending, eraseBatchSize))); err != nil {
			return n, fmt.Errorf("read the messages of stream %s: %w", name, err)
		}
		erased, err := filter.eraseBatch(ctx, s, found)
		if n += erased; err != nil {
			return n, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	return n, nil
}

// nextMessages returns the sequences of the next messages by event, the sequence of the last one,
// and how many messages remain after it.
func nextMessages(cons jetstream.Consumer, limit int) (found map[int64][]uint64, last, pending uint64, err error) {
	batch, err := cons.Fetch(limit, jetstream.FetchMaxWait(fetchTimeout))
	if err != nil {
		return nil, 0, 0, err
	}
	found = map[int64][]uint64{}
	for msg := range batch.Messages() {
		meta, msgErr := msg.Metadata()
		if msgErr != nil {
			err = msgErr // the remaining messages are still read, because that ends the fetch
			continue
		}
		last, pending = meta.Sequence.Stream, meta.NumPending
		if id, msgErr := strconv.ParseInt(msg.Headers().Get("Postern-Id"), 10, 64); msgErr == nil {
			found[id] = append(found[id], last)
		}
	}
	if err = errors.Join(err, batch.Error()); err == nil && last == 0 {
		err = fmt.Errorf("no message arrived within %s", fetchTimeout)
	}
	return found, last, pending, err
}

// eraseBatch erases the selected messages among those found.
func (f EraseFilter) eraseBatch(ctx context.Context, s jetstream.Stream, found map[int64][]uint64) (n int64,
	err error) {
	ids, err := f.Events(ctx, slices.Collect(maps.Keys(found)))
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		for _, sequence := range found[id] {
			deleted, err := f.eraseMessage(ctx, s, sequence)
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

// eraseMessage erases a message. It returns false if the stream no longer has it.
func (f EraseFilter) eraseMessage(ctx context.Context, s jetstream.Stream, sequence uint64) (deleted bool, err error) {
	if f.Change != nil {
		msg, err := s.GetMsg(ctx, sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if matches, err := f.Change(ctx, msg.Data); err != nil || !matches {
			return false, err
		}
	}
	if err := s.SecureDeleteMsg(ctx, sequence); err != nil {
		if _, getErr := s.GetMsg(ctx, sequence); errors.Is(getErr, jetstream.ErrMsgNotFound) {
			return false, nil
		}
		return false, err
	}
	return true, nil
}
