package ingest_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

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

// With the queue full the answer comes at once, and what was in it is stored when the store goes on.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.Queue = 1 })
	first, second := b.send(t, t.Context(), "stripe", b.invoice(t, 1)), b.send(t, t.Context(), "stripe", b.invoice(t, 2))
	var refused answer
	queued := first
	select { // one of them waits in the queue
	case refused = <-first:
		queued = second
	case refused = <-second:
	}
	refused.refused(t, 503, "overloaded")
	if refused.took > 10*time.Second {
		t.Errorf("refused only after %s", refused.took)
	}
	b.run(t)
	(<-queued).receipt(t)
	b.post(t, "stripe", b.invoice(t, 3)).receipt(t)
	if n := b.count(t, `SELECT count(*) FROM events`); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
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

// A store that hangs: those who came first are answered within the deadline, the others at once, and all is well after it. With nothing beside it: what is at once is told by a clock.
func TestPostgresHangs(t *testing.T) {
	db := testkit.Database(t)
	proxy, tune := through(t, db)
	b := setupOn(t, db, func(o *ingest.Options) {
		tune(o)
		o.Settings.Deadline, o.Settings.StallAfter = 2*time.Second, time.Second
	})
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
	t.Cleanup(proxy.Restore) // else what hangs would hold up the end of the test
	proxy.Stall()
	first := b.post(t, "stripe", b.invoice(t, 2))
	first.refused(t, 503, "unavailable")
	if first.took > 15*time.Second {
		t.Errorf("answered only after %s", first.took)
	}
	atOnce := 0
	for n := range 20 { // now it is known; one delivery now and then may try again
		a := b.post(t, "stripe", b.invoice(t, 3+n))
		a.refused(t, 503, "unavailable")
		if a.took < time.Second/2 {
			atOnce++
		}
		if a.took > 15*time.Second {
			t.Errorf("delivery %d refused only after %s", n, a.took)
		}
	}
	if atOnce < 10 {
		t.Errorf("%d of 20 were refused at once", atOnce)
	}
	if a := b.get(t, "/readyz"); a.status != 503 {
		t.Errorf("ready while the store hangs: %s", a.body)
	}
	if a := b.get(t, "/healthz"); a.status != 200 {
		t.Errorf("not alive: %d", a.status)
	}
	proxy.Restore()
	b.recovers(t, 30)
}

// recovers waits until deliveries are taken again.
func (b *testBundle) recovers(t *testing.T, n int) {
	t.Helper()
	d := b.invoice(t, n)
	testkit.Eventually(t, 20*time.Second, func() error {
		a, err := b.try(t.Context(), "stripe", d)
		if err != nil || a.status != 200 {
			return fmt.Errorf("status %d, %v", a.status, err)
		}
		return nil
	})
	testkit.Eventually(t, 20*time.Second, func() error {
		if a := b.get(t, "/readyz"); a.status != 200 {
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

// A store that is gone: no request hangs, none is acknowledged, and what was acknowledged before and after is there.
func TestPostgresGone(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, tune := through(t, db)
	b := setupOn(t, db, tune)
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
	proxy.Cut()
	for n := range 20 {
		a := b.post(t, "stripe", b.invoice(t, 2+n))
		a.refused(t, 503, "unavailable")
		if a.took > 10*time.Second {
			t.Errorf("delivery %d refused only after %s", n, a.took)
		}
	}
	forged := b.invoice(t, 100)
	forged.Body = append(forged.Body, ' ')
	b.post(t, "stripe", forged).refused(t, 401, "unauthenticated") // needs no store
	if a := b.get(t, "/readyz"); a.status != 503 {
		t.Errorf("ready without a store: %s", a.body)
	}
	proxy.Restore()
	b.recovers(t, 101)
	if n := b.count(t, `SELECT count(*) FROM events`); n != 2 {
		t.Errorf("%d events, want the two that were acknowledged", n)
	}
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
