// Package fakeapi is what the fakes of providers' APIs share: a server on loopback, a clock that the test moves, and what goes wrong with requests. A fake embeds
// a Base, and answers in its provider's shapes.
package fakeapi

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// Owner ends what a fake starts: a test, or a program that runs fakes.
type Owner interface {
	Helper()
	// Cleanup registers a function that the owner calls at its end, the last one first.
	Cleanup(end func())
}

// Base is a server with a clock. All its methods may be called by several goroutines, also while a fake holds a lock of its own.
type Base struct {
	// URL is the server's, without a slash at the end.
	URL string

	closing chan struct{}
	began   time.Time // real

	mu       sync.Mutex
	running  bool
	clock    int64      // microseconds
	luck     *rand.Rand // of requests, whose order no life should depend on
	script   []Fault
	met      map[Fault]int
	requests []string
	delayed  func(*http.Request) bool // nil: no request
	delay    time.Duration
}

// Start starts the server, which ends with its owner. The clock shows start, and moves with real time too where running says so. The seed chooses which requests
// meet a fault.
func (b *Base) Start(t Owner, h http.Handler, seed uint64, start time.Time, running bool) {
	t.Helper()
	b.closing, b.began, b.running, b.clock = make(chan struct{}), time.Now(), running, start.UnixMicro()
	b.luck, b.met = rand.New(rand.NewPCG(seed, 2)), map[Fault]int{}
	server := httptest.NewServer(h)
	b.URL = server.URL
	t.Cleanup(func() {
		close(b.closing) // first, for Close waits for answers that hang
		server.Close()
	})
}

// Now is the time on the clock.
func (b *Base) Now() time.Time { return time.UnixMicro(b.Micros()).UTC() }

// Micros is the time on the clock, in microseconds.
func (b *Base) Micros() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running {
		return b.clock + time.Since(b.began).Microseconds()
	}
	return b.clock
}

// Advance moves the clock on; it never goes back.
func (b *Base) Advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock += max(d, 0).Microseconds()
}

// Luck is a number from 0 to n-1 that the order of requests may change.
func (b *Base) Luck(n int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.luck.Int64N(n)
}

// UpTo is a random part of a length, in microseconds: how old an answer is that may be so old.
func (b *Base) UpTo(longest time.Duration) int64 {
	if longest <= 0 {
		return 0
	}
	return b.Luck(longest.Microseconds() + 1)
}

// Date is what an answer shows as its time: the clock, ahead by one length, and off by up to another, either way.
func (b *Base) Date(skew, ahead time.Duration) string {
	at := b.Now().Add(ahead)
	if skew > 0 {
		at = at.Add(time.Duration(b.Luck(2*skew.Microseconds()+1)-skew.Microseconds()) * time.Microsecond)
	}
	return at.UTC().Format(http.TimeFormat)
}
