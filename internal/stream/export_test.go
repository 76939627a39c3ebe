package stream

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Escape and Unescape carry a value through a header.
var (
	Escape   = escape
	Unescape = unescape
)

// CheckServer compares a server's version with CleanReleases.
var CheckServer = checkServer

// CleanReleases are the first releases of their lines that CheckServer accepts.
func CleanReleases() (releases []string) {
	for _, r := range cleanReleases {
		releases = append(releases, r.String())
	}
	return releases
}

// QueueSize is how many events a publisher holds before it counts them as overflowed.
const QueueSize = publishQueue

// RoundTrip makes an event's message and reads it back, by way of the bytes that travel.
func RoundTrip(e Event) (*nats.Msg, Event, error) {
	m := e.message(MaxBody)
	back, err := parseEvent(m.Header, m.Data)
	return m, back, err
}

// ParseEvent reads a message that anybody may have sent.
var ParseEvent = parseEvent

// Window is what the publisher's loop publishes through.
type Window = window

// InFlight is how many messages a window has unanswered at most.
const InFlight = maxInFlight

// ErrNoRoom is what a full window says.
var ErrNoRoom = errNoRoom

// OpenWindow opens a window of a connection.
func (c *Conn) OpenWindow(counts func(acknowledged, failed int)) (*Window, error) {
	return newWindow(c.nc, counts)
}

// Swallow takes what is published under a subject and answers nothing.
func (c *Conn) Swallow(subject string) error {
	_, err := c.nc.Subscribe(subject, func(*nats.Msg) {})
	return err
}

// Publish sends a message through a window.
func (w *window) Publish(subject string) error {
	_, err := w.Send(subject)
	return err
}

// Send is Publish for a run of as many messages as there are subjects, that tells where the answer belongs.
func (w *window) Send(subjects ...string) (reply string, err error) {
	run := make([]*nats.Msg, len(subjects))
	for i, s := range subjects {
		run[i] = &nats.Msg{Subject: s, Data: []byte("x")}
	}
	err = w.publish(run...)
	return run[len(run)-1].Reply, err
}

// LongestRun is how many messages share an answer at most, and Pace how long a publisher rests.
const (
	LongestRun = longestRun
	LargestRun = largestRun
	Pace       = pace
)

// Answer is an answer that arrives now.
func (w *window) Answer(reply, body string) {
	w.answered(&nats.Msg{Subject: reply, Data: []byte(body)})
}

// Close gives up on what is unanswered.
func (w *window) Close() { w.close() }

// Expire gives up on what is unanswered as of a time.
func (w *window) Expire(now time.Time) { w.expire(now) }

// Judge says when a server is left.
type Judge = judge

// NewJudge begins with a connection.
func NewJudge(now time.Time) *Judge { return &judge{answered: now, patience: leaveAfter} }

// Begin is of a connection that was lost, Heard and Silent of an answer and the lack of one, and Left of a server that was left for that.
func (j *judge) Begin(now time.Time)       { j.begin(now) }
func (j *judge) Heard(now time.Time)       { j.heard(now) }
func (j *judge) Silent(now time.Time) bool { return j.silent(now) }
func (j *judge) Left(now time.Time)        { j.left(now) }

// Unanswered is how many messages wait for an answer.
func (w *window) Unanswered() int { return w.unanswered() }

// Window opens what the publisher's loop publishes through.
func (p *Publisher) Window() (*Window, error) { return newWindow(p.conn.nc, p.counted) }

// PublishOnce publishes as the publisher's loop does, with its gate open.
func (p *Publisher) PublishOnce(ctx context.Context, w *Window, e Event) {
	p.open = true
	m := newParcel()
	m.fill(&e, EventsSubject, MaxBody)
	p.publish(ctx, w, []*parcel{m}, nil)
}

// JetStream is the connection's own.
func (c *Conn) JetStream() jetstream.JetStream { return c.js }

// ReadAck reads the stream's answer to one message.
var ReadAck = readAck
