package load

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Options say how to send.
type Options struct {
	Address     string
	Connections int
	// Rate is the arrivals per second of an open loop. Its latency starts at the moment at which a
	// delivery was due, so that a server which stalls cannot hide the stall. 0 means a closed loop:
	// each connection sends its next delivery after the last response.
	Rate float64
	// For limits the time of sending. It ends earlier when all deliveries are sent.
	For time.Duration
}

// Result has the measurements of one run.
type Result struct {
	// Answered counts 2xx responses, Refused all others. Broken counts requests without a response
	// within a minute. Errors describes a few of both.
	Answered, Refused, Broken int64
	Errors                    []string
	// Status counts the responses in time by their status.
	Status map[int]int64
	// Took is the time from the first send to the last response.
	Took time.Duration
	// Latency is in microseconds, of answered deliveries.
	Latency *hdrhistogram.Histogram
	// Next is the first delivery that was not sent.
	Next int
}

// Rate returns the answered deliveries per second.
func (r *Result) Rate() float64 { return float64(r.Answered) / r.Took.Seconds() }

// latest is the longest latency with which a response counts: no sender waits longer.
const latest = time.Minute

// newHistogram holds latencies from a microsecond to the latest, to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, latest.Microseconds(), 3)
}

// run is one run of load.
type run struct {
	o    Options
	d    *Deliveries
	from int
	next atomic.Int64
	// due receives the number of each delivery of an open loop when it is due.
	due    chan int
	began  time.Time
	ends   time.Time
	mu     sync.Mutex
	result Result
}

// Run sends deliveries, beginning with number from, and waits for the responses.
func Run(ctx context.Context, d *Deliveries, from int, o Options) (*Result, error) {
	r := &run{o: o, d: d, from: from, result: Result{Latency: newHistogram(), Status: map[int]int64{}}}
	r.next.Store(int64(from))
	links := make([]*link, 0, o.Connections)
	defer func() {
		for _, l := range links {
			l.close()
		}
	}()
	for range o.Connections {
		l, err := dial(ctx, o.Address)
		if err != nil {
			return nil, fmt.Errorf("connect %d of %d: %w", len(links)+1, o.Connections, err)
		}
		links = append(links, l)
	}
	runtime.GC() // so that garbage from before is not collected during the run
	r.began = time.Now()
	r.ends = r.began.Add(o.For)
	var wg sync.WaitGroup
	if o.Rate > 0 {
		r.due = make(chan int, d.Len()-from)
		wg.Go(func() { r.pace(ctx) })
	}
	for _, l := range links {
		wg.Go(func() { r.drive(ctx, l) })
	}
	wg.Wait()
	r.result.Took, r.result.Next = time.Since(r.began), int(min(r.next.Load(), int64(d.Len())))
	return &r.result, ctx.Err()
}

// dueAt returns when the n-th delivery of an open loop must be sent.
func (r *run) dueAt(n int) time.Time {
	return r.began.Add(time.Duration(float64(n) / r.o.Rate * float64(time.Second)))
}

// pace sends the number of each delivery to due at its time. It sleeps in the kernel, on a separate
// thread, because the runtime's timers are too coarse.
func (r *run) pace(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.due)
	for n := 0; r.from+n < r.d.Len(); {
		now := time.Now()
		if now.After(r.ends) || ctx.Err() != nil {
			break
		}
		for ; r.from+n < r.d.Len() && !r.dueAt(n).After(now); n++ {
			r.due <- n
		}
		pause := unix.NsecToTimespec(max(int64(time.Until(r.dueAt(n))), 20_000))
		_ = unix.Nanosleep(&pause, nil) // after an early wake the loop checks again
	}
}

// drive sends deliveries over one connection, one after the other.
func (r *run) drive(ctx context.Context, l *link) {
	own := Result{Latency: newHistogram(), Status: map[int]int64{}}
	buf := make([]byte, 0, 64<<10)
	for ctx.Err() == nil {
		i, meant, ok := r.take()
		if !ok {
			break
		}
		buf = r.d.put(buf[:0], i)
		status, err := l.post(ctx, buf)
		if own.count(status, time.Since(meant), err); err != nil {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.add(&own)
}

// count records the outcome of a request. took is the time since it was due.
func (r *Result) count(status int, took time.Duration, err error) {
	switch {
	case err != nil:
		r.Broken++
		r.Errors = append(r.Errors, err.Error())
		return
	case took > latest:
		if r.Broken++; r.Broken <= 3 {
			r.Errors = append(r.Errors, fmt.Sprintf("answered %d after %s", status, took.Round(time.Second)))
		}
		return
	case status/100 == 2:
		r.Answered++
		_ = r.Latency.RecordValue(max(1, took.Microseconds())) // fits: it is not beyond the latest
	default:
		if r.Refused++; r.Refused <= 3 {
			r.Errors = append(r.Errors, fmt.Sprintf("answered %d", status))
		}
	}
	r.Status[status]++
}

// add adds the counts of another result.
func (r *Result) add(o *Result) {
	r.Answered, r.Refused, r.Broken = r.Answered+o.Answered, r.Refused+o.Refused, r.Broken+o.Broken
	r.Errors = append(r.Errors, o.Errors[:min(len(o.Errors), max(0, 5-len(r.Errors)))]...)
	for status, n := range o.Status {
		r.Status[status] += n
	}
	r.Latency.Merge(o.Latency)
}

// take returns the next delivery and the moment at which its latency starts.
func (r *run) take() (i int, meant time.Time, ok bool) {
	if r.o.Rate > 0 {
		n, ok := <-r.due
		if ok {
			r.next.Add(1)
		}
		return r.from + n, r.dueAt(n), ok
	}
	now := time.Now()
	if now.After(r.ends) {
		return 0, now, false
	}
	i = int(r.next.Add(1)) - 1
	return i, now, i < r.d.Len()
}
