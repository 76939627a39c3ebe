package ingest

import (
	"net/http"
	"sync"
	"time"
)

// uploads bounds the memory of bodies that still arrive or are not verified yet, of all sources together. It is separate
// from the shares of verified deliveries, so unsigned bodies take nothing from those. When it is full, the uploads that
// have lasted longest are evicted: a real delivery arrives within a moment, while a client that holds memory on purpose
// must hold it for long. The capacity divided by what such a client can send in a second is therefore the time that every
// delivery has to arrive.
type uploads struct {
	mu sync.Mutex
	// capacity bounds used. An upload above smallUpload must leave reserve of it free, so that small deliveries, which most
	// are, never wait for large ones.
	capacity, reserve, used int64
	// oldest and newest are the ends of a list of the uploads that can be evicted, in the order of their starts.
	oldest, newest *upload
}

// smallUpload is up to which size a body may use all of the capacity, in bytes.
const smallUpload = 64 << 10

// evictAfter is how long an upload may last before it can be evicted. Without it a burst of real deliveries would evict
// itself.
const evictAfter = time.Second

// setLimits sets the capacity from the settings: a quarter of ingest.queue_bytes, and room for the largest body besides.
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

// upload is the memory of one body until its sender is verified. The zero upload holds nothing; release ends it.
type upload struct {
	pool    *uploads
	writer  http.ResponseWriter
	started time.Time
	size    int64
	listed  bool
	evicted bool
	older   *upload
	newer   *upload
	// first are the first bytes, which are not counted in size.
	first [firstBytes]byte
}

// grow makes the upload hold size bytes. Errors: errSlow where it was evicted, errFull where there is no capacity.
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
		return errFull
	}
	p.used += more
	u.size = size
	if u.started.IsZero() {
		u.started = time.Now()
		p.list(u)
	}
	return nil
}

// complete ends the time in which the upload can be evicted. Errors: errSlow where it was.
func (u *upload) complete() error {
	u.pool.mu.Lock()
	defer u.pool.mu.Unlock()
	if u.evicted {
		return errSlow
	}
	u.pool.unlist(u)
	return nil
}

// release gives the memory back. It may be called again.
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

// evict ends uploads, the oldest first, until that many bytes are free or no other upload has lasted long enough. Each
// ends with its next read, which its deadline interrupts. The caller holds the lock, so the request of a listed upload has
// not ended, and the deadline cannot be that of the next request on its connection.
func (p *uploads) evict(bytes int64, except *upload) {
	before := time.Now().Add(-evictAfter)
	for u := p.oldest; u != nil && bytes > 0 && u.started.Before(before); {
		next := u.newer
		if u != except {
			bytes -= u.size
			p.used -= u.size
			u.size, u.evicted = 0, true
			p.unlist(u)
			_ = http.NewResponseController(u.writer).SetReadDeadline(time.Unix(1, 0)) // a writer without deadlines has no slow client
		}
		u = next
	}
}

func (p *uploads) list(u *upload) {
	u.listed, u.older = true, p.newest
	if p.newest == nil {
		p.oldest = u
	} else {
		p.newest.newer = u
	}
	p.newest = u
}

func (p *uploads) unlist(u *upload) {
	if !u.listed {
		return
	}
	if u.older == nil {
		p.oldest = u.newer
	} else {
		u.older.newer = u.newer
	}
	if u.newer == nil {
		p.newest = u.older
	} else {
		u.newer.older = u.older
	}
	u.listed, u.older, u.newer = false, nil, nil
}
