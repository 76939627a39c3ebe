package ingest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// announce opens a connection, announces a body and sends none of it; it returns once the server waits for the body.
func (b *testBundle) announce(t *testing.T, length string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// The server tells a sender that asks to go on when it begins to read.
	if _, err := io.WriteString(conn, "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nExpect: 100-continue\r\n"+length+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("the server does not wait for the body: %q, %v", line, err)
	}
}

// Many who announce much and send nothing hold next to no memory: real deliveries are taken all the while.
func TestAnnouncedBodiesReserveNothing(t *testing.T) {
	t.Parallel()
	const crowd = 64
	b := setup(t, func(o *ingest.Options) { o.Settings.QueueBytes = 6 * maxBody }) // a source's share is half
	for range crowd / 2 {
		b.announce(t, fmt.Sprintf("Content-Length: %d", maxBody))
		b.announce(t, "Transfer-Encoding: chunked")
	}
	for n := range 20 {
		b.post(t, "stripe", b.invoice(t, 1+n)).receipt(t)
	}
}

// countedPool is the gateway's pool and how often a connection of it was asked for.
func countedPool(t *testing.T, db *testkit.DB) (*pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	var asked atomic.Int64
	cfg := db.Role(t, "gateway").Config()
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { asked.Add(1); return true, nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, &asked
}

// /readyz is open to anybody, so a flood of it costs the database one question a second.
func TestFloodOfReadyz(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool, asked := countedPool(t, db)
	b := setupOn(t, db, func(o *ingest.Options) { o.Pool = pool })
	handler := b.server.Handler()
	var requests atomic.Int64
	began := time.Now()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for time.Since(began) < 1500*time.Millisecond {
				res := httptest.NewRecorder()
				handler.ServeHTTP(res, httptest.NewRequest(http.MethodGet, "/readyz", nil))
				if res.Code != http.StatusOK {
					t.Errorf("status %d: %s", res.Code, res.Body)
					return
				}
				requests.Add(1)
			}
		})
	}
	group.Wait()
	most := int64(time.Since(began)/time.Second) + 1
	if n := asked.Load(); n < 1 || n > most || requests.Load() < 10*most {
		t.Errorf("%d questions for %d requests, want at most %d", n, requests.Load(), most)
	}
	testkit.Eventually(t, time.Minute, func() error {
		if a := b.get(t, "/readyz"); a.status != http.StatusOK {
			return fmt.Errorf("status %d after the flood", a.status)
		}
		return nil
	})
}

// holdKey makes every append of one key of a source wait; release ends that, at the latest with the test.
func (b *testBundle) holdKey(t *testing.T, source, key string) (release func()) {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	digest := events.KeyDigest(key)
	if _, err := tx.Exec(t.Context(), `INSERT INTO event_keys (source, key, id, fingerprint) VALUES ($1, $2, 1, '\x00')`,
		b.endpoints[source].Number, digest[:]); err != nil {
		t.Fatal(err)
	}
	return release
}

// One append that hangs refuses nobody as long as another writer works.
func TestOneStuckWriterRefusesNobody(t *testing.T) {
	t.Parallel()
	// Longer than a working writer's append takes on a busy machine; who waits for the one that hangs is patient.
	const stallAfter = 8 * time.Second
	b := setup(t, func(o *ingest.Options) { o.Settings.StallAfter, o.Settings.Deadline = stallAfter, 2*time.Minute })
	b.client.Timeout = 2 * time.Minute
	release := b.holdKey(t, "many", "held")
	held := b.send(t, t.Context(), "many", b.sign(t, "many", provider.Sample{Body: []byte("held")}))
	testkit.Eventually(t, time.Minute, func() error { // longer than an append is waited for where all writers hang
		if n := b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
			AND clock_timestamp() - query_start > $1::interval`, stallAfter+time.Second); n != 1 {
			return fmt.Errorf("%d appends have been waiting", n)
		}
		return nil
	})
	for n := range 20 {
		b.post(t, "stripe", b.invoice(t, 1+n)).receipt(t)
	}
	if a := b.get(t, "/readyz"); a.status != 200 {
		t.Errorf("not ready although one writer works: %d", a.status)
	}
	release()
	if r := (<-held).receipt(t); r.Duplicate {
		t.Errorf("receipt of the one that waited: %+v", r)
	}
}

// Rejections that could not be written are lost, so they count as dropped.
func TestRejectionsNotWrittenAreCounted(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, tune := through(t, db)
	b := setupIdle(t, db, tune)
	handler := b.server.Handler()
	forged := &provider.Delivery{Header: http.Header{}, Body: []byte("{}")}
	const forgeries = 7
	for range forgeries {
		if status := serve(handler, "shop", forged); status != http.StatusUnauthorized {
			t.Fatalf("status %d", status)
		}
	}
	proxy.Cut()
	b.run(t)
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.counter(t, "postern_rejections_dropped_total", "source=shop"); n != forgeries {
			return fmt.Errorf("%v of %d counted as dropped", n, forgeries)
		}
		return nil
	})
	proxy.Restore()
	serve(handler, "shop", forged)
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM rejections`); n != 1 {
			return fmt.Errorf("%d rejections kept, want the one after the trouble", n)
		}
		return nil
	})
	if n := b.counter(t, "postern_rejections_dropped_total"); n != forgeries {
		t.Errorf("%v counted as dropped, want %d", n, forgeries)
	}
}
