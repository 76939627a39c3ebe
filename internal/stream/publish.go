package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
)

// Publisher publishes each appended event once, never on the goroutine of a request. Errors are
// only counted; the republisher publishes the missing events again.
type Publisher struct {
	conn           *Conn
	limits         Limits
	queue          chan []*pooledMessage
	queuedMessages atomic.Int64 // number of messages in queue
	queuedBytes    atomic.Int64 // bytes of bodies in queue
	log            *slog.Logger
	pool           sync.Pool   // of published messages
	group          []*nats.Msg // owned by Run
	gateOpen       bool        // owned by Run
	withheldAtStop int         // events withheld because the time for a stop ran out; owned by Run
	stopped        atomic.Bool // Run has ended
	metrics        publisherMetrics
}

// maxQueuedEvents and maxQueuedBytes bound the events that wait to be published. Further events are
// left to the republisher.
const (
	maxQueuedEvents = 16_384
	maxQueuedBytes  = 128 << 20
)

// maxLagRatio is the ratio of lag to the stream's limits above which a gateway publishes nothing.
// It must be below the ratio of the republisher (one half), otherwise new events would keep the
// republisher from recovering old ones.
const maxLagRatio = 0.25

// NewPublisher returns a publisher; Run must be called.
func NewPublisher(conn *Conn, limits Limits, log *slog.Logger, reg prometheus.Registerer) (*Publisher, error) {
	p := &Publisher{conn: conn, limits: limits, queue: make(chan []*pooledMessage, maxQueuedEvents), log: log}
	return p, p.register(reg)
}

// Offer queues events for publishing, usually all new events of an append. It never blocks; events
// that do not fit are counted and left to the republisher.
func (p *Publisher) Offer(evs ...Event) {
	maxBody := p.conn.MaxMessageBody()
	msgs := make([]*pooledMessage, 0, len(evs))
	for i := range evs {
		if !p.reserve() {
			p.metrics.results.WithLabelValues("overflowed").Inc()
			continue
		}
		m := p.newMessage()
		m.encode(&evs[i], EventsSubject, maxBody)
		p.queuedBytes.Add(int64(len(m.Data)))
		msgs = append(msgs, m)
	}
	if len(msgs) == 0 {
		return
	}
	p.queue <- msgs // never blocks: the channel holds a slice for each message, and no slice is empty
	if p.stopped.Load() {
		p.withholdQueued() // Run may have emptied the queue for the last time before this
	}
}

// reserve counts a message, if the queue has capacity for it.
func (p *Publisher) reserve() bool {
	if p.queuedBytes.Load() > maxQueuedBytes {
		return false
	}
	if p.queuedMessages.Add(1) > maxQueuedEvents {
		p.queuedMessages.Add(-1)
		return false
	}
	return true
}

// Run publishes queued events until ctx ends, then flushes for up to 5 s. After it returns every
// offered event is counted.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.withholdQueued()
	w, err := newWindow(p.conn.nc, p.countResults)
	if err != nil {
		return fmt.Errorf("subscribe to responses: %w", err)
	}
	defer w.close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	work, cancel := extendContext(ctx, flushTimeout)
	defer cancel()
	p.updateGate(work)
	for {
		select {
		case msgs := <-p.queue:
			p.publishAll(work, w, p.drainQueue(msgs), tick.C)
			p.pause(ctx)
		case now := <-tick.C:
			p.everySecond(work, w, now)
		case <-ctx.Done():
			p.flush(work, w, tick.C)
			return nil
		}
	}
}

// extendContext returns a context that ends d after ctx. A stop must not interrupt the current
// batch, nor a reading of the lag, whose error would withhold all queued events.
func extendContext(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, cancel)
		context.AfterFunc(work, func() { timer.Stop() })
	})
	return work, func() { unhook(); cancel() }
}

// publishInterval is the pause after each publish. Events that are offered during the pause are
// published together; a single event is published at once. A server that is woken for each batch
// would take CPU time from the next commit.
const publishInterval = 10 * time.Millisecond

func (p *Publisher) pause(ctx context.Context) {
	timer := time.NewTimer(publishInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// drainQueue returns msgs and all queued messages.
func (p *Publisher) drainQueue(msgs []*pooledMessage) []*pooledMessage {
	for {
		select {
		case more := <-p.queue:
			msgs = append(msgs, more...)
		default:
			return msgs
		}
	}
}

func (p *Publisher) countResults(acknowledged, failed int) {
	p.metrics.acknowledged.Add(float64(acknowledged))
	p.metrics.failed.Add(float64(failed))
}

// everySecond expires publishes without a response, and reads the lag.
func (p *Publisher) everySecond(ctx context.Context, w *window, now time.Time) {
	w.expire(now)
	p.updateGate(ctx)
}

func (p *Publisher) publishAll(ctx context.Context, w *window, msgs []*pooledMessage, tick <-chan time.Time) {
	for len(msgs) > 0 {
		n := groupSize(msgs)
		p.publishGroup(ctx, w, msgs[:n], tick)
		msgs = msgs[n:]
	}
}

// groupSize returns how many of the first messages form a group.
func groupSize(msgs []*pooledMessage) int {
	bytes := 0
	for n, m := range msgs {
		if bytes += len(m.Data); n > 0 && (n == maxGroupMessages || bytes > maxGroupBytes) {
			return n
		}
	}
	return len(msgs)
}

// publishGroup sends a group when the window has capacity, unless ctx ends first. Errors are
// counted where they occur.
func (p *Publisher) publishGroup(ctx context.Context, w *window, group []*pooledMessage, tick <-chan time.Time) {
	p.countDequeued(group)
	defer p.recycle(group)
	for ctx.Err() == nil {
		select {
		case now := <-tick: // here too, because the window may always have capacity
			p.everySecond(ctx, w, now)
		default:
		}
		if !p.gateOpen || !p.conn.Connected() {
			p.countWithheld(len(group))
			return
		}
		if !errors.Is(w.publish(p.messages(group)...), errWindowFull) {
			return
		}
		select {
		case <-w.slotFreed:
		case now := <-tick:
			p.everySecond(ctx, w, now)
		case <-ctx.Done():
		}
	}
	p.withheldAtStop += len(group)
	p.countWithheld(len(group))
}

// messages returns the NATS messages of a group, in reused memory.
func (p *Publisher) messages(group []*pooledMessage) []*nats.Msg {
	p.group = p.group[:0]
	for _, m := range group {
		p.group = append(p.group, &m.Msg)
	}
	return p.group
}

// countDequeued subtracts messages from the queue's counts.
func (p *Publisher) countDequeued(msgs []*pooledMessage) {
	bytes := 0
	for _, m := range msgs {
		bytes += len(m.Data)
	}
	p.queuedMessages.Add(-int64(len(msgs)))
	p.queuedBytes.Add(-int64(bytes))
}

func (p *Publisher) countWithheld(n int) {
	p.metrics.results.WithLabelValues("withheld").Add(float64(n))
}

// recycle puts messages into the pool.
func (p *Publisher) recycle(msgs []*pooledMessage) {
	for _, m := range msgs {
		m.reset()
		p.pool.Put(m)
	}
}

// newMessage returns an empty message from the pool.
func (p *Publisher) newMessage() *pooledMessage {
	if m, ok := p.pool.Get().(*pooledMessage); ok {
		return m
	}
	return newPooledMessage()
}

// updateGate reads the lag and decides whether to publish until the next reading.
func (p *Publisher) updateGate(ctx context.Context) {
	if !p.conn.Connected() {
		p.gateOpen = false
		p.metrics.setUnknown()
		return
	}
	lag, err := p.lag(ctx)
	if IsNotFound(err) {
		if err = p.ensure(ctx); err == nil {
			lag, err = p.lag(ctx)
		}
	}
	if err != nil {
		if p.gateOpen {
			p.log.Warn("publishing is paused until the stream responds; the republisher publishes the missing events",
				"error", err)
		}
		p.gateOpen = false
		p.metrics.setUnknown()
		return
	}
	p.metrics.setLag(lag)
	p.gateOpen = lag.Ratio <= maxLagRatio
}

func (p *Publisher) lag(ctx context.Context) (Lag, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second,
		errors.New("read the stream's lag: no response within 2 s"))
	defer cancel()
	return p.conn.Lag(ctx, true)
}

func (p *Publisher) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("create the streams: not done within 10 s"))
	defer cancel()
	return p.conn.Ensure(ctx, p.limits)
}

// flushTimeout is how long a stop may take to publish queued events.
const flushTimeout = 5 * time.Second

// flush publishes queued events and reads responses until ctx ends. Remaining events are withheld.
func (p *Publisher) flush(ctx context.Context, w *window, tick <-chan time.Time) {
	for msgs := p.drainQueue(nil); len(msgs) > 0; msgs = p.drainQueue(nil) {
		p.publishAll(ctx, w, msgs, tick)
	}
	w.awaitAll(ctx, tick)
	if remaining := p.withheldAtStop + w.unanswered(); remaining > 0 {
		p.log.Warn("publishing not finished within 5 s; the republisher publishes the rest", "messages", remaining)
	}
}

// withholdQueued leaves the queued events to the republisher. After Run has ended, Offer calls it
// too, because otherwise events that are queued too late would never be counted.
func (p *Publisher) withholdQueued() {
	p.stopped.Store(true)
	remaining := p.drainQueue(nil)
	p.countDequeued(remaining)
	p.countWithheld(len(remaining))
}
