package ingest_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// On an idle machine the long form checks absolute limits; the short form only compares: go test
// ./internal/ingest -run 'Overload' -v -overload.long
var overloadLong = flag.Bool("overload.long", false, "flood for a minute at 10,000 deliveries a second, and check "+
	"absolute times")

// retryAfterHeader is the header of all responses with a Retry-After.
var retryAfterHeader = http.Header{"Retry-After": {"1"}}

// responses are the responses to deliveries.
type responses struct {
	mu  sync.Mutex
	all []response
}

// add stores a response without its body, so that a flood uses little memory.
func (a *responses) add(one response) {
	if one.body = nil; one.header.Get("Retry-After") == "" {
		one.header = nil
	} else {
		one.header = retryAfterHeader
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, one)
}

// withStatus returns the responses with a status.
func (a *responses) withStatus(status int) (out []response) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.all {
		if one.status == status {
			out = append(out, one)
		}
	}
	return out
}

// percentile returns a percentile of the durations of responses; zero if there are none.
func percentile(all []response, percent int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	durations := make([]time.Duration, len(all))
	for i, one := range all {
		durations[i] = one.duration
	}
	slices.Sort(durations)
	return durations[len(durations)*percent/100]
}

// serveMeasured calls the handler without a socket, and measures the time.
func serveMeasured(h http.Handler, source string, d *provider.Delivery) response {
	req := httptest.NewRequest(http.MethodPost, "/webhooks/"+source, bytes.NewReader(d.Body))
	req.Header = d.Header.Clone()
	res := httptest.NewRecorder()
	began := time.Now()
	h.ServeHTTP(res, req)
	return response{status: res.Code, header: res.Header(), body: res.Body.Bytes(), duration: time.Since(began)}
}

// openLoop sends that many deliveries a second until ctx ends, whether the gateway responds or not,
// and waits for the last response. It calls sent after sending the last one, which is late on a
// busy machine.
func openLoop(ctx context.Context, perSecond int, send func(n int) response, sent func()) *responses {
	var all responses
	var group, begun sync.WaitGroup
	began, count := time.Now(), 0
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		for due := int(float64(perSecond) * time.Since(began).Seconds()); count < due; count++ {
			n := count
			begun.Add(1)
			group.Go(func() {
				begun.Done()
				all.add(send(n))
			})
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	begun.Wait()
	sent()
	group.Wait()
	return &all
}

// overloadCase describes a flood of a gateway whose two concurrent commits take commitTime each.
// quietRate is the deliveries per second of another source, far below half of the capacity, even if
// commits take ten times as long.
type overloadCase struct {
	batch, quietRate     int
	commitTime, duration time.Duration
}

// capacity returns how many deliveries can be committed per second.
func (o overloadCase) capacity() int { return 2 * o.batch * int(time.Second/o.commitTime) }

// Deliveries arrive at ten times the capacity, with a spool and without. Accepted ones get a
// response in time, the others are rejected at once, the spool stays empty, and another source is
// not affected.
func TestServer_overload_excessIsRejectedAtOnce(t *testing.T) {
	o := overloadCase{batch: 16, quietRate: 5, commitTime: 200 * time.Millisecond, duration: 3 * time.Second}
	if *overloadLong {
		o = overloadCase{batch: 50, quietRate: 20, commitTime: 100 * time.Millisecond, duration: time.Minute}
	} else {
		t.Parallel()
	}
	for _, withSpool := range []bool{false, true} {
		t.Run(fmt.Sprintf("spool=%t", withSpool), func(t *testing.T) {
			if !*overloadLong {
				t.Parallel()
			}
			o.run(t, withSpool)
		})
	}
}

func (o overloadCase) run(t *testing.T, withSpool bool) {
	db := testkit.Database(t)
	proxy := testkit.Proxy(t, db.URL)
	deadline, stallAfter, acquireTimeout := 8*time.Second, 30*time.Second, 30*time.Second
	if *overloadLong { // the defaults
		deadline, stallAfter, acquireTimeout = 4*time.Second, 750*time.Millisecond, time.Second
	}
	var deliverySpool *spool.Spool
	b := setupOn(t, db, func(opts *ingest.Options) {
		s := &opts.Settings
		s.BatchMax, s.Deadline, s.StallAfter, s.AcquireTimeout = o.batch, deadline, stallAfter, acquireTimeout
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: proxy.URL, Role: "postern_gateway",
			MaxConns: 8, MinConns: int32(s.Sessions())}) // as many open sessions as the gateway has
		testkit.Must(t, err)
		t.Cleanup(pool.Close)
		opts.Pool, opts.Publish = pool, func(...stream.Event) {}
		if withSpool {
			deliverySpool = openSpool(t, t.TempDir(), 1<<30)
			opts.Spool = deliverySpool
		}
	})
	handler := b.server.Handler()
	send := func(source string, key ...any) response {
		return serveMeasured(handler, source, b.line(t, source, fmt.Sprint(key...)))
	}
	proxy.Delay(o.commitTime / 2)
	runQuietSource := func(ctx context.Context, first int) *responses {
		return openLoop(ctx, o.quietRate, func(n int) response { return send("polite", "quiet ", first+n) }, func() {})
	}
	var alone *responses
	if *overloadLong {
		ctx, done := context.WithTimeout(t.Context(), 10*time.Second)
		alone = runQuietSource(ctx, 1_000_000)
		done()
	}

	for n := range 5 { // the duration of a commit is known now
		send("many", "before ", n)
	}
	before, commits := inUse(), int(b.counter(t, "postern_append_batch_deliveries"))
	flooding, done := context.WithTimeout(t.Context(), o.duration)
	defer done()
	var group sync.WaitGroup
	var quiet, flood *responses
	sent := make(chan struct{})
	group.Go(func() { quiet = runQuietSource(flooding, 1) })
	group.Go(func() {
		each := func(n int) response { return send("many", "flood ", n) }
		flood = openLoop(flooding, 10*o.capacity(), each, func() { close(sent) })
	})
	<-sent
	ended, grown := time.Now(), inUse()-before
	testkit.Eventually(t, time.Minute, func() error {
		if a := send("many", "afterwards"); a.status != http.StatusOK {
			return fmt.Errorf("status %d", a.status)
		}
		return nil
	})
	recovered := time.Since(ended)
	group.Wait()
	commits = int(b.counter(t, "postern_append_batch_deliveries")) - commits

	accepted, rejected := flood.withStatus(200), flood.withStatus(503)
	t.Logf("%d sent, %d accepted in %d commits (p50 %s, p99 %s), %d rejected (p90 %s, p99 %s); recovered after %s, "+
		"%d KiB more memory", len(flood.all), len(accepted), commits, percentile(accepted, 50), percentile(accepted,
		99), len(rejected), percentile(rejected, 90), percentile(rejected, 99), recovered, grown>>10)
	t.Logf("the quiet source: %d of %d accepted (p50 %s, p99 %s)", len(quiet.withStatus(200)), len(quiet.all),
		percentile(quiet.withStatus(200), 50), percentile(quiet.withStatus(200), 99))
	if n := len(flood.all); n != len(accepted)+len(rejected) || len(rejected) < n/2 {
		t.Errorf("%d sent, %d accepted and %d rejected", n, len(accepted), len(rejected))
	}
	late := 0
	for _, a := range rejected {
		if a.header == nil {
			t.Fatal("rejected without Retry-After")
		}
		if a.duration >= deadline {
			late++
		}
	}
	// The commits had capacity for this many deliveries, however slow the machine is; the last of
	// them had fewer to store.
	if good := len(accepted) + len(quiet.withStatus(200)); good*10 < 6*commits*o.batch {
		t.Errorf("of %d deliveries, the capacity of %d commits, %d got a receipt in time", commits*o.batch, commits,
			good)
	}
	if slow := percentile(rejected, 90); slow > percentile(accepted, 50)/2 {
		t.Errorf("a rejection takes %s", slow)
	}
	if late > len(accepted)/3 {
		t.Errorf("%d were accepted, and %d waited until their deadline", len(accepted), late)
	}
	if len(quiet.withStatus(200)) != len(quiet.all) || percentile(quiet.all, 50) > percentile(accepted, 50)*3/4 {
		t.Errorf("the quiet source: %d of %d accepted, after %s", len(quiet.withStatus(200)), len(quiet.all),
			percentile(quiet.all, 50))
	}
	b.wantCounter(t, 0, "postern_deliveries_total", "result=spooled")
	if withSpool && deliverySpool.Stats().Records > 0 {
		t.Errorf("the spool has %+v", deliverySpool.Stats())
	}
	if *overloadLong {
		o.wantLimits(t, alone, quiet, accepted, rejected, recovered, grown)
	}
}

// inUse returns the bytes of heap and stacks after a collection, including the waiting requests.
func inUse() int64 {
	used := heap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(used + m.StackInuse)
}

// wantLimits checks the documented limits, as measured on an idle machine.
func (o overloadCase) wantLimits(t *testing.T, quietBefore, quiet *responses, accepted, rejected []response,
	recovered time.Duration, memory int64) {
	t.Helper()
	// At the start the queue fills up; its deliveries have a response by the end.
	if rate := float64(len(accepted)) / (o.duration + recovered).Seconds(); rate < 0.8*float64(o.capacity()) {
		t.Errorf("%.0f accepted per second, capacity %d", rate, o.capacity())
	}
	if slow := percentile(rejected, 99); slow > 50*time.Millisecond {
		t.Errorf("a rejection takes %s", slow)
	}
	if recovered > 5*time.Second {
		t.Errorf("recovered after %s", recovered)
	}
	if memory > 128<<20 {
		t.Errorf("%d MiB more memory", memory>>20)
	}
	if a, q := percentile(quietBefore.all, 99), percentile(quiet.all, 99); q > 2*a+100*time.Millisecond {
		t.Errorf("the quiet source takes %s, without the flood %s", q, a)
	}
}
