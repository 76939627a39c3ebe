package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Change is one message of the changes stream.
type Change struct {
	// Source and ObjectType form the subject.
	Source, ObjectType string
	// Batch is the id of the message's outbox row; HasChange compares it.
	Batch int64
	// Event is the id of the last event that is part of the object's state.
	Event int64
	// Envelope is the JSON body.
	Envelope []byte
}

const batchHeader = "Postern-Batch"

// PublishChanges publishes changes and waits for all responses. It returns one Ack per change, in
// order.
func (c *Conn) PublishChanges(ctx context.Context, changes []Change) []Ack {
	msgs := make([]*nats.Msg, len(changes))
	for i, ch := range changes {
		msgs[i] = &nats.Msg{Subject: ChangesSubject + "." + Token(ch.Source) + "." + Token(ch.ObjectType),
			Data: ch.Envelope, Header: nats.Header{
				"Postern-Schema": {"1"}, "Postern-Source": {escape(ch.Source)},
				"Postern-Object-Type": {escape(ch.ObjectType)}, "Postern-Id": {strconv.FormatInt(ch.Event, 10)},
				batchHeader: {strconv.FormatInt(ch.Batch, 10)},
			}}
	}
	return c.publishAll(ctx, msgs)
}

// HasChange returns true if the changes stream still has a message of the given batch at the given
// sequence. It returns false after the stream was deleted or restored from an older state.
func (c *Conn) HasChange(ctx context.Context, sequence uint64, batch int64) (bool, error) {
	ctx, cancel := withResponseTimeout(ctx)
	defer cancel()
	s, err := c.js.Stream(ctx, ChangesStream)
	if IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read stream %s: %w", ChangesStream, err)
	}
	msg, err := s.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read change %d: %w", sequence, err)
	}
	return msg.Header.Get(batchHeader) == strconv.FormatInt(batch, 10), nil
}
