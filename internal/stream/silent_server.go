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
		connects := c.Connects()
		noAlternative := !c.Connected() || len(c.nc.Servers()) < 2
		answered := !noAlternative && c.jetStreamResponds(ctx)
		switch now := time.Now(); {
		case ctx.Err() != nil:
		case answered:
			silence.responded(now)
		case noAlternative || !c.Connected() || c.Connects() != connects: // no server was checked
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
func (j *silenceDetector) reset(now time.Time) { j.lastResponse, j.respondingSince = now, time.Time{} }

// responded records a response. Only a series of responses longer than patience resets patience, so
// the connection does not switch often in a cluster that responds only sometimes.
func (j *silenceDetector) responded(now time.Time) {
	j.lastResponse = now
	if j.respondingSince.IsZero() {
		j.respondingSince = now
	}
	if now.Sub(j.respondingSince) > j.patience {
		j.patience = initialPatience
	}
}

// timedOut records a missing response, and returns true if there was none for as long as patience.
func (j *silenceDetector) timedOut(now time.Time) bool {
	j.respondingSince = time.Time{}
	return now.Sub(j.lastResponse) >= j.patience
}

// switched doubles patience for the next server.
func (j *silenceDetector) switched(now time.Time) {
	j.reset(now)
	j.patience = min(2*j.patience, maxPatience)
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
