package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// maxPrefetchBytes bounds one pull request. The next request follows when half of it is processed,
// so up to twice as much waits in this process. From 64 MiB on the client library would lose
// messages.
const maxPrefetchBytes = 24 << 20

// drainTimeout is how long a stopping process waits for the server to confirm that it has sent
// everything. A stalled server never confirms it.
const drainTimeout = 2 * time.Second

// Message is a received event. It is acknowledged after its outcome is committed, or requeued.
type Message struct {
	Event
	msg jetstream.Msg
	// Delivered counts how often the server has delivered the message, including before crashes; 1
	// the first time.
	Delivered uint64
}

// Ack acknowledges the message: its outcome is committed, or it is not due yet. If the
// acknowledgement is lost, the message is delivered again.
func (m *Message) Ack() error { return m.msg.Ack() }

// Requeue returns the message to the stream after a failure on Postern's side. It is delivered
// again after the delay.
func (m *Message) Requeue(delay time.Duration) error { return m.msg.NakWithDelay(delay) }

// Consume calls handle for the messages of the processors' consumer, one at a time, until ctx ends
// or the consumer is lost (an error). handle may block until ctx ends; that is how a busy processor
// stops pulling. Messages that Postern did not publish go to rejectForeign and are terminated.
// Messages that were fetched but not handled when ctx ends are requeued at once.
func (c *Conn) Consume(ctx context.Context, prefetch int, handle func(Message) error, rejectForeign func(error)) error {
	cons, err := c.js.Consumer(ctx, EventsStream, ProcessorConsumer)
	if err != nil {
		return fmt.Errorf("open consumer %s: %w", ProcessorConsumer, err)
	}
	active, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The iterator of the client library is not used. Its channel has capacity for the requested
	// messages only, not for the server's status messages between them. A full channel loses
	// messages, and each of them is delivered again only after its AckWait.
	var prefetched []jetstream.Msg
	consuming, err := cons.Consume(func(msg jetstream.Msg) {
		if active.Err() != nil {
			prefetched = append(prefetched, msg)
			return
		}
		if err := handleMessage(msg, handle, rejectForeign); err != nil {
			stop(err)
		}
	}, jetstream.PullMaxMessagesWithBytesLimit(prefetch, maxPrefetchBytes), jetstream.PullExpiry(5*time.Second),
		jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if isConsumerLost(err) {
				stop(fmt.Errorf("consume %s: %w", ProcessorConsumer, err))
			}
		}))
	if err != nil {
		return fmt.Errorf("consume %s: %w", ProcessorConsumer, err)
	}
	<-active.Done()
	consuming.Drain()
	if !awaitClosed(ctx, consuming) {
		return nil // the server notices the missing acknowledgements and delivers the messages again
	}
	// Only now, because while pull requests are open a requeued message is delivered again at once.
	// The processor suspects a message with more than three deliveries to end the process.
	for _, msg := range prefetched {
		// so that other processors need not wait for AckWait; if this fails, the server delivers
		// the message again after AckWait
		_ = msg.Nak()
	}
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(active)
}

// awaitClosed waits until a draining consumer has ended. After the end of ctx it waits for
// drainTimeout at most; it returns false if the consumer has not ended by then. Before that, only
// the client library limits the wait.
func awaitClosed(ctx context.Context, consuming jetstream.ConsumeContext) bool {
	closed := consuming.Closed()
	select {
	case <-closed:
		return true
	case <-ctx.Done():
	}
	drained := time.NewTimer(drainTimeout)
	defer drained.Stop()
	select {
	case <-closed:
		return true
	case <-drained.C:
		return false
	}
}

// isConsumerLost returns true if the consumer must be opened again. The library handles all other
// failures.
func isConsumerLost(err error) bool {
	for _, lost := range []error{jetstream.ErrNoHeartbeat, jetstream.ErrConsumerDeleted, jetstream.ErrBadRequest,
		jetstream.ErrConnectionClosed} {
		if errors.Is(err, lost) {
			return true
		}
	}
	return false
}

// handleMessage parses a message and passes it to handle.
func handleMessage(msg jetstream.Msg, handle func(Message) error, rejectForeign func(error)) (err error) {
	m := Message{msg: msg, Delivered: 1}
	if meta, err := msg.Metadata(); err == nil {
		m.Delivered = meta.NumDelivered
	}
	if m.Event, err = parseEvent(msg.Headers(), msg.Data()); err != nil {
		rejectForeign(errors.Join(err, msg.TermWithReason("not a Postern event")))
		return nil
	}
	return handle(m)
}
