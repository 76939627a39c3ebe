package stream

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Escape and Unescape encode and decode a header value.
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

// QueueSize is how many events a publisher queues before it counts them as overflowed.
const QueueSize = maxQueuedEvents

// RoundTrip encodes an event as a message and parses it again.
func RoundTrip(e Event) (*nats.Msg, Event, error) {
	m := e.toMessage(MaxBody)
	back, err := parseEvent(m.Header, m.Data)
	return m, back, err
}

// ParseEvent parses a message of any client.
var ParseEvent = parseEvent

// Window is the publisher's window.
type Window = window

// InFlight is the maximum number of messages without a response.
const InFlight = maxInFlight

// ErrWindowFull is the error of a full window.
var ErrWindowFull = errWindowFull

// OpenWindow opens a window of a connection.
func (c *Conn) OpenWindow(report func(acknowledged, failed int)) (*Window, error) {
	return newWindow(c.nc, report)
}

// Swallow subscribes to a subject and sends no responses.
func (c *Conn) Swallow(subject string) error {
	_, err := c.nc.Subscribe(subject, func(*nats.Msg) {})
	return err
}

// Publish publishes a message through a window.
func (w *window) Publish(subject string) error {
	_, err := w.Send(subject)
	return err
}

// Send publishes a group with one message per subject, and returns the reply subject.
func (w *window) Send(subjects ...string) (replySubject string, err error) {
	group := make([]*nats.Msg, len(subjects))
	for i, s := range subjects {
		group[i] = &nats.Msg{Subject: s, Data: []byte("x")}
	}
	err = w.publish(group...)
	return group[len(group)-1].Reply, err
}

// MaxGroupMessages bounds the messages that share a response, MaxGroupBytes their bodies.
// PublishInterval is a publisher's pause.
const (
	MaxGroupMessages = maxGroupMessages
	MaxGroupBytes    = maxGroupBytes
	PublishInterval  = publishInterval
)

// Respond handles a response that arrives now.
func (w *window) Respond(reply, body string) {
	w.onResponse(&nats.Msg{Subject: reply, Data: []byte(body)})
}

// Close counts the messages without a response as failed.
func (w *window) Close() { w.close() }

// Expire counts the messages without a response at that time as failed.
func (w *window) Expire(now time.Time) { w.expire(now) }

// SilenceDetector exports the detector of servers that do not respond.
type SilenceDetector = silenceDetector

// NewSilenceDetector returns the detector of a new connection.
func NewSilenceDetector(now time.Time) *SilenceDetector {
	return &silenceDetector{lastResponse: now, patience: initialPatience}
}

// Reset is called after a lost connection, Responded after a response, TimedOut after a missing
// one, and Switched after a switch to another server.
func (d *silenceDetector) Reset(now time.Time)         { d.reset(now) }
func (d *silenceDetector) Responded(now time.Time)     { d.responded(now) }
func (d *silenceDetector) TimedOut(now time.Time) bool { return d.timedOut(now) }
func (d *silenceDetector) Switched(now time.Time)      { d.switched(now) }

// Unanswered returns how many messages wait for a response.
func (w *window) Unanswered() int { return w.unanswered() }

// Window opens a window as Run does.
func (p *Publisher) Window() (*Window, error) { return newWindow(p.conn.nc, p.countResults) }

// PublishOnce publishes one event as Run does, with an open gate.
func (p *Publisher) PublishOnce(ctx context.Context, w *Window, e Event) {
	p.gateOpen = true
	m := newPooledMessage()
	m.encode(&e, EventsSubject, MaxBody)
	p.publishGroup(ctx, w, []*pooledMessage{m}, nil)
}

// JetStream returns the connection's JetStream client.
func (c *Conn) JetStream() jetstream.JetStream { return c.js }

// ReadAck reads the stream's response to one message.
var ReadAck = readAck
