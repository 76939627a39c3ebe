package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// checkInterval is how often the connection checks that JetStream responds, checkTimeout how
	// long a response may take (as long as for a publish).
	checkInterval, checkTimeout = time.Second, PublishTimeout
	// initialPatience is how long a server may fail to respond before the connection switches to
	// another one. It doubles up to maxPatience while none responds: JetStream is unavailable then,
	// and switching does not help.
	initialPatience, maxPatience = 5 * time.Second, time.Minute
)

// leaveSilentServers switches to another server if the connected one responds to everything except
// JetStream requests, until ctx ends. A server that lost its cluster or its disk keeps its client
// connections, and the client library does not notice.
func (c *Conn) leaveSilentServers(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	silence := silenceDetector{lastResponse: time.Now(), patience: initialPatience}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		connects := c.Reconnects()
		noAlternative := !c.Connected() || len(c.nc.Servers()) < 2
		responded := !noAlternative && c.jetStreamResponds(ctx)
		switch now := time.Now(); {
		case ctx.Err() != nil:
		case responded:
			silence.responded(now)
		case noAlternative || !c.Connected() || c.Reconnects() != connects: // no server was checked
			silence.reset(now)
		case silence.timedOut(now):
			log.Warn("switching to another NATS server, because JetStream does not respond", "server",
				c.nc.ConnectedAddr(), "after", silence.patience.String())
			_ = c.nc.ForceReconnect() // fails only if the connection is closed
			silence.switched(now)
		}
	}
}

// silenceDetector decides when a server has not responded for too long.
type silenceDetector struct {
	// lastResponse is the time of the last response, or the start of the connection.
	// respondingSince is the start of an unbroken series of responses; zero after a missing one.
	lastResponse, respondingSince time.Time
	patience                      time.Duration
}

// reset restarts the time without a response. A lost connection says nothing about JetStream, so
// patience stays.
func (d *silenceDetector) reset(now time.Time) { d.lastResponse, d.respondingSince = now, time.Time{} }

// responded records a response. It resets patience only after a series of responses that is longer
// than patience. In a cluster that responds only sometimes, the connection therefore does not
// switch often.
func (d *silenceDetector) responded(now time.Time) {
	d.lastResponse = now
	if d.respondingSince.IsZero() {
		d.respondingSince = now
	}
	if now.Sub(d.respondingSince) > d.patience {
		d.patience = initialPatience
	}
}

// timedOut records a missing response, and returns true if there was none for as long as patience.
func (d *silenceDetector) timedOut(now time.Time) bool {
	d.respondingSince = time.Time{}
	return now.Sub(d.lastResponse) >= d.patience
}

// switched doubles patience for the next server.
func (d *silenceDetector) switched(now time.Time) {
	d.reset(now)
	d.patience = min(2*d.patience, maxPatience)
}

// jetStreamResponds returns true if JetStream responds in any way, except that the stream has no
// leader. A former leader that was cut off from its cluster reports that for as long as it is cut
// off.
func (c *Conn) jetStreamResponds(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s, err := c.js.Stream(ctx, EventsStream)
	if err == nil {
		in := s.CachedInfo().Cluster
		return in == nil || in.Leader != ""
	}
	var jsErr jetstream.JetStreamError
	if errors.As(err, &jsErr) && jsErr.APIError() != nil {
		return jsErr.APIError().Code < 500
	}
	return false
}
