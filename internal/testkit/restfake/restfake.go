// Package restfake is an API of things that nobody but its owner knows: they change and go, webhooks tell of it, and lists come in pages of
// every kind. It is for what reads an API by its description.
package restfake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Key is the credential that the API takes, in the header X-Api-Key.
const Key = "NoKeyOfAnybody-S3cret"

// Fault is what goes wrong with an answer.
type Fault int

// The faults.
const (
	// None: the answer is right.
	None Fault = iota
	// Throttled: 429, to be tried again after a second.
	Throttled
	// Broken: 500.
	Broken
	// Cut: the request is served, and the answer lost on its way.
	Cut
	// Forgotten: a cursor is no longer known.
	Forgotten
)

// Fake is the API.
type Fake struct {
	// URL is the API's, with a path.
	URL string
	// Fails says what goes wrong with a request; nil: nothing. Late is how old a state lists show.
	Fails func(r *http.Request) Fault
	Late  time.Duration

	mu     sync.Mutex
	now    time.Time
	things map[string][]state
	events [][]byte
	calls  map[string]int
}

// state is a thing from a moment on; name is "" where it is gone.
type state struct {
	at   time.Time
	name string
}

// New starts one whose clock stands an hour before the machine's. It ends with the test.
func New(t testing.TB) *Fake {
	t.Helper()
	f := &Fake{now: time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond), things: map[string][]state{}, calls: map[string]int{}}
	s := httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(s.Close)
	f.URL = s.URL + "/api"
	return f
}

// Advance moves the API's clock.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// Now is the time on the API's clock.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Set makes or changes a thing, some time after the last change. An empty name deletes it for good.
func (f *Fake) Set(id, name string, after time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(after)
	f.things[id] = append(f.things[id], state{f.now, name})
	kind := "thing.changed"
	data := f.object(id, f.now)
	if name == "" {
		kind, data = "thing.deleted", map[string]any{"key": id, "changed": f.now.Format(time.RFC3339Nano)}
	}
	f.events = append(f.events, text(map[string]any{"id": fmt.Sprint("evt_", len(f.events)), "type": kind, "thing": data}))
}

// Events are the bodies of the webhooks that tell of all that happened, in its order.
func (f *Fake) Events() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// Truth are the names of all things, by id; "" for those that are gone.
func (f *Fake) Truth() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	for id, states := range f.things {
		out[id] = states[len(states)-1].name
	}
	return out
}

// Calls is how many requests there were for paths that begin so.
func (f *Fake) Calls(prefix string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path, times := range f.calls {
		if strings.HasPrefix(path, prefix) {
			n += times
		}
	}
	return n
}

// object is a thing at a moment; nil where there is none. It has more seen each time it is asked for.
func (f *Fake) object(id string, at time.Time) map[string]any {
	var last state
	for _, s := range f.things[id] {
		if !s.at.After(at) {
			last = s
		}
	}
	if last.name == "" {
		return nil
	}
	f.calls["seen"]++
	return map[string]any{"key": id, "name": last.name, "changed": last.at.Format(time.RFC3339Nano), "seen": f.calls["seen"]}
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return b
}

func (f *Fake) serve(w http.ResponseWriter, r *http.Request) {
	fault := None
	if f.Fails != nil {
		fault = f.Fails(r)
	}
	f.mu.Lock()
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api")
	f.calls[path]++
	w.Header().Set("Date", f.now.Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	status, body := f.answer(w.Header(), path, r)
	f.mu.Unlock()
	switch fault {
	case Throttled:
		w.Header().Set("Retry-After", "1")
		status, body = http.StatusTooManyRequests, map[string]any{}
	case Broken:
		status, body = http.StatusInternalServerError, map[string]any{}
	case Forgotten:
		status, body = http.StatusBadRequest, failure("cursor_expired")
	case Cut:
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	_, _ = w.Write(text(body)) // a client that is gone misses nothing
}

func failure(code string) map[string]any {
	return map[string]any{"error": map[string]any{"code": code}}
}

func (f *Fake) answer(header http.Header, path string, r *http.Request) (int, any) {
	if r.Header.Get("X-Api-Key") != Key {
		return http.StatusUnauthorized, failure("no_such_key")
	}
	if id, ok := strings.CutPrefix(path, "/things/"); ok && !strings.Contains(id, "/") {
		if plain, err := url.PathUnescape(id); err == nil {
			id = plain
		}
		if o := f.object(id, f.now); o != nil {
			return http.StatusOK, map[string]any{"data": map[string]any{"thing": o}}
		}
		return http.StatusNotFound, failure("no_such_thing")
	}
	switch path {
	case "/me":
		return http.StatusOK, map[string]any{"name": "somebody"}
	case "/lists/field", "/lists/url", "/lists/link", "/lists/last", "/lists/window", "/lists/whole":
		return f.list(header, strings.TrimPrefix(path, "/lists/"), r.URL)
	}
	return http.StatusNotFound, failure("no_such_path")
}
