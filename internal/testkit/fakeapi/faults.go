package fakeapi

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is a fault of one request.
type Fault int

// The faults of a request. With Dropped, Truncated and Hung the request is executed and the
// response is lost.
const (
	// NoFault: the request succeeds.
	NoFault Fault = iota
	// RateLimited: there were too many requests. Locked: the provider rejects the request for
	// another temporary reason.
	RateLimited
	Locked
	// ServerError: an error in the format of the provider. Garbled: an error in a format that the
	// provider does not document.
	ServerError
	Garbled
	// Dropped: the connection ends without a response. Truncated: it ends in the middle of the
	// response.
	Dropped
	Truncated
	// Hung: there is no response until the client gives up.
	Hung
	// Slow: the response takes a while.
	Slow
	// CursorExpired: the cursor of a list is no longer valid. Other requests are not affected.
	CursorExpired
)

// Odds are the percentages of requests that get each fault.
type Odds [CursorExpired + 1]int

// ScriptFaults sets the faults of the next requests, one by one. After them faults are random
// again.
func (b *Base) ScriptFaults(faults ...Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = append(b.script, faults...)
}

// FaultCount returns how often a fault occurred.
func (b *Base) FaultCount(fault Fault) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faultCounts[fault]
}

// ChooseFault chooses the fault of a request and records both.
func (b *Base) ChooseFault(r *http.Request, odds Odds) Fault {
	return b.RecordRequest(r, b.choose(odds))
}

// RecordRequest records a request and its fault.
func (b *Base) RecordRequest(r *http.Request, fault Fault) Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, r.Method+" "+r.URL.RequestURI())
	b.faultCounts[fault]++
	return fault
}

func (b *Base) choose(odds Odds) (fault Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.script) > 0 {
		fault, b.script = b.script[0], b.script[1:]
		return fault
	}
	n := b.random.IntN(100)
	for at, percent := range odds {
		if n -= percent; n < 0 {
			return Fault(at)
		}
	}
	return NoFault
}

// RequestLines returns all requests as method and address.
func (b *Base) RequestLines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// RequestCount returns the number of requests whose address begins with the prefix, for any method.
func (b *Base) RequestCount(prefix string) (n int) {
	for _, one := range b.RequestLines() {
		if _, address, _ := strings.Cut(one, " "); strings.HasPrefix(address, prefix) {
			n++
		}
	}
	return n
}

// SendResponse sends a response as far as the fault allows. A slow response takes the given real
// time.
func (b *Base) SendResponse(w http.ResponseWriter, r *http.Request, fault Fault, slow time.Duration, status int,
	header http.Header, body []byte) {
	b.pause(r, b.delayFor(r))
	switch fault {
	case Dropped:
		panic(http.ErrAbortHandler)
	case Hung:
		b.wait(r, nil)
		panic(http.ErrAbortHandler)
	case Slow:
		b.pause(r, slow)
	}
	maps.Copy(w.Header(), header)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if fault == Truncated {
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush() // otherwise no byte arrives
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body) // an error means that the client is gone
}

// Delay delays the responses to matching requests from now on, in real time. It replaces the
// previous delay.
func (b *Base) Delay(match func(*http.Request) bool, by time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delayed, b.delay = match, by
}

func (b *Base) delayFor(r *http.Request) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.delayed == nil || !b.delayed(r) {
		return 0
	}
	return b.delay
}

// pause returns after the given time, or when the client or the server is gone.
func (b *Base) pause(r *http.Request, length time.Duration) {
	if length <= 0 {
		return
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	b.wait(r, timer.C)
}

// wait returns when over delivers, or when the client or the server is gone.
func (b *Base) wait(r *http.Request, over <-chan time.Time) {
	select {
	case <-over:
	case <-r.Context().Done():
	case <-b.closing:
	}
}
