// Package sink simulates the destinations of effects: mail, accounting, a store. It counts its
// actions, honors or ignores idempotency keys, and fails in the ways of real services.
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

// Fault is a fault of a request.
type Fault int

// The faults.
const (
	NoFault              Fault = iota
	RateLimits                 // 429, not executed
	FailsBeforeActing          // 500, not executed
	ActsThenFails              // executed, then 500
	ActsThenDrops              // executed, then the connection ends
	ActsThenHangs              // executed, then no response
	DropsBeforeActing          // the connection ends, not executed
	HangsThenActs              // no response until the caller gives up, executed some time after that
	RejectsContent             // 422, not executed this time
	HangsBeforeActing          // no response, not executed
	ActsThenRespondsLate       // executed at once, the response comes later
)

// FaultKinds is the number of faults.
const FaultKinds = 11

// lateDelay is the delay of ActsThenRespondsLate and HangsThenActs.
const lateDelay = 300 * time.Millisecond

// Sink is a destination over HTTP. POST /PATH executes an action and returns its id. With
// HonoursKeys the same Idempotency-Key gets the same response again. GET /did?key=KEY returns the
// response of a key, or 404. GET /PATH?NAME=VALUE lists the actions of a path whose body has these
// values. DELETE takes an action back.
type Sink struct {
	URL string
	// HonoursKeys: a repeated key is not executed again.
	HonoursKeys bool
	// NextFault returns the fault of a request. Nil means no faults. Several goroutines call it.
	NextFault func(*http.Request) Fault

	mu           sync.Mutex
	actionCounts map[string]int
	responses    map[string]string
	calls        []Call
	// hanging counts the requests that get no response.
	hanging atomic.Int64
}

// Call is an executed request.
type Call struct {
	Path, Key, Body string
	Header          http.Header
}

// New starts a sink that honors keys. It stops with the test.
func New(t testing.TB) *Sink {
	t.Helper()
	s := newSink(true)
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.URL = server.URL
	return s
}

func newSink(honours bool) *Sink {
	return &Sink{HonoursKeys: honours, actionCounts: map[string]int{}, responses: map[string]string{}}
}

// ServeHTTP serves a request.
func (s *Sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	fault := NoFault
	if s.NextFault != nil {
		fault = s.NextFault(r)
	}
	s.respond(w, r, string(body), fault)
}

func (s *Sink) respond(w http.ResponseWriter, r *http.Request, body string, fault Fault) {
	if r.Method == http.MethodGet {
		s.writeLookup(w, r, fault)
		return
	}
	switch fault {
	case RateLimits:
		w.Header().Set("Retry-After", "0")
		http.Error(w, `{"error": "later"}`, http.StatusTooManyRequests)
		return
	case FailsBeforeActing:
		http.Error(w, `{"error": "not today"}`, http.StatusInternalServerError)
		return
	case RejectsContent:
		http.Error(w, `{"error": "not like this"}`, http.StatusUnprocessableEntity)
		return
	case DropsBeforeActing:
		panic(http.ErrAbortHandler)
	case HangsBeforeActing:
		s.hang(r)
		return
	case HangsThenActs:
		s.hang(r)
		<-time.After(lateDelay)
	case NoFault, ActsThenFails, ActsThenDrops, ActsThenHangs, ActsThenRespondsLate:
	}
	answer := s.execute(r, body)
	switch fault {
	case ActsThenFails:
		http.Error(w, `{"error": "done, but not well"}`, http.StatusInternalServerError)
	case ActsThenDrops:
		panic(http.ErrAbortHandler)
	case ActsThenHangs:
		s.hang(r)
	case ActsThenRespondsLate:
		late := time.NewTimer(lateDelay)
		defer late.Stop()
		select {
		case <-late.C:
			fmt.Fprint(w, answer)
		case <-r.Context().Done():
		}
	case HangsThenActs: // the caller is gone
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

func (s *Sink) execute(r *http.Request, body string) string {
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer, again := s.responses[key]; again && s.HonoursKeys && key != "" {
		return answer
	}
	s.calls = append(s.calls, Call{Path: r.URL.Path, Key: key, Body: body, Header: r.Header.Clone()})
	s.actionCounts[r.URL.Path+" "+body]++
	answer := fmt.Sprintf(`{"id": "%s"}`, actionID(r.URL.Path, len(s.calls)-1))
	if _, before := s.responses[key]; !before {
		s.responses[key] = answer
	}
	return answer
}

func (s *Sink) writeLookup(w http.ResponseWriter, r *http.Request, fault Fault) {
	switch fault {
	case NoFault:
	case HangsBeforeActing, ActsThenHangs:
		s.hang(r)
		return
	default:
		http.Error(w, `{"error": "who knows"}`, http.StatusInternalServerError)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.URL.Query().Has("key") {
		s.writeFound(w, r)
		return
	}
	answer, known := s.responses[r.URL.Query().Get("key")]
	if !known {
		http.Error(w, `{"error": "never seen"}`, http.StatusNotFound)
		return
	}
	fmt.Fprint(w, answer)
}

// writeFound writes the actions of a path whose body has the values of the query.
func (s *Sink) writeFound(w io.Writer, r *http.Request) {
	found := []map[string]any{}
	for n, c := range s.calls {
		var body map[string]any
		if c.Path != r.URL.Path || json.Unmarshal([]byte(c.Body), &body) != nil {
			continue
		}
		fits := true
		for name := range r.URL.Query() {
			fits = fits && fmt.Sprint(body[name]) == r.URL.Query().Get(name)
		}
		if fits {
			body["id"] = actionID(c.Path, n)
			found = append(found, body)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": found}) // a caller that is gone needs no response
}

// actionID returns the id of the action at an index of calls.
func actionID(path string, n int) string { return fmt.Sprintf("%s_%d", strings.Trim(path, "/"), n+1) }

// ActionCounts returns how often each action was executed, by path and body.
func (s *Sink) ActionCounts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.actionCounts)
}

// Calls returns the executed requests in their order.
func (s *Sink) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// JSON parses the body.
func (c Call) JSON(t testing.TB) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.Body), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
