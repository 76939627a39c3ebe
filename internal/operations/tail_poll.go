package operations

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

// readStored sends the stored events after an id, up to the position of the poller, and then adds
// the watcher to it. It returns false if ctx or the follower ended, or the events could not be
// read.
func (f *Follower) readStored(ctx context.Context, p *poller, w *watcher, after int64, out chan<- TailBatch) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.closed, cancel)()
	select {
	case <-p.ready:
	case <-ctx.Done():
		return false
	}
	for at := after; ; {
		position, added := f.add(ctx, p, w, at)
		if added {
			return true
		}
		ids, end, err := events.Match(ctx, f.Pool, &w.filter, at, position)
		if err != nil {
			f.logError(ctx, err)
			return false
		}
		for some := range slices.Chunk(ids, maxTailRows) {
			items, err := events.Items(ctx, f.Pool, some)
			if err != nil {
				f.logError(ctx, err)
				return false
			}
			if len(items) > 0 && !send(ctx, out, TailBatch{Items: items, Last: items[len(items)-1].ID}) {
				return false
			}
		}
		at = end
	}
}

// add adds a watcher that has read everything up to an id; 0: it starts at the position of the
// poller. It returns that position, and false if there is more to read first.
func (f *Follower) add(ctx context.Context, p *poller, w *watcher, at int64) (position int64, added bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != 0 && at < p.position {
		return p.position, false
	}
	w.from = max(at, p.position)
	if f.closed || ctx.Err() != nil {
		close(w.batches)
	} else {
		p.watchers[w] = true
	}
	return p.position, true
}

// remove ends the batches of a watcher.
func (f *Follower) remove(p *poller, w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.watchers[w] {
		delete(p.watchers, w)
		close(w.batches)
	}
}

// poll reads new events until ctx ends.
func (f *Follower) poll(ctx context.Context, p *poller) {
	tick := time.NewTicker(cmp.Or(f.Interval, tailInterval))
	defer tick.Stop()
	for {
		if err := f.pollOnce(ctx, p); err != nil {
			f.logError(ctx, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (f *Follower) pollOnce(ctx context.Context, p *poller) error {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	bound, err := events.FreezeBound(ctx, f.Pool)
	if err != nil {
		return err
	}
	at := p.position // only this goroutine changes it
	if at == 0 {
		f.deliver(p, nil, bound)
		close(p.ready)
		return nil
	}
	for { // each part advances the position, so that a timeout loses nothing of a large backlog
		some, err := events.ItemsAfter(ctx, f.Pool, at, bound, tailReadLimit)
		if err != nil {
			return err
		}
		if len(some) < tailReadLimit {
			f.deliver(p, some, bound)
			return nil
		}
		at = some[len(some)-1].ID
		f.deliver(p, some, at)
	}
}

// deliver gives each watcher its part of the new events. A watcher that has not read many batches
// is ended; it continues after its last event when it comes back.
func (f *Follower) deliver(p *poller, found []events.Item, bound int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.position = bound
	for w := range p.watchers {
		batch := w.batch(found, cmp.Or(f.MaxRows, maxTailRows))
		if batch.Last == 0 {
			continue
		}
		select {
		case w.batches <- batch:
		default:
			delete(p.watchers, w)
			close(w.batches)
		}
	}
}

func (w *watcher) batch(found []events.Item, most int) (b TailBatch) {
	for i := range found {
		switch {
		case !w.matches(&found[i]):
			continue
		case len(b.Items) < most:
			b.Items = append(b.Items, found[i])
		default:
			b.More++
		}
		b.Last = found[i].ID
	}
	return b
}

// matches is the filter of a list for one event.
func (w *watcher) matches(e *events.Item) bool {
	f := &w.filter
	occurred := e.OccurredAt.Time
	return e.ID > w.from && (w.source == "" || e.Source == w.source) && (f.Account == nil || e.Account == *f.Account) &&
		(f.Type == "" || w.pattern.MatchString(e.EventType)) && (f.ObjectType == "" || e.ObjectType == f.ObjectType) &&
		(f.ObjectID == "" || e.ObjectID == f.ObjectID) && (f.Key == "" || e.EventID == f.Key) &&
		(f.Origin == "" || e.Origin == f.Origin) && (f.Status == "" || e.Status == f.Status) &&
		(f.Since.IsZero() || !e.StoredAt.Before(f.Since)) && (f.Until.IsZero() || e.StoredAt.Before(f.Until)) &&
		(f.OccurredSince.IsZero() || !occurred.IsZero() && !occurred.Before(f.OccurredSince)) &&
		(f.OccurredUntil.IsZero() || !occurred.IsZero() && occurred.Before(f.OccurredUntil))
}

func (f *Follower) logError(ctx context.Context, err error) {
	if f.Logger != nil && ctx.Err() == nil {
		f.Logger.Warn("cannot follow the log; trying again", "error", err)
	}
}
