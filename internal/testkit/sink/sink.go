// Package sink plays the other side of effects: mail, accounting, a store. It counts what it did, honours or ignores keys, and lies as real ones do.
package sink

import (
	"encoding/json"
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
)

// Fault is what goes wrong with a request.
type Fault int

// The faults.
const (
	Fine       Fault = iota
	Refuses          // 429, nothing done
	FailsFirst       // 500, nothing done
	ActsFails        // 500 after it was done
	ActsDrops        // the connection ends after it was done
	ActsHangs        // done, and no answer for as long as the caller waits
	Drops            // the connection ends, nothing done
	ActsLate         // no answer for as long as the caller waits, and done a while after that
	Declines         // 422, nothing done, this time
	Hangs            // nothing done, and no answer for as long as the caller waits
	Late             // done at once, and answered after a while
)

// Faults is how many there are.
const Faults = 11

// lateness is how late Late and ActsLate are.
const lateness = 300 * time.Millisecond

// Sink is another side over HTTP. POST /PATH does something, and answers its id; the same Idempotency-Key again is answered the same where Honours says so. GET /did?key=KEY says whether a key was
// seen: 200 with what was answered, or 404. DELETE takes back.
type Sink struct {
	URL string
	// Honours: a key that is there again is not done again.
	Honours bool
	// Next is the fault of a request; nil: none. It is called by several goroutines.
	Next func(*http.Request) Fault

	mu    sync.Mutex
	did   map[string]int
	known map[string]string
	calls []Call
	// hanging is how many requests have no answer for as long as their callers wait.
	hanging atomic.Int64
}

// Call is a request that was done.
type Call struct {
	Path, Key, Body string
	Header          http.Header
}

// New starts a sink that honours keys. It ends with the test.
func New(t testing.TB) *Sink {
	t.Helper()
	s := unserved(true)
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.URL = server.URL
	return s
}

func unserved(honours bool) *Sink {
	return &Sink{Honours: honours, did: map[string]int{}, known: map[string]string{}}
}

// ServeHTTP answers as the sink does.
func (s *Sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	fault := Fine
	if s.Next != nil {
		fault = s.Next(r)
	}
	s.answer(w, r, string(body), fault)
}

func (s *Sink) answer(w http.ResponseWriter, r *http.Request, body string, fault Fault) {
	if r.Method == http.MethodGet {
		s.tell(w, r, fault)
		return
	}
	switch fault {
	case Refuses:
		w.Header().Set("Retry-After", "0")
		http.Error(w, `{"error": "later"}`, http.StatusTooManyRequests)
		return
	case FailsFirst:
		http.Error(w, `{"error": "not today"}`, http.StatusInternalServerError)
		return
	case Declines:
		http.Error(w, `{"error": "not like this"}`, http.StatusUnprocessableEntity)
		return
	case Drops:
		panic(http.ErrAbortHandler)
	case Hangs:
		s.hang(r)
		return
	case ActsLate:
		s.hang(r)
		<-time.After(lateness)
	case Fine, ActsFails, ActsDrops, ActsHangs, Late:
	}
	answer := s.act(r, body)
	switch fault {
	case ActsFails:
		http.Error(w, `{"error": "done, but not well"}`, http.StatusInternalServerError)
	case ActsDrops:
		panic(http.ErrAbortHandler)
	case ActsHangs:
		s.hang(r)
	case Late:
		late := time.NewTimer(lateness)
		defer late.Stop()
		select {
		case <-late.C:
			fmt.Fprint(w, answer)
		case <-r.Context().Done():
		}
	case ActsLate: // nobody hears the answer
	default:
		fmt.Fprint(w, answer)
	}
}

// hang waits until the caller is gone.
func (s *Sink) hang(r *http.Request) {
	s.hanging.Add(1)
	defer s.hanging.Add(-1)
	<-r.Context().Done()
}

func (s *Sink) act(r *http.Request, body string) string {
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer, again := s.known[key]; again && s.Honours && key != "" {
		return answer
	}
	s.calls = append(s.calls, Call{Path: r.URL.Path, Key: key, Body: body, Header: r.Header.Clone()})
	s.did[r.URL.Path+" "+body]++
	answer := fmt.Sprintf(`{"id": "%s_%d"}`, strings.Trim(r.URL.Path, "/"), len(s.calls))
	if _, before := s.known[key]; !before {
		s.known[key] = answer
	}
	return answer
}

func (s *Sink) tell(w http.ResponseWriter, r *http.Request, fault Fault) {
	if fault != Fine {
		http.Error(w, `{"error": "who knows"}`, http.StatusInternalServerError)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, known := s.known[r.URL.Query().Get("key")]
	if !known {
		http.Error(w, `{"error": "never seen"}`, http.StatusNotFound)
		return
	}
	fmt.Fprint(w, answer)
}

// Did is how often each thing was done, by path and body.
func (s *Sink) Did() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.did)
}

// Calls are what was done, in its order.
func (s *Sink) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// JSON is a body as JSON, for tests that look into it.
func (c Call) JSON(t testing.TB) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.Body), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
