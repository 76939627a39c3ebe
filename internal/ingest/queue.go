package ingest

import (
	"slices"
	"sync"
	"time"
)

// queue holds the verified deliveries that wait for a commit, in one queue per source. Batches take
// from the sources in rotation, so a flood from one source does not delay the others: their
// deliveries go with the next batch.
type queue struct {
	mu       sync.Mutex
	quotas   *quotas
	bySource map[string]*sourceQueue
	// rotation are the source queues that are not empty; the first is served next.
	rotation []*sourceQueue
	// count is the number of deliveries in all source queues. ready gets a token when count reaches
	// wanted.
	count, wanted int
	ready         chan struct{}
	// bytes is the size of all queued bodies. estimator estimates the waiting time.
	bytes     int64
	estimator waitEstimator
}

// sourceQueue holds the queued deliveries of one source, in the order of arrival.
type sourceQueue struct {
	source     string
	deliveries []*queuedDelivery
	// credit is how many bytes the source may still add to a batch in its turn. It may become
	// negative; the next turns pay for that.
	credit int64
	// bytes is the size of the queued bodies.
	bytes int64
}

const (
	// turnCredit is the credit that a source gets per turn, and deliveryCost the cost of a delivery
	// in addition to its body. A turn pays for four small deliveries, so a batch of the default
	// size reaches 64 sources.
	turnCredit   = 4 << 10
	deliveryCost = 1 << 10
	// maxBatchEvents bounds the events of a batch. A single delivery with more events goes alone.
	maxBatchEvents = 4096
)

func newQueue(s Settings) *queue {
	return &queue{quotas: newQuotas(int64(s.Queue)), bySource: map[string]*sourceQueue{}, ready: make(chan struct{}, 1),
		estimator: waitEstimator{batchCount: s.BatchMax, batchBytes: s.BatchBytes, maxWait: s.Deadline / 2}}
}

// push adds a delivery. It returns false if the source has used its quota of the queue, or if the
// delivery would wait too long. commitAge is the age of the oldest commit in progress,
// activeWriters the number of writers that have not stalled.
func (q *queue) push(d *queuedDelivery, commitAge time.Duration, activeWriters int) bool {
	source := d.ep.Config.Name
	if !q.quotas.reserve(source, 1) {
		return false
	}
	q.mu.Lock()
	sq := q.bySource[source]
	if sq != nil && q.wouldBeLate(sq, commitAge, activeWriters) {
		q.mu.Unlock()
		q.quotas.release(source, 1)
		return false
	}
	if sq == nil {
		sq = &sourceQueue{source: source}
		q.bySource[source] = sq
		q.rotation = append(q.rotation, sq)
	}
	sq.deliveries = append(sq.deliveries, d)
	size := int64(len(d.delivery.Body))
	sq.bytes, q.bytes, q.count = sq.bytes+size, q.bytes+size, q.count+1
	enough := q.count >= q.wanted
	q.mu.Unlock()
	if enough {
		select {
		case q.ready <- struct{}{}:
		default: // a token is there already
		}
	}
	return true
}

// wouldBeLate returns true if a delivery that joins a source queue now would wait too long. Because
// the sources take turns, each other source puts at most as much ahead of it as its own source
// does, plus one turn.
func (q *queue) wouldBeLate(sq *sourceQueue, commitAge time.Duration, activeWriters int) bool {
	turns := len(q.rotation)
	return q.estimator.tooLong(min(q.count, turns*(len(sq.deliveries)+turnCredit/deliveryCost)),
		min(q.bytes, int64(turns)*(sq.bytes+turnCredit)), commitAge, activeWriters)
}

// has returns true if at least n deliveries are queued; otherwise ready gets a token as soon as n
// are queued.
func (q *queue) has(n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wanted = n
	return q.count >= n
}

// takeBatch takes a batch from the queue, nil if it is empty. It never waits.
func (q *queue) takeBatch(deliveries int, bytes int64) []*queuedDelivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*queuedDelivery
	events := 0
	for len(q.rotation) > 0 && len(batch) < deliveries && bytes > 0 && events < maxBatchEvents {
		d := q.takeNext()
		if d == nil {
			continue
		}
		batch = append(batch, d)
		bytes -= int64(len(d.delivery.Body))
		events += len(d.delivery.Events)
	}
	return batch
}

// takeNext takes a delivery of the source whose turn it is. It returns nil if that source has no
// credit; then it is the next source's turn.
func (q *queue) takeNext() *queuedDelivery {
	sq := q.rotation[0]
	if sq.credit <= 0 { // A turn begins here. A turn that a full batch interrupted continues.
		if sq.credit += turnCredit; sq.credit <= 0 {
			q.rotate()
			return nil
		}
	}
	d := sq.deliveries[0]
	sq.credit -= deliveryCost + int64(len(d.delivery.Body))
	if q.remove(sq, 0); len(sq.deliveries) > 0 && sq.credit <= 0 {
		q.rotate()
	}
	return d
}

// remove removes a delivery from its source queue, and the source queue from the rotation if it is
// empty then.
func (q *queue) remove(sq *sourceQueue, at int) {
	size := int64(len(sq.deliveries[at].delivery.Body))
	sq.bytes, q.bytes, q.count = sq.bytes-size, q.bytes-size, q.count-1
	if at > 0 {
		sq.deliveries = slices.Delete(sq.deliveries, at, at+1)
	} else { // the usual case, also for abandoned deliveries
		sq.deliveries[0] = nil
		sq.deliveries = sq.deliveries[1:]
	}
	if len(sq.deliveries) == 0 {
		delete(q.bySource, sq.source)
		turn := slices.Index(q.rotation, sq)
		q.rotation = slices.Delete(q.rotation, turn, turn+1)
	}
	q.quotas.release(sq.source, 1)
}

// abandon removes a delivery whose sender no longer waits. This frees its body even while the
// writers stall. A delivery that a writer has taken stays with the writer.
func (q *queue) abandon(d *queuedDelivery) {
	q.mu.Lock()
	sq := q.bySource[d.ep.Config.Name]
	at := -1
	if sq != nil {
		at = slices.Index(sq.deliveries, d)
	}
	if at >= 0 {
		q.remove(sq, at)
	}
	q.mu.Unlock()
	if at >= 0 {
		d.finish(result{err: errUnavailable})
	}
}

// rotate gives the turn to the next source.
func (q *queue) rotate() {
	first := q.rotation[0]
	q.rotation[copy(q.rotation, q.rotation[1:])] = first
}

// observeCommit passes the duration of a commit to the estimator.
func (q *queue) observeCommit(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.estimator.observe(d)
}

// lengths returns the number of queued deliveries per source, and when the oldest of all was
// queued; zero for none.
func (q *queue) lengths() (waiting map[string]int, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting = make(map[string]int, len(q.bySource))
	for source, sq := range q.bySource {
		waiting[source] = len(sq.deliveries)
		if since := sq.deliveries[0].queuedAt; oldest.IsZero() || since.Before(oldest) {
			oldest = since
		}
	}
	return waiting, oldest
}
