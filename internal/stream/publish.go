package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
)

// Publisher publishes each appended event once, never on a request's goroutine. Errors are only counted: what did not arrive
// the auditor publishes again.
type Publisher struct {
	conn    *Conn
	limits  Limits
	queue   chan *nats.Msg
	waiting atomic.Int64 // bytes of bodies in queue
	log     *slog.Logger
	open    bool // owned by Run
	metrics publisherMetrics
}

// publishQueue and publishQueueBytes bound the events waiting to be published; beyond them they are the auditor's.
const (
	publishQueue      = 16_384
	publishQueueBytes = 128 << 20
)

// gateShare is the lag, as a share of the stream's limits, above which a gateway publishes nothing. It must stay below the
// auditor's (half), or recovery would wait for the gateways' own flood.
const gateShare = 0.25

// NewPublisher returns a publisher to be driven by Run.
func NewPublisher(conn *Conn, limits Limits, log *slog.Logger, reg prometheus.Registerer) (*Publisher, error) {
	p := &Publisher{conn: conn, limits: limits, queue: make(chan *nats.Msg, publishQueue), log: log}
	return p, p.register(reg)
}

// Offer takes events for publishing. It never blocks; what does not fit is counted and left to the auditor.
func (p *Publisher) Offer(evs ...Event) {
	largest := p.conn.LargestBody()
	for i := range evs {
		m := evs[i].message(largest)
		if p.waiting.Load() > publishQueueBytes {
			p.metrics.results.WithLabelValues("overflowed").Inc()
			continue
		}
		p.waiting.Add(int64(len(m.Data)))
		select {
		case p.queue <- m:
		default:
			p.waiting.Add(-int64(len(m.Data)))
			p.metrics.results.WithLabelValues("overflowed").Inc()
		}
	}
}

// Run publishes what is offered until ctx ends, then flushes for up to 5 s.
func (p *Publisher) Run(ctx context.Context) error {
	js, err := jetstream.New(p.conn.nc, jetstream.WithPublishAsyncMaxPending(maxInFlight), jetstream.WithPublishAsyncTimeout(publishTimeout),
		jetstream.WithPublishAsyncAckHandler(func(jetstream.JetStream, *nats.Msg, *jetstream.PubAck) {
			p.metrics.results.WithLabelValues("acknowledged").Inc()
		}),
		jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) { p.metrics.results.WithLabelValues("failed").Inc() }))
	if err != nil {
		return fmt.Errorf("open jetstream: %w", err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	p.gate(ctx)
	for {
		select {
		case m := <-p.queue:
			p.publish(js, m)
		case <-tick.C:
			p.gate(ctx)
		case <-ctx.Done():
			p.flush(js)
			return nil
		}
	}
}

func (p *Publisher) publish(js jetstream.JetStream, m *nats.Msg) {
	p.waiting.Add(-int64(len(m.Data)))
	if !p.open || !p.conn.Connected() {
		p.metrics.results.WithLabelValues("withheld").Inc()
		return
	}
	if _, err := js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0)); err != nil {
		p.metrics.results.WithLabelValues("failed").Inc()
	}
}

// gate reads the lag and decides whether to publish until the next reading.
func (p *Publisher) gate(ctx context.Context) {
	if !p.conn.Connected() {
		p.open = false
		p.metrics.unknown()
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("read the stream's lag: no answer within 2 s"))
	defer cancel()
	lag, err := p.conn.Lag(ctx, true)
	if Gone(err) {
		if err = p.conn.Ensure(ctx, p.limits); err == nil {
			lag, err = p.conn.Lag(ctx, true)
		}
	}
	if err != nil {
		if p.open {
			p.log.Warn("publishing stopped until the stream answers; the auditor brings back what is left out", "error", err)
		}
		p.open = false
		p.metrics.unknown()
		return
	}
	p.metrics.lag(lag)
	p.open = lag.Share <= gateShare
}

func (p *Publisher) flush(js jetstream.JetStream) {
	deadline := time.After(5 * time.Second)
	for {
		select {
		case m := <-p.queue:
			p.publish(js, m)
			continue
		default:
		}
		break
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-deadline:
		p.log.Warn("publishing not finished within 5 s; the auditor brings back what is left", "messages", js.PublishAsyncPending())
	}
}

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

func (c *Conn) publishAll(ctx context.Context, msgs []*nats.Msg) []Ack {
	acks := make([]Ack, len(msgs))
	for from := 0; from < len(msgs); from += maxInFlight / 2 {
		c.publishSome(ctx, msgs[from:min(from+maxInFlight/2, len(msgs))], acks[from:])
	}
	return acks
}

func (c *Conn) publishSome(ctx context.Context, msgs []*nats.Msg, acks []Ack) {
	futures := make([]jetstream.PubAckFuture, len(msgs))
	for i, m := range msgs {
		futures[i], acks[i].Err = c.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
	}
	for i, f := range futures {
		if acks[i].Err != nil {
			continue
		}
		select {
		case ack := <-f.Ok():
			acks[i].Sequence = ack.Sequence
		case err := <-f.Err():
			acks[i].Err = err
		case <-ctx.Done():
			acks[i].Err = context.Cause(ctx)
		}
	}
}
