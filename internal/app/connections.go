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

// connections counts what comes of connections to the ingest listener, most of all of those from which no request ever reached the gateway's own code.
type connections struct {
	net.Listener
	open  prometheus.Gauge
	ended *prometheus.CounterVec
}

func (a *App) countConnections(l net.Listener) (*connections, error) {
	c := &connections{Listener: l,
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "postern_connections_open", Help: "Connections to the ingest address that are open; ingest.max_connections bounds them."}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_connections_total",
			Help: "Connections that have ended: served (of a request or more), unread (bytes came, and no request: too slow, too large, or not HTTP) or silent (nothing came)."}, []string{"result"})}
	for _, result := range []string{"served", "unread", "silent"} {
		c.ended.WithLabelValues(result)
	}
	return c, errors.Join(a.metrics.Register(c.open), a.metrics.Register(c.ended))
}

// Accept counts a connection that is accepted.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.open.Inc()
	return &connection{Conn: conn, all: c}, nil
}

// connection is one of them.
type connection struct {
	net.Conn
	all           *connections
	heard, served atomic.Bool
	once          sync.Once
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
	}
	return n, err
}

func (c *connection) Close() error {
	c.once.Do(func() {
		c.all.open.Dec()
		c.all.ended.WithLabelValues(c.result()).Inc()
	})
	return c.Conn.Close()
}

func (c *connection) result() string {
	switch {
	case c.served.Load():
		return "served"
	case c.heard.Load():
		return "unread"
	}
	return "silent"
}

type connectionKey struct{}

// context lets requests know their connection, which may be below TLS.
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
