package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// recreateDelay is how long a stream that existed must be missing before it is created again.
	// The server needs this time to remove its files.
	recreateDelay = time.Second
	// newStreamAge is the age up to which a stream counts as new.
	newStreamAge = time.Minute
	// deleteTimeout bounds a deletion. A client without the permission to delete gets no response.
	deleteTimeout = 2 * time.Second
	// maxCreateAttempts is how often a stream is created in one call.
	maxCreateAttempts = 3
)

// ensureStream creates a missing stream, or updates its configuration.
//
// A server reports a stream as missing before it has removed its files (2.15.2). A stream that is
// created meanwhile loses its files: it starts with the old messages, and accepts no publish for as
// long as the server runs, although it can be read. Therefore ensureStream waits recreateDelay
// before it creates a stream that existed before.
//
// If a new events stream has old messages, ensureStream deletes it and creates it again, because
// the log has its content. The content of the other streams may be stored nowhere else, and the
// server may have lost only the stream's metadata. Such a stream stays, and a log message names the
// remedy.
func (c *Conn) ensureStream(ctx context.Context, name, subject, description string, l Limits) error {
	cfg := streamConfig(name, subject, description, l)
	for range maxCreateAttempts {
		created, err := c.updateOrCreate(ctx, cfg)
		if err != nil {
			return fmt.Errorf("create stream %s: %w", name, err)
		}
		c.streams.Store(name, struct{}{})
		info := created.CachedInfo()
		if state := info.State; state.Msgs == 0 || !state.LastTime.Before(info.Created) ||
			info.TimeStamp.Sub(info.Created) > newStreamAge {
			return nil
		}
		if name != EventsStream {
			c.logger.Warn("a new stream has messages from before it was created: the server found them again, or had "+
				"not removed them yet. If nothing can be published to it, delete it (nats stream rm "+name+
				"), or restart NATS", "stream", name, "messages", info.State.Msgs,
				"from", info.State.FirstTime, "to", info.State.LastTime)
			return nil
		}
		if err := c.deleteStream(ctx, name); err != nil {
			return fmt.Errorf("stream %s was created while the server removed the files of the previous one, and may "+
				"accept no publish: delete it (nats stream rm %s), or restart NATS; deleting it from here failed: %w",
				name, name, err)
		}
		c.logger.Warn("a new stream has messages from before it was created: it is deleted and created again, and "+
			"events without an outcome are published again", "stream", name, "messages", info.State.Msgs)
	}
	return fmt.Errorf("create stream %s: it was created %d times while the server removed files of the previous one",
		name, maxCreateAttempts)
}

// withResponseTimeout bounds a request to the server. A request that is lost with its connection
// gets no response, and the client's default limit counts only without one of the caller, which may
// be a minute.
func withResponseTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, PublishTimeout)
}

// updateOrCreate sets the configuration of a stream, or creates it.
func (c *Conn) updateOrCreate(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	update, cancel := withResponseTimeout(ctx)
	defer cancel()
	s, err := c.js.UpdateStream(update, cfg)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s, err
	}
	if _, existed := c.streams.Load(cfg.Name); existed {
		if err := sleep(ctx, recreateDelay); err != nil {
			return nil, err
		}
	}
	create, cancel := withResponseTimeout(ctx)
	defer cancel()
	return c.js.CreateOrUpdateStream(create, cfg) // another process may have created it meanwhile
}

func (c *Conn) deleteStream(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	if err := c.js.DeleteStream(ctx, name); !IsNotFound(err) {
		return err
	}
	return nil
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
