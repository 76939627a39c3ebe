package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Status is one of Postern's streams as the server has it.
type Status struct {
	Name string `json:"name"`
	// Missing: there is none. That of events and that of changes are made by the next daemon that starts or notices; the others when they are first needed.
	Missing bool `json:"missing"`
	// Messages and Bytes are what it holds, of at most MaxMessages and MaxBytes; First and Last are the sequences of the oldest and the newest.
	Messages    uint64 `json:"messages"`
	Bytes       uint64 `json:"bytes"`
	MaxMessages int64  `json:"max_messages"`
	MaxBytes    int64  `json:"max_bytes"`
	First       uint64 `json:"first"`
	Last        uint64 `json:"last"`
	// LastAt is when the newest was stored; nil: it never held one.
	LastAt *time.Time `json:"last_at"`
	// Consumers are all there are, also those of users.
	Consumers []ConsumerStatus `json:"consumers"`

	config jetstream.StreamConfig
}

// ConsumerStatus is who reads a stream.
type ConsumerStatus struct {
	Name string `json:"name"`
	// Pending were never handed out, Unacknowledged were handed out and not acknowledged yet, Redelivered of those more than once.
	Pending        uint64 `json:"pending"`
	Unacknowledged int    `json:"unacknowledged"`
	Redelivered    int    `json:"redelivered"`
	// Waiting is how many ask for messages now: with none, nobody takes any.
	Waiting int `json:"waiting"`

	config jetstream.ConsumerConfig
}

// streamNames are those of Postern, in the order of their importance.
var streamNames = []string{EventsStream, ChangesStream, ReplaysStream, RunsStream}

// Status asks the server for all streams of Postern with their consumers.
func (c *Conn) Status(ctx context.Context) ([]Status, error) {
	all := make([]Status, 0, len(streamNames))
	for _, name := range streamNames {
		s, err := c.status(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", name, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func (c *Conn) status(ctx context.Context, name string) (Status, error) {
	out := Status{Name: name, Consumers: []ConsumerStatus{}}
	s, err := c.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		out.Missing = true
		return out, nil
	}
	if err != nil {
		return out, err
	}
	info := s.CachedInfo()
	out.config = info.Config
	out.Messages, out.Bytes, out.MaxMessages, out.MaxBytes = info.State.Msgs, info.State.Bytes, info.Config.MaxMsgs, info.Config.MaxBytes
	if out.First, out.Last = info.State.FirstSeq, info.State.LastSeq; !info.State.LastTime.IsZero() {
		out.LastAt = &info.State.LastTime
	}
	consumers := s.ListConsumers(ctx)
	for ci := range consumers.Info() {
		out.Consumers = append(out.Consumers, ConsumerStatus{Name: ci.Name, Pending: ci.NumPending, Unacknowledged: ci.NumAckPending, Redelivered: ci.NumRedelivered, Waiting: ci.NumWaiting, config: ci.Config})
	}
	return out, consumers.Err()
}

// Answers waits until a server answers. The error says how long it was waited for.
func (c *Conn) Answers(ctx context.Context, within time.Duration) error {
	if c.Connected() {
		return nil
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	for !c.Connected() {
		select {
		case <-c.reconnected:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return fmt.Errorf("no server of %s answers within %s: is NATS running, and are nats.url and its credentials right?", redact(strings.Join(c.nc.Servers(), ",")), within)
		}
	}
	return nil
}
