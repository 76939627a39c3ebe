package ingest_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
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
)

// setupRateLimited returns a server one of whose sources has a rate. Its clock moves only when move
// is called.
func setupRateLimited(t *testing.T, source string, rate ingest.Rate, tune func(*ingest.Options)) (b *testBundle,
	move func(time.Duration)) {
	t.Helper()
	var moved atomic.Int64
	began := time.Now()
	b = setup(t, func(o *ingest.Options) {
		o.Now = func() time.Time { return began.Add(time.Duration(moved.Load())) }
		changeEndpoint(o, source, func(ep *ingest.Endpoint) { ep.Rate = rate })
		if tune != nil {
			tune(o)
		}
	})
	return b, func(d time.Duration) { moved.Add(int64(d)) }
}

// A source may send a burst at once, then as much as its rate allows. Other sources are not
// limited.
func TestRateLimit_moreThanBurst_isRejected(t *testing.T) {
	t.Parallel()
	b, move := setupRateLimited(t, "many", ingest.Rate{PerSecond: 4, Burst: 3}, nil)
	n := 0
	wantAccepted := func(want int) {
		t.Helper()
		got := 0
		for range 10 {
			n++
			if a := b.postLine(t, "many", fmt.Sprint(n)); a.status == 200 {
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
	b.wantCounter(t, 80, "postern_deliveries_total", "source=many", "result=limited")
	b.wantRows(t, 11, `events`)
	b.wantCounter(t, 0, "postern_rejections_total")
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
	b, move := setupRateLimited(t, "many", ingest.Rate{PerSecond: 4, Burst: 3}, nil)
	status := func(n int) int { return b.postLine(t, "many", fmt.Sprint(n)).status }
	slow := b.line(t, "many", "slow")
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

// Forged deliveries do not use up the rate of the real sender. A flood above the rate is one log
// line.
func TestRateLimit_forgedDeliveries_useNothing(t *testing.T) {
	t.Parallel()
	log, tune := captureLog(slog.LevelInfo)
	b, _ := setupRateLimited(t, "shop", ingest.Rate{PerSecond: 1, Burst: 2}, tune)
	b.forge(t, "shop", 50, 2)
	for n := range 2 {
		b.post(t, "shop", b.sign(t, "shop", b.sample(t, "shop", "orders/create", n+1))).receipt(t)
	}
	handler, forged := b.server.Handler(), &provider.Delivery{Header: http.Header{}, Body: []byte("{}")}
	for range 100 {
		if status := serve(handler, "shop", forged); status != http.StatusTooManyRequests {
			t.Fatalf("status %d", status)
		}
	}
	logLines := log.withMessage(t, "deliveries are rejected because they exceed the source's rate_limit")
	if len(logLines) != 1 || !strings.HasPrefix(fmt.Sprint(logLines[0]["remote"]), "192.0.2.") {
		t.Errorf("log lines: %v", logLines)
	}
	// Above the rate no body is read: the client sends no byte of this one.
	b.serve(t, shortTimeout)
	a, conn := b.raw(t, "/webhooks/shop", nil, "Content-Length: 100000")
	a.wantProblem(t, http.StatusTooManyRequests, "rate-limited")
	wantClosed(t, conn)
}

// A reload of the configuration allows no new burst, unless the rate changes.
func TestRateLimit_reload_keepsCount(t *testing.T) {
	t.Parallel()
	b, _ := setupRateLimited(t, "many", ingest.Rate{PerSecond: 1, Burst: 1}, nil)
	b.postLine(t, "many", "one").receipt(t)
	b.server.Replace(maps.Clone(b.endpoints))
	b.postLine(t, "many", "two").wantProblem(t, http.StatusTooManyRequests, "rate-limited")
	replaceRate := func(rate ingest.Rate) {
		changed := ingest.Options{Endpoints: maps.Clone(b.endpoints)}
		changeEndpoint(&changed, "many", func(ep *ingest.Endpoint) { ep.Rate = rate })
		b.server.Replace(changed.Endpoints)
	}
	replaceRate(ingest.Rate{PerSecond: 1, Burst: 5})
	b.postLine(t, "many", "two").receipt(t)
	replaceRate(ingest.Rate{})
	for n := range 10 {
		b.postLine(t, "many", fmt.Sprint("free ", n)).receipt(t)
	}
}
