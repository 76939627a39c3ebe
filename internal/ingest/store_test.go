package ingest_test

import (
	"bytes"
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

// serve answers a delivery without a socket.
func serve(h http.Handler, source string, d *provider.Delivery) int {
	req := httptest.NewRequest(http.MethodPost, "/webhooks/"+source, bytes.NewReader(d.Body))
	req.Header = d.Header.Clone()
	res := httptest.NewRecorder()
	h.ServeHTTP(res, req)
	return res.Code
}

// hold locks the log so that every append waits; release ends that, at the latest with the test.
func (b *testBundle) hold(t *testing.T) (release func()) {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	if _, err := tx.Exec(t.Context(), `LOCK TABLE event_keys IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	return release
}

// blocked waits until at least n appends wait for the lock.
func (b *testBundle) blocked(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`); got < n {
			return fmt.Errorf("%d appends wait", got)
		}
		return nil
	})
}

// send posts from a goroutine of its own; the channel gets the answer.
func (b *testBundle) send(t *testing.T, ctx context.Context, source string, d *provider.Delivery) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		a, err := b.try(ctx, source, d)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		answers <- a
	}()
	return answers
}

// Waiting for the store longer than a sender may take for its body is no fault of the sender's.
func TestSlowStoreIsNoSlowBody(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, testkit.Database(t), nil)
	b.serve(t, shortTimeout)
	waiting := b.send(t, t.Context(), "stripe", b.invoice(t, 1))
	select {
	case a := <-waiting:
		t.Errorf("answered before anything was written: %d %s", a.status, a.body)
		return
	case <-time.After(2 * shortTimeout):
	}
	b.run(t)
	(<-waiting).receipt(t)
}

// PostgreSQL hangs or is gone: the first delivery is answered within the deadline, the others at once, and none is acknowledged.
// All is well once it is back. Not parallel, since a clock tells what is at once.
func TestPostgresHangs(t *testing.T) {
	for _, hangs := range []bool{true, false} {
		db := testkit.Database(t)
		proxy, tune := through(t, db)
		b := setupOn(t, db, func(o *ingest.Options) {
			tune(o)
			o.Settings.Deadline, o.Settings.StallAfter = 2*time.Second, time.Second
		})
		b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
		t.Cleanup(proxy.Restore) // else what hangs would hold up the end of the test
		if hangs {
			proxy.Stall()
		} else {
			proxy.Cut()
		}
		b.post(t, "stripe", b.invoice(t, 2)).refused(t, 503, "unavailable")
		atOnce := 0
		for n := range 20 { // now it is known; one delivery now and then may try again
			a := b.post(t, "stripe", b.invoice(t, 3+n))
			a.refused(t, 503, "unavailable")
			if a.took < time.Second/2 {
				atOnce++
			}
			if a.took > 15*time.Second {
				t.Errorf("hangs %t: delivery %d refused only after %s", hangs, n, a.took)
			}
		}
		if atOnce < 10 {
			t.Errorf("hangs %t: %d of 20 were refused at once", hangs, atOnce)
		}
		forged := b.invoice(t, 100)
		forged.Body = append(forged.Body, ' ')
		b.post(t, "stripe", forged).refused(t, 401, "unauthenticated") // needs no store
		if a := b.get(t, "/readyz"); a.status != 503 {
			t.Errorf("hangs %t: ready: %s", hangs, a.body)
		}
		if a := b.get(t, "/healthz"); a.status != 200 {
			t.Errorf("hangs %t: not alive: %d", hangs, a.status)
		}
		proxy.Restore()
		b.recovers(t, 101)
		if !hangs { // of what hung, PostgreSQL may have heard
			b.wantRows(t, 2, `events`)
		}
	}
}

// recovers waits until deliveries are taken again.
func (b *testBundle) recovers(t *testing.T, n int) {
	t.Helper()
	b.waitAnswer(t, "stripe", b.invoice(t, n), http.StatusOK)
	b.waitReady(t)
}

// waitReady waits until /readyz answers 200.
func (b *testBundle) waitReady(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if a := b.get(t, "/readyz"); a.status != http.StatusOK {
			return fmt.Errorf("readyz %d: %s", a.status, a.body)
		}
		return nil
	})
}

func (b *testBundle) get(t *testing.T, path string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := b.do(req)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPanicIsOneRequestsFault(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for n := range 3 {
		b.post(t, "panic", b.invoice(t, 1)).refused(t, 500, "internal")
		if got := b.counter(t, "postern_faults_total"); got != float64(n+1) {
			t.Errorf("%v faults counted after %d", got, n+1)
		}
	}
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
}

func TestReadyUntilDrained(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if a := b.get(t, "/readyz"); a.status != 200 {
		t.Errorf("readyz %d: %s", a.status, a.body)
	}
	b.server.Drain()
	if a := b.get(t, "/readyz"); a.status != 503 {
		t.Errorf("readyz while draining %d: %s", a.status, a.body)
	}
	if a := b.get(t, "/healthz"); a.status != 200 {
		t.Errorf("healthz %d", a.status)
	}
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t) // draining still takes what comes
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
	b.waitReady(t)
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
	b.waitRows(t, 1, `pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
			AND clock_timestamp() - query_start > $1::interval`, stallAfter+time.Second)
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
	b.waitRows(t, 1, `rejections`)
	b.wantCounter(t, forgeries, "postern_rejections_dropped_total")
}

// What nobody waits for any more takes no part of a commit, nor of the memory and the queue.
func TestRefusedDeliveriesAreNotCommitted(t *testing.T) {
	t.Parallel()
	const queue = 10
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		o.Settings.Deadline, o.Settings.Queue, o.Settings.Writers = 300*time.Millisecond, queue, 1
		o.Endpoints = map[string]ingest.Endpoint{"many": o.Endpoints["many"]}
	})
	var group sync.WaitGroup
	for n := range queue {
		group.Go(func() {
			if status := serve(b.server.Handler(), "many", b.sign(t, "many", line(fmt.Sprint(n)))); status != 503 {
				t.Errorf("status %d", status)
			}
		})
	}
	group.Wait()
	b.wantCounter(t, queue, "postern_deliveries_total", "result=unavailable")
	b.waits(t, "many", 0)
	b.run(t)
	b.waitAnswer(t, "many", b.sign(t, "many", line("after")), http.StatusOK) // the deadline is short
	b.wantRows(t, 1, `events`)
}

// What is kept in the spool is not appended by the queue as well, but for what was under way.
func TestSpooledDeliveriesLeaveTheQueue(t *testing.T) {
	t.Parallel()
	const writers, sent = 2, 30
	b := setupSpool(t, func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.BatchMax, o.Settings.StallAfter = writers, 1, 5*time.Second
	})
	b.post(t, "many", b.sign(t, "many", line("before"))).receipt(t)
	b.store.Stall()
	var group sync.WaitGroup
	for n := range sent {
		group.Go(func() {
			key := fmt.Sprint("during ", n)
			a, err := b.try(t.Context(), "many", b.sign(t, "many", line(key)))
			if err != nil {
				t.Error(err)
				return
			}
			a.kept(t, key)
		})
	}
	testkit.Eventually(t, 30*time.Second, func() error { // all but two do, as a rule; on a busy machine some have left already when the last come
		if b.gauge(t, "postern_queue_deliveries", "many") == 0 {
			return errors.New("none waits")
		}
		return nil
	})
	group.Wait()
	b.waits(t, "many", 0) // though no writer has come back
	b.store.Restore()
	b.waitEmpty(t, 1+sent)
	b.waits(t, "many", 0)
	if n := b.counter(t, "postern_events_total", "result=duplicate"); n > writers {
		t.Errorf("%v were appended twice", n)
	}
}

// While the writers hang, what nobody waits for any more holds no memory: only what they have in hand does, however much comes. So those who send meanwhile are refused for the store's sake and not
// for want of memory, and bodies together stay below their bound.
func TestBodiesThatAreLeftHoldNoMemory(t *testing.T) {
	const writers, size, most, rounds, atOnce = 2, 60_000, 4 << 20, 3, 50
	b := setup(t, func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.QueueBytes = writers, most
		o.Settings.Deadline, o.Settings.StallAfter = time.Second, time.Hour
		o.Endpoints = map[string]ingest.Endpoint{"many": o.Endpoints["many"]}
	})
	release := b.hold(t)
	handler := b.server.Handler()
	var group sync.WaitGroup
	send := func(key string, spaces int) {
		group.Go(func() {
			if status := serve(handler, "many", b.sign(t, "many", line(key+strings.Repeat(" ", spaces)))); status != 503 {
				t.Errorf("%s: status %d", key, status)
			}
		})
	}
	for n := range writers {
		send(fmt.Sprint("under way ", n), 0)
		b.blocked(t, n+1)
	}
	group.Wait()
	held := func() float64 { return b.gauge(t, "postern_held_bytes", "") }
	underWay, before := held(), heap()
	for round := range rounds {
		for n := range atOnce {
			send(fmt.Sprintf("%d of round %d", n, round), size)
		}
		group.Wait()
		if now := held(); now != underWay || now == 0 || now > most {
			t.Fatalf("round %d: %v bytes are held, with %v under way", round, now, underWay)
		}
	}
	if grown := int64(heap()) - int64(before); grown > most {
		t.Errorf("%d MiB are held of %d MiB that were sent", grown>>20, rounds*atOnce*size>>20)
	}
	b.wantCounter(t, writers+rounds*atOnce, "postern_deliveries_total", "result=unavailable")
	release()
	b.waitGauge(t, "postern_held_bytes", "", 0)
	b.wantRows(t, writers, `events`)
}

// A writer that finds only what nobody waits for any more goes on waiting: otherwise each outage would end some, and the last one all.
func TestWriterOutlivesWhatIsLeft(t *testing.T) {
	t.Parallel()
	b := ingest.NewBatches(1, 64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.PushLeft(100)
	got := make(chan int, 2)
	go func() {
		got <- b.Next(ctx, 0)
		b.End(0, 1)
		got <- b.Next(ctx, 0)
	}()
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.Waiting(); n != 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	b.Push(1)
	if n := <-got; n != 1 {
		t.Errorf("a batch of %d", n)
	}
	b.PushLeft(1)
	cancel()
	if n := <-got; n != 0 {
		t.Errorf("a batch of %d at the end", n)
	}
}
