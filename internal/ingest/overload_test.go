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

// The long form, on a machine with nothing else to do, holds what the short one only compares: go test ./internal/ingest -run 'Overload|ForgedFlood' -v -overload.long
var overloadLong = flag.Bool("overload.long", false, "flood for a minute at 10,000 deliveries a second, and hold the times that docs/operations.md names")

// toRetry is the header of all answers that say when to try again.
var toRetry = http.Header{"Retry-After": {"1"}}

// answers are what became of deliveries.
type answers struct {
	mu  sync.Mutex
	all []answer
}

// add keeps an answer without its body, so that a flood's answers take little memory.
func (a *answers) add(one answer) {
	if one.body = nil; one.header.Get("Retry-After") == "" {
		one.header = nil
	} else {
		one.header = toRetry
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, one)
}

// of are those of a status.
func (a *answers) of(status int) (out []answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.all {
		if one.status == status {
			out = append(out, one)
		}
	}
	return out
}

// percentile is of how long answers took; zero of none.
func percentile(all []answer, percent int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	took := make([]time.Duration, len(all))
	for i, one := range all {
		took[i] = one.took
	}
	slices.Sort(took)
	return took[len(took)*percent/100]
}

// direct asks the gateway without a socket, which would cost more than the gateway does.
func direct(h http.Handler, source string, d *provider.Delivery) answer {
	req := httptest.NewRequest(http.MethodPost, "/webhooks/"+source, bytes.NewReader(d.Body))
	req.Header = d.Header
	res := httptest.NewRecorder()
	began := time.Now()
	h.ServeHTTP(res, req)
	return answer{status: res.Code, header: res.Header(), body: res.Body.Bytes(), took: time.Since(began)}
}

// openLoop sends so many a second until ctx ends, whether the gateway answers or not, and waits for the last answer. sent is called when the last was sent, which on a busy
// machine is later than it should be.
func openLoop(ctx context.Context, perSecond int, send func(n int) answer, sent func()) *answers {
	var all answers
	var group, begun sync.WaitGroup
	began, count := time.Now(), 0
	every(ctx, 10*time.Millisecond, func(int) {
		for due := int(float64(perSecond) * time.Since(began).Seconds()); count < due; count++ {
			n := count
			begun.Add(1)
			group.Go(func() {
				begun.Done()
				all.add(send(n))
			})
		}
	})
	begun.Wait()
	sent()
	group.Wait()
	return &all
}

// overload is how a gateway is flooded whose commits take that long, two of them at once: quiet is another source's deliveries a second, far below its half of what can be committed
// even where commits take ten times as long.
type overload struct {
	batch, quiet  int
	commit, lasts time.Duration
}

// capacity is how many deliveries can be committed a second.
func (o overload) capacity() int { return 2 * o.batch * int(time.Second/o.commit) }

// commits is how many there were of deliveries.
func (b *testBundle) commits(t *testing.T) int {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "postern_append_batch_deliveries" {
			return int(f.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	t.Fatal("commits are not measured")
	return 0
}

// Ten times as much comes as can be committed, with a spool and without: what is committed is answered in time, the rest is refused at once, the spool stays empty, and another source is as good as alone.
func TestOverload(t *testing.T) {
	o := overload{batch: 16, quiet: 5, commit: 200 * time.Millisecond, lasts: 3 * time.Second}
	if *overloadLong {
		o = overload{batch: 50, quiet: 20, commit: 100 * time.Millisecond, lasts: time.Minute}
	} else {
		t.Parallel()
	}
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("spool=%t", kept), func(t *testing.T) {
			if !*overloadLong {
				t.Parallel()
			}
			o.run(t, kept)
		})
	}
}

func (o overload) run(t *testing.T, kept bool) {
	db := testkit.Database(t)
	proxy := testkit.Proxy(t, db.URL)
	deadline, stallAfter, acquireWithin := 8*time.Second, 30*time.Second, 30*time.Second
	if *overloadLong { // as by default
		deadline, stallAfter, acquireWithin = 4*time.Second, 750*time.Millisecond, time.Second
	}
	var keep *spool.Spool
	b := setupOn(t, db, func(opts *ingest.Options) {
		s := &opts.Settings
		s.BatchMax, s.Deadline, s.StallAfter, s.AcquireWithin = o.batch, deadline, stallAfter, acquireWithin
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: proxy.URL, Role: "postern_gateway", MaxConns: 8,
			Ready: int32(s.Sessions())}) // as many sessions ready as the daemon has
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		opts.Pool, opts.Publish = pool, func(...stream.Event) {}
		if kept {
			keep = openSpool(t, t.TempDir(), 1<<30)
			opts.Spool = keep
		}
	})
	handler := b.server.Handler()
	send := func(source string, key ...any) answer {
		return direct(handler, source, b.sign(t, source, line(fmt.Sprint(key...))))
	}
	proxy.Delay(o.commit / 2)
	quietly := func(ctx context.Context, first int) *answers {
		return openLoop(ctx, o.quiet, func(n int) answer { return send("polite", "quiet ", first+n) }, func() {})
	}
	var alone *answers
	if *overloadLong {
		ctx, done := context.WithTimeout(t.Context(), 10*time.Second)
		alone = quietly(ctx, 1_000_000)
		done()
	}

	for n := range 5 { // what a commit takes is known
		send("many", "before ", n)
	}
	before, commits := inUse(), b.commits(t)
	flooding, done := context.WithTimeout(t.Context(), o.lasts)
	defer done()
	var group sync.WaitGroup
	var quiet, flood *answers
	sent := make(chan struct{})
	group.Go(func() { quiet = quietly(flooding, 1) })
	group.Go(func() {
		each := func(n int) answer { return send("many", "flood ", n) }
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
	commits = b.commits(t) - commits

	taken, refused := flood.of(200), flood.of(503)
	t.Logf("%d came, %d were taken in %d commits (p50 %s, p99 %s), %d refused (p90 %s, p99 %s); recovered after %s, %d KiB more in memory",
		len(flood.all), len(taken), commits, percentile(taken, 50), percentile(taken, 99),
		len(refused), percentile(refused, 90), percentile(refused, 99), recovered, grown>>10)
	t.Logf("the quiet source: %d of %d taken (p50 %s, p99 %s)",
		len(quiet.of(200)), len(quiet.all), percentile(quiet.of(200), 50), percentile(quiet.of(200), 99))
	if n := len(flood.all); n != len(taken)+len(refused) || len(refused) < n/2 {
		t.Errorf("%d came, %d were taken and %d refused", n, len(taken), len(refused))
	}
	late := 0
	for _, a := range refused {
		if a.header == nil {
			t.Fatal("refused without Retry-After")
		}
		if a.took >= deadline {
			late++
		}
	}
	// What can be committed is what the commits had room for, however slow this machine is; the last of them had less to take.
	if good := len(taken) + len(quiet.of(200)); good*10 < 6*commits*o.batch {
		t.Errorf("of %d deliveries that %d commits had room for, %d were answered in time", commits*o.batch, commits, good)
	}
	if slow := percentile(refused, 90); slow > percentile(taken, 50)/2 {
		t.Errorf("a refusal takes %s", slow)
	}
	if late > len(taken)/3 {
		t.Errorf("%d were taken, and %d waited for their deadline in vain", len(taken), late)
	}
	if len(quiet.of(200)) != len(quiet.all) || percentile(quiet.all, 50) > percentile(taken, 50)*3/4 {
		t.Errorf("the quiet source: %d of %d taken, after %s", len(quiet.of(200)), len(quiet.all), percentile(quiet.all, 50))
	}
	b.wantCounter(t, 0, "postern_deliveries_total", "result=spooled")
	if kept && keep.Stats().Records > 0 {
		t.Errorf("the spool has %+v", keep.Stats())
	}
	if *overloadLong {
		o.hold(t, alone, quiet, taken, refused, recovered, grown)
	}
}

// inUse is how many bytes of heap and stacks are in use after a collection, with the requests that wait.
func inUse() int64 {
	used := heap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(used + m.StackInuse)
}

// hold wants what is promised, in times of a machine that has nothing else to do.
func (o overload) hold(t *testing.T, alone, quiet *answers, taken, refused []answer, recovered time.Duration, memory int64) {
	t.Helper()
	// In the beginning the queue fills; it is answered by the end.
	if rate := float64(len(taken)) / (o.lasts + recovered).Seconds(); rate < 0.8*float64(o.capacity()) {
		t.Errorf("%.0f a second were taken of %d", rate, o.capacity())
	}
	if slow := percentile(refused, 99); slow > 50*time.Millisecond {
		t.Errorf("a refusal takes %s", slow)
	}
	if recovered > 5*time.Second {
		t.Errorf("recovered after %s", recovered)
	}
	if memory > 128<<20 {
		t.Errorf("%d MiB more in memory", memory>>20)
	}
	if a, q := percentile(alone.all, 99), percentile(quiet.all, 99); q > 2*a+100*time.Millisecond {
		t.Errorf("the quiet source takes %s, alone %s", q, a)
	}
}

// every calls do with 0, 1, 2, ... at a steady pace until ctx ends, and does not wait for what it starts.
func every(ctx context.Context, pause time.Duration, do func(n int)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do(n)
		}
	}
}
