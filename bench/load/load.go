package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
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
	// Rate is the arrivals per second of an open loop, whose latency is counted from the moment a delivery was meant to be sent, so
	// that a server which stalls cannot hide it. 0: a closed loop, each connection sends its next delivery when the last is answered.
	Rate float64
	// For ends the sending; it ends earlier when all deliveries are sent.
	For time.Duration
	// Progress, if set, is told now and then how many were answered.
	Progress func(answered int64)
}

// Result is what was measured.
type Result struct {
	// Answered are 2xx; Refused any other answer; Broken are requests without an answer. Errors has a few of them in words.
	Answered, Refused, Broken int64
	Errors                    []string
	// Took is from the first send to the last answer.
	Took time.Duration
	// Latency is in microseconds, of answered deliveries.
	Latency *hdrhistogram.Histogram
	// Next is the first delivery that was not sent.
	Next int
}

// Rate is answered deliveries per second.
func (r *Result) Rate() float64 { return float64(r.Answered) / r.Took.Seconds() }

// newHistogram holds latencies from a microsecond to a minute, to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)
}

// run is one run of load.
type run struct {
	o    Options
	d    *Deliveries
	from int
	next atomic.Int64
	// due hands out deliveries of an open loop.
	due      chan int
	began    time.Time
	ends     time.Time
	answered atomic.Int64
	mu       sync.Mutex
	result   Result
}

// Run sends deliveries, from the given one on, and waits for the answers.
func Run(ctx context.Context, d *Deliveries, from int, o Options) (*Result, error) {
	r := &run{o: o, d: d, from: from, result: Result{Latency: newHistogram()}}
	r.next.Store(int64(from))
	conns := make([]net.Conn, 0, o.Connections)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range o.Connections {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", o.Address)
		if err != nil {
			return nil, fmt.Errorf("connect %d of %d: %w", len(conns)+1, o.Connections, err)
		}
		conns = append(conns, c)
	}
	runtime.GC() // what was made before shall not be collected during the run
	r.began = time.Now()
	r.ends = r.began.Add(o.For)
	var wg sync.WaitGroup
	if o.Rate > 0 {
		r.due = make(chan int, d.Len()-from)
		wg.Go(func() { r.pace(ctx) })
	}
	for _, c := range conns {
		wg.Go(func() { r.drive(ctx, c) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			r.result.Took, r.result.Next = time.Since(r.began), int(min(r.next.Load(), int64(d.Len())))
			return &r.result, ctx.Err()
		case <-tick.C:
			if o.Progress != nil {
				o.Progress(r.answered.Load())
			}
		}
	}
}

// meant is when the n-th delivery of an open loop is to be sent.
func (r *run) meant(n int) time.Time {
	return r.began.Add(time.Duration(float64(n) / r.o.Rate * float64(time.Second)))
}

// pace hands out deliveries when they are due. It sleeps in the kernel, on a thread of its own: the runtime's timers are too coarse.
func (r *run) pace(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.due)
	for n := 0; r.from+n < r.d.Len(); {
		now := time.Now()
		if now.After(r.ends) || ctx.Err() != nil {
			break
		}
		for ; r.from+n < r.d.Len() && !r.meant(n).After(now); n++ {
			r.due <- n
		}
		pause := unix.NsecToTimespec(max(int64(time.Until(r.meant(n))), 20_000))
		_ = unix.Nanosleep(&pause, nil) // woken early, it looks again
	}
}

// drive sends one delivery after the other over a connection.
func (r *run) drive(ctx context.Context, c net.Conn) {
	h := newHistogram()
	in, buf := bufio.NewReaderSize(c, 4<<10), make([]byte, 0, 64<<10)
	var answered, refused, broken int64
	var troubles []string
	trouble := func(err error) {
		if len(troubles) < 3 {
			troubles = append(troubles, err.Error())
		}
	}
	for ctx.Err() == nil {
		i, meant, ok := r.take()
		if !ok {
			break
		}
		buf = r.d.put(buf[:0], i)
		err := post(c, in, buf)
		var status statusError
		switch {
		case err == nil:
			answered++
			r.answered.Add(1)
			_ = h.RecordValue(max(1, time.Since(meant).Microseconds())) // beyond a minute it is an error elsewhere
			continue
		case errors.As(err, &status):
			refused++
			trouble(err)
			continue
		}
		broken++
		trouble(err)
		break
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Answered, r.result.Refused, r.result.Broken = r.result.Answered+answered, r.result.Refused+refused, r.result.Broken+broken
	r.result.Errors = append(r.result.Errors, troubles[:min(len(troubles), max(0, 5-len(r.result.Errors)))]...)
	r.result.Latency.Merge(h)
}

// take is the next delivery and the moment its latency counts from.
func (r *run) take() (i int, meant time.Time, ok bool) {
	if r.o.Rate > 0 {
		n, ok := <-r.due
		if ok {
			r.next.Add(1)
		}
		return r.from + n, r.meant(n), ok
	}
	now := time.Now()
	if now.After(r.ends) {
		return 0, now, false
	}
	i = int(r.next.Add(1)) - 1
	return i, now, i < r.d.Len()
}

type statusError int

func (s statusError) Error() string { return "answered " + strconv.Itoa(int(s)) }

// answerWithin is how long an answer may take.
const answerWithin = 30 * time.Second

// post sends a request and reads its answer: the status, and past the body.
func post(c net.Conn, in *bufio.Reader, request []byte) error {
	if err := c.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if len(line) < 12 {
		return fmt.Errorf("answered %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return fmt.Errorf("answered %q", line)
	}
	length := 0
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(": ")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return err
			}
		}
	}
	if _, err := io.CopyN(io.Discard, in, int64(length)); err != nil {
		return err
	}
	if status/100 != 2 {
		return statusError(status)
	}
	return nil
}
