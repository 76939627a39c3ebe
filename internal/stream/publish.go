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

// Publisher publishes each appended event once, never on a request's goroutine. Errors are only counted: what did not arrive
// the auditor publishes again.
type Publisher struct {
	conn    *Conn
	limits  Limits
	queue   chan []*parcel
	count   atomic.Int64 // messages in queue
	waiting atomic.Int64 // bytes of bodies in queue
	log     *slog.Logger
	parcels sync.Pool   // of messages that were published
	run     []*nats.Msg // owned by Run
	open    bool        // owned by Run
	late    int         // withheld since the time for a stop is over; owned by Run
	stopped atomic.Bool // Run has ended
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
	p := &Publisher{conn: conn, limits: limits, queue: make(chan []*parcel, publishQueue), log: log}
	return p, p.register(reg)
}

// Offer takes events for publishing, those of a batch at once. It never blocks; what does not fit is counted and left to the auditor.
func (p *Publisher) Offer(evs ...Event) {
	largest := p.conn.LargestBody()
	msgs := make([]*parcel, 0, len(evs))
	for i := range evs {
		if !p.admit() {
			p.metrics.results.WithLabelValues("overflowed").Inc()
			continue
		}
		m := p.parcel()
		m.fill(&evs[i], EventsSubject, largest)
		p.waiting.Add(int64(len(m.Data)))
		msgs = append(msgs, m)
	}
	if len(msgs) == 0 {
		return
	}
	p.queue <- msgs // there is room: each has at least one message, of which there are no more than it holds
	if p.stopped.Load() {
		p.abandon() // Run may have looked for the last time before
	}
}

// admit counts a message in, if there is room for it.
func (p *Publisher) admit() bool {
	if p.waiting.Load() > publishQueueBytes {
		return false
	}
	if p.count.Add(1) > publishQueue {
		p.count.Add(-1)
		return false
	}
	return true
}

// Run publishes what is offered until ctx ends, then flushes for up to 5 s. After it everything offered is counted.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.abandon()
	w, err := newWindow(p.conn.nc, p.counted)
	if err != nil {
		return fmt.Errorf("subscribe to answers: %w", err)
	}
	defer w.close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	work, cancel := outlive(ctx, flushWithin)
	defer cancel()
	p.gate(work)
	for {
		select {
		case msgs := <-p.queue:
			p.publishAll(work, w, p.gathered(msgs), tick.C)
			p.rest(ctx)
		case now := <-tick.C:
			p.tick(work, w, now)
		case <-ctx.Done():
			p.flush(work, w, tick.C)
			return nil
		}
	}
}

// outlive returns a context that ends d after ctx does: a stop must cut off neither the batch in hand nor a reading of the lag, whose error
// would close the gate to all that waits.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, cancel)
		context.AfterFunc(work, func() { timer.Stop() })
	})
	return work, func() { unhook(); cancel() }
}

// pace is how long the publisher rests after it has published, while what comes gathers: a lone event goes at once, and what keeps coming goes
// together. A server that is woken for each batch takes the processors from the next batch's commit.
const pace = 10 * time.Millisecond

func (p *Publisher) rest(ctx context.Context) {
	timer := time.NewTimer(pace)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// gathered is what was taken from the queue and all else that waits in it.
func (p *Publisher) gathered(msgs []*parcel) []*parcel {
	for {
		select {
		case more := <-p.queue:
			msgs = append(msgs, more...)
		default:
			return msgs
		}
	}
}

func (p *Publisher) counted(acknowledged, failed int) {
	p.metrics.acknowledged.Add(float64(acknowledged))
	p.metrics.failed.Add(float64(failed))
}

// tick is done once a second.
func (p *Publisher) tick(ctx context.Context, w *window, now time.Time) {
	w.expire(now)
	p.gate(ctx)
}

func (p *Publisher) publishAll(ctx context.Context, w *window, msgs []*parcel, tick <-chan time.Time) {
	for len(msgs) > 0 {
		n := runOf(msgs)
		p.publish(ctx, w, msgs[:n], tick)
		msgs = msgs[n:]
	}
}

// runOf is how many of the first messages make a run.
func runOf(msgs []*parcel) int {
	bytes := 0
	for n, m := range msgs {
		if bytes += len(m.Data); n > 0 && (n == longestRun || bytes > largestRun) {
			return n
		}
	}
	return len(msgs)
}

// publish sends a run, when there is room for it and ctx has not ended. An error is counted where it happened.
func (p *Publisher) publish(ctx context.Context, w *window, run []*parcel, tick <-chan time.Time) {
	p.taken(run)
	defer p.spare(run)
	for ctx.Err() == nil {
		select {
		case now := <-tick: // also where there is always room
			p.tick(ctx, w, now)
		default:
		}
		if !p.open || !p.conn.Connected() {
			p.withheld(len(run))
			return
		}
		if !errors.Is(w.publish(p.messages(run)...), errNoRoom) {
			return
		}
		select {
		case <-w.room:
		case now := <-tick:
			p.tick(ctx, w, now)
		case <-ctx.Done():
		}
	}
	p.late += len(run)
	p.withheld(len(run))
}

// messages are a run's, in memory that is used again.
func (p *Publisher) messages(run []*parcel) []*nats.Msg {
	p.run = p.run[:0]
	for _, m := range run {
		p.run = append(p.run, &m.Msg)
	}
	return p.run
}

// taken counts messages out of the queue.
func (p *Publisher) taken(msgs []*parcel) {
	bytes := 0
	for _, m := range msgs {
		bytes += len(m.Data)
	}
	p.count.Add(-int64(len(msgs)))
	p.waiting.Add(-int64(bytes))
}

func (p *Publisher) withheld(n int) { p.metrics.results.WithLabelValues("withheld").Add(float64(n)) }

// spare keeps messages that nobody needs any more, to be filled again.
func (p *Publisher) spare(msgs []*parcel) {
	for _, m := range msgs {
		m.empty()
		p.parcels.Put(m)
	}
}

// parcel is an empty message.
func (p *Publisher) parcel() *parcel {
	if m, ok := p.parcels.Get().(*parcel); ok {
		return m
	}
	return newParcel()
}

// gate reads the lag and decides whether to publish until the next reading.
func (p *Publisher) gate(ctx context.Context) {
	if !p.conn.Connected() {
		p.open = false
		p.metrics.unknown()
		return
	}
	lag, err := p.lag(ctx)
	if Gone(err) {
		if err = p.ensure(ctx); err == nil {
			lag, err = p.lag(ctx)
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

func (p *Publisher) lag(ctx context.Context) (Lag, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("read the stream's lag: no answer within 2 s"))
	defer cancel()
	return p.conn.Lag(ctx, true)
}

func (p *Publisher) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("make the streams: not done within 10 s"))
	defer cancel()
	return p.conn.Ensure(ctx, p.limits)
}

// flushWithin is how long a stop may take to publish what waits.
const flushWithin = 5 * time.Second

// flush publishes what waits and takes the answers until ctx ends; what is left then is withheld.
func (p *Publisher) flush(ctx context.Context, w *window, tick <-chan time.Time) {
	for msgs := p.gathered(nil); len(msgs) > 0; msgs = p.gathered(nil) {
		p.publishAll(ctx, w, msgs, tick)
	}
	w.wait(ctx, tick)
	if left := p.late + w.unanswered(); left > 0 {
		p.log.Warn("publishing not finished within 5 s; the auditor brings back what is left", "messages", left)
	}
}

// abandon leaves what waits to the auditor: nobody publishes it any more. Offer does so too once Run has, else what it queued a moment too
// late would be counted by nobody.
func (p *Publisher) abandon() {
	p.stopped.Store(true)
	left := p.gathered(nil)
	p.taken(left)
	p.withheld(len(left))
}
