package operations

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

const (
	tailInterval   = time.Second
	tailTimeout    = 10 * time.Second
	tailReadLimit  = 2000
	maxTailRows    = 200
	maxWatchers    = 50
	maxTailBacklog = 16 // batches that wait for a slow watcher
)

// Errors of Subscribe.
var (
	// ErrTooManyWatchers means that a follower has as many watchers as it may have.
	ErrTooManyWatchers = errors.New("50 watchers follow the log in this process already: close one of them")
	// ErrFollowerClosed means that the process stops.
	ErrFollowerClosed = errors.New("this process stops")
)

// TailParams select the events that a watcher gets.
type TailParams struct {
	EventFilter
	// After is the id of the last event that the watcher got.
	After int64 `json:"after,omitzero"`
}

// TailBatch are the new events of one poll, in the order of their ids.
type TailBatch struct {
	Items []events.Item
	// More is how many other events matched. Last is the greatest id of all of them, with which a
	// watcher continues.
	More int
	Last int64
}

// Follower follows the log for all watchers of a process. It polls only while there are watchers.
// Each poll freezes a bound below which no event appears later, so a watcher gets each event once
// and in the order of ids, also if it continues after the id of its last event.
type Follower struct {
	// Pool is connected as postern_operator.
	Pool *pgxpool.Pool
	// Logger gets the errors of polls; nil: they are not logged.
	Logger *slog.Logger
	// Interval is the time between two polls; 0: one second.
	Interval time.Duration
	// MaxRows is how many events a watcher gets of one poll; 0: 200.
	MaxRows int

	mu     sync.Mutex
	closed bool
	poller *poller
}

// poller polls from the first watcher to the end of the last one.
type poller struct {
	// closed ends with the poller, of which cancel is the end.
	closed context.Context
	cancel context.CancelFunc
	// count is the number of watchers, also of those that read stored events first.
	count    int
	ready    chan struct{} // closed once position is set
	position int64         // everything up to it was read
	watchers map[*watcher]bool
}

// watcher gets the batches of events above from that its filter selects.
type watcher struct {
	filter  events.Filter
	source  string
	pattern *regexp.Regexp
	from    int64
	batches chan TailBatch
}

// Subscribe returns a channel with the events that are stored from now on. With After, or with
// Since, it begins with the stored events after it. The channel ends with ctx, with the follower,
// and for a watcher that reads too slowly. Errors: events.ErrInvalid, ErrTooManyWatchers.
func (f *Follower) Subscribe(ctx context.Context, p TailParams) (<-chan TailBatch, error) {
	if _, err := checkSource(ctx, f.Pool, p, p.Source); err != nil {
		return nil, err
	}
	objectType, objectID := p.ObjectType, p.ObjectID
	p.ObjectType = "" // without a type the filter has no hashes of objects, which need an outcome
	filter, err := p.filter(ctx, f.Pool)
	if err != nil {
		return nil, err
	}
	filter.ObjectType, filter.ObjectID = objectType, objectID
	after := p.After
	if after == 0 && !filter.Since.IsZero() {
		after = events.FirstID(filter.Since) - 1
	}
	poll, err := f.join()
	if err != nil {
		return nil, err
	}
	w := &watcher{filter: filter, source: p.Source, batches: make(chan TailBatch, maxTailBacklog),
		pattern: regexp.MustCompile("^(?s:" + strings.ReplaceAll(regexp.QuoteMeta(filter.Type), `\*`, ".*") + ")$")}
	out := make(chan TailBatch)
	go func() {
		defer close(out)
		defer f.leave(poll, w)
		defer context.AfterFunc(ctx, func() { f.remove(poll, w) })()
		if f.readStored(ctx, poll, w, after, out) {
			for batch := range w.batches {
				if !send(ctx, out, batch) {
					return
				}
			}
		}
	}()
	return out, nil
}

// Close ends all watchers. A closed follower accepts none.
func (f *Follower) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.poller != nil {
		f.poller.end()
	}
}

// join adds a watcher to the poller, and starts it for the first one.
func (f *Follower) join() (*poller, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, ErrFollowerClosed
	case f.poller == nil:
		ctx, cancel := context.WithCancel(context.Background())
		f.poller = &poller{closed: ctx, cancel: cancel, ready: make(chan struct{}), watchers: map[*watcher]bool{}}
		go f.poll(ctx, f.poller)
	case f.poller.count == maxWatchers:
		return nil, ErrTooManyWatchers
	}
	f.poller.count++
	return f.poller, nil
}

func (f *Follower) leave(p *poller, w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(p.watchers, w)
	if p.count--; p.count == 0 {
		p.cancel()
		if f.poller == p {
			f.poller = nil
		}
	}
}

// end ends the watchers of a poller. The caller holds the lock.
func (p *poller) end() {
	p.cancel()
	for w := range p.watchers {
		delete(p.watchers, w)
		close(w.batches)
	}
}

// send reports whether a batch was received before ctx ended.
func send(ctx context.Context, out chan<- TailBatch, batch TailBatch) bool {
	select {
	case out <- batch:
		return true
	case <-ctx.Done():
		return false
	}
}
