package ingest

import (
	"container/list"
	"net/http"
	"sync"
	"time"
)

// uploads bounds the memory of bodies that still arrive or are not verified yet, of all sources
// together. It is separate from the quotas of verified deliveries, so unsigned bodies use nothing
// of those. When it is full, it evicts the uploads that have lasted longest: a real delivery
// arrives within a moment, while a client that holds memory on purpose must hold it for long. The
// time that every delivery has to arrive is therefore the capacity divided by what such a client
// can send in a second.
type uploads struct {
	mu sync.Mutex
	// capacity bounds used. An upload above smallUpload must leave reserve of it free, so that
	// small deliveries (the majority) never wait for large ones.
	capacity, reserve, used int64
	// evictable are the uploads that can be evicted (*upload), in the order of their starts.
	evictable list.List
}

// smallUpload is the size in bytes up to which a body may use all of the capacity.
const smallUpload = 64 << 10

// evictAfter is how long an upload may last before it can be evicted. Without it a burst of real
// deliveries would evict itself.
const evictAfter = time.Second

// setLimits sets the capacity: a quarter of ingest.queue_bytes, plus the largest body.
func (p *uploads) setLimits(queueBytes, largestBody int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.capacity, p.reserve = queueBytes/4+largestBody+1, queueBytes/16
}

// inUse returns the bytes that all uploads hold.
func (p *uploads) inUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// upload is the memory of one body until its sender is verified. The zero upload holds nothing;
// release ends it.
type upload struct {
	pool    *uploads
	writer  http.ResponseWriter
	started time.Time
	size    int64
	evicted bool
	// place is its element of evictable; nil if it is not there.
	place *list.Element
	// first are the first bytes, which are not counted in size.
	first [firstBytes]byte
}

// grow makes the upload hold size bytes. Errors: errSlow if it was evicted, errOverloaded if there
// is no capacity.
func (u *upload) grow(size int64) error {
	p := u.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if u.evicted {
		return errSlow
	}
	limit := p.capacity
	if size > smallUpload {
		limit -= p.reserve
	}
	more := size - u.size
	if p.used+more > limit {
		p.evict(p.used+more-limit, u)
	}
	if p.used+more > limit {
		return errOverloaded
	}
	p.used += more
	u.size = size
	if u.started.IsZero() {
		u.started = time.Now()
		u.place = p.evictable.PushBack(u)
	}
	return nil
}

// complete ends the time in which the upload can be evicted. Errors: errSlow if it was.
func (u *upload) complete() error {
	u.pool.mu.Lock()
	defer u.pool.mu.Unlock()
	if u.evicted {
		return errSlow
	}
	u.pool.unlist(u)
	return nil
}

// release frees the memory. It may be called again.
func (u *upload) release() {
	if u.pool == nil {
		return
	}
	u.pool.mu.Lock()
	defer u.pool.mu.Unlock()
	u.pool.unlist(u)
	u.pool.used -= u.size
	u.size = 0
}

// evict ends uploads, the oldest first, until that many bytes are free or no other upload has
// lasted long enough. It never evicts keep. Each ends with its next read, which its deadline
// interrupts. The caller holds the lock, so the request of a listed upload has not ended. The
// deadline therefore cannot be that of the next request on its connection.
func (p *uploads) evict(bytes int64, keep *upload) {
	before := time.Now().Add(-evictAfter)
	for e := p.evictable.Front(); e != nil && bytes > 0; {
		u := e.Value.(*upload) //nolint:errcheck,forcetypeassert // evictable has nothing else
		if !u.started.Before(before) {
			return
		}
		e = e.Next()
		if u != keep {
			bytes -= u.size
			p.used -= u.size
			u.size, u.evicted = 0, true
			p.unlist(u)
			// ignore a writer that has no deadlines: it is not a network connection
			_ = http.NewResponseController(u.writer).SetReadDeadline(time.Unix(1, 0))
		}
	}
}

func (p *uploads) unlist(u *upload) {
	if u.place != nil {
		p.evictable.Remove(u.place)
		u.place = nil
	}
}
