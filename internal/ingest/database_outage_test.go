package ingest_test

import (
	"context"
	"errors"
	"fmt"
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

// serve calls the handler without a socket, which would cost more than the gateway.
func serve(h http.Handler, source string, d *provider.Delivery) int {
	return serveMeasured(h, source, d).status
}

// forge sends deliveries without a signature, which must be rejected.
func (b *testBundle) forge(t *testing.T, source string, count, size int) {
	t.Helper()
	handler, forged := b.server.Handler(), &provider.Delivery{Header: http.Header{}, Body: make([]byte, size)}
	for range count {
		if status := serve(handler, source, forged); status != http.StatusUnauthorized {
			t.Fatalf("status %d", status)
		}
	}
}

// lockLog locks the log so that every append waits; release ends that, at the latest with the test.
func (b *testBundle) lockLog(t *testing.T) (release func()) {
	t.Helper()
	tx := testkit.OpenTx(t, b.db.Pool, `LOCK TABLE event_keys IN ACCESS EXCLUSIVE MODE`)
	return func() { _ = tx.Rollback(context.Background()) }
}

// blocked are the sessions of the database that wait for a lock.
const blocked = `pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// waitBlocked waits until at least n appends wait for the lock.
func (b *testBundle) waitBlocked(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := b.count(t, `SELECT count(*) FROM `+blocked); got < n {
			return fmt.Errorf("%d appends wait", got)
		}
		return nil
	})
}

// send posts from its own goroutine; the channel receives the response.
func (b *testBundle) send(t *testing.T, ctx context.Context, source string, d *provider.Delivery) <-chan response {
	received := make(chan response, 1)
	go func() {
		a, err := b.try(ctx, source, d)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		received <- a
	}()
	return received
}

// If the database takes longer than the timeout for a body, that is no fault of the sender.
func TestHandler_slowDatabase_isNoBodyTimeout(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, testkit.Database(t), nil)
	b.serve(t, shortTimeout)
	waiting := b.send(t, t.Context(), "stripe", b.invoice(t, 1))
	select {
	case a := <-waiting:
		t.Errorf("response before anything was written: %d %s", a.status, a.body)
		return
	case <-time.After(2 * shortTimeout):
	}
	b.run(t)
	(<-waiting).receipt(t)
}

// PostgreSQL stalls or is unreachable: the first delivery gets a response within the deadline, the
// others at once, and none is acknowledged. It recovers when PostgreSQL is available. Not parallel,
// because a clock measures "at once".
func TestHandler_databaseStalls_rejectsAtOnce(t *testing.T) {
	for _, stalls := range []bool{true, false} {
		db := testkit.Database(t)
		proxy, tune := proxiedPool(t, db)
		b := setupOn(t, db, func(o *ingest.Options) {
			tune(o)
			o.Settings.Deadline, o.Settings.StallAfter = 2*time.Second, time.Second
		})
		b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
		t.Cleanup(proxy.Restore) // otherwise a stalled request would delay the end of the test
		if stalls {
			proxy.Stall()
		} else {
			proxy.Cut()
		}
		b.post(t, "stripe", b.invoice(t, 2)).wantProblem(t, 503, "unavailable")
		atOnce := 0
		for n := range 20 { // the outage is known now; one delivery may still try from time to time
			a := b.post(t, "stripe", b.invoice(t, 3+n))
			a.wantProblem(t, 503, "unavailable")
			if a.duration < time.Second/2 {
				atOnce++
			}
			if a.duration > 15*time.Second {
				t.Errorf("stalls %t: delivery %d rejected only after %s", stalls, n, a.duration)
			}
		}
		if atOnce < 10 {
			t.Errorf("stalls %t: %d of 20 were rejected at once", stalls, atOnce)
		}
		forged := b.invoice(t, 100)
		forged.Body = append(forged.Body, ' ')
		b.post(t, "stripe", forged).wantProblem(t, 401, "unauthenticated") // needs no database
		b.wantStatus(t, "/readyz", 503)
		b.wantStatus(t, "/healthz", 200)
		proxy.Restore()
		b.waitAccepted(t, 101)
		if !stalls { // PostgreSQL may have received the stalled delivery
			b.wantRows(t, 2, `events`)
		}
	}
}

// waitAccepted waits until deliveries are accepted again.
func (b *testBundle) waitAccepted(t *testing.T, n int) {
	t.Helper()
	b.waitStatus(t, "stripe", b.invoice(t, n), http.StatusOK)
	b.waitReady(t)
}

// waitReady waits until /readyz returns 200.
func (b *testBundle) waitReady(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if a := b.get(t, "/readyz"); a.status != http.StatusOK {
			return fmt.Errorf("readyz %d: %s", a.status, a.body)
		}
		return nil
	})
}

func (b *testBundle) get(t *testing.T, path string) response {
	t.Helper()
	return b.request(t, http.MethodGet, path, &provider.Delivery{})
}

func TestHandler_panickingProvider_failsOneRequest(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for n := range 3 {
		b.post(t, "panic", b.invoice(t, 1)).wantProblem(t, 500, "internal")
		b.wantCounter(t, float64(n+1), "postern_panics_total")
	}
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
}

// wantStatus gets a path, and checks the status of the response.
func (b *testBundle) wantStatus(t *testing.T, path string, want int) {
	t.Helper()
	if a := b.get(t, path); a.status != want {
		t.Errorf("%s: status %d, want %d: %s", path, a.status, want, a.body)
	}
}

func TestReady_draining_isNotReady(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.wantStatus(t, "/readyz", 200)
	b.server.Drain()
	b.wantStatus(t, "/readyz", 503)
	b.wantStatus(t, "/healthz", 200)
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t) // a draining server still accepts deliveries
}

// countingPool returns the gateway's pool, and how often a connection of it was acquired.
func countingPool(t *testing.T, db *testkit.DB) (*pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	var acquired atomic.Int64
	cfg := db.Role(t, "gateway").Config()
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { acquired.Add(1); return true, nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool, &acquired
}

// Every client may request /readyz, so a flood of it costs the database one query a second.
func TestReady_flood_isCached(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool, acquired := countingPool(t, db)
	b := setupOn(t, db, func(o *ingest.Options) { o.Pool = pool })
	handler := b.server.Handler()
	began := time.Now()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				res := httptest.NewRecorder()
				handler.ServeHTTP(res, httptest.NewRequest(http.MethodGet, "/readyz", nil))
				if res.Code != http.StatusOK {
					t.Errorf("status %d: %s", res.Code, res.Body)
				}
			}
		})
	}
	group.Wait()
	maxQueries := int64(time.Since(began)/time.Second) + 1
	if n := acquired.Load(); n < 1 || n > maxQueries {
		t.Errorf("%d queries for 400 requests, want at most %d", n, maxQueries)
	}
	b.waitReady(t)
}

// holdKey makes every append of one key of a source wait; release ends that, at the latest with the
// test.
func (b *testBundle) holdKey(t *testing.T, source, key string) (release func()) {
	t.Helper()
	digest := events.KeyDigest(key)
	tx := testkit.OpenTx(t, b.db.Pool, `INSERT INTO event_keys (source, key, id, fingerprint)
		VALUES ($1, $2, 1, '\x00')`, b.endpoints[source].Number, digest[:])
	return func() { _ = tx.Rollback(context.Background()) }
}

// One stalled append rejects nothing as long as another writer works.
func TestAppender_oneWriterStalls_acceptsDeliveries(t *testing.T) {
	t.Parallel()
	// Longer than a working writer's append takes on a busy machine. The waiting request has a
	// longer deadline.
	const stallAfter = 8 * time.Second
	b := setup(t, func(o *ingest.Options) { o.Settings.StallAfter, o.Settings.Deadline = stallAfter, 2*time.Minute })
	b.client.Timeout = 2 * time.Minute
	release := b.holdKey(t, "many", "held")
	held := b.send(t, t.Context(), "many", b.line(t, "many", "held"))
	b.waitRows(t, 1, blocked+` AND clock_timestamp() - query_start > $1::interval`, stallAfter+time.Second)
	for n := range 20 {
		b.post(t, "stripe", b.invoice(t, 1+n)).receipt(t)
	}
	b.wantStatus(t, "/readyz", 200)
	release()
	if r := (<-held).receipt(t); r.Duplicate {
		t.Errorf("receipt of the waiting delivery: %+v", r)
	}
}

// Rejections that could not be inserted are lost, so they count as dropped.
func TestRejectionStore_writeFails_countsDropped(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, tune := proxiedPool(t, db)
	b := setupIdle(t, db, tune)
	const forgeries = 7
	b.forge(t, "shop", forgeries, 2)
	proxy.Cut()
	b.run(t)
	b.waitMetric(t, forgeries, "postern_rejections_dropped_total", "source=shop")
	proxy.Restore()
	b.forge(t, "shop", 1, 2)
	b.waitRows(t, 1, `rejections`)
	b.wantCounter(t, forgeries, "postern_rejections_dropped_total")
}

// A spooled delivery is not appended from the queue as well, unless its append was in progress.
func TestQueue_spooledDelivery_isNotAppended(t *testing.T) {
	t.Parallel()
	const writers, sent = 2, 30
	b := setupSpool(t, func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.BatchMax, o.Settings.StallAfter = writers, 1, 5*time.Second
	})
	b.postLine(t, "many", "before").receipt(t)
	b.proxy.Stall()
	wait := b.spoolConcurrently(t, sent, time.Minute)
	// usually all keys except two; on a busy machine some were abandoned already
	testkit.Eventually(t, 30*time.Second, func() error {
		if b.counter(t, "postern_queue_deliveries", "source=many") == 0 {
			return errors.New("no delivery waits")
		}
		return nil
	})
	wait()
	b.waitQueued(t, "many", 0) // although no writer has returned
	b.proxy.Restore()
	b.waitEmpty(t, 1+sent)
	b.waitQueued(t, "many", 0)
	if n := b.counter(t, "postern_events_total", "result=duplicate"); n > writers {
		t.Errorf("%v were appended twice", n)
	}
}

// While the writers stall, abandoned deliveries use no memory and no place in the queue; only the
// deliveries in progress do. Further deliveries are therefore rejected because of the outage and
// not for memory, and all bodies stay below their limit. No abandoned delivery is committed later.
func TestQueue_abandonedBodies_areFreed(t *testing.T) {
	const writers, size, memoryLimit, rounds, concurrent = 2, 60_000, 4 << 20, 3, 50
	b := setup(t, func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.QueueBytes = writers, memoryLimit
		o.Settings.Queue = concurrent + writers // less than are sent in all
		o.Settings.Deadline, o.Settings.StallAfter = time.Second, time.Hour
		o.Endpoints = map[string]ingest.Endpoint{"many": o.Endpoints["many"]}
	})
	release := b.lockLog(t)
	handler := b.server.Handler()
	var group sync.WaitGroup
	send := func(key string, spaces int) {
		group.Go(func() {
			if status := serve(handler, "many",
				b.line(t, "many", key+strings.Repeat(" ", spaces))); status != 503 {
				t.Errorf("%s: status %d", key, status)
			}
		})
	}
	for n := range writers {
		send(fmt.Sprint("in progress ", n), 0)
		b.waitBlocked(t, n+1)
	}
	group.Wait()
	held := func() float64 { return b.counter(t, "postern_body_memory_bytes") }
	inProgress, before := held(), heap()
	for round := range rounds {
		for n := range concurrent {
			send(fmt.Sprintf("%d in round %d", n, round), size)
		}
		group.Wait()
		if now := held(); now != inProgress || now == 0 || now > memoryLimit {
			t.Fatalf("round %d: %v bytes are held, with %v in progress", round, now, inProgress)
		}
	}
	if grown := int64(heap()) - int64(before); grown > memoryLimit {
		t.Errorf("%d MiB are held of %d MiB that were sent", grown>>20, rounds*concurrent*size>>20)
	}
	b.wantCounter(t, writers+rounds*concurrent, "postern_deliveries_total", "result=unavailable")
	b.waitQueued(t, "many", 0)
	release()
	b.waitMetric(t, 0, "postern_body_memory_bytes")
	b.waitStatus(t, "many", b.line(t, "many", "after"), http.StatusOK)
	b.wantRows(t, writers+1, `events`)
}

// A writer that finds only abandoned deliveries keeps waiting: otherwise each outage would end some
// writers, and the last outage all.
func TestAppender_onlyAbandonedDeliveries_keepsWaiting(t *testing.T) {
	t.Parallel()
	b := ingest.NewBatchQueue(1, 64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.PushAbandoned(100)
	got := make(chan int, 2)
	go func() {
		got <- b.Next(ctx, 0)
		b.EndCommit(0, 1)
		got <- b.Next(ctx, 0)
	}()
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.Waiting(); n != 0 {
			return fmt.Errorf("%d are queued", n)
		}
		return nil
	})
	b.Push(1)
	if n := <-got; n != 1 {
		t.Errorf("a batch of %d", n)
	}
	b.PushAbandoned(1)
	cancel()
	if n := <-got; n != 0 {
		t.Errorf("a batch of %d at the end", n)
	}
}
