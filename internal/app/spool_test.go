package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// spooled returns an error unless delivery n is acknowledged and in the spool.
func (b *testBundle) spooled(t *testing.T, n int) error {
	t.Helper()
	status, body := b.post(t, "stripe", b.sign(t, "stripe", "customer.updated", n, time.Now()))
	if status != http.StatusOK || !strings.Contains(string(body), `"spooled":true`) {
		return fmt.Errorf("%d %s", status, body)
	}
	return nil
}

// A gateway with a spool starts while PostgreSQL is unavailable, acknowledges deliveries, is ready,
// and appends its spool once PostgreSQL is available.
func TestGateway_startsWithoutPostgreSQL_usesSpool(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	proxy := testkit.Proxy(t, b.db.URL)
	b.cfg.Database.URL, b.cfg.Ingest.Spool.Dir = settings.URL(proxy.URL), t.TempDir()
	proxy.Cut()
	b.app = b.start(t, app.Options{Gateway: true})
	for n := range 3 {
		testkit.Must(t, b.spooled(t, n+1))
	}
	proxy.Restore()
	b.waitRows(t, 3, `events`)
	testkit.Eventually(t, time.Minute, func() error {
		if _, body := b.post(t, "stripe", b.sign(t, "stripe", "customer.updated", 9, time.Now())); !strings.Contains(
			string(body), `"id"`) {
			return fmt.Errorf("%s", body)
		}
		return nil
	})
}

// A gateway with a spool also starts if PostgreSQL becomes unavailable during the start.
func TestGateway_postgreSQLFailsDuringStart_usesSpool(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	proxy := testkit.Proxy(t, b.db.URL)
	natsPort, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	cut := make(chan struct{})
	var once sync.Once
	go func() { // the gateway connects to JetStream after PostgreSQL, which then fails
		for {
			conn, err := natsPort.Accept()
			if err != nil {
				return
			}
			once.Do(func() { proxy.Cut(); close(cut) })
			_ = conn.Close() // no NATS server responds
		}
	}()
	defer natsPort.Close()
	b.cfg.Database.URL, b.cfg.NATS.URL, b.cfg.Ingest.Spool.Dir = settings.URL(proxy.URL),
		settings.URL("nats://"+natsPort.Addr().String()), t.TempDir()
	b.app = b.start(t, app.Options{Gateway: true})
	<-cut
	testkit.Eventually(t, time.Minute, func() error { return b.spooled(t, 1) })
	proxy.Restore()
	b.waitRows(t, 1, `events`)
}

// A gateway without a spool does not start if it can store nothing.
func TestGateway_noSpoolAndNoPostgreSQL_doesNotStart(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	proxy := testkit.Proxy(t, b.db.URL)
	b.cfg.Database.URL = settings.URL(proxy.URL)
	proxy.Cut()
	if _, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler),
		Gateway: true}); err == nil {
		t.Error("it started")
	}
}

// Settings that reduce guarantees are reported at each start, in the log and in the metrics.
func TestGateway_unsafeSettings_areLoggedAndMeasured(t *testing.T) {
	t.Parallel()
	for name, unsafe := range map[string]bool{"off": false, "on": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			b.cfg.Ingest.Spool.Dir, b.cfg.Ingest.Spool.UnsafeDir = t.TempDir(), unsafe
			var log bytes.Buffer
			a := b.launch(t, app.Options{Gateway: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			on := gauge(t, a, "postern_unsafe_settings")
			stop(t, a)
			want := 2.0 // the tests' server itself has unsafe settings
			if unsafe {
				want++
			}
			if said := strings.Contains(log.String(), "ingest.spool.unsafe_dir is on"); said != unsafe || on != want {
				t.Errorf("counted %v, want %v, logged %t:\n%s", on, want, said, log.String())
			}
			for _, name := range []string{"fsync", "full_page_writes"} {
				if said := strings.Count(log.String(), "postgresql runs with "+name+" off"); said != 1 {
					t.Errorf("logged %d times that %s is off", said, name)
				}
			}
		})
	}
}

// An instance uses a spool in its folder, unless the folder is lost with a restart of the machine
// and the configuration does not allow that.
func TestLocal_spool_onlyInDurableFolder(t *testing.T) {
	t.Parallel()
	for name, unsafe := range map[string]bool{"off": false, "on": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := localOptions(t, "sources: {stripe: {provider: stripe, secrets: [{name: n, value: "+
				"whsec_secret_of_a_test}]}}")
			o.Config.Ingest.Spool.UnsafeDir = unsafe
			dir, err := os.MkdirTemp("/tmp", "postern")
			testkit.Must(t, err)
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			o.Dir = dir
			run(t, o)
			if _, err := os.Stat(filepath.Join(dir, "spool")); (err == nil) != unsafe {
				t.Errorf("check the spool: %v", err)
			}
		})
	}
}

// An earlier process has quarantined files of the spool: the gauges count them until they are
// removed.
func TestMetrics_quarantinedSpoolFiles_areCountedUntilRemoved(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.cfg.Ingest.Spool.Dir = t.TempDir()
	want := map[string]float64{"postern_spool_damaged_files": 1, "postern_spool_quarantined_files": 2}
	var files []string
	for _, name := range []string{"00000000000000000001.spool.damaged", "1-aa.quarantined", "2-bb.quarantined"} {
		file := filepath.Join(b.cfg.Ingest.Spool.Dir, name)
		files = append(files, file)
		testkit.Must(t, os.WriteFile(file, nil, 0o600))
	}
	a := b.start(t, app.Options{Gateway: true})
	for metric, n := range want {
		if got := gauge(t, a, metric); got != n {
			t.Errorf("%s is %v, want %v", metric, got, n)
		}
	}
	for _, file := range files {
		testkit.Must(t, os.Remove(file))
	}
	testkit.Eventually(t, time.Minute, func() error {
		for metric := range want {
			if got := gauge(t, a, metric); got != 0 {
				return fmt.Errorf("after the removal %s is %v", metric, got)
			}
		}
		return nil
	})
}

// An instance of gateway and processor that starts while PostgreSQL is unavailable accepts
// deliveries. Once PostgreSQL is available, it applies migrations and then the deliveries.
func TestServe_startsWithoutPostgreSQL_completesLater(t *testing.T) {
	t.Parallel()
	b := &testBundle{db: testkit.EmptyDatabase(t, ""), cfg: config.Default()}
	proxy := testkit.Proxy(t, b.db.URL)
	proxy.Cut()
	b.cfg.Sources, b.cfg.Database.URL, b.cfg.Ingest.Spool.Dir = config.DemoSources(), settings.URL(proxy.URL),
		t.TempDir()
	b.cfg.Ingest.Listen, b.cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	dir := t.TempDir()
	l, err := app.NewLocal(t.Context(), app.LocalOptions{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Dir: dir,
		Tune: patient})
	testkit.Must(t, err)
	b.app = l.App
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	for n := range 3 {
		testkit.Must(t, b.spooled(t, n+1))
	}
	proxy.Restore()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: b.db.URL, MaxConns: 1})
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	testkit.Eventually(t, time.Minute, func() error {
		var n int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outcomes WHERE status = 'applied'`).Scan(
			&n); err != nil || n != 3 {
			return fmt.Errorf("%d are applied, %v", n, err)
		}
		return nil
	})
	b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", 4, time.Now())) // at the earlier address
	checkInstanceFile(t, dir, b.db.URL)
}

// checkInstanceFile fails unless the file names its database, and its servers identify the start
// that wrote it.
func checkInstanceFile(t *testing.T, dir, database string) {
	t.Helper()
	in, err := config.ReadInstance(dir)
	testkit.Must(t, err)
	if id, err := postgres.Identity(t.Context(), database); err != nil || id == "" || in.DatabaseID != id {
		t.Errorf("the file names the database %q, and it is %q: %v", in.DatabaseID, id, err)
	}
	for _, address := range []string{in.IngestURL, in.AdminURL} {
		res := get(t, address+"/healthz", "")
		_ = res.Body.Close()
		if got := res.Header.Get(config.InstanceHeader); in.ID == "" || got != in.ID {
			t.Errorf("%s answers as %q, and the file names %q", address, got, in.ID)
		}
	}
}

// stalledPostgres simulates a PostgreSQL that stalls. It accepts connections, and completes logins
// if acceptsLogins is true. It sends nothing more.
type stalledPostgres struct {
	acceptsLogins bool
	// isClosed is true if the server accepts no more connections.
	isClosed atomic.Bool
	handlers sync.WaitGroup
	mu       sync.Mutex
	// serverEnds are the server's ends of the connections.
	serverEnds []net.Conn
}

func (m *stalledPostgres) dial(context.Context, string, string) (net.Conn, error) {
	if m.isClosed.Load() {
		return nil, errors.New("the server is closed")
	}
	serverEnd, clientEnd := net.Pipe()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serverEnds = append(m.serverEnds, serverEnd)
	m.handlers.Go(func() { m.handle(serverEnd) })
	return clientEnd, nil
}

// handle serves a connection until its end.
func (m *stalledPostgres) handle(conn net.Conn) {
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	if m.acceptsLogins {
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

// close closes all connections.
func (m *stalledPostgres) close() {
	m.isClosed.Store(true)
	m.mu.Lock()
	for _, conn := range m.serverEnds {
		_ = conn.Close()
	}
	m.mu.Unlock()
	m.handlers.Wait()
}

// pool returns a pool like a gateway's that connects to m.
func (m *stalledPostgres) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig("postgres://postern@mute/postern?sslmode=disable")
	testkit.Must(t, err)
	cfg.MaxConns, cfg.ConnConfig.DialFunc = 16, m.dial
	cfg.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	testkit.Must(t, err)
	return pool
}

// With default settings, a gateway with a spool acknowledges each delivery within a second while
// PostgreSQL stalls, the first ones as well as queued ones. The test uses a simulated clock, so
// that a busy machine does not matter.
func TestGateway_postgreSQLStalls_spoolsWithinOneSecond(t *testing.T) {
	t.Parallel()
	for name, acceptsLogins := range map[string]bool{"sessions stall": true, "logins stall": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				checkSpooling(t, dir, &stalledPostgres{acceptsLogins: acceptsLogins})
			})
		})
	}
}

// checkSpooling sends deliveries to a gateway. It fails the test unless each is in the spool within
// a second.
func checkSpooling(t *testing.T, dir string, store *stalledPostgres) {
	t.Helper()
	b := &testBundle{cfg: config.Default()}
	b.cfg.Sources, b.cfg.Ingest.Spool.Dir = config.DemoSources(), dir
	b.cfg.Ingest.Writers = 1 // writers wait for a mutex, and the simulated clock stops for that
	disk, err := spool.OpenFolder(dir)
	testkit.Must(t, err)
	log := slog.New(slog.DiscardHandler)
	deliverySpool, err := spool.Open(disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 1 << 20, Logger: log})
	testkit.Must(t, err)
	pool := store.pool(t)
	defer pool.Close()
	server, err := ingest.New(ingest.Options{Pool: pool,
		Endpoints: app.GatewaySources(b.cfg, events.Sources{Number: map[string]int32{"stripe": 1}}),
		Publish:   func(...stream.Event) {},
		Spool:     deliverySpool, SpoolName: "name", SpoolLocation: dir,
		Settings: app.NewTuning(b.cfg).Ingest, Logger: log,
		Metrics: prometheus.NewRegistry(), Now: time.Now})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	handler := server.Handler()
	var senders sync.WaitGroup
	var longest atomic.Int64
	for n := range 200 {
		senders.Go(func() {
			d := b.sign(t, "stripe", "customer.updated", n+1, time.Now())
			req, answer := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/stripe",
				bytes.NewReader(d.Body)), httptest.NewRecorder()
			req.Header = d.Header
			began := time.Now()
			handler.ServeHTTP(answer, req)
			took := time.Since(began)
			if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), `"spooled":true`) ||
				took > time.Second {
				t.Errorf("delivery %d: %d %s after %s", n, answer.Code, answer.Body, took)
			}
			for last := longest.Load(); int64(took) > last &&
				!longest.CompareAndSwap(last, int64(took)); last = longest.Load() {
			}
		})
		<-time.After(25 * time.Millisecond)
	}
	senders.Wait()
	t.Logf("the longest took %s", time.Duration(longest.Load()))
	if longest.Load() == 0 {
		t.Error("no delivery waited, so PostgreSQL did not stall")
	}
	store.close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
