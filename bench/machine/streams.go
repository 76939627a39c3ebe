package machine

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
	// Left are messages that were not acknowledged: never handed out, or in somebody's hand.
	Left int64
	// Last is the sequence of the stream's newest message, Messages how many it keeps.
	Last, Messages int64
}

// Done is how many messages were acknowledged, if the stream has lost none.
func (l Lag) Done() int64 { return l.Last - l.Left }

// Lag asks how far a consumer is behind; where it does not exist yet, all is left.
func (m *Machine) Lag(ctx context.Context, stream, consumer string) (l Lag, err error) {
	s, err := m.JS.Stream(ctx, stream)
	if err != nil {
		return l, fmt.Errorf("read stream %s: %w", stream, err)
	}
	state := s.CachedInfo().State
	l.At, l.Last, l.Messages, l.Left = time.Now(), int64(state.LastSeq), int64(state.Msgs), int64(state.Msgs)
	c, err := s.Consumer(ctx, consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("read consumer %s: %w", consumer, err)
	}
	info := c.CachedInfo()
	l.At = time.Now()
	// The server counts what is pending a moment after it was stored, so what the sequences say may
	// be more.
	l.Left = max(int64(info.NumPending), l.Last-int64(info.Delivered.Stream)) + int64(info.NumAckPending)
	return l, nil
}

// Forget removes consumers of a stream; whoever comes next makes them again and reads from the
// beginning.
func (m *Machine) Forget(ctx context.Context, stream string, consumers ...string) error {
	for _, name := range consumers {
		if err := m.JS.DeleteConsumer(ctx, stream, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("delete consumer %s: %w", name, err)
		}
	}
	return nil
}

// Empty removes a stream with all that is in it.
func (m *Machine) Empty(ctx context.Context, stream string) error {
	if err := m.JS.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete stream %s: %w", stream, err)
	}
	return nil
}
