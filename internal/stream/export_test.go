package stream

import (
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Escape and Unescape carry a value through a header.
var (
	Escape   = escape
	Unescape = unescape
)

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

// PublishOnce publishes as the publisher's loop does, with its gate open.
func (p *Publisher) PublishOnce(js jetstream.JetStream, e Event) {
	p.open = true
	p.publish(js, e.message(MaxBody))
}

// JetStream is the connection's own.
func (c *Conn) JetStream() jetstream.JetStream { return c.js }
