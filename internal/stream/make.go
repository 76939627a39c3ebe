package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// goneFor is how long a stream that was there a moment ago stays gone before it is made again: the time that the server has to remove its files.
	goneFor = time.Second
	// fresh is for how long a stream counts as made just now.
	fresh = time.Minute
	// deleteWithin bounds a deletion: who may not delete is not answered.
	deleteWithin = 2 * time.Second
	// makeTries is how often a stream is made in a row.
	makeTries = 3
)

// make makes a stream that is not there as it should be, or updates it.
//
// A server says that a stream is gone before it has removed its files (2.15.2), and one that is made meanwhile stands on files that are taken away under it: it is born with the old messages, and takes
// no publish for as long as the server runs, though it can be read and says no to what it is not to take. So one that was there a moment ago is not made at once. The stream of events that is born with messages is deleted
// and made again: the log has what was in it. Of any other nobody else has all, and the server may as well have lost no more than what it keeps of the stream beside its messages: it stays, and the log says what to do.
func (c *Conn) make(ctx context.Context, name, subject, about string, l Limits) error {
	cfg := streamConfig(name, subject, about, l)
	for range makeTries {
		made, err := c.updateOrCreate(ctx, cfg)
		if err != nil {
			return fmt.Errorf("make stream %s: %w", name, err)
		}
		c.streams.Store(name, struct{}{})
		info := made.CachedInfo()
		if state := info.State; state.Msgs == 0 || !state.LastTime.Before(info.Created) || info.TimeStamp.Sub(info.Created) > fresh {
			return nil
		}
		if name != EventsStream {
			c.logger.Warn("a stream was made, and has messages of before it was: the server found them again, or had not removed them yet. If nothing can be published in it, delete it (nats stream rm "+name+"), or start NATS again",
				"stream", name, "messages", info.State.Msgs, "from", info.State.FirstTime, "to", info.State.LastTime)
			return nil
		}
		if err := c.remove(ctx, name); err != nil {
			return fmt.Errorf("stream %s was made while the server removed the files of the one before, and may take no publish: delete it (nats stream rm %s), or start NATS again; it cannot be deleted from here: %w", name, name, err)
		}
		c.logger.Warn("a stream was made, and had messages of before it was: it is deleted and made again, and what was not applied is published again", "stream", name, "messages", info.State.Msgs)
	}
	return fmt.Errorf("make stream %s: it was made %d times while the server removed files of the one before", name, makeTries)
}

// updateOrCreate gives a stream its configuration, or makes it.
func (c *Conn) updateOrCreate(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	s, err := c.js.UpdateStream(ctx, cfg)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s, err
	}
	if _, there := c.streams.Load(cfg.Name); there {
		if err := wait(ctx, goneFor); err != nil {
			return nil, err
		}
	}
	return c.js.CreateOrUpdateStream(ctx, cfg) // another process may have been faster
}

func (c *Conn) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, deleteWithin)
	defer cancel()
	if err := c.js.DeleteStream(ctx, name); !Gone(err) {
		return err
	}
	return nil
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
