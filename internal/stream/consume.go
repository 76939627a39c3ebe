package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// prefetchBytes bounds what is asked for at once. The next is asked for when half of it was handed over, so up to twice as much waits in
// this process; from 64 MiB on the library would lose messages.
const prefetchBytes = 24 << 20

// drainWithin is how long the server may take, as a process stops, to say that it has sent everything; one that stands still never does.
const drainWithin = 2 * time.Second

// Message is an event in hand: it is acknowledged after its outcome is committed, or handed back.
type Message struct {
	Event
	msg jetstream.Msg
	// Delivered counts how often the broker handed it out, crashes included; 1 the first time.
	Delivered uint64
}

// Ack says that the event's outcome is committed (or is not due yet). A lost acknowledgement brings the message again.
func (m *Message) Ack() error { return m.msg.Ack() }

// HandBack gives the message back for trouble of our own, not before the delay is over.
func (m *Message) HandBack(delay time.Duration) error { return m.msg.NakWithDelay(delay) }

// Consume hands the messages of the processors' consumer to handle, one by one, until ctx ends or the consumer is lost (an
// error). handle may block until ctx ends: that is how a busy processor stops pulling. Messages that are not ours go to foreign and
// are terminated. What was fetched ahead and not handed over when ctx ends goes back at once, for others to take.
func (c *Conn) Consume(ctx context.Context, prefetch int, handle func(Message) error, foreign func(error)) error {
	cons, err := c.js.Consumer(ctx, EventsStream, ProcessorConsumer)
	if err != nil {
		return fmt.Errorf("open consumer %s: %w", ProcessorConsumer, err)
	}
	open, end := context.WithCancelCause(ctx)
	defer end(nil)
	// Not the library's iterator: its channel has room for as many messages as are asked for and none for the server's words between
	// them, so that a full one loses messages, and each lost one comes again only after its AckWait.
	var rest []jetstream.Msg
	consuming, err := cons.Consume(func(msg jetstream.Msg) {
		if open.Err() != nil {
			rest = append(rest, msg)
			return
		}
		if err := hand(msg, handle, foreign); err != nil {
			end(err)
		}
	}, jetstream.PullMaxMessagesWithBytesLimit(prefetch, prefetchBytes), jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if isLost(err) {
				end(fmt.Errorf("consume %s: %w", ProcessorConsumer, err))
			}
		}))
	if err != nil {
		return fmt.Errorf("consume %s: %w", ProcessorConsumer, err)
	}
	<-open.Done()
	consuming.Drain()
	if !closed(ctx, consuming) {
		return nil // the server misses what it sent, and sends it again
	}
	// Not before: as long as something is asked for, what goes back comes again at once, and whoever came four times is suspicious.
	for _, msg := range rest {
		_ = msg.Nak() // others need not wait until the broker misses it; unsent, it comes again by itself
	}
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(open)
}

// closed waits until a consuming that drains is over, which the library bounds; false: ctx has ended, and it is given up.
func closed(ctx context.Context, consuming jetstream.ConsumeContext) bool {
	over := consuming.Closed()
	select {
	case <-over:
		return true
	case <-ctx.Done():
	}
	drained := time.NewTimer(drainWithin)
	defer drained.Stop()
	select {
	case <-over:
		return true
	case <-drained.C:
		return false
	}
}

// isLost says whether the consumer has to be opened again; of other trouble the library takes care.
func isLost(err error) bool {
	for _, lost := range []error{jetstream.ErrNoHeartbeat, jetstream.ErrConsumerDeleted, jetstream.ErrBadRequest, jetstream.ErrConnectionClosed} {
		if errors.Is(err, lost) {
			return true
		}
	}
	return false
}

// hand reads a message and hands it over.
func hand(msg jetstream.Msg, handle func(Message) error, foreign func(error)) (err error) {
	m := Message{msg: msg, Delivered: 1}
	if meta, err := msg.Metadata(); err == nil {
		m.Delivered = meta.NumDelivered
	}
	if m.Event, err = parseEvent(msg.Headers(), msg.Data()); err != nil {
		foreign(errors.Join(err, msg.TermWithReason("not a Postern event")))
		return nil
	}
	return handle(m)
}
