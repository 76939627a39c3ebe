package app_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
)

// mute is a PostgreSQL that hangs: it takes connections, greets whom it is to greet, and says nothing more.
type mute struct {
	greets bool
	// gone: nobody is there any more.
	gone  atomic.Bool
	talks sync.WaitGroup
	mu    sync.Mutex
	// ends are its ends of the connections.
	ends []net.Conn
}

func (m *mute) dial(context.Context, string, string) (net.Conn, error) {
	if m.gone.Load() {
		return nil, errors.New("gone")
	}
	ours, theirs := net.Pipe()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ends = append(m.ends, ours)
	m.talks.Go(func() { m.talk(ours) })
	return theirs, nil
}

// talk ends when the connection does.
func (m *mute) talk(conn net.Conn) {
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	if m.greets {
		b.Send(&pgproto3.AuthenticationOk{})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err := b.Flush(); err != nil {
			return
		}
	}
	for buf := make([]byte, 1<<10); ; {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}

// end lets nobody wait any more.
func (m *mute) end() {
	m.gone.Store(true)
	m.mu.Lock()
	for _, conn := range m.ends {
		_ = conn.Close()
	}
	m.mu.Unlock()
	m.talks.Wait()
}

// pool is connected to it as a gateway's.
func (m *mute) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig("postgres://postern@mute/postern?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns, cfg.ConnConfig.DialFunc = 16, m.dial
	cfg.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// As it is shipped, a gateway with a spool acknowledges each delivery within a second of a PostgreSQL that hangs, the first ones as well as those that wait behind them. The time is the bubble's, which no busy machine makes longer.
func TestTheSwitchTakesASecondAtMost(t *testing.T) {
	t.Parallel()
	for name, greets := range map[string]bool{"sessions hang": true, "logins hang": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { switches(t, dir, &mute{greets: greets}) })
		})
	}
}

func switches(t *testing.T, dir string, store *mute) {
	t.Helper()
	b := &testBundle{cfg: config.Default()}
	b.cfg.Sources, b.cfg.Ingest.Spool.Dir = config.DemoSources(), dir
	b.cfg.Ingest.Writers = 1 // writers wait for their turn at a mutex, for which the bubble's clock stands still
	disk, err := spool.Folder(dir)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	keep, err := spool.Open(disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 1 << 20, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	pool := store.pool(t)
	defer pool.Close()
	server, err := ingest.New(ingest.Options{Pool: pool, Endpoints: app.GatewaySources(b.cfg, events.Sources{Number: map[string]int32{"stripe": 1}}), Publish: func(...stream.Event) {},
		Spool: keep, SpoolName: "name", SpoolPlace: dir, Settings: app.NewTuning(b.cfg).Ingest, Logger: log, Metrics: prometheus.NewRegistry(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	handler := server.Handler()
	var senders sync.WaitGroup
	var longest atomic.Int64
	for n := range 200 {
		senders.Go(func() {
			d := b.sign(t, "stripe", "customer.updated", n+1, time.Now())
			req, answer := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/stripe", bytes.NewReader(d.Body)), httptest.NewRecorder()
			req.Header = d.Header
			began := time.Now()
			handler.ServeHTTP(answer, req)
			took := time.Since(began)
			if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), `"spooled":true`) || took > time.Second {
				t.Errorf("delivery %d: %d %s after %s", n, answer.Code, answer.Body, took)
			}
			for last := longest.Load(); int64(took) > last && !longest.CompareAndSwap(last, int64(took)); last = longest.Load() {
			}
		})
		<-time.After(25 * time.Millisecond)
	}
	senders.Wait()
	t.Logf("the longest took %s", time.Duration(longest.Load()))
	if longest.Load() == 0 {
		t.Error("nobody waited: PostgreSQL did not hang")
	}
	store.end()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
