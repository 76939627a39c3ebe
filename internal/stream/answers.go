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

// Ack is the answer to one published message.
type Ack struct {
	// Sequence is the message's place in its stream; 0 where Err is set.
	Sequence uint64
	Err      error
}

// PublishEvents publishes events and waits for every answer; in order, one Ack each.
func (c *Conn) PublishEvents(ctx context.Context, evs []Event) []Ack {
	msgs := make([]*nats.Msg, len(evs))
	largest := c.LargestBody()
	for i := range evs {
		msgs[i] = evs[i].message(largest)
	}
	return c.publishAll(ctx, msgs)
}

// runHeader names the run that published an event again.
const runHeader = "Postern-Run"

// PublishReplays publishes stored events under a run and waits for every answer. It returns nil only where the stream has them all.
func (c *Conn) PublishReplays(ctx context.Context, run int64, evs []Event) error {
	msgs := make([]*nats.Msg, len(evs))
	number := []string{strconv.FormatInt(run, 10)}
	largest := c.LargestBody()
	for i := range evs {
		msgs[i] = evs[i].messageTo(ReplaysSubject+"."+number[0], largest)
		msgs[i].Header[runHeader] = number
	}
	for i, ack := range c.publishAll(ctx, msgs) {
		if ack.Err != nil {
			return fmt.Errorf("publish event %d under run %d: %w", evs[i].ID, run, ack.Err)
		}
	}
	return nil
}

// publishAll publishes messages and takes their answers, with a subscription of its own: the future and the timer that the library makes for
// each message cost more than the message.
func (c *Conn) publishAll(ctx context.Context, msgs []*nats.Msg) []Ack {
	acks := make([]Ack, len(msgs))
	if err := c.exchange(ctx, msgs, acks); err != nil {
		for i := range acks {
			if acks[i].Sequence == 0 && acks[i].Err == nil {
				acks[i].Err = err
			}
		}
	}
	return acks
}

var (
	errUnanswered = errors.New("no answer from the stream in time")
	errLost       = errors.New("the connection was lost before the stream answered")
)

// Unanswered says that an error means a publish of which nobody knows whether the stream has it.
func Unanswered(err error) bool { return errors.Is(err, errUnanswered) || errors.Is(err, errLost) }

// mostOpen is how many messages of one exchange are unanswered at most.
const mostOpen = 256

// exchange fills in the answer of each message, within PublishTimeout for each mostOpen of them. On an error some have none.
func (c *Conn) exchange(ctx context.Context, msgs []*nats.Msg, acks []Ack) error {
	inbox := c.nc.NewInbox() + "."
	answers := make(chan *nats.Msg, mostOpen)
	connects, began := c.Connects(), time.Now()
	within := PublishTimeout * time.Duration(1+len(msgs)/(mostOpen+1))
	sub, err := c.nc.ChanSubscribe(inbox+"*", answers)
	if err != nil {
		return fmt.Errorf("subscribe to answers: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it may be gone with the connection
	tick := time.NewTicker(PublishTimeout / 20)
	defer tick.Stop()
	for next, open := 0, 0; next < len(msgs) || open > 0; {
		if next < len(msgs) && open < mostOpen {
			msgs[next].Reply = inbox + strconv.Itoa(next)
			if acks[next].Err = c.nc.PublishMsg(msgs[next]); acks[next].Err == nil {
				open++
			}
			next++
			continue
		}
		select {
		case m := <-answers:
			if i, err := strconv.Atoi(m.Subject[len(inbox):]); err == nil && i < next && acks[i] == (Ack{}) {
				acks[i] = readAck(m)
				open--
			}
		case now := <-tick.C:
			if c.Connects() != connects {
				return errLost
			}
			if now.Sub(began) >= within {
				return errUnanswered
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// readAck reads the stream's answer to one message.
func readAck(m *nats.Msg) Ack {
	if len(m.Data) == 0 { // a status only: nobody listens to the subject
		return Ack{Err: jetstream.ErrNoStreamResponse}
	}
	if sequence, ok := readSequence(m.Data); ok {
		return Ack{Sequence: sequence}
	}
	var answer struct {
		Error    *jetstream.APIError `json:"error"`
		Sequence uint64              `json:"seq"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return Ack{Err: fmt.Errorf("read the stream's answer: %w", err)}
	}
	switch {
	case answer.Error != nil:
		return Ack{Err: answer.Error}
	case answer.Sequence == 0:
		return Ack{Err: fmt.Errorf("the stream answered %q", m.Data)}
	}
	return Ack{Sequence: answer.Sequence}
}

// readSequence reads the usual answer, {"stream":"X","seq":1}, without a decoder; anything else is not ok. Inside a string of JSON the
// quotes of what is looked for would be escaped.
func readSequence(answer []byte) (sequence uint64, ok bool) {
	head, rest, found := bytes.Cut(answer, []byte(`","seq":`))
	digits, ended := bytes.CutSuffix(rest, []byte("}"))
	if !found || !ended || !bytes.HasPrefix(head, []byte(`{"stream":"`)) {
		return 0, false
	}
	sequence, err := strconv.ParseUint(string(digits), 10, 64)
	return sequence, err == nil && sequence > 0
}
