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

// storeRetryDelay is how long deliveries are rejected at once after PostgreSQL did not respond.
// Then one batch tries again.
const storeRetryDelay = 250 * time.Millisecond

// appender collects verified deliveries into batches. Deliveries that arrive during a commit wait
// for the next one. At low load a batch is one delivery, and no delivery waits for a timer.
type appender struct {
	s     *Server
	queue *queue
	// appendStarted is, per writer, the start of its append (Unix nanoseconds); 0 if it is idle.
	appendStarted []atomic.Int64
	// batchMu belongs to the writer that waits for the next batch. inProgress is the number of
	// deliveries that are being committed. commitEnded gets a token when a commit ends.
	batchMu     sync.Mutex
	inProgress  atomic.Int64
	commitEnded chan struct{}
	// pool contains finished queuedDelivery values for reuse.
	pool sync.Pool
	// retryStoreAt is when to try PostgreSQL again (Unix nanoseconds); outage is whether it is
	// unavailable.
	retryStoreAt atomic.Int64
	outage       *outage
}

// queuedDelivery is a delivery in the queue, with the channel for its result.
type queuedDelivery struct {
	ep       Endpoint
	delivery events.Delivery
	// trace is the traceparent for the events, "" if this delivery is not traced.
	trace    string
	queuedAt time.Time
	// appendStarted is when its append began (Unix nanoseconds); 0 while it is queued. The waiting
	// request reads it concurrently.
	appendStarted int64
	result        chan result
	// timer ends the wait.
	timer *time.Timer
	// memory is the reservation for the body. finish releases it, even if the sender has gone,
	// because the body is in memory until then.
	memory reservation
}

// finish sends the result and releases the memory. The waiting request may reuse d at once, so
// finish does not read d after the send.
func (d *queuedDelivery) finish(r result) {
	memory := d.memory
	d.result <- r
	memory.release()
}

type result struct {
	receipts []events.Receipt
	err      error
}

func newAppender(s *Server) *appender {
	return &appender{s: s, queue: newQueue(s.Settings), appendStarted: make([]atomic.Int64, s.Settings.Writers),
		commitEnded: make(chan struct{}, 1), outage: newOutage()}
}

// enqueue adds a delivery to the queue, which then releases its memory and keys. After an error the
// caller must do that. A request that began before the database was confirmed has no source number;
// it goes to the spool under the source's name.
func (a *appender) enqueue(d *queuedDelivery) error {
	if a.allWritersStalled() || time.Now().UnixNano() < a.retryStoreAt.Load() || a.mustSpool() ||
		a.s.databaseUnchecked.Load() || d.ep.Number == 0 {
		return errUnavailable
	}
	d.queuedAt = time.Now()
	commitAge, activeWriters := a.commitProgress(d.queuedAt)
	if !a.queue.push(d, commitAge, activeWriters) {
		return errOverloaded
	}
	return nil
}

// mustSpool returns true during an outage if the spool is not empty. Draining the spool then shows
// when PostgreSQL is available again, so no delivery needs to try.
func (a *appender) mustSpool() bool {
	return a.outage.active.Load() && a.s.Spool != nil && a.s.Spool.Stats().Records > 0
}

// wait waits for the result of a queued delivery, at most until the deadline. If the delivery may
// be spooled, it waits only until an outage starts or the delivery's append stalls. It then returns
// false: there is no result yet, and the delivery stays queued until queue.abandon.
//
// An append in progress is never cancelled, so a sender that got a 503 may find its event stored
// when it tries again. A sender that closed its half of the connection still reads the response, so
// that does not end the wait.
func (a *appender) wait(d *queuedDelivery) (r result, done bool) {
	var unavailable <-chan struct{}
	deadline, timeout := time.Now().Add(a.s.Settings.Deadline), a.s.Settings.Deadline
	if a.s.maySpool(d.ep) {
		unavailable, timeout = a.outage.started(), min(timeout, a.s.Settings.StallAfter)
	}
	for timeout > 0 {
		d.timer.Reset(timeout)
		select {
		case r := <-d.result:
			d.timer.Stop()
			// the memory of the body is released, so d must not refer to it
			*d = queuedDelivery{result: d.result, timer: d.timer}
			a.pool.Put(d)
			return r, true
		case <-d.timer.C:
			timeout = min(a.untilStalled(d), time.Until(deadline))
		case <-unavailable:
			timeout = 0
		}
	}
	return result{}, false // the queue or a writer still has d, so d does not go back to the pool
}

// untilStalled returns how long the delivery's append may still take before it counts as stalled.
func (a *appender) untilStalled(d *queuedDelivery) time.Duration {
	started := atomic.LoadInt64(&d.appendStarted)
	if started == 0 {
		return a.s.Settings.StallAfter
	}
	return a.s.Settings.StallAfter - time.Duration(time.Now().UnixNano()-started)
}

// newQueued returns a queuedDelivery from the pool, which keeps its channel and timer.
func (a *appender) newQueued(d queuedDelivery) *queuedDelivery {
	pooled, ok := a.pool.Get().(*queuedDelivery)
	if !ok {
		pooled = &queuedDelivery{result: make(chan result, 1), timer: time.NewTimer(time.Hour)}
	}
	d.result, d.timer = pooled.result, pooled.timer
	*pooled = d
	return pooled
}

// toLogDelivery converts a delivery for the log. bodies is nil if the events share the delivery's
// body.
func toLogDelivery(ep Endpoint, d *provider.Delivery, v provider.Verification, evs []provider.Event,
	bodies [][]byte) events.Delivery {
	shared := d
	if bodies != nil {
		shared = truncateHeaders(ep.headers, d)
	}
	buf := events.AppendHeaders(make([]byte, 0, 768), ep.headers, shared)
	n := len(buf)
	buf = appendVerification(buf, v)
	return events.Delivery{Source: ep.Number, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook,
		Headers: buf[:n:n], Verification: buf[n:], Body: d.Body, Events: evs, Bodies: bodies,
		RejectConflicts: isDirect(ep)}
}

// allWritersStalled returns true if the append of every writer has stalled. While one works, the
// queue moves.
func (a *appender) allWritersStalled() bool {
	now := time.Now().UnixNano()
	for i := range a.appendStarted {
		if began := a.appendStarted[i].Load(); began == 0 || now-began <= int64(a.s.Settings.StallAfter) {
			return false
		}
	}
	return true
}

// stalledOrUnavailable returns true if an append has stalled or PostgreSQL is unavailable.
func (a *appender) stalledOrUnavailable() bool {
	now := time.Now().UnixNano()
	for i := range a.appendStarted {
		if began := a.appendStarted[i].Load(); began != 0 && now-began > int64(a.s.Settings.StallAfter) {
			return true
		}
	}
	return a.outage.active.Load()
}

// commitProgress returns the age of the oldest commit in progress, 0 if there is none, and the
// number of writers that have not stalled. It ignores stalled commits, because they say nothing
// about the others.
func (a *appender) commitProgress(now time.Time) (longest time.Duration, activeWriters int) {
	for i := range a.appendStarted {
		began := a.appendStarted[i].Load()
		if age := time.Duration(now.UnixNano() - began); began == 0 {
			activeWriters++
		} else if age <= a.s.Settings.StallAfter {
			activeWriters, longest = activeWriters+1, max(longest, age)
		}
	}
	return longest, activeWriters
}

// run writes until ctx ends and the queue is empty.
func (a *appender) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { a.watchStalls(ctx) })
	for i := range a.appendStarted {
		wg.Go(func() { a.write(ctx, i) })
	}
	wg.Wait()
}

func (a *appender) write(ctx context.Context, writer int) {
	for {
		batch := a.nextBatch(ctx, writer)
		if len(batch) == 0 {
			return
		}
		a.commit(ctx, batch)
		a.commitDone(writer, len(batch))
	}
}

// commitDone marks a writer's commit as ended.
func (a *appender) commitDone(writer, deliveries int) {
	a.inProgress.Add(-int64(deliveries))
	a.appendStarted[writer].Store(0)
	select {
	case a.commitEnded <- struct{}{}:
	default: // a token is there already
	}
}

const (
	// minConcurrentBatch is how many deliveries justify a commit concurrent with another one. A
	// commit of one delivery costs as much as one of twenty.
	minConcurrentBatch = 16
	// smallCommitWait and largeCommitWait are how long a smaller batch waits for the commit in
	// progress. A small commit that takes longer waits for a slow disk or a standby, not for a CPU.
	smallCommitWait = time.Millisecond
	largeCommitWait = 20 * time.Millisecond
)

// nextBatch waits for a batch. An empty batch means that ctx has ended and the queue is empty. One
// writer at a time waits; it continues if all queued deliveries were abandoned. If no append is in
// progress, a delivery is taken at once. Otherwise the writer waits until as many deliveries are
// queued as an append in progress has, or until that append has taken some time. This keeps batches
// large under load.
func (a *appender) nextBatch(ctx context.Context, writer int) []*queuedDelivery {
	a.batchMu.Lock()
	defer a.batchMu.Unlock()
	for a.awaitQueued(ctx, 1, nil, nil) {
		if batch := a.collect(ctx, writer); len(batch) > 0 {
			return batch
		}
	}
	return a.takeBatch(writer) // deliveries that were queued just before ctx ended
}

// collect takes a batch once it is large enough for a commit concurrent with those in progress.
func (a *appender) collect(ctx context.Context, writer int) []*queuedDelivery {
	select {
	case <-a.commitEnded: // a token of an earlier commit
	default:
	}
	if inProgress := a.meanBatchInProgress(); inProgress > 0 {
		timeout := time.NewTimer(smallCommitWait)
		defer timeout.Stop()
		if inProgress >= minConcurrentBatch {
			timeout.Reset(largeCommitWait)
		}
		a.awaitQueued(ctx, min(max(inProgress, minConcurrentBatch), a.s.Settings.BatchMax), a.commitEnded, timeout.C)
	}
	return a.takeBatch(writer)
}

// meanBatchInProgress returns the mean number of deliveries of the commits in progress; 0 if there
// are none.
func (a *appender) meanBatchInProgress() int {
	busy := 0
	for i := range a.appendStarted {
		if a.appendStarted[i].Load() != 0 {
			busy++
		}
	}
	if busy == 0 {
		return 0
	}
	return int(a.inProgress.Load()) / busy
}

// awaitQueued waits until n deliveries are queued. It returns false if a commit, the timeout or ctx
// ends first.
func (a *appender) awaitQueued(ctx context.Context, n int, commitEnded <-chan struct{}, timeout <-chan time.Time) bool {
	for !a.queue.has(n) {
		select {
		case <-a.queue.ready:
		case <-commitEnded:
			return false
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// takeBatch takes a batch from the queue. It first lets other goroutines run, because most senders
// that just got a response send again at once.
func (a *appender) takeBatch(writer int) []*queuedDelivery {
	runtime.Gosched()
	batch := a.queue.takeBatch(a.s.Settings.BatchMax, a.s.Settings.BatchBytes)
	if len(batch) > 0 {
		now := time.Now().UnixNano()
		for _, d := range batch {
			atomic.StoreInt64(&d.appendStarted, now)
		}
		a.inProgress.Add(int64(len(batch)))
		a.appendStarted[writer].Store(now)
	}
	return batch
}

// commit appends a batch, sends all results, and passes the new events to Publish. A batch that
// fails because of one delivery is split, so that the others succeed.
func (a *appender) commit(ctx context.Context, batch []*queuedDelivery) {
	deliveries := make([]events.Delivery, len(batch))
	for i, d := range batch {
		deliveries[i] = d.delivery
	}
	started, timeout := time.Now(), a.s.acquireTimeout()
	acquire, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), timeout,
		fmt.Errorf("no database connection within %s", timeout))
	receipts, err := events.Append(acquire, a.s.Pool, deliveries)
	cancel()
	a.observe(batch, receipts, time.Since(started))
	switch {
	case err == nil:
		a.endOutage()
		a.queue.observeCommit(time.Since(started))
		newEvents := make([]stream.Event, 0, len(batch))
		for i, d := range batch {
			if d.delivery.Rejected(receipts[i]) {
				d.finish(result{err: conflictProblem(receipts[i])})
				continue
			}
			newEvents = appendStreamEvents(newEvents, d, receipts[i]) // before finish, because d is reused after it
			d.finish(result{receipts: receipts[i]})
		}
		if len(newEvents) > 0 {
			a.s.Publish(newEvents...)
		}
	case errors.Is(err, events.ErrUnavailable) || len(batch) == 1:
		if errors.Is(err, events.ErrUnavailable) {
			a.retryStoreAt.Store(time.Now().Add(storeRetryDelay).UnixNano())
			a.beginOutage(err)
		}
		a.s.Logger.Error("append failed; these deliveries are spooled, or their senders get an error", "deliveries",
			len(batch), "error", err)
		for _, d := range batch {
			d.finish(result{err: err})
		}
	default:
		a.commit(ctx, batch[:len(batch)/2])
		a.commit(ctx, batch[len(batch)/2:])
	}
}

// observe measures an append; receipts is nil if it failed.
func (a *appender) observe(batch []*queuedDelivery, receipts [][]events.Receipt, duration time.Duration) {
	a.s.metrics.batches.Observe(float64(len(batch)))
	a.s.metrics.append.Observe(duration.Seconds())
	count, stored := 0, 0
	for i, d := range batch {
		count += len(d.delivery.Events)
		if receipts == nil {
			continue
		}
		for _, r := range receipts[i] {
			if !r.Duplicate && r.ID != 0 {
				stored++
			}
		}
	}
	a.s.Logger.Debug("appended batch", "deliveries", len(batch), "events", count, "new", stored, "duration_ms",
		milliseconds(duration))
}

// maxSharedBody is the maximum body size in bytes that is published with each event of a delivery
// with many events. A larger body is read from the log, which stores it once.
const maxSharedBody = 16 << 10

// appendStreamEvents appends the new events of a delivery in the stream's form.
func appendStreamEvents(evs []stream.Event, d *queuedDelivery, receipts []events.Receipt) []stream.Event {
	delivery := &d.delivery
	body, inLog := delivery.Body, false
	if delivery.Bodies == nil && len(receipts) > 1 && len(body) > maxSharedBody {
		body, inLog = nil, true
	}
	for i, r := range receipts {
		if r.Duplicate {
			continue
		}
		e, index := &delivery.Events[i], i
		if delivery.Bodies != nil {
			body, index = delivery.Bodies[i], 0
		}
		evs = append(evs, stream.Event{Source: d.ep.Config.Name, ObjectType: e.ObjectType, ObjectID: e.ObjectID,
			OccurredAt: e.OccurredAt, BodyInLog: inLog, Trace: d.trace,
			StoredEvent: provider.StoredEvent{ID: r.ID, Key: e.Key, Type: e.Type, Account: e.Account,
				APIVersion: e.APIVersion, Origin: delivery.Origin, ReceivedAt: delivery.ReceivedAt, Index: index,
				Body: body}})
	}
	return evs
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
