package processor

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
)

// requeueDelay is how long a message waits that is requeued because of an infrastructure failure.
const requeueDelay = 2 * time.Second

// Run consumes, republishes, and publishes and numbers changes until ctx ends. Then it stops
// fetching, finishes the messages in progress within a soft limit and requeues the rest. An error
// means that one of the loops failed.
func (p *Processor) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.consume(ctx) })
	g.Go(func() error { return (&republisher{p: p}).run(ctx) })
	g.Go(func() error { return p.changes.run(ctx) })
	g.Go(func() error { return p.numberChanges(ctx) })
	g.Go(func() error { return p.forwards.run(ctx) })
	g.Go(func() error { return p.watchBacklog(ctx) })
	return g.Wait()
}

// workers distribute the messages over goroutines by object, so that two workers never wait for one
// object.
type workers struct {
	chans []chan stream.Message
	// ended is closed when no more messages are pulled. The workers' channels are never closed: a
	// pull that was cancelled may still deliver a message.
	ended chan struct{}
	seed  maphash.Seed
	// singleEvent lets one message at a time be tried as a single event: if it ends the process, no
	// other message loses an attempt.
	singleEvent sync.Mutex
	// databaseDown says that the database does not accept writes: the workers requeue their
	// messages, and nothing is pulled.
	databaseDown atomic.Bool
	// outages counts consecutive outages of the database. A committed batch resets the count only
	// after recoverUntil; nil means at any time.
	outages      atomic.Int64
	recoverUntil atomic.Pointer[time.Time]
	// stopPull ends the current pull.
	stopPull atomic.Pointer[context.CancelFunc]
}

// newWorkers returns count workers, each with a channel for one batch.
func newWorkers(count, batch int) *workers {
	l := &workers{ended: make(chan struct{}), seed: maphash.MakeSeed()}
	for range count {
		l.chans = append(l.chans, make(chan stream.Message, batch))
	}
	return l
}

// stopPulling stops pulling until the database accepts writes again. Another processor may apply
// the messages.
func (l *workers) stopPulling() {
	l.databaseDown.Store(true)
	if cancel := l.stopPull.Load(); cancel != nil {
		(*cancel)()
	}
}

// deliver sends a message to its worker. It returns false if ctx ended before. A message that
// arrives after the workers have ended is redelivered by the stream.
func (l *workers) deliver(ctx context.Context, m stream.Message) bool {
	select {
	case l.channelFor(&m.Event) <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// next returns the next message of a worker, false if no more follow.
func (l *workers) next(ch <-chan stream.Message) (m stream.Message, ok bool) {
	select {
	case m = <-ch:
		return m, true
	case <-l.ended:
	}
	select { // messages that were delivered before the end
	case m = <-ch:
		return m, true
	default:
		return m, false
	}
}

func (l *workers) channelFor(e *stream.Event) chan stream.Message {
	return l.chans[apply.WorkerFor(l.seed, e, len(l.chans))]
}

func (p *Processor) consume(ctx context.Context) error {
	l := newWorkers(p.Settings.Workers, p.Settings.Batch)
	work, hardStop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer hardStop(nil)
	var wg sync.WaitGroup
	for _, ch := range l.chans {
		wg.Go(func() { p.runWorker(work, l, ch) })
	}
	p.pull(ctx, l)
	close(l.ended)
	limit := time.AfterFunc(p.Settings.StopTimeout,
		func() { hardStop(fmt.Errorf("stopping: not finished within %s", p.Settings.StopTimeout)) })
	defer limit.Stop()
	wg.Wait()
	return nil
}

// pull delivers messages to the workers until ctx ends. It opens the consumer again when it is lost
// and when the database is available again.
func (p *Processor) pull(ctx context.Context, l *workers) {
	onForeign := func(err error) {
		p.metrics.foreignMessages.Inc()
		p.Logger.Error("dropped a message from the stream that postern did not publish", "error", err)
	}
	logged := false // the loss of the consumer is logged once per outage
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		l.stopPull.Store(&cancel)
		p.awaitDatabase(ctx, l)
		began := time.Now()
		err := p.Conn.Consume(round, p.Settings.Batch*p.Settings.Workers, func(m stream.Message) error {
			if l.deliver(round, m) {
				return nil
			}
			return m.Requeue(0)
		}, onForeign)
		interrupted := round.Err() != nil
		cancel()
		if interrupted {
			continue
		}
		switch {
		case !p.Conn.Connected():
			err = errors.New("no connection to the stream")
		case stream.IsNotFound(err):
			err = errors.Join(err, p.Conn.Ensure(ctx, p.Limits))
		}
		if !logged || time.Since(began) > newOutageAfter {
			logged = true
			p.Logger.Warn("consumer lost; retrying until it opens", "error", err)
		}
		p.pause(ctx, 200*time.Millisecond)
	}
}

// newOutageAfter is how long a consumer must have worked for its loss to count as a new outage.
const newOutageAfter = 5 * time.Second

func (p *Processor) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// runWorker applies the messages of its channel, a batch at a time. A busy worker slows down the
// pull.
func (p *Processor) runWorker(work context.Context, l *workers, ch <-chan stream.Message) {
	for first, ok := l.next(ch); ok; first, ok = l.next(ch) {
		msgs := p.collectBatch(first, ch)
		switch {
		case work.Err() != nil:
			p.requeue(msgs, context.Cause(work), requeueDelay)
		case l.databaseDown.Load():
			p.requeue(msgs, events.ErrUnavailable, requeueDelay)
		default:
			p.applyMessages(work, l, msgs)
		}
	}
}

// collectBatch adds the messages that already wait behind the first one, within the bounds of a
// batch.
func (p *Processor) collectBatch(first stream.Message, ch <-chan stream.Message) []stream.Message {
	msgs, bytes := []stream.Message{first}, apply.BodyBytes(&first.Event)
	for len(msgs) < p.Settings.Batch && bytes < apply.MaxBatchBytes {
		select {
		case m := <-ch:
			msgs, bytes = append(msgs, m), bytes+apply.BodyBytes(&m.Event)
		default:
			return msgs
		}
	}
	return msgs
}

// suspiciousDeliveries is how often a message may be delivered before it is tried as a single
// event: it may be the one that ends the process.
const suspiciousDeliveries = 3

// applyMessages applies suspicious and retried messages as single events, and the others together.
// It acknowledges committed messages.
func (p *Processor) applyMessages(work context.Context, l *workers, msgs []stream.Message) {
	var together []stream.Message
	for i := range msgs {
		switch m := &msgs[i]; {
		case !m.Retry && m.Delivered <= suspiciousDeliveries:
			together = append(together, *m)
		case l.databaseDown.Load():
			p.requeue(msgs[i:i+1], events.ErrUnavailable, requeueDelay)
		default:
			l.singleEvent.Lock()
			err := p.ApplySingle(work, events.LiveRun, m.Event)
			l.singleEvent.Unlock()
			p.finishMessages(l, msgs[i:i+1], err)
		}
	}
	if len(together) == 0 {
		return
	}
	evs := make([]stream.Event, len(together))
	for i := range together {
		evs[i] = together[i].Event
	}
	p.finishMessages(l, together, p.Apply(work, events.LiveRun, evs))
}

// finishMessages acknowledges messages after the commit. After an infrastructure failure it
// requeues them and stops the pull until the database is available again.
func (p *Processor) finishMessages(l *workers, msgs []stream.Message, err error) {
	if err != nil {
		p.recordDatabaseError(err)
		p.requeue(msgs, err, requeueDelay)
		l.stopPulling()
		return
	}
	l.endOutages()
	for i := range msgs {
		if err := msgs[i].Ack(); err != nil {
			p.Logger.Debug("acknowledgement not sent; the message is redelivered", "event", msgs[i].ID, "error", err)
		}
	}
}

func (p *Processor) requeue(msgs []stream.Message, cause error, delay time.Duration) {
	p.Logger.Warn("messages requeued", "events", len(msgs), "error", cause)
	p.metrics.requeued.Add(float64(len(msgs)))
	for i := range msgs {
		if err := msgs[i].Requeue(delay); err != nil {
			p.Logger.Debug("message not requeued; the stream redelivers it", "event", msgs[i].ID, "error", err)
		}
	}
}
