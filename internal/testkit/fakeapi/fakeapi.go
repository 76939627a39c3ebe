// Package fakeapi holds the common parts of the fake provider APIs: a server on loopback, a clock
// that the test sets, and faults. A fake embeds a Base and responds in the format of its provider.
package fakeapi

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// Owner ends a fake: it is a test, or a program that runs fakes.
type Owner interface {
	Helper()
	// Cleanup registers a function that the owner calls at its end, the last one first.
	Cleanup(end func())
}

// Base is a server with a clock. Its methods are safe for concurrent use, also while a fake holds
// its own lock.
type Base struct {
	// URL is the address of the server, without a slash at the end.
	URL string

	closing chan struct{}
	started time.Time // real time

	mu          sync.Mutex
	running     bool
	clock       int64      // microseconds
	random      *rand.Rand // for requests, whose order must not change the simulated data
	script      []Fault
	faultCounts map[Fault]int
	requests    []string
	delayed     func(*http.Request) bool // nil: no request
	delay       time.Duration
}

// Start starts the server, which stops with its owner. The clock begins at start. If running is
// set, it also moves with real time. The seed chooses which requests get a fault.
func (b *Base) Start(t Owner, h http.Handler, seed uint64, start time.Time, running bool) {
	t.Helper()
	b.closing, b.started, b.running, b.clock = make(chan struct{}), time.Now(), running, start.UnixMicro()
	b.random, b.faultCounts = rand.New(rand.NewPCG(seed, 2)), map[Fault]int{}
	server := httptest.NewServer(h)
	b.URL = server.URL
	t.Cleanup(func() {
		close(b.closing) // first, because Close waits for hanging responses
		server.Close()
	})
}

// Now returns the time of the clock.
func (b *Base) Now() time.Time { return time.UnixMicro(b.Micros()).UTC() }

// Micros returns the time of the clock in microseconds.
func (b *Base) Micros() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running {
		return b.clock + time.Since(b.started).Microseconds()
	}
	return b.clock
}

// Advance moves the clock forward. It never moves back.
func (b *Base) Advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock += max(d, 0).Microseconds()
}

// Random returns a number from 0 to n-1. The order of requests may change it.
func (b *Base) Random(n int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.Int64N(n)
}

// RandomUpTo returns a random age up to longest, in microseconds.
func (b *Base) RandomUpTo(longest time.Duration) int64 {
	if longest <= 0 {
		return 0
	}
	return b.Random(longest.Microseconds() + 1)
}

// Date returns the Date header of a response: the clock plus ahead, off by up to skew in either
// direction.
func (b *Base) Date(skew, ahead time.Duration) string {
	at := b.Now().Add(ahead)
	if skew > 0 {
		at = at.Add(time.Duration(b.Random(2*skew.Microseconds()+1)-skew.Microseconds()) * time.Microsecond)
	}
	return at.UTC().Format(http.TimeFormat)
}
