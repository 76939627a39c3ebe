// Package stream carries events and changes over NATS JetStream: the streams and the consumer as code, publishing,
// consumption, and the server embedded in postern dev. A publish acknowledgement is no proof of durability: the log is the
// truth, the stream only carries it.
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

// Options says how to reach JetStream.
type Options struct {
	// URL is one or more server addresses, separated by commas.
	URL string
	// Credentials is a credentials file, "" for none.
	Credentials string
	// CA, Cert and Key are PEM files for TLS, "" for the system's.
	CA, Cert, Key string
	// Name is shown in the server's connection list.
	Name   string
	Logger *slog.Logger
}

// Conn is a connection to JetStream that reconnects for ever, and leaves a server on which JetStream does not answer where there is another one.
type Conn struct {
	nc *nats.Conn
	js jetstream.JetStream
	// reconnected is told of each reconnect, without blocking.
	reconnected chan struct{}
	// stop ends leave, which closes left.
	stop   context.CancelFunc
	left   chan struct{}
	logger *slog.Logger
	// streams are the names of those that were there.
	streams sync.Map
}

// maxInFlight bounds the unanswered publishes of a window.
const maxInFlight = 512

// longestRun is how many messages of a window share an answer at most: as few as leave it several runs under way. largestRun is how many bytes of bodies,
// unless one has more: a stop and a lost connection are seen between runs.
const longestRun, largestRun = 64, 512 << 10

// PublishTimeout is when an unanswered publish, or as many as an exchange has open at once, counts as failed; what failed is the auditor's, never tried again here.
const PublishTimeout = 5 * time.Second

// Connect returns at once even where no server answers yet: everything that needs one says so when it is used. The settings
// notice a hung server within a second, and a lost one never buffers: what could not be sent has failed.
func Connect(o Options) (*Conn, error) {
	c := &Conn{reconnected: make(chan struct{}, 1), logger: o.Logger}
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(500 * time.Millisecond), nats.PingInterval(500 * time.Millisecond), nats.MaxPingsOutstanding(1),
		nats.FlusherTimeout(500 * time.Millisecond), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 200*time.Millisecond),
		nats.RetryOnFailedConnect(true),
		nats.ConnectHandler(func(nc *nats.Conn) { c.arrived(nc, "stream connected") }),
		nats.ReconnectHandler(func(nc *nats.Conn) { c.arrived(nc, "stream reconnected") }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: closed by us
				o.Logger.Warn("stream connection lost", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { o.Logger.Warn("stream", "error", err) }),
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
		return nil, fmt.Errorf("connect to nats %s: %w", redact(o.URL), err)
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(2*time.Second))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	c.nc, c.js, c.left = nc, js, make(chan struct{})
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	go func() {
		defer close(c.left)
		c.leave(ctx, o.Logger)
	}()
	return c, nil
}

// Close ends the connection at once; what is unanswered has failed.
func (c *Conn) Close() {
	c.stop()
	<-c.left
	c.nc.Close()
}

// Connected says whether a server answers now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// headroom is what a message may need beside its body: headers, subject, escapes.
const headroom = 2*maxNames + 16<<10

// LargestBody is how many bytes of body a message may carry on this connection: MaxBody, or what the server's max_payload leaves.
func (c *Conn) LargestBody() int {
	if most := c.nc.MaxPayload(); most > 0 {
		return max(0, min(MaxBody, int(most)-headroom))
	}
	return MaxBody
}

// Reconnected receives a value after a (first or repeated) connect, at least one for any number of connects.
func (c *Conn) Reconnected() <-chan struct{} { return c.reconnected }

// Connects counts the connects after the first; two equal answers mean that the connection was never lost in between.
func (c *Conn) Connects() uint64 { return c.nc.Stats().Reconnects }

// arrived logs a connect, and warns of a server that CheckServer rejects. A daemon checks at start
// only the server that it reaches then.
func (c *Conn) arrived(nc *nats.Conn, what string) {
	c.logger.Info(what, "server", nc.ConnectedAddr())
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

// redact hides user and password of server addresses.
func redact(urls string) string {
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
