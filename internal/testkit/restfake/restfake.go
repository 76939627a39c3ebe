// Package restfake is an API of things that nobody but its owner knows: they change and go, webhooks tell of it, and lists come in pages of
// every kind. It is for what reads an API by its description.
//
//	f := restfake.Make(t, restfake.Options{Seed: 1, Webhooks: restfake.Webhooks{Lost: 50}})
//	f.Live(200)                                                      // or Set: a story of the test's own
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true })  // what is due, signed
//	f.Truth()                                                        // what the mirror must be in the end
package restfake

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Key is the credential that the API takes, in the header X-Api-Key; Secret signs the webhooks.
const (
	Key    = "NoKeyOfAnybody-S3cret"
	Secret = "WebhooksOfNobody-S3cret"
)

// Options say what the API is like. Percentages are from 0 to 100. The zero value is calm and without faults.
type Options struct {
	// Seed makes all choices.
	Seed uint64
	// Start is what the clock shows first; zero: an hour before the machine's.
	Start time.Time
	// Objects is how many things there are at most; 0: 20.
	Objects int
	// Gap is the longest time between two steps; 0: 400 ms.
	Gap time.Duration
	// Seconds: a thing tells the second of its change, so that several changes have one version.
	Seconds bool
	// Quiet is the percentage of changes that no webhook tells of.
	Quiet int

	Webhooks Webhooks
	Faults   Faults
}

// Fake is the API.
type Fake struct {
	// The server's URL is the API's, with a path.
	fakeapi.Base
	// Fails says what goes wrong with a request, before chance decides; nil: nothing. Late is how old a state lists show.
	Fails func(r *http.Request) Fault
	Late  time.Duration

	mu      sync.Mutex
	options Options
	choose  *rand.Rand
	things  map[string][]state
	hidden  map[string]bool
	events  [][]byte
	times   []time.Time // of the events
	queue   []attempt
	seen    int
}

// state is a thing from a moment on; name is "" where it is gone.
type state struct {
	at   time.Time
	name string
}

// New starts one without faults. It ends with the test.
func New(t fakeapi.Owner) *Fake {
	t.Helper()
	return Make(t, Options{})
}

// Make starts one; it ends with its owner.
func Make(t fakeapi.Owner, o Options) *Fake {
	t.Helper()
	if o.Start.IsZero() {
		o.Start = time.Now().UTC().Add(-time.Hour)
	}
	if o.Objects == 0 {
		o.Objects = 20
	}
	if o.Gap == 0 {
		o.Gap = 400 * time.Millisecond
	}
	f := &Fake{options: o, things: map[string][]state{}, hidden: map[string]bool{}, choose: rand.New(rand.NewPCG(o.Seed, 1))}
	f.Start(t, f, o.Seed, o.Start.Truncate(time.Millisecond), false)
	f.URL += "/api"
	return f
}

// Set makes or changes a thing, some time after the last change. An empty name deletes it for good.
func (f *Fake) Set(id, name string, after time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(after)
	f.set(id, name, false)
}

func (f *Fake) set(id, name string, quiet bool) {
	now := f.Now()
	f.things[id] = append(f.things[id], state{now, name})
	if quiet {
		return
	}
	kind := "thing.changed"
	data := f.object(id, now)
	if name == "" {
		kind, data = "thing.deleted", map[string]any{"key": id, "changed": f.Stamp(now)}
	}
	body := text(map[string]any{"id": fmt.Sprint("evt_", len(f.events)), "type": kind, "thing": data})
	f.events, f.times = append(f.events, body), append(f.times, now)
	f.owe(body)
}

// Stamp is a time as things tell it.
func (f *Fake) Stamp(at time.Time) string {
	if f.options.Seconds {
		at = at.Truncate(time.Second)
	}
	return at.Format(time.RFC3339Nano)
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
func (f *Fake) Calls(prefix string) int { return f.Base.Calls("/api" + prefix) }

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
	f.seen++
	return map[string]any{"key": id, "name": last.name, "changed": f.Stamp(last.at), "seen": f.seen}
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return b
}

// ServeHTTP answers a request, after what its fault demands.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	fault := f.fault(r)
	header := http.Header{"Date": {f.Date(f.options.Faults.Skew, 0)}, "Content-Type": {"application/json"}}
	status, body := f.answer(header, r, fault)
	f.mu.Unlock()
	f.Send(w, r, fault, 0, status, header, text(body))
}

func failure(code string) map[string]any {
	return map[string]any{"error": map[string]any{"code": code}}
}

func (f *Fake) answer(header http.Header, r *http.Request, fault Fault) (int, any) {
	switch {
	case fault == Throttled:
		header.Set("Retry-After", "1")
		return http.StatusTooManyRequests, map[string]any{}
	case fault == Broken:
		return http.StatusInternalServerError, map[string]any{}
	case r.Header.Get("X-Api-Key") != Key || f.options.Faults.Revoked:
		return http.StatusUnauthorized, failure("no_such_key")
	case fault == Forgotten && r.URL.Query().Get("after") != "":
		return http.StatusBadRequest, failure("cursor_expired")
	}
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api")
	if id, ok := strings.CutPrefix(path, "/things/"); ok && !strings.Contains(id, "/") {
		return f.thing(id)
	}
	switch path {
	case "/me":
		return http.StatusOK, map[string]any{"name": "somebody"}
	case "/lists/field", "/lists/page", "/lists/page_link", "/lists/url", "/lists/link", "/lists/last", "/lists/window", "/lists/whole":
		return f.list(header, strings.TrimPrefix(path, "/lists/"), r.URL, "thing", f.changed)
	case "/events/field", "/events/url", "/events/link", "/events/window":
		return f.list(header, strings.TrimPrefix(path, "/events/"), r.URL, "event", f.happened)
	}
	return http.StatusNotFound, failure("no_such_path")
}

// thing answers one, as it is or was a little before.
func (f *Fake) thing(id string) (int, any) {
	if plain, err := url.PathUnescape(id); err == nil {
		id = plain
	}
	o := f.object(id, f.Now().Add(-f.ago(f.options.Faults.Lag)))
	if o == nil || f.hidden[id] {
		return http.StatusNotFound, failure("no_such_thing")
	}
	return http.StatusOK, map[string]any{"data": map[string]any{"thing": o}}
}
