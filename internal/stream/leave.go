package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// askEvery is how often the server is asked whether it has JetStream, askWithin how long it may take to answer: as long as a publish may.
	askEvery, askWithin = time.Second, PublishTimeout
	// leaveAfter is how long a server may not answer before it is left for another one. It doubles up to leaveAtMost as long as none answers: then JetStream is away, and nothing is won.
	leaveAfter, leaveAtMost = 5 * time.Second, time.Minute
)

// leave goes to another server when the one it is connected to answers everything but JetStream, until ctx ends: a server of a cluster that is cut off from the others, or has lost its disk, goes on
// talking to its clients, and the library is content with that.
func (c *Conn) leave(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	j := judge{answered: time.Now(), patience: leaveAfter}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		connects := c.Connects()
		alone := !c.Connected() || len(c.nc.Servers()) < 2
		answered := !alone && c.answers(ctx)
		switch now := time.Now(); {
		case ctx.Err() != nil:
		case answered:
			j.heard(now)
		case alone || !c.Connected() || c.Connects() != connects: // nobody there was asked
			j.begin(now)
		case j.silent(now):
			log.Warn("leaving a NATS server on which JetStream does not answer for another one", "server", c.nc.ConnectedAddr(), "after", j.patience.String())
			_ = c.nc.ForceReconnect() // else it is closed
			j.left(now)
		}
	}
}

// judge says when a server has been silent for too long.
type judge struct {
	// answered is when one answered last, or the connection began, and steady since when each question was answered; zero: the last was not.
	answered, steady time.Time
	patience         time.Duration
}

// begin counts the silence from now on. That there is no connection says nothing of JetStream: the patience stays.
func (j *judge) begin(now time.Time) { j.answered, j.steady = now, time.Time{} }

// heard notes an answer. Only answers for longer than the patience set it back: a cluster that answers now and then is not hopped about in either.
func (j *judge) heard(now time.Time) {
	j.answered = now
	if j.steady.IsZero() {
		j.steady = now
	}
	if now.Sub(j.steady) > j.patience {
		j.patience = leaveAfter
	}
}

// silent notes that a question had no answer, and says whether that is so for as long as the patience lasts.
func (j *judge) silent(now time.Time) bool {
	j.steady = time.Time{}
	return now.Sub(j.answered) >= j.patience
}

// left has more patience with the next server.
func (j *judge) left(now time.Time) {
	j.begin(now)
	j.patience = min(2*j.patience, leaveAtMost)
}

// answers says whether JetStream answers, whatever it says of the stream but that it has no leader: so it is told by the one that led it and was cut off, for as long as that lasts.
func (c *Conn) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	s, err := c.js.Stream(ctx, EventsStream)
	if err == nil {
		in := s.CachedInfo().Cluster
		return in == nil || in.Leader != ""
	}
	var said jetstream.JetStreamError
	if errors.As(err, &said) && said.APIError() != nil {
		return said.APIError().Code < 500
	}
	return false
}
