package app

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// connections counts the connections to the ingest listener by their outcome, including those
// without a complete request.
type connections struct {
	net.Listener
	open  prometheus.Gauge
	ended *prometheus.CounterVec
}

func (a *App) countConnections(l net.Listener) (*connections, error) {
	c := &connections{Listener: l,
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_connections_open",
			Help: "Open connections to the ingest address. Their maximum is ingest.max_connections."}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_connections_total",
			Help: "Connections that have ended, by result: served (with a request), unread (bytes, but no complete " +
				"request: too slow, too large, or not HTTP) or silent (no bytes)."}, []string{"result"})}
	for _, result := range []string{"served", "unread", "silent"} {
		c.ended.WithLabelValues(result)
	}
	return c, errors.Join(a.metrics.Register(c.open), a.metrics.Register(c.ended))
}

// Accept counts the accepted connection.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.open.Inc()
	return &connection{Conn: conn, counters: c}, nil
}

// connection is a counted connection.
type connection struct {
	net.Conn
	counters              *connections
	receivedBytes, served atomic.Bool
	closeOnce             sync.Once
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.receivedBytes.Load() {
		c.receivedBytes.Store(true)
	}
	return n, err
}

func (c *connection) Close() error {
	c.closeOnce.Do(func() {
		c.counters.open.Dec()
		c.counters.ended.WithLabelValues(c.outcome()).Inc()
	})
	return c.Conn.Close()
}

func (c *connection) outcome() string {
	switch {
	case c.served.Load():
		return "served"
	case c.receivedBytes.Load():
		return "unread"
	}
	return "silent"
}

type connectionKey struct{}

// context stores the connection in the context of its requests. It may be below TLS.
func (c *connections) context(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}

// handler marks the connections of requests as served.
func (c *connections) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, ok := r.Context().Value(connectionKey{}).(*connection); ok && !conn.served.Load() {
			conn.served.Store(true)
		}
		next.ServeHTTP(w, r)
	})
}
