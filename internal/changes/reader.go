package changes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"
)

const (
	// pollInterval is the time between two reads of the newest number while readers wait.
	pollInterval = 100 * time.Millisecond
	pollTimeout  = 10 * time.Second
	// pollRows is how many changes a poll compares with the filters of the readers at once.
	pollRows = 1000
	// maxReads is how many pages a process reads at a time. The admin pool has more connections.
	maxReads    = 2
	readTimeout = 30 * time.Second
	maxWaiting  = 500
	// waitingBytes bounds the states on the pages of all waiting readers together. A page
	// has at least minPageBytes.
	waitingBytes = 64 << 20
	minPageBytes = 128 << 10
)

// Errors of Reader.Join.
var (
	// ErrTooManyReaders means that as many readers wait as may.
	ErrTooManyReaders = errors.New("500 readers wait for changes in this process already: try again later, read " +
		"without wait, or use another process")
	// ErrReaderClosed means that the process stops.
	ErrReaderClosed = errors.New("this process stops")
)

// Reader reads changes for all readers of a process. It polls the newest number only while some
// wait, once for all of them, and compares new changes with their filters in memory. Readers that
// want the same page share one read.
type Reader struct {
	// Pool is connected as postern_operator.
	Pool *pgxpool.Pool
	// Logger gets the errors of polls; nil: they are not logged.
	Logger *slog.Logger

	reads singleflight.Group
	slots chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	closed bool
	joined int
	// polling reports that a goroutine polls, for the readers in waiting.
	polling bool
	waiting map[*waiter]struct{}
}

// waiter is a reader who has read everything up to a cursor.
type waiter struct {
	filter Filter
	after  Cursor
	ready  chan struct{}
}

// NewReader returns a reader without readers.
func NewReader(pool *pgxpool.Pool, logger *slog.Logger) *Reader {
	return &Reader{Pool: pool, Logger: logger, slots: make(chan struct{}, maxReads), done: make(chan struct{}),
		waiting: map[*waiter]struct{}{}}
}

// Close ends all waiting, now and later.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.done)
	}
}

// Join registers a reader who waits, until leave is called. Errors: ErrTooManyReaders,
// ErrReaderClosed.
func (r *Reader) Join() (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, ErrReaderClosed
	case r.joined == maxWaiting:
		return nil, ErrTooManyReaders
	}
	r.joined++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.joined--
	}, nil
}

// pageBytes returns the maximum bytes of states on the page of a reader who waits: fewer while many
// wait. It is a power of two, so that readers of the same page still share one read.
func (r *Reader) pageBytes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(minPageBytes, 1<<(bits.Len(uint(waitingBytes/max(r.joined, 1)))-1))
}

// Read returns a page. Readers of the same page share one read, so that many who wake up at once do
// not use all connections. Errors: ErrCursorEnded.
func (r *Reader) Read(ctx context.Context, q Query) (Page, error) {
	key, err := json.Marshal(q)
	if err != nil {
		return Page{}, err
	}
	// The read does not end with the request that was the first to want it.
	shared := context.WithoutCancel(ctx)
	result := r.reads.DoChan(string(key), func() (any, error) {
		ctx, cancel := context.WithTimeoutCause(shared, readTimeout, fmt.Errorf("the query took longer than %s",
			readTimeout))
		defer cancel()
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return Page{}, ctx.Err()
		}
		defer func() { <-r.slots }()
		return readPage(ctx, r.Pool, q)
	})
	select {
	case done := <-result:
		page, _ := done.Val.(Page)
		return page, done.Err
	case <-ctx.Done():
		return Page{}, ctx.Err()
	}
}

// Wait returns the first page with changes. While there are none it waits, until ctx ends or the
// reader is closed; then the page is empty. Its cursor has moved past all changes that the filter
// does not select. Only a reader who joined may wait. Errors: ErrCursorEnded.
func (r *Reader) Wait(ctx context.Context, q Query) (Page, error) {
	var page Page
	most := q.MaxBytes
	for {
		q.MaxBytes = min(most, r.pageBytes())
		next, err := r.Read(ctx, q)
		switch {
		case ctx.Err() != nil && page.Next != "":
			return page, nil
		case err != nil:
			return Page{}, err
		case len(next.Items) > 0:
			return next, nil
		}
		page, q.Latest, q.After = next, false, next.next
		if !page.HasMore {
			q.After = r.await(ctx, q.Filter, q.After)
			page.next, page.Next = q.After, q.After.String()
		}
		select {
		case <-ctx.Done():
			return page, nil
		case <-r.done:
			return page, nil
		default:
		}
	}
}

// Follow sends pages until ctx ends, the reader is closed or the cursor has ended. The first has
// been read already. It sends an empty page if the cursor moves and no page had changes for an
// interval. While the database is unavailable it tries again.
func (r *Reader) Follow(ctx context.Context, q Query, page Page, interval time.Duration, out chan<- Page) {
	for sent := ""; ; {
		if len(page.Items) > 0 || page.Next != sent {
			select {
			case out <- page:
				sent = page.Next
			case <-ctx.Done():
				return
			}
		}
		q.Latest, q.After = false, page.next
		for read := false; !read; {
			waiting, cancel := context.WithTimeout(ctx, interval)
			next, err := r.Wait(waiting, q)
			cancel()
			select {
			case <-ctx.Done():
				return
			case <-r.done:
				return
			default:
			}
			switch {
			case err == nil:
				page, read = next, true
			case errors.Is(err, ErrCursorEnded):
				return
			default:
				r.logError(err)
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

// await waits until there may be changes after a cursor that a filter selects. It returns the
// cursor past those that it does not select.
func (r *Reader) await(ctx context.Context, f Filter, after Cursor) Cursor {
	w := &waiter{f, after, make(chan struct{})}
	r.mu.Lock()
	r.waiting[w] = struct{}{}
	if !r.polling {
		r.polling = true
		go r.poll()
	}
	r.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
	case <-r.done:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, w)
	return w.after
}

// poll wakes readers until none waits.
func (r *Reader) poll() {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	failing := false
	for range tick.C {
		r.mu.Lock()
		if len(r.waiting) == 0 {
			r.polling = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		err := r.pollOnce()
		if err != nil && !failing {
			r.logError(err)
		}
		failing = err != nil
	}
}

func (r *Reader) pollOnce() error {
	ctx, cancel := context.WithTimeout(context.Background(), pollTimeout)
	defer cancel()
	feed, err := ReadFeed(ctx, r.Pool)
	if err != nil {
		return err
	}
	for at := r.wake(&feed); at < feed.Newest; {
		page, end, err := Read(ctx, r.Pool, at, feed.Newest, Filter{}, pollRows)
		if err != nil {
			return err
		}
		r.deliver(&feed, page, at, end)
		at = end
	}
	return nil
}

// wake wakes the readers for whom no change must be compared: all changes are new for them, or
// their cursor has ended. It returns the lowest number that another has read.
func (r *Reader) wake(feed *Feed) (lowest int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lowest = feed.Newest
	for w := range r.waiting {
		at, err := feed.Check(w.after)
		switch {
		case err != nil, at < feed.Newest && w.filter.selectsAll():
			r.end(w)
		default:
			lowest = min(lowest, at)
		}
	}
	return lowest
}

// deliver wakes the readers whose filter selects one of the changes in (from, end]. It moves the
// cursors of the others. Readers who wait only since the last call of wake may have read less than
// from: they are the next poll's.
func (r *Reader) deliver(feed *Feed, page []Change, from, end int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.waiting {
		at, err := feed.Check(w.after)
		if err != nil || at < from || at >= end {
			continue
		}
		w.after = feed.At(end)
		for i := range page {
			if c := &page[i]; c.Number > at && w.filter.selects(c) {
				w.after = feed.At(c.Number - 1)
				r.end(w)
				break
			}
		}
	}
}

// end wakes a waiter. The caller holds the lock.
func (r *Reader) end(w *waiter) {
	close(w.ready)
	delete(r.waiting, w)
}

func (r *Reader) logError(err error) {
	if r.Logger != nil {
		r.Logger.Warn("cannot read changes; trying again", "error", err)
	}
}
