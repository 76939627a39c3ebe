package processor

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
)

// handBackDelay is how long a message waits that is handed back for trouble of our own.
const handBackDelay = 2 * time.Second

// Run consumes, audits and announces until ctx ends; then it stops fetching, finishes what is in hand within a soft limit and
// hands the rest back. An error means that a core loop ended on its own.
func (p *Processor) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.consume(ctx) })
	g.Go(func() error { return (&auditor{p: p}).run(ctx) })
	g.Go(func() error { return p.changes.run(ctx) })
	g.Go(func() error { return p.watchBacklog(ctx) })
	return g.Wait()
}

// lanes spread the messages over goroutines by object, so that two lanes never wait for one object.
type lanes struct {
	chans []chan stream.Message
	// ended is closed when nothing more is pulled. The lanes' own channels never are: a pulling that is given up may hand a message over still.
	ended chan struct{}
	seed  maphash.Seed
	// alone lets one message at a time be tried alone: if it ends the process, no other loses an attempt.
	alone sync.Mutex
	// away: the database does not answer; the lanes hand back what they hold and nothing is pulled.
	away atomic.Bool
	// spells counts the times the database was away, one after the other; trial is until when no batch that is committed ends them, nil: any does.
	spells atomic.Int64
	trial  atomic.Pointer[time.Time]
	// interrupt ends the pulling that goes on now.
	interrupt atomic.Pointer[context.CancelFunc]
	// swaps are when a swap was last met, by source.
	swaps sync.Map
}

// newLanes are so many, each with room for a batch.
func newLanes(count, batch int) *lanes {
	l := &lanes{ended: make(chan struct{}), seed: maphash.MakeSeed()}
	for range count {
		l.chans = append(l.chans, make(chan stream.Message, batch))
	}
	return l
}

// stopPulling until the database answers again: what one processor cannot apply another may.
func (l *lanes) stopPulling() {
	l.away.Store(true)
	if cancel := l.interrupt.Load(); cancel != nil {
		(*cancel)()
	}
}

// take hands a message to its lane, and says whether that has taken it before ctx ended. What is taken after the lanes have ended comes again by itself.
func (l *lanes) take(ctx context.Context, m stream.Message) bool {
	select {
	case l.of(&m.Event) <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// next is the next message of a lane; false: there is none and will be none.
func (l *lanes) next(ch <-chan stream.Message) (m stream.Message, ok bool) {
	select {
	case m = <-ch:
		return m, true
	case <-l.ended:
	}
	select { // what was handed over before the end
	case m = <-ch:
		return m, true
	default:
		return m, false
	}
}

func (l *lanes) of(e *stream.Event) chan stream.Message {
	return l.chans[laneOf(l.seed, e, len(l.chans))]
}

// laneOf is one of n lanes, always the same for an object.
func laneOf(seed maphash.Seed, e *stream.Event, n int) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, part := range [...]string{e.Source, e.Account, e.ObjectType, e.ObjectID} {
		_, _ = h.WriteString(part) // never fails
		_ = h.WriteByte(0)
	}
	return h.Sum64() % uint64(n)
}

func (p *Processor) consume(ctx context.Context) error {
	l := newLanes(p.Settings.Lanes, p.Settings.Batch)
	work, hardStop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer hardStop(nil)
	var wg sync.WaitGroup
	for _, ch := range l.chans {
		wg.Go(func() { p.lane(work, l, ch) })
	}
	p.pull(ctx, l)
	close(l.ended)
	limit := time.AfterFunc(p.Settings.StopWithin, func() { hardStop(fmt.Errorf("stopping: not finished within %s", p.Settings.StopWithin)) })
	defer limit.Stop()
	wg.Wait()
	return nil
}

// pull feeds the lanes until ctx ends, opening the consumer again whenever it is lost or the database is back.
func (p *Processor) pull(ctx context.Context, l *lanes) {
	foreign := func(err error) {
		p.metrics.foreign.Inc()
		p.Logger.Error("a message that is not ours was dropped from the stream", "error", err)
	}
	said := false // that the consumer is lost: once per spell
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		l.interrupt.Store(&cancel)
		p.awaitDatabase(ctx, l)
		began := time.Now()
		err := p.Conn.Consume(round, p.Settings.Batch*p.Settings.Lanes, func(m stream.Message) error {
			if l.take(round, m) {
				return nil
			}
			return m.HandBack(0)
		}, foreign)
		interrupted := round.Err() != nil
		cancel()
		if interrupted {
			continue
		}
		switch {
		case !p.Conn.Connected():
			err = errors.New("no connection to the stream")
		case stream.Gone(err):
			err = errors.Join(err, p.Conn.Ensure(ctx, p.Limits))
		}
		if !said || time.Since(began) > lostAgain {
			said = true
			p.Logger.Warn("consumer lost; opening it again until it can be had", "error", err)
		}
		p.pause(ctx, 200*time.Millisecond)
	}
}

// lostAgain is how long a consumer must have held for its loss to be a new spell.
const lostAgain = 5 * time.Second

func (p *Processor) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// lane applies what its channel holds, a batch at a time. A busy lane is what slows the pulling down.
func (p *Processor) lane(work context.Context, l *lanes, ch <-chan stream.Message) {
	for first, ok := l.next(ch); ok; first, ok = l.next(ch) {
		msgs := p.gather(first, ch)
		switch {
		case work.Err() != nil:
			p.handBack(msgs, context.Cause(work), handBackDelay)
		case l.away.Load():
			p.handBack(msgs, events.ErrUnavailable, handBackDelay)
		default:
			p.work(work, l, msgs)
		}
	}
}

// laneBytes bounds the bodies of one batch; a body that is still in the log counts as claimBytes.
const (
	laneBytes  = 32 << 20
	claimBytes = 4 << 20
)

func weigh(e *stream.Event) int {
	if e.BodyInLog {
		return claimBytes
	}
	return len(e.Body)
}

// gather takes what already waits behind the first message, within the bounds of a batch.
func (p *Processor) gather(first stream.Message, ch <-chan stream.Message) []stream.Message {
	msgs, bytes := []stream.Message{first}, weigh(&first.Event)
	for len(msgs) < p.Settings.Batch && bytes < laneBytes {
		select {
		case m := <-ch:
			msgs, bytes = append(msgs, m), bytes+weigh(&m.Event)
		default:
			return msgs
		}
	}
	return msgs
}

// suspicious is how often a message may be delivered before it is tried alone: it may be what kills the process.
const suspicious = 3

// work applies messages together, the suspicious ones alone, and acknowledges what is committed.
func (p *Processor) work(work context.Context, l *lanes, msgs []stream.Message) {
	var together []stream.Message
	for i := range msgs {
		switch m := &msgs[i]; {
		case !m.Retry && (m.Delivered <= suspicious || l.swapped(m.Event.Source, swapTold)):
			together = append(together, *m)
		case l.away.Load():
			p.handBack(msgs[i:i+1], events.ErrUnavailable, handBackDelay)
		default:
			l.alone.Lock()
			err := p.ApplyAlone(work, events.LiveRun, m.Event)
			l.alone.Unlock()
			p.finish(l, msgs[i:i+1], err)
		}
	}
	if len(together) == 0 {
		return
	}
	evs := make([]stream.Event, len(together))
	for i := range together {
		evs[i] = together[i].Event
	}
	p.finish(l, together, p.Apply(work, events.LiveRun, evs))
}

// finish acknowledges after the commit, or hands back for trouble of our own and stops the pulling until the database answers.
func (p *Processor) finish(l *lanes, msgs []stream.Message, err error) {
	var swap *SwapError
	if errors.As(err, &swap) {
		msgs, err = p.handBackSwapped(l, msgs, swap), nil
	}
	if err != nil {
		p.refused(err)
		p.handBack(msgs, err, handBackDelay)
		l.stopPulling()
		return
	}
	if len(msgs) > 0 {
		l.committed()
	}
	for i := range msgs {
		if err := msgs[i].Ack(); err != nil {
			p.Logger.Debug("acknowledgement not sent; the message comes again", "event", msgs[i].ID, "error", err)
		}
	}
}

const (
	// swapTold is how long after a source's swap was met its messages may have come often without being suspicious: they were handed back for it. A process
	// that one of them ends has forgotten the swap when it starts again.
	swapTold = 5 * time.Minute
	// swapDelay is how long a message waits for a swap that was not met before; most take no longer.
	swapDelay = 200 * time.Millisecond
)

// swapped says whether a swap of the source was met in the last while.
func (l *lanes) swapped(source string, within time.Duration) bool {
	at, ok := l.swaps.Load(source)
	return ok && time.Since(at.(time.Time)) < within
}

// handBackSwapped hands back the messages of sources that are being swapped, and returns the others, which were applied. The pulling goes on: only
// the events of these sources wait.
func (p *Processor) handBackSwapped(l *lanes, msgs []stream.Message, swap *SwapError) (applied []stream.Message) {
	waiting := map[string][]stream.Message{}
	for i := range msgs {
		if source := msgs[i].Event.Source; slices.Contains(swap.Sources, p.sources.number(source)) {
			waiting[source] = append(waiting[source], msgs[i])
		} else {
			applied = append(applied, msgs[i])
		}
	}
	for source, held := range waiting {
		delay := swapDelay
		if l.swapped(source, 2*handBackDelay) {
			delay = handBackDelay
		}
		l.swaps.Store(source, time.Now())
		p.handBack(held, swap, delay)
	}
	return applied
}

func (p *Processor) handBack(msgs []stream.Message, cause error, delay time.Duration) {
	p.Logger.Warn("messages handed back", "events", len(msgs), "error", cause)
	p.metrics.handBacks.Add(float64(len(msgs)))
	for i := range msgs {
		if err := msgs[i].HandBack(delay); err != nil {
			p.Logger.Debug("message not handed back; it comes again by itself", "event", msgs[i].ID, "error", err)
		}
	}
}
