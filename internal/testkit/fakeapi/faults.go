package fakeapi

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is something that goes wrong with one request.
type Fault int

// What can go wrong with a request. After Dropped, Cut and Hung the work was done and the answer is lost.
const (
	// Fine: nothing goes wrong.
	Fine Fault = iota
	// Limited: there were too many requests; Locked: the provider refuses for another reason that passes.
	Limited
	Locked
	// Broken: an error of the provider's, in its shape; Garbled: one in nobody's.
	Broken
	Garbled
	// Dropped: the connection ends without an answer; Cut: in the middle of it.
	Dropped
	Cut
	// Hung: no answer until the client gives up.
	Hung
	// Slow: the answer takes a while.
	Slow
	// Expired: a list's cursor is no longer known; other requests are fine.
	Expired
)

// Odds are percentages of the requests that meet each fault.
type Odds [Expired + 1]int

// Script says what goes wrong with the next requests, one by one, before chance decides again.
func (b *Base) Script(faults ...Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = append(b.script, faults...)
}

// Met is how often a fault happened.
func (b *Base) Met(fault Fault) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.met[fault]
}

// Meet chooses what goes wrong with a request, and notes both.
func (b *Base) Meet(r *http.Request, odds Odds) Fault { return b.Note(r, b.choose(odds)) }

// Note notes a request and what goes wrong with it.
func (b *Base) Note(r *http.Request, fault Fault) Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, r.Method+" "+r.URL.RequestURI())
	b.met[fault]++
	return fault
}

func (b *Base) choose(odds Odds) (fault Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.script) > 0 {
		fault, b.script = b.script[0], b.script[1:]
		return fault
	}
	n := b.luck.IntN(100)
	for at, percent := range odds {
		if n -= percent; n < 0 {
			return Fault(at)
		}
	}
	return Fine
}

// Asked are all requests that were made, as method and address.
func (b *Base) Asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// Calls is how many requests there were for addresses that begin so, whatever the method.
func (b *Base) Calls(prefix string) (n int) {
	for _, one := range b.Asked() {
		if _, address, _ := strings.Cut(one, " "); strings.HasPrefix(address, prefix) {
			n++
		}
	}
	return n
}

// Send sends an answer as far as the fault lets it. A slow one takes so long, in real time.
func (b *Base) Send(w http.ResponseWriter, r *http.Request, fault Fault, slow time.Duration, status int, header http.Header, body []byte) {
	b.pause(r, b.delayOf(r))
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
	if fault == Cut {
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush() // or nothing of it arrives
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body) // a client that is gone misses nothing
}

// Delay delays the responses to the requests that match says, in real time, from now on. It
// replaces the delay before it.
func (b *Base) Delay(match func(*http.Request) bool, by time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delayed, b.delay = match, by
}

func (b *Base) delayOf(r *http.Request) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.delayed == nil || !b.delayed(r) {
		return 0
	}
	return b.delay
}

// pause returns after a time, or when the client or the server is gone.
func (b *Base) pause(r *http.Request, length time.Duration) {
	if length <= 0 {
		return
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	b.wait(r, timer.C)
}

// wait returns when the time is over, or nobody waits for the answer any more.
func (b *Base) wait(r *http.Request, over <-chan time.Time) {
	select {
	case <-over:
	case <-r.Context().Done():
	case <-b.closing:
	}
}
