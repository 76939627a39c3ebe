package stream

import (
	"context"

	"github.com/nats-io/nats.go"
)

// RunEnd is one message of the runs stream.
type RunEnd struct {
	// Job and Status form the subject.
	Job, Status string
	// Envelope is the JSON body.
	Envelope []byte
}

// PublishRuns publishes the ends of runs and waits for all responses. It returns one Ack per run,
// in order.
func (c *Conn) PublishRuns(ctx context.Context, ends []RunEnd) []Ack {
	msgs := make([]*nats.Msg, len(ends))
	for i, e := range ends {
		msgs[i] = &nats.Msg{Subject: RunsSubject + "." + Token(e.Job) + "." + Token(e.Status), Data: e.Envelope,
			Header: nats.Header{
				"Postern-Schema": {"1"}, "Postern-Job": {escape(e.Job)}, "Postern-Status": {escape(e.Status)},
			}}
	}
	return c.publishAll(ctx, msgs)
}
