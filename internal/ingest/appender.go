package ingest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
)

// downFor is how long deliveries are refused at once after the store did not answer; then one batch tries again.
const downFor = 250 * time.Millisecond

// appender gathers verified deliveries into batches. While one batch is being committed, arrivals gather for the next: at low
// load a batch is one delivery and nobody waits on a timer.
type appender struct {
	s     *Server
	queue *queue
	// began holds, per writer, when its append started (Unix nanoseconds); 0 when idle.
	began []atomic.Int64
	// turn belongs to the writer that waits for the next batch. underWay is how many deliveries are being committed; ended gets a token
	// when a commit has ended.
	turn     sync.Mutex
	underWay atomic.Int64
	ended    chan struct{}
	// waits has waitings that were answered.
	waits sync.Pool
	// downUntil is when to try the store again, Unix nanoseconds, and outage whether it is away.
	downUntil atomic.Int64
	outage    *outage
}

// waiting is a delivery in the queue and where its answer goes.
type waiting struct {
	ep       Endpoint
	delivery events.Delivery
	// trace goes on with the events, "" where nobody traces this delivery.
	trace string
	since time.Time
	// taken is when its append began, Unix nanoseconds; 0 while it is in the queue. Who waits reads it meanwhile.
	taken  int64
	answer chan result
	// deadline ends the wait.
	deadline *time.Timer
	// memory is that of the body. It is given back by whoever answers: a sender that is gone frees nothing.
	memory part
	// landed ends the flight of an Exact delivery's keys; nil for others.
	landed func()
}

// answered gives the answer and the memory back. Whoever waited may use w again at once, so nobody reads it after this; and may send again, so its keys have landed before it.
func (w *waiting) answered(r result) {
	memory := w.memory
	if w.landed != nil {
		w.landed()
	}
	w.answer <- r
	memory.release()
}

type result struct {
	receipts []events.Receipt
	err      error
}

func newAppender(s *Server) *appender {
	return &appender{s: s, queue: newQueue(s.Settings), began: make([]atomic.Int64, s.Settings.Writers), ended: make(chan struct{}, 1), outage: newOutage()}
}

// enqueue takes a delivery, and with it the duty to release its memory. After an error both are still the caller's. A request that began before the database was proven has
// no number of its source; the spool keeps it by its name.
func (a *appender) enqueue(w *waiting) error {
	if a.stalled() || time.Now().UnixNano() < a.downUntil.Load() || a.away() || a.s.unproven.Load() || w.ep.Number == 0 {
		return errUnavailable
	}
	w.since = time.Now()
	lasting, moving := a.lasting(w.since)
	if !a.queue.push(w, lasting, moving) {
		return errFull
	}
	return nil
}

// away: the store is away, and the spool holds what it is tried with.
func (a *appender) away() bool {
	return a.outage.away.Load() && a.s.Spool != nil && a.s.Spool.Stats().Records > 0
}

// wait gives what became of a delivery in the queue, waiting at most until the deadline. Where it may be kept in the spool nobody waits for an append that hangs: only until the store is
// away, or its own append stalls; then nothing has become of it yet (false), and it is still in the queue until its sender has been answered otherwise (queue.leave). An append that is under way is
// never cancelled: a sender that was answered 503 may find its event stored when it tries again. A sender that closed its half of the connection still reads, so that ends no wait.
func (a *appender) wait(w *waiting) (r result, answered bool) {
	var gone <-chan struct{}
	last, next := time.Now().Add(a.s.Settings.Deadline), a.s.Settings.Deadline
	if a.s.keeps(w.ep) {
		gone, next = a.outage.begins(), min(next, a.s.Settings.StallAfter)
	}
	for next > 0 {
		w.deadline.Reset(next)
		select {
		case r := <-w.answer:
			w.deadline.Stop()
			*w = waiting{answer: w.answer, deadline: w.deadline} // its memory is given back, so nothing holds on to the body
			a.waits.Put(w)
			return r, true
		case <-w.deadline.C:
			next = min(a.patience(w), time.Until(last))
		case <-gone:
			next = 0
		}
	}
	return result{}, false // whoever answers it still has it
}

// patience is how long a delivery's append may still take before it has stalled.
func (a *appender) patience(w *waiting) time.Duration {
	taken := atomic.LoadInt64(&w.taken)
	if taken == 0 {
		return a.s.Settings.StallAfter
	}
	return a.s.Settings.StallAfter - time.Duration(time.Now().UnixNano()-taken)
}

// waiting is a delivery that is to be enqueued. After its answer it is used again, timer and all.
func (a *appender) waiting(w waiting) *waiting {
	used, ok := a.waits.Get().(*waiting)
	if !ok {
		used = &waiting{answer: make(chan result, 1), deadline: time.NewTimer(time.Hour)}
	}
	w.answer, w.deadline = used.answer, used.deadline
	*used = w
	return used
}

// toAppend is a delivery in the log's form. The bodies are nil where the events share the delivery's.
func toAppend(ep Endpoint, d *provider.Delivery, v provider.Verification, evs []provider.Event, bodies [][]byte) events.Delivery {
	kept := d
	if bodies != nil {
		kept = cutHeaders(ep.headers, d)
	}
	buf := events.AppendHeaders(make([]byte, 0, 768), ep.headers, kept)
	n := len(buf)
	buf = appendVerification(buf, v)
	return events.Delivery{Source: ep.Number, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook, Headers: buf[:n:n], Verification: buf[n:], Body: d.Body, Events: evs, Bodies: bodies, Exact: direct(ep)}
}

// stalled says whether every writer's append has been under way for too long; as long as one works, the queue moves.
func (a *appender) stalled() bool {
	now := time.Now().UnixNano()
	for i := range a.began {
		if began := a.began[i].Load(); began == 0 || now-began <= int64(a.s.Settings.StallAfter) {
			return false
		}
	}
	return true
}

// hangs says whether an append has been under way for too long, or the store is away.
func (a *appender) hangs() bool {
	now := time.Now().UnixNano()
	for i := range a.began {
		if began := a.began[i].Load(); began != 0 && now-began > int64(a.s.Settings.StallAfter) {
			return true
		}
	}
	return a.outage.away.Load()
}

// lasting is how long the commit that began first of those under way has lasted, 0 where none is, and how many writers move. One that hangs says nothing of the others.
func (a *appender) lasting(now time.Time) (longest time.Duration, moving int) {
	for i := range a.began {
		began := a.began[i].Load()
		if lasted := time.Duration(now.UnixNano() - began); began == 0 {
			moving++
		} else if lasted <= a.s.Settings.StallAfter {
			moving, longest = moving+1, max(longest, lasted)
		}
	}
	return longest, moving
}

// run writes until ctx ends and the queue is empty.
func (a *appender) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { a.watch(ctx) })
	for i := range a.began {
		wg.Go(func() { a.write(ctx, i) })
	}
	wg.Wait()
}

func (a *appender) write(ctx context.Context, writer int) {
	for {
		batch := a.next(ctx, writer)
		if len(batch) == 0 {
			return
		}
		a.commit(ctx, batch)
		a.done(writer, len(batch))
	}
}

// done says that a writer's commit has ended.
func (a *appender) done(writer, deliveries int) {
	a.underWay.Add(-int64(deliveries))
	a.began[writer].Store(0)
	select {
	case a.ended <- struct{}{}:
	default: // whoever waits is told already
	}
}

const (
	// company is how many deliveries are worth a commit of their own beside another: a commit of one costs as much as one of twenty.
	company = 16
	// patience and longest are how long fewer wait for the commit under way: a small one that takes longer waits for a slow disk or a
	// standby, not for a processor.
	patience = time.Millisecond
	longest  = 20 * time.Millisecond
)

// next waits for a batch; an empty one says that ctx has ended and nothing is left. One writer at a time waits, and goes on
// waiting where all that it found has left. A delivery that comes
// when nothing is under way goes at once. Beside an append that is under way another begins when as many wait as that one has, so
// that batches stay large under load; or once it has lasted.
func (a *appender) next(ctx context.Context, writer int) []*waiting {
	a.turn.Lock()
	defer a.turn.Unlock()
	for a.await(ctx, 1, nil, nil) {
		if batch := a.gathered(ctx, writer); len(batch) > 0 {
			return batch
		}
	}
	return a.take(writer) // what came just before the end
}

// gathered takes what waits, once it is worth a commit beside those that are under way.
func (a *appender) gathered(ctx context.Context, writer int) []*waiting {
	select {
	case <-a.ended: // of before
	default:
	}
	if beside := a.beside(); beside > 0 {
		hurry := time.NewTimer(patience)
		defer hurry.Stop()
		if beside >= company {
			hurry.Reset(longest)
		}
		a.await(ctx, min(max(beside, company), a.s.Settings.BatchMax), a.ended, hurry.C)
	}
	return a.take(writer)
}

// beside is how many deliveries a commit that is under way has, on average; 0 where none is.
func (a *appender) beside() int {
	busy := 0
	for i := range a.began {
		if a.began[i].Load() != 0 {
			busy++
		}
	}
	if busy == 0 {
		return 0
	}
	return int(a.underWay.Load()) / busy
}

// await waits until so many deliveries wait; false where something else came first.
func (a *appender) await(ctx context.Context, n int, ended <-chan struct{}, hurry <-chan time.Time) bool {
	for !a.queue.has(n) {
		select {
		case <-a.queue.ready:
		case <-ended:
			return false
		case <-hurry:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// take takes what waits. Whoever is about to join may do so first: most of those just answered come again at once.
func (a *appender) take(writer int) []*waiting {
	runtime.Gosched()
	batch := a.queue.gather(a.s.Settings.BatchMax, a.s.Settings.BatchBytes)
	if len(batch) > 0 {
		now := time.Now().UnixNano()
		for _, w := range batch {
			atomic.StoreInt64(&w.taken, now)
		}
		a.underWay.Add(int64(len(batch)))
		a.began[writer].Store(now)
	}
	return batch
}

// commit appends a batch, answers everyone in it, and hands what is new to the publisher. A batch that fails for what one
// delivery holds is split, so that no delivery fails its neighbours.
func (a *appender) commit(ctx context.Context, batch []*waiting) {
	deliveries := make([]events.Delivery, len(batch))
	for i, w := range batch {
		deliveries[i] = w.delivery
	}
	began, within := time.Now(), a.s.within()
	acquire, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), within, fmt.Errorf("no database connection within %s", within))
	receipts, err := events.Append(acquire, a.s.Pool, deliveries)
	cancel()
	a.observe(batch, receipts, time.Since(began))
	switch {
	case err == nil:
		a.back()
		a.queue.took(time.Since(began))
		fresh := make([]stream.Event, 0, len(batch))
		for i, w := range batch {
			if w.delivery.Refused(receipts[i]) {
				w.answered(result{err: conflicting(receipts[i])})
				continue
			}
			fresh = appendEvents(fresh, w, receipts[i]) // before the answer: after it w is another's
			w.answered(result{receipts: receipts[i]})
		}
		if len(fresh) > 0 {
			a.s.Publish(fresh...)
		}
	case errors.Is(err, events.ErrUnavailable) || len(batch) == 1:
		if errors.Is(err, events.ErrUnavailable) {
			a.downUntil.Store(time.Now().Add(downFor).UnixNano())
			a.gone(err)
		}
		a.s.Logger.Error("append failed; nothing of it is in the log", "deliveries", len(batch), "error", err)
		for _, w := range batch {
			w.answered(result{err: err})
		}
	default:
		a.commit(ctx, batch[:len(batch)/2])
		a.commit(ctx, batch[len(batch)/2:])
	}
}

// observe measures an append; receipts are nil for one that failed.
func (a *appender) observe(batch []*waiting, receipts [][]events.Receipt, took time.Duration) {
	a.s.metrics.batches.Observe(float64(len(batch)))
	a.s.metrics.append.Observe(took.Seconds())
	count, fresh := 0, 0
	for i, w := range batch {
		count += len(w.delivery.Events)
		if receipts == nil {
			continue
		}
		for _, r := range receipts[i] {
			if !r.Duplicate && r.ID != 0 {
				fresh++
			}
		}
	}
	a.s.Logger.Debug("appended batch", "deliveries", len(batch), "events", count, "new", fresh, "duration_ms", milliseconds(took))
}

// sharedBody is how large the body of a delivery of many events may be to travel with each of them, in bytes; a larger one is
// read from the log, where it is kept once.
const sharedBody = 16 << 10

// appendEvents appends what is new of a delivery, as the stream has it.
func appendEvents(evs []stream.Event, w *waiting, receipts []events.Receipt) []stream.Event {
	d := &w.delivery
	body, inLog := d.Body, false
	if d.Bodies == nil && len(receipts) > 1 && len(body) > sharedBody {
		body, inLog = nil, true
	}
	for i, r := range receipts {
		if r.Duplicate {
			continue
		}
		e, index := &d.Events[i], i
		if d.Bodies != nil {
			body, index = d.Bodies[i], 0
		}
		evs = append(evs, stream.Event{Source: w.ep.Config.Name, ObjectType: e.ObjectType, ObjectID: e.ObjectID, OccurredAt: e.OccurredAt, BodyInLog: inLog, Trace: w.trace,
			Stored: provider.Stored{ID: r.ID, Key: e.Key, Type: e.Type, Account: e.Account, APIVersion: e.APIVersion, Origin: d.Origin,
				ReceivedAt: d.ReceivedAt, Index: index, Body: body}})
	}
	return evs
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
