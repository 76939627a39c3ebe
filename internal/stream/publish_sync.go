package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Ack is the stream's response to one published message.
type Ack struct {
	// Sequence is the message's sequence in its stream; 0 if Err is set.
	Sequence uint64
	Err      error
}

// PublishEvents publishes events and waits for all responses. It returns one Ack per event, in
// order.
func (c *Conn) PublishEvents(ctx context.Context, evs []Event) []Ack {
	msgs := make([]*nats.Msg, len(evs))
	maxBody := c.MaxMessageBody()
	for i := range evs {
		msgs[i] = evs[i].toMessage(maxBody)
	}
	return c.publishAll(ctx, msgs)
}

// runHeader has the number of the run that published an event again.
const runHeader = "Postern-Run"

// PublishReplays publishes stored events for a run and waits for all responses. It returns nil only
// if the stream has all of them.
func (c *Conn) PublishReplays(ctx context.Context, run int64, evs []Event) error {
	msgs := make([]*nats.Msg, len(evs))
	number := []string{strconv.FormatInt(run, 10)}
	maxBody := c.MaxMessageBody()
	for i := range evs {
		msgs[i] = evs[i].toMessageBelow(ReplaysSubject+"."+number[0], maxBody)
		msgs[i].Header[runHeader] = number
	}
	for i, ack := range c.publishAll(ctx, msgs) {
		if ack.Err != nil {
			return fmt.Errorf("publish event %d under run %d: %w", evs[i].ID, run, ack.Err)
		}
	}
	return nil
}

// publishAll publishes messages and waits for their responses with its own subscription. The client
// library would create a future and a timer per message, which cost more than the message.
func (c *Conn) publishAll(ctx context.Context, msgs []*nats.Msg) []Ack {
	acks := make([]Ack, len(msgs))
	if err := c.publishAndAwait(ctx, msgs, acks); err != nil {
		for i := range acks {
			if acks[i].Sequence == 0 && acks[i].Err == nil {
				acks[i].Err = err
			}
		}
	}
	return acks
}

var (
	errNoResponse = errors.New("no response from the stream in time")
	errLost       = errors.New("the connection was lost before the stream responded")
)

// IsOutcomeUnknown returns true for an error after which it is unknown whether the stream has the
// message.
func IsOutcomeUnknown(err error) bool {
	return errors.Is(err, errNoResponse) || errors.Is(err, errLost)
}

// maxOpenPublishes bounds the messages of one publishAndAwait call that wait for a response.
const maxOpenPublishes = 256

// publishAndAwait sets the Ack of each message. It waits PublishTimeout for every maxOpenPublishes
// messages. After an error some have no Ack.
func (c *Conn) publishAndAwait(ctx context.Context, msgs []*nats.Msg, acks []Ack) error {
	inbox := c.nc.NewInbox() + "."
	responses := make(chan *nats.Msg, maxOpenPublishes)
	connects, started := c.Reconnects(), time.Now()
	timeout := PublishTimeout * time.Duration(1+len(msgs)/(maxOpenPublishes+1))
	sub, err := c.nc.ChanSubscribe(inbox+"*", responses)
	if err != nil {
		return fmt.Errorf("subscribe to responses: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails if the connection is closed
	tick := time.NewTicker(PublishTimeout / 20)
	defer tick.Stop()
	for next, open := 0, 0; next < len(msgs) || open > 0; {
		if next < len(msgs) && open < maxOpenPublishes {
			msgs[next].Reply = inbox + strconv.Itoa(next)
			if acks[next].Err = c.nc.PublishMsg(msgs[next]); acks[next].Err == nil {
				open++
			}
			next++
			continue
		}
		select {
		case m := <-responses:
			if i, err := strconv.Atoi(m.Subject[len(inbox):]); err == nil && i < next && acks[i] == (Ack{}) {
				acks[i] = readAck(m)
				open--
			}
		case now := <-tick.C:
			if c.Reconnects() != connects {
				return errLost
			}
			if now.Sub(started) >= timeout {
				return errNoResponse
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// readAck reads the stream's response to one message.
func readAck(m *nats.Msg) Ack {
	if len(m.Data) == 0 { // a status without a body: no stream has the subject
		return Ack{Err: jetstream.ErrNoStreamResponse}
	}
	if sequence, ok := readSequence(m.Data); ok {
		return Ack{Sequence: sequence}
	}
	var response struct {
		Error    *jetstream.APIError `json:"error"`
		Sequence uint64              `json:"seq"`
	}
	if err := json.Unmarshal(m.Data, &response); err != nil {
		return Ack{Err: fmt.Errorf("read the stream's response: %w", err)}
	}
	switch {
	case response.Error != nil:
		return Ack{Err: response.Error}
	case response.Sequence == 0:
		return Ack{Err: fmt.Errorf("the stream responded %q", m.Data)}
	}
	return Ack{Sequence: response.Sequence}
}

// readSequence parses the usual response, {"stream":"X","seq":1}, without a JSON decoder; ok is
// false for anything else. In a JSON string the quotes of the searched text would be escaped, so
// the search cannot match inside one.
func readSequence(response []byte) (sequence uint64, ok bool) {
	head, rest, found := bytes.Cut(response, []byte(`","seq":`))
	digits, closed := bytes.CutSuffix(rest, []byte("}"))
	if !found || !closed || !bytes.HasPrefix(head, []byte(`{"stream":"`)) {
		return 0, false
	}
	sequence, err := strconv.ParseUint(string(digits), 10, 64)
	return sequence, err == nil && sequence > 0
}
