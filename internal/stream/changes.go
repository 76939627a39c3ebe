package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Change is one message of the feed of changes.
type Change struct {
	// Source and ObjectType make the subject.
	Source, ObjectType string
	// Batch is the outbox row it belongs to; the message is found again by it.
	Batch int64
	// Event is our id of the event that the object is as of.
	Event int64
	// Envelope is the JSON body.
	Envelope []byte
}

const batchHeader = "Postern-Batch"

// PublishChanges publishes changes and waits for every answer; in order, one Ack each.
func (c *Conn) PublishChanges(ctx context.Context, changes []Change) []Ack {
	msgs := make([]*nats.Msg, len(changes))
	for i, ch := range changes {
		msgs[i] = &nats.Msg{Subject: ChangesSubject + "." + Token(ch.Source) + "." + Token(ch.ObjectType), Data: ch.Envelope, Header: nats.Header{
			"Postern-Schema": {"1"}, "Postern-Source": {escape(ch.Source)}, "Postern-Object-Type": {escape(ch.ObjectType)}, "Postern-Id": {strconv.FormatInt(ch.Event, 10)},
			batchHeader: {strconv.FormatInt(ch.Batch, 10)},
		}}
	}
	return c.publishAll(ctx, msgs)
}

// hasChangeWithin bounds HasChange.
const hasChangeWithin = 5 * time.Second

// HasChange says whether the stream of changes still holds, at the given sequence, a message of the given batch. A stream that
// was wiped or rolled back does not.
func (c *Conn) HasChange(ctx context.Context, sequence uint64, batch int64) (bool, error) {
	// A request that is lost with its connection gets no response, and the sender of changes waits for it.
	ctx, cancel := context.WithTimeoutCause(ctx, hasChangeWithin, errors.New("read the stream of changes: no response within 5 s"))
	defer cancel()
	s, err := c.js.Stream(ctx, ChangesStream)
	if Gone(err) {
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
