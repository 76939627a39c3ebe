// Package stream carries events and changes over NATS JetStream. It defines the streams and the
// consumer, publishes, consumes, and runs the server that is embedded in postern dev. Gateways,
// processors and operator commands use it. A publish acknowledgement does not prove durability: the
// log in PostgreSQL is the truth, and every message can be published again.
package stream

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Options describe the connection to JetStream.
type Options struct {
	// URL is one or more server addresses, separated by commas.
	URL string
	// Credentials is a credentials file, "" for none.
	Credentials string
	// CA, Cert and Key are PEM files for TLS; "" uses the system's.
	CA, Cert, Key string
	// Name is shown in the server's connection list.
	Name   string
	Logger *slog.Logger
}

// Conn is a connection to JetStream that reconnects forever. It leaves a server on which JetStream
// does not respond, if there is another server.
type Conn struct {
	nc *nats.Conn
	js jetstream.JetStream
	// reconnected gets a token at each connect, unless it has one already.
	reconnected chan struct{}
	// stop ends leaveSilentServers, which then closes leaveEnded.
	stop       context.CancelFunc
	leaveEnded chan struct{}
	logger     *slog.Logger
	// streams has the names of the streams that this process has found or created.
	streams sync.Map
}

// maxInFlight bounds the messages of a window without a response.
const maxInFlight = 512

// maxGroupMessages bounds the messages of a window that share one response; it is small enough for
// several groups in flight. maxGroupBytes bounds the bodies of a group, unless one body is larger.
// Between groups the publisher checks for a stop and a lost connection.
const maxGroupMessages, maxGroupBytes = 64, 512 << 10

// PublishTimeout is when a publish without a response counts as failed. The republisher publishes
// such events again; this package does not retry.
const PublishTimeout = 5 * time.Second

// Connect returns at once, even if no server responds yet; until one does, other calls return
// errors. The settings detect a stalled server within a second. Nothing is buffered while the
// connection is lost: such a publish fails.
func Connect(o Options) (*Conn, error) {
	c := &Conn{reconnected: make(chan struct{}, 1), logger: o.Logger}
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(500 * time.Millisecond), nats.PingInterval(500 * time.Millisecond), nats.MaxPingsOutstanding(1),
		nats.FlusherTimeout(500 * time.Millisecond), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 200*time.Millisecond),
		nats.RetryOnFailedConnect(true),
		nats.ConnectHandler(func(nc *nats.Conn) { c.onConnect(nc, "stream connected") }),
		nats.ReconnectHandler(func(nc *nats.Conn) { c.onConnect(nc, "stream reconnected") }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // it is nil if this process closed the connection
				o.Logger.Warn("stream connection lost", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			o.Logger.Warn("the stream's client reported an error", "error", err)
		}),
	}
	if o.Credentials != "" {
		opts = append(opts, nats.UserCredentials(o.Credentials))
	}
	if o.CA != "" {
		opts = append(opts, nats.RootCAs(o.CA))
	}
	if o.Cert != "" {
		opts = append(opts, nats.ClientCert(o.Cert, o.Key))
	}
	nc, err := nats.Connect(o.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to nats %s: %w", maskCredentials(o.URL), err)
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(2*time.Second))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	c.nc, c.js, c.leaveEnded = nc, js, make(chan struct{})
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	go func() {
		defer close(c.leaveEnded)
		c.leaveSilentServers(ctx, o.Logger)
	}()
	return c, nil
}

// Close ends the connection at once. Publishes without a response count as failed.
func (c *Conn) Close() {
	c.stop()
	<-c.leaveEnded
	c.nc.Close()
}

// Connected returns true if a server responds now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// messageOverhead is the maximum size of a message in addition to its body: headers, subject,
// escapes.
const messageOverhead = 2*maxHeaderBytes + 16<<10

// MaxMessageBody returns how many bytes of body a message may have on this connection: MaxBody, or
// less if the server's max_payload is smaller.
func (c *Conn) MaxMessageBody() int {
	if maxPayload := c.nc.MaxPayload(); maxPayload > 0 {
		return max(0, min(MaxBody, int(maxPayload)-messageOverhead))
	}
	return MaxBody
}

// Reconnected receives a value after each connect, also the first one. Several connects may be
// merged into one value.
func (c *Conn) Reconnected() <-chan struct{} { return c.reconnected }

// Reconnects counts the connects after the first. Two equal results mean that the connection was
// not lost in between.
func (c *Conn) Reconnects() uint64 { return c.nc.Stats().Reconnects }

// onConnect logs a connect, and warns about a server that CheckServer rejects. At its start a
// daemon has checked only the server to which it was connected then.
func (c *Conn) onConnect(nc *nats.Conn, message string) {
	c.logger.Info(message, "server", nc.ConnectedAddr())
	if err := checkServer(nc.ConnectedServerVersion()); err != nil {
		c.logger.Warn("a stream server is not safe to use", "server", nc.ConnectedAddr(), "error", err)
	}
	c.signal()
}

func (c *Conn) signal() {
	select {
	case c.reconnected <- struct{}{}:
	default:
	}
}

// maskCredentials removes user and password from server addresses.
func maskCredentials(urls string) string {
	parts := strings.Split(urls, ",")
	for i, u := range parts {
		if scheme, rest, ok := strings.Cut(u, "://"); ok {
			if _, host, ok := strings.Cut(rest, "@"); ok {
				parts[i] = scheme + "://" + host
			}
		}
	}
	return strings.Join(parts, ",")
}
