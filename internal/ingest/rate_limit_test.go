package ingest_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// setupRateLimited returns a server whose sources have a rate. Its clock moves only when move is
// called.
func setupRateLimited(t *testing.T, rate ingest.Rate, names ...string) (b *testBundle, move func(time.Duration)) {
	t.Helper()
	var moved atomic.Int64
	began := time.Now()
	b = setup(t, func(o *ingest.Options) {
		o.Now = func() time.Time { return began.Add(time.Duration(moved.Load())) }
		for _, name := range names {
			ep := o.Endpoints[name]
			ep.Rate = rate
			o.Endpoints[name] = ep
		}
	})
	return b, func(d time.Duration) { moved.Add(int64(d)) }
}

// A source may send a burst at once, then as much as its rate allows. Other sources are not
// limited.
func TestRateLimit_moreThanBurst_isRejected(t *testing.T) {
	t.Parallel()
	b, move := setupRateLimited(t, ingest.Rate{PerSecond: 4, Burst: 3}, "many")
	n := 0
	wantAccepted := func(want int) {
		t.Helper()
		got := 0
		for range 10 {
			n++
			if a := b.post(t, "many", b.sign(t, "many", lineSample(fmt.Sprint(n)))); a.status == 200 {
				got++
			} else {
				a.wantProblem(t, http.StatusTooManyRequests, "rate-limited")
			}
		}
		if got != want {
			t.Errorf("%d of 10 accepted, want %d", got, want)
		}
	}
	wantAccepted(3)
	wantAccepted(0)
	move(249 * time.Millisecond)
	wantAccepted(0)
	move(time.Millisecond)
	wantAccepted(1)
	move(500 * time.Millisecond)
	wantAccepted(2)
	move(time.Hour)
	wantAccepted(3)
	move(-100 * time.Millisecond) // concurrent calls with times in another order must not reduce the debt
	wantAccepted(0)
	move(250 * time.Millisecond)
	wantAccepted(0)
	move(100 * time.Millisecond)
	wantAccepted(1)
	b.post(t, "shop", b.sign(t, "shop", b.sample(t, "shop", "orders/create", 1))).receipt(t)
	if got := b.counter(t, "postern_deliveries_total", "source=many", "result=limited"); got != 80 {
		t.Errorf("%v counted as limited", got)
	}
	if got := b.count(t, `SELECT count(*) FROM events`); got != 11 {
		t.Errorf("%d events", got)
	}
	if got := b.counter(t, "postern_rejections_total"); got != 0 {
		t.Errorf("%v rejections", got)
	}
}

// bodyWithHook calls a hook before the first read.
type bodyWithHook struct {
	once sync.Once
	hook func()
	io.Reader
}

func (b *bodyWithHook) Read(p []byte) (int, error) {
	b.once.Do(b.hook)
	return b.Reader.Read(p)
}

// A delivery with a slow body counts when it is verified. The deliveries accepted meanwhile count
// too.
func TestRateLimit_slowBody_countsWhenVerified(t *testing.T) {
	t.Parallel()
	b, move := setupRateLimited(t, ingest.Rate{PerSecond: 4, Burst: 3}, "many")
	status := func(n int) int { return b.post(t, "many", b.sign(t, "many", lineSample(fmt.Sprint(n)))).status }
	slow := b.sign(t, "many", lineSample("slow"))
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/many",
		&bodyWithHook{Reader: bytes.NewReader(slow.Body), hook: func() {
			move(1300 * time.Millisecond)
			for n := range 3 {
				if got := status(n); got != http.StatusOK {
					t.Errorf("delivery %d of the burst: status %d", n, got)
				}
			}
			move(500 * time.Millisecond)
		}})
	req.Header = slow.Header.Clone()
	res := httptest.NewRecorder()
	b.server.Handler().ServeHTTP(res, req)
	if res.Code != http.StatusOK {
		t.Errorf("the slow delivery: status %d: %s", res.Code, res.Body)
	}
	for n, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		if got := status(10 + n); got != want {
			t.Errorf("delivery %d after it: status %d, want %d", n, got, want)
		}
	}
}

// Forged deliveries do not use up the rate of the real sender.
func TestRateLimit_forgedDeliveries_useNothing(t *testing.T) {
	t.Parallel()
	b, _ := setupRateLimited(t, ingest.Rate{PerSecond: 1, Burst: 2}, "shop")
	handler := b.server.Handler()
	forged := &provider.Delivery{Header: http.Header{}, Body: []byte("{}")}
	for range 50 {
		if status := serve(handler, "shop", forged); status != http.StatusUnauthorized {
			t.Fatalf("status %d", status)
		}
	}
	for n := range 2 {
		b.post(t, "shop", b.sign(t, "shop", b.sample(t, "shop", "orders/create", n+1))).receipt(t)
	}
	// Above the rate no body is read: the client sends no byte of this one.
	b.serve(t, shortTimeout)
	a, conn := b.raw(t, "POST /webhooks/shop HTTP/1.1\nHost: postern\nContent-Length: 100000", nil)
	a.wantProblem(t, http.StatusTooManyRequests, "rate-limited")
	wantClosed(t, conn)
	if status := serve(handler, "shop", forged); status != http.StatusTooManyRequests {
		t.Errorf("status %d", status)
	}
}

// A reload of the configuration allows no new burst, unless the rate changes.
func TestRateLimit_reload_keepsCount(t *testing.T) {
	t.Parallel()
	b, _ := setupRateLimited(t, ingest.Rate{PerSecond: 1, Burst: 1}, "many")
	b.post(t, "many", b.sign(t, "many", lineSample("one"))).receipt(t)
	b.server.Replace(maps.Clone(b.endpoints))
	b.post(t, "many", b.sign(t, "many", lineSample("two"))).wantProblem(t, http.StatusTooManyRequests, "rate-limited")
	other := maps.Clone(b.endpoints)
	ep := other["many"]
	ep.Rate.Burst = 5
	other["many"] = ep
	b.server.Replace(other)
	b.post(t, "many", b.sign(t, "many", lineSample("two"))).receipt(t)
	ep.Rate = ingest.Rate{}
	without := maps.Clone(b.endpoints)
	without["many"] = ep
	b.server.Replace(without)
	for n := range 10 {
		b.post(t, "many", b.sign(t, "many", lineSample(fmt.Sprint("free ", n)))).receipt(t)
	}
}

// A flood above the rate is one log line.
func TestRateLimit_flood_isOneLogLine(t *testing.T) {
	t.Parallel()
	log, tune := captureLog(0)
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		tune(o)
		ep := o.Endpoints["shop"]
		ep.Rate = ingest.Rate{PerSecond: 1, Burst: 1}
		o.Endpoints["shop"] = ep
		o.Now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	})
	handler := b.server.Handler()
	first := b.signAt(t, "shop", b.sample(t, "shop", "orders/create", 1), time.Unix(1_800_000_000, 0))
	go serve(handler, "shop", first) // it waits in the queue
	b.waitQueued(t, "shop", 1)
	for range 100 {
		if status := serve(handler, "shop", first); status != http.StatusTooManyRequests {
			t.Fatalf("status %d", status)
		}
	}
	b.run(t)
	logLines := log.withMessage(t, "deliveries are rejected because they exceed the source's rate_limit")
	if len(logLines) != 1 || !strings.HasPrefix(fmt.Sprint(logLines[0]["remote"]), "192.0.2.") {
		t.Errorf("log lines: %v", logLines)
	}
}
