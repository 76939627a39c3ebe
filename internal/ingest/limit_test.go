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

// rated is a server whose sources have a rate, on a clock that stands still until it is moved.
func rated(t *testing.T, rate ingest.Rate, names ...string) (b *testBundle, move func(time.Duration)) {
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

// A source is kept to its rate: a burst at once, then what time earns. The others are not.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	b, move := rated(t, ingest.Rate{PerSecond: 4, Burst: 3}, "many")
	n := 0
	taken := func(want int) {
		t.Helper()
		got := 0
		for range 10 {
			n++
			if a := b.post(t, "many", b.sign(t, "many", line(fmt.Sprint(n)))); a.status == 200 {
				got++
			} else {
				a.refused(t, http.StatusTooManyRequests, "rate-limited")
			}
		}
		if got != want {
			t.Errorf("%d of 10 taken, want %d", got, want)
		}
	}
	taken(3)
	taken(0)
	move(249 * time.Millisecond)
	taken(0)
	move(time.Millisecond)
	taken(1)
	move(500 * time.Millisecond)
	taken(2)
	move(time.Hour)
	taken(3)
	move(-time.Minute) // whoever sets the clock back does not close the source
	taken(0)
	move(250 * time.Millisecond)
	taken(1)
	move(-100 * time.Millisecond) // nor is anything forgiven by clocks that are read out of order
	taken(0)
	move(250 * time.Millisecond)
	taken(0)
	move(100 * time.Millisecond)
	taken(1)
	b.post(t, "shop", b.sign(t, "shop", b.sample(t, "shop", "orders/create", 1))).receipt(t)
	if got := b.counter(t, "postern_deliveries_total", "source=many", "result=limited"); got != 99 {
		t.Errorf("%v counted as limited", got)
	}
	if got := b.count(t, `SELECT count(*) FROM events`); got != 12 {
		t.Errorf("%d events", got)
	}
	if got := b.counter(t, "postern_rejections_total"); got != 0 {
		t.Errorf("%v rejections", got)
	}
}

// bodyThen is a body before which something happens.
type bodyThen struct {
	first sync.Once
	then  func()
	io.Reader
}

func (b *bodyThen) Read(p []byte) (int, error) {
	b.first.Do(b.then)
	return b.Reader.Read(p)
}

// A delivery whose body took long counts when it is proven: what was sent meanwhile is earned again as far as it is, and still owed as far as it is not.
func TestSlowBodyKeepsToTheRate(t *testing.T) {
	t.Parallel()
	b, move := rated(t, ingest.Rate{PerSecond: 4, Burst: 3}, "many")
	status := func(n int) int { return b.post(t, "many", b.sign(t, "many", line(fmt.Sprint(n)))).status }
	slow := b.sign(t, "many", line("slow"))
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/many", &bodyThen{Reader: bytes.NewReader(slow.Body), then: func() {
		move(1300 * time.Millisecond)
		for n := range 3 {
			if got := status(n); got != http.StatusOK {
				t.Errorf("the burst's %d: status %d", n, got)
			}
		}
		move(500 * time.Millisecond)
	}})
	req.Header = slow.Header.Clone()
	res := httptest.NewRecorder()
	b.server.Handler().ServeHTTP(res, req)
	if res.Code != http.StatusOK {
		t.Errorf("the slow one: status %d: %s", res.Code, res.Body)
	}
	for n, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		if got := status(10 + n); got != want {
			t.Errorf("%d after it: status %d, want %d", n, got, want)
		}
	}
}

// Whoever forges deliveries does not use up what the real sender may send.
func TestForgeriesUseUpNoRate(t *testing.T) {
	t.Parallel()
	b, _ := rated(t, ingest.Rate{PerSecond: 1, Burst: 2}, "shop")
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
	// With nothing left, nobody's body is read: not a byte of this one is sent.
	b.serve(t, shortTimeout)
	a, conn := b.raw(t, "POST /webhooks/shop HTTP/1.1\nHost: postern\nContent-Length: 100000", nil)
	a.refused(t, http.StatusTooManyRequests, "rate-limited")
	closed(t, conn)
	if status := serve(handler, "shop", forged); status != http.StatusTooManyRequests {
		t.Errorf("status %d", status)
	}
}

// A reload of the configuration is no new burst, unless the rate is another.
func TestRateOutlivesAReload(t *testing.T) {
	t.Parallel()
	b, _ := rated(t, ingest.Rate{PerSecond: 1, Burst: 1}, "many")
	b.post(t, "many", b.sign(t, "many", line("one"))).receipt(t)
	b.server.Replace(maps.Clone(b.endpoints))
	b.post(t, "many", b.sign(t, "many", line("two"))).refused(t, http.StatusTooManyRequests, "rate-limited")
	other := maps.Clone(b.endpoints)
	ep := other["many"]
	ep.Rate.Burst = 5
	other["many"] = ep
	b.server.Replace(other)
	b.post(t, "many", b.sign(t, "many", line("two"))).receipt(t)
	ep.Rate = ingest.Rate{}
	without := maps.Clone(b.endpoints)
	without["many"] = ep
	b.server.Replace(without)
	for n := range 10 {
		b.post(t, "many", b.sign(t, "many", line(fmt.Sprint("free ", n)))).receipt(t)
	}
}

// A flood that is refused for its rate is a line in the log, not one for each.
func TestLimitedFloodIsTheLogsOneLine(t *testing.T) {
	t.Parallel()
	log, tune := logging(0)
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
	b.waits(t, "shop", 1)
	for range 100 {
		if status := serve(handler, "shop", first); status != http.StatusTooManyRequests {
			t.Fatalf("status %d", status)
		}
	}
	b.run(t)
	told := log.take(t, "deliveries are refused that are more than the source's rate_limit")
	if len(told) != 1 || !strings.HasPrefix(fmt.Sprint(told[0]["remote"]), "192.0.2.") {
		t.Errorf("the log says: %v", told)
	}
}
