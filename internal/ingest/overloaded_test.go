package ingest_test

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// The environment of the process of TestOverloadedGateway.
const overloadedVariable = "POSTERN_TEST_OVERLOADED"

// overloaded is the gateway that TestOverload floods, in a process of its own: there its memory is not that of the flood. It gets its orders from its standard input and reports to the file after standard error.
type overloaded struct {
	// Database is the database itself, Proxied the way to it that the gateway has, and Spool the spool's folder; "": there is none.
	Database, Proxied, Spool            string
	Batch                               int
	Deadline, StallAfter, AcquireWithin time.Duration
}

// order has a delivery sent, or without a source asks for the state.
type order struct {
	N           int64
	Source, Key string
}

// report is what became of an order.
type report struct {
	N      int64
	Status int
	Retry  bool
	Took   time.Duration
	State  *state
}

// state is what the gateway's process says of itself. Memory is what is in use of heap and stacks after a collection, in bytes, with the requests that wait; Spooled is how many deliveries the spool has ever taken, and Kept how
// many it has now.
type state struct {
	Memory                 uint64
	Commits, Spooled, Kept int
}

// TestOverloadedGateway is the process that TestOverload floods; by itself it does nothing.
func TestOverloadedGateway(t *testing.T) {
	text := os.Getenv(overloadedVariable)
	if text == "" {
		return
	}
	var o overloaded
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	orders, reports := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.NewFile(3, "reports"))
	serve, look := o.gateway(t)
	var mu sync.Mutex
	tell := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		if err := reports.Encode(r); err != nil {
			t.Error(err)
		}
	}
	tell(report{})
	var group sync.WaitGroup
	defer group.Wait()
	for {
		var next order
		switch err := orders.Decode(&next); {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			t.Fatal(err)
		case next.Source == "":
			now := look()
			tell(report{N: next.N, State: &now})
		default:
			group.Go(func() {
				a := serve(next.Source, next.Key)
				tell(report{N: next.N, Status: a.status, Retry: a.header.Get("Retry-After") != "", Took: a.took})
			})
		}
	}
}

// gateway starts the gateway, with as many sessions ready as the daemon has.
func (o overloaded) gateway(t *testing.T) (serve func(source, key string) answer, look func() state) {
	t.Helper()
	connect := func(opts postgres.Options) *testkit.DB {
		pool, err := postgres.Connect(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return &testkit.DB{URL: opts.URL, Pool: pool}
	}
	var kept func() int
	b := setupOn(t, connect(postgres.Options{URL: o.Database, MaxConns: 2}), func(opts *ingest.Options) {
		opts.Pool = connect(postgres.Options{URL: o.Proxied, Role: "postern_gateway", MaxConns: 8, Ready: int32(opts.Settings.Sessions())}).Pool
		opts.Publish = func(...stream.Event) {}
		kept = func() int { return 0 }
		if o.Spool != "" {
			s := openSpool(t, o.Spool, 1<<30)
			opts.Spool, kept = s, func() int { return int(s.Stats().Records) }
		}
		s := &opts.Settings
		s.BatchMax, s.Deadline, s.StallAfter, s.AcquireWithin = o.Batch, o.Deadline, o.StallAfter, o.AcquireWithin
	})
	handler := b.server.Handler()
	serve = func(source, key string) answer { return direct(handler, source, b.sign(t, source, line(key))) }
	return serve, func() state {
		var m runtime.MemStats
		used := heap()
		runtime.ReadMemStats(&m)
		return state{Memory: used + m.StackInuse, Commits: b.commits(t), Spooled: int(b.counter(t, "postern_deliveries_total", "result=spooled")), Kept: kept()}
	}
}

// flooded is the other end of a process with an overloaded gateway.
type flooded struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	output strings.Builder
	read   sync.WaitGroup
	last   atomic.Int64

	writing sync.Mutex
	orders  *gob.Encoder

	mu      sync.Mutex
	waiting map[int64]chan report
	ended   bool
}

// start starts a gateway's process and waits until it takes orders; it ends with the test.
func (o overloaded) start(t *testing.T) *flooded {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	reports, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	f := &flooded{cmd: exec.CommandContext(context.Background(), os.Args[0], "-test.run=^TestOverloadedGateway$"), waiting: map[int64]chan report{0: make(chan report, 1)}}
	f.cmd.Env = append(os.Environ(), overloadedVariable+"="+string(text))
	f.cmd.ExtraFiles = []*os.File{theirs}
	f.cmd.Stdout, f.cmd.Stderr = &f.output, &f.output
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	f.orders = gob.NewEncoder(f.in)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close() // the child has its own
	ready := f.waiting[0]
	f.read.Go(func() { f.listen(reports) })
	t.Cleanup(func() {
		_ = f.in.Close() // it may have died
		f.read.Wait()
		if err := f.cmd.Wait(); err != nil {
			t.Errorf("the gateway's process: %v\n%s", err, &f.output)
		}
	})
	if _, ok := <-ready; !ok {
		t.Fatal("the gateway's process does not start")
	}
	return f
}

// listen hands out reports until the process ends; then whoever waits gets none.
func (f *flooded) listen(reports *os.File) {
	defer reports.Close()
	from := gob.NewDecoder(reports)
	for {
		var r report
		err := from.Decode(&r)
		f.mu.Lock()
		if err != nil {
			f.ended = true
			for _, waits := range f.waiting {
				close(waits)
			}
			f.mu.Unlock()
			return
		}
		f.waiting[r.N] <- r
		delete(f.waiting, r.N)
		f.mu.Unlock()
	}
}

// ask gives an order and waits for its report; false: the process has ended.
func (f *flooded) ask(o order) (report, bool) {
	o.N = f.last.Add(1)
	waits := make(chan report, 1)
	f.mu.Lock()
	ended := f.ended
	if !ended {
		f.waiting[o.N] = waits
	}
	f.mu.Unlock()
	if ended {
		return report{}, false
	}
	f.writing.Lock()
	err := f.orders.Encode(o)
	f.writing.Unlock()
	if err != nil {
		return report{}, false
	}
	r, ok := <-waits
	return r, ok
}

// send has the gateway sent a delivery.
func (f *flooded) send(source string, key ...any) answer {
	r, _ := f.ask(order{Source: source, Key: fmt.Sprint(key...)})
	a := answer{status: r.Status, took: r.Took}
	if r.Retry {
		a.header = toRetry
	}
	return a
}

// look asks for the gateway's state.
func (f *flooded) look(t *testing.T) state {
	t.Helper()
	r, ok := f.ask(order{})
	if !ok {
		t.Fatal("the gateway's process has ended")
	}
	return *r.State
}
