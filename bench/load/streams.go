package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Lag is how far a consumer is behind its stream.
type Lag struct {
	At time.Time
	// Pending counts the messages that are not acknowledged: not delivered yet, or delivered and in
	// progress.
	Pending int64
	// Last is the sequence number of the stream's newest message. Messages is the number of stored
	// messages.
	Last, Messages int64
}

// Done returns the number of acknowledged messages. It assumes that the stream has lost none.
func (l Lag) Done() int64 { return l.Last - l.Pending }

// Lag reads how far a consumer is behind its stream. Of a consumer that does not exist, all
// messages are pending.
func (m *Machine) Lag(ctx context.Context, stream, consumer string) (l Lag, err error) {
	s, err := m.JS.Stream(ctx, stream)
	if err != nil {
		return l, fmt.Errorf("read stream %s: %w", stream, err)
	}
	state := s.CachedInfo().State
	l.At, l.Last, l.Messages, l.Pending = time.Now(), int64(state.LastSeq), int64(state.Msgs), int64(state.Msgs)
	c, err := s.Consumer(ctx, consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("read consumer %s: %w", consumer, err)
	}
	info := c.CachedInfo()
	l.At = time.Now()
	// The server updates NumPending shortly after it stores a message. The sequence numbers may
	// therefore show more.
	l.Pending = max(int64(info.NumPending), l.Last-int64(info.Delivered.Stream)) + int64(info.NumAckPending)
	return l, nil
}

// DeleteConsumers deletes consumers of a stream. The next processor creates them again and reads
// from the beginning.
func (m *Machine) DeleteConsumers(ctx context.Context, stream string, consumers ...string) error {
	for _, name := range consumers {
		if err := m.JS.DeleteConsumer(ctx, stream, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("delete consumer %s: %w", name, err)
		}
	}
	return nil
}

// DeleteStream deletes a stream with its messages. A stream that does not exist is no error.
func (m *Machine) DeleteStream(ctx context.Context, stream string) error {
	if err := m.JS.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete stream %s: %w", stream, err)
	}
	return nil
}
