package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// prefetchBytes bounds the messages that wait in this process.
const prefetchBytes = 64 << 20

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
// error). handle may block: that is how a busy processor stops pulling. Messages that are not ours go to foreign and are
// terminated. What was fetched ahead and not handed over when ctx ends goes back at once, for others to take.
func (c *Conn) Consume(ctx context.Context, prefetch int, handle func(Message) error, foreign func(error)) error {
	cons, err := c.js.Consumer(ctx, EventsStream, ProcessorConsumer)
	if err != nil {
		return fmt.Errorf("open consumer %s: %w", ProcessorConsumer, err)
	}
	iter, err := cons.Messages(jetstream.PullMaxMessagesWithBytesLimit(prefetch, prefetchBytes), jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(time.Second),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return fmt.Errorf("consume %s: %w", ProcessorConsumer, err)
	}
	defer giveBack(iter)
	for {
		msg, err := iter.Next(jetstream.NextContext(ctx))
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("consume %s: %w", ProcessorConsumer, err)
		}
		m := Message{msg: msg, Delivered: 1}
		if meta, err := msg.Metadata(); err == nil {
			m.Delivered = meta.NumDelivered
		}
		if m.Event, err = parseEvent(msg.Headers(), msg.Data()); err != nil {
			foreign(errors.Join(err, msg.TermWithReason("not a Postern event")))
			continue
		}
		if err := handle(m); err != nil {
			return err
		}
	}
}

// giveBack ends an iteration and returns what it had fetched ahead: others need not wait until the broker misses it.
func giveBack(iter jetstream.MessagesContext) {
	iter.Drain()
	for {
		msg, err := iter.Next()
		if err != nil {
			return
		}
		_ = msg.Nak() // unsent, it comes again by itself
	}
}
