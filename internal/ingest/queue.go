package ingest

import (
	"slices"
	"sync"
	"time"
)

// queue holds the verified deliveries that wait for a commit, in a line per source. Batches are gathered from the lines in turn,
// so that a flood from one source does not stand before the others: theirs go with the next batch.
type queue struct {
	mu    sync.Mutex
	room  *shares
	lines map[string]*line
	// turn are the lines that are not empty; the first is served next.
	turn []*line
	// count is how many deliveries wait, of all lines. ready gets a token when they are as many as wanted.
	count, wanted int
	ready         chan struct{}
	// bytes are of the bodies of all that waits. pace is what tells how long that will take.
	bytes int64
	pace  pace
}

// line is what waits of one source, in the order it came.
type line struct {
	source  string
	waiting []*waiting
	// credit is what the line may still take of its turn, in bytes. It may end below zero: then the next turns pay for it.
	credit int64
	// bytes are of the bodies that wait.
	bytes int64
}

const (
	// turnBytes is what a line gets per turn, and deliveryCost what a delivery costs besides its body: four small ones, so that
	// a batch of the default size reaches 64 sources.
	turnBytes    = 4 << 10
	deliveryCost = 1 << 10
	// batchEvents ends a batch by the number of its events; a single delivery of more still goes, alone.
	batchEvents = 4096
)

func newQueue(s Settings) *queue {
	return &queue{room: newShares(int64(s.Queue)), lines: map[string]*line{}, ready: make(chan struct{}, 1),
		pace: pace{batch: s.BatchMax, bytes: s.BatchBytes, most: s.Deadline / 2}}
}

// push takes a delivery; false where its source has its share of the queue, or so much waits before it that its answer would come late. lasting is how long a commit has been under way, and moving how many writers commit.
func (q *queue) push(w *waiting, lasting time.Duration, moving int) bool {
	source := w.ep.Config.Name
	if !q.room.begin(source, 1) {
		return false
	}
	q.mu.Lock()
	l := q.lines[source]
	if l != nil && q.late(l, lasting, moving) {
		q.mu.Unlock()
		q.room.end(source, 1)
		return false
	}
	if l == nil {
		l = &line{source: source}
		q.lines[source] = l
		q.turn = append(q.turn, l)
	}
	l.waiting = append(l.waiting, w)
	size := int64(len(w.delivery.Body))
	l.bytes, q.bytes, q.count = l.bytes+size, q.bytes+size, q.count+1
	enough := q.count >= q.wanted
	q.mu.Unlock()
	if enough {
		select {
		case q.ready <- struct{}{}:
		default: // somebody is told already
		}
	}
	return true
}

// late tells whether what joins a line now would be answered late. As much goes before it of each other line as of its own and a turn, at most.
func (q *queue) late(l *line, lasting time.Duration, moving int) bool {
	turns := len(q.turn)
	return q.pace.late(min(q.count, turns*(len(l.waiting)+turnBytes/deliveryCost)), min(q.bytes, int64(turns)*(l.bytes+turnBytes)), lasting, moving)
}

// has tells whether so many deliveries wait; if they do not, ready gets a token when they do.
func (q *queue) has(n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wanted = n
	return q.count >= n
}

// gather takes a batch of what waits, nil for nothing. It never waits for more to come.
func (q *queue) gather(deliveries int, bytes int64) []*waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*waiting
	events := 0
	for len(q.turn) > 0 && len(batch) < deliveries && bytes > 0 && events < batchEvents {
		w := q.next()
		if w == nil {
			continue
		}
		batch = append(batch, w)
		bytes -= int64(len(w.delivery.Body))
		events += len(w.delivery.Events)
	}
	return batch
}

// next takes a delivery from the line whose turn it is; nil where that turn is over.
func (q *queue) next() *waiting {
	l := q.turn[0]
	if l.credit <= 0 { // a turn begins; one that a full batch cut short goes on
		if l.credit += turnBytes; l.credit <= 0 {
			q.pass()
			return nil
		}
	}
	w := l.waiting[0]
	l.credit -= deliveryCost + int64(len(w.delivery.Body))
	if q.remove(l, 0); len(l.waiting) > 0 && l.credit <= 0 {
		q.pass()
	}
	return w
}

// remove takes a delivery out of its line, and the line, where it is empty then, out of the turn.
func (q *queue) remove(l *line, at int) {
	size := int64(len(l.waiting[at].delivery.Body))
	l.bytes, q.bytes, q.count = l.bytes-size, q.bytes-size, q.count-1
	if at > 0 {
		l.waiting = slices.Delete(l.waiting, at, at+1)
	} else { // as most do, those that leave too
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
	}
	if len(l.waiting) == 0 {
		delete(q.lines, l.source)
		turn := slices.Index(q.turn, l)
		q.turn = slices.Delete(q.turn, turn, turn+1)
	}
	q.room.end(l.source, 1)
}

// leave drops a delivery that nobody waits for any more, body and all, however long the writers hang. One that a writer has taken is under way: it stays that writer's.
func (q *queue) leave(w *waiting) {
	q.mu.Lock()
	l := q.lines[w.ep.Config.Name]
	at := -1
	if l != nil {
		at = slices.Index(l.waiting, w)
	}
	if at >= 0 {
		q.remove(l, at)
	}
	q.mu.Unlock()
	if at >= 0 {
		w.answered(result{err: errUnavailable})
	}
}

// pass gives the turn to the next line.
func (q *queue) pass() {
	first := q.turn[0]
	q.turn[copy(q.turn, q.turn[1:])] = first
}

// took says how long a commit has taken.
func (q *queue) took(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pace.took(d)
}

// lengths is how many deliveries wait of each source that has any, and since when the oldest of all does; zero for none.
func (q *queue) lengths() (waiting map[string]int, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting = make(map[string]int, len(q.lines))
	for source, l := range q.lines {
		waiting[source] = len(l.waiting)
		if since := l.waiting[0].since; oldest.IsZero() || since.Before(oldest) {
			oldest = since
		}
	}
	return waiting, oldest
}
