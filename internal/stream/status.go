package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Status is the state of one of Postern's streams.
type Status struct {
	Name string `json:"name"`
	// Missing is true if the stream does not exist. A daemon creates the streams of events and
	// changes when it starts, or when it notices that one is missing. The other streams are created
	// at first use.
	Missing bool `json:"missing"`
	// Messages and Bytes are its content, of at most MaxMessages and MaxBytes. First and Last are
	// the sequences of the oldest and the newest message.
	Messages    uint64 `json:"messages"`
	Bytes       uint64 `json:"bytes"`
	MaxMessages int64  `json:"max_messages"`
	MaxBytes    int64  `json:"max_bytes"`
	First       uint64 `json:"first"`
	Last        uint64 `json:"last"`
	// LastAt is when the newest message was stored; nil if there never was one.
	LastAt *time.Time `json:"last_at"`
	// Consumers are all consumers, including those of users.
	Consumers []ConsumerStatus `json:"consumers"`

	config jetstream.StreamConfig
}

// ConsumerStatus is the state of a consumer.
type ConsumerStatus struct {
	Name string `json:"name"`
	// Pending messages were never delivered. Unacknowledged messages were delivered but not
	// acknowledged yet. Redelivered counts unacknowledged messages that were delivered more than
	// once.
	Pending        uint64 `json:"pending"`
	Unacknowledged int    `json:"unacknowledged"`
	Redelivered    int    `json:"redelivered"`
	// Waiting is the number of open pull requests; with none, no client fetches messages.
	Waiting int `json:"waiting"`

	config jetstream.ConsumerConfig
}

// streamNames are Postern's streams, the most important first.
var streamNames = []string{EventsStream, ChangesStream, ReplaysStream, RunsStream}

// Status reads the state of all of Postern's streams with their consumers.
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
	out.Messages, out.Bytes, out.MaxMessages, out.MaxBytes = info.State.Msgs, info.State.Bytes, info.Config.MaxMsgs,
		info.Config.MaxBytes
	if out.First, out.Last = info.State.FirstSeq, info.State.LastSeq; !info.State.LastTime.IsZero() {
		out.LastAt = &info.State.LastTime
	}
	consumers := s.ListConsumers(ctx)
	for ci := range consumers.Info() {
		out.Consumers = append(out.Consumers, ConsumerStatus{Name: ci.Name, Pending: ci.NumPending,
			Unacknowledged: ci.NumAckPending, Redelivered: ci.NumRedelivered, Waiting: ci.NumWaiting,
			config: ci.Config})
	}
	return out, consumers.Err()
}

// AwaitConnection waits until a server responds. The error after the timeout names servers, timeout
// and remedy.
func (c *Conn) AwaitConnection(ctx context.Context, timeout time.Duration) error {
	if c.Connected() {
		return nil
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for !c.Connected() {
		select {
		case <-c.reconnected:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return fmt.Errorf("no server of %s responds within %s: is NATS running, and are nats.url and its "+
				"credentials right?", maskCredentials(strings.Join(c.nc.Servers(), ",")), timeout)
		}
	}
	return nil
}
