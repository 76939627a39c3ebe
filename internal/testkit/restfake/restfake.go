// Package restfake simulates an API of things that no provider package knows, for tests of
// configured APIs. It changes things in random steps, sends webhooks, and has lists with every kind
// of paging.
//
//	f := restfake.New(t, restfake.Options{Seed: 1, Webhooks: restfake.Webhooks{Lost: 50}})
//	f.RunSteps(200)                                                 // or Set: changes of the test
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true }) // the due deliveries, signed
//	f.CurrentNames()                                                // the expected mirror
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

// Key is the credential of the API in the header X-Api-Key. Secret signs the webhooks.
const (
	Key    = "NoKeyOfAnybody-S3cret"
	Secret = "WebhooksOfNobody-S3cret"
)

// Options configure the API. Percentages are from 0 to 100. The zero value has no faults.
type Options struct {
	// Seed makes all choices.
	Seed uint64
	// Start is the first time of the clock. Zero means an hour before the real time.
	Start time.Time
	// Objects is the maximum number of things. Zero means 20.
	Objects int
	// Gap is the longest time between two steps. Zero means 400 ms.
	Gap time.Duration
	// WholeSeconds: the version of a thing is the second of its change, so that several changes
	// have one version.
	WholeSeconds bool
	// WithoutWebhook is the percentage of changes without a webhook.
	WithoutWebhook int

	Webhooks Webhooks
	Faults   Faults
}

// Fake is the API.
type Fake struct {
	// URL is that of the API, with a path.
	fakeapi.Base
	// NextFault chooses the fault of a request before chance does. Nil means no faults. ListAge is
	// the age of the state in lists.
	NextFault func(r *http.Request) Fault
	ListAge   time.Duration

	mu        sync.Mutex
	options   Options
	choose    *rand.Rand
	things    map[string][]state
	hidden    map[string]bool
	events    [][]byte
	times     []time.Time // of the events
	queue     fakeapi.Queue[[]byte]
	readCount int
}

// state is the state of a thing from a time on. An empty name means deleted.
type state struct {
	at   time.Time
	name string
}

// NewWithoutFaults starts a Fake without faults. It stops with its owner.
func NewWithoutFaults(t fakeapi.Owner) *Fake {
	t.Helper()
	return New(t, Options{})
}

// New starts a Fake. It stops with its owner.
func New(t fakeapi.Owner, o Options) *Fake {
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
	f := &Fake{options: o, things: map[string][]state{}, hidden: map[string]bool{},
		choose: rand.New(rand.NewPCG(o.Seed, 1))}
	f.Start(t, f, o.Seed, o.Start.Truncate(time.Millisecond), false)
	f.URL += "/api"
	return f
}

// Set creates or changes a thing, some time after the last change. An empty name deletes it
// permanently.
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
		kind, data = "thing.deleted", map[string]any{"key": id, "changed": f.FormatTime(now)}
	}
	body := text(map[string]any{"id": fmt.Sprint("evt_", len(f.events)), "type": kind, "thing": data})
	f.events, f.times = append(f.events, body), append(f.times, now)
	f.planDelivery(body)
}

// FormatTime formats a time as things contain it.
func (f *Fake) FormatTime(at time.Time) string {
	if f.options.WholeSeconds {
		at = at.Truncate(time.Second)
	}
	return at.Format(time.RFC3339Nano)
}

// Events returns the webhook bodies of all events in their order.
func (f *Fake) Events() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// CurrentNames returns the names of all things by id. The name of a deleted thing is empty.
func (f *Fake) CurrentNames() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	for id, states := range f.things {
		out[id] = states[len(states)-1].name
	}
	return out
}

// RequestCount returns the number of requests whose path begins with the prefix.
func (f *Fake) RequestCount(prefix string) int { return f.Base.RequestCount("/api" + prefix) }

// object returns a thing at a time, or nil. Its field seen grows with each read.
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
	f.readCount++
	return map[string]any{"key": id, "name": last.name, "changed": f.FormatTime(last.at), "seen": f.readCount}
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return b
}

// ServeHTTP serves a request with its fault.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	fault := f.fault(r)
	header := http.Header{"Date": {f.Date(f.options.Faults.DateSkew, 0)}, "Content-Type": {"application/json"}}
	status, body := f.respond(header, r, fault)
	f.mu.Unlock()
	f.SendResponse(w, r, fault, 0, status, header, text(body))
}

func errorBody(code string) map[string]any {
	return map[string]any{"error": map[string]any{"code": code}}
}

func (f *Fake) respond(header http.Header, r *http.Request, fault Fault) (int, any) {
	switch {
	case fault == Throttled:
		header.Set("Retry-After", "1")
		return http.StatusTooManyRequests, map[string]any{}
	case fault == ServerError:
		return http.StatusInternalServerError, map[string]any{}
	case r.Header.Get("X-Api-Key") != Key || f.options.Faults.Revoked:
		return http.StatusUnauthorized, errorBody("no_such_key")
	case fault == CursorExpired && r.URL.Query().Get("after") != "":
		return http.StatusBadRequest, errorBody("cursor_expired")
	}
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api")
	if id, ok := strings.CutPrefix(path, "/things/"); ok && !strings.Contains(id, "/") {
		return f.thing(id)
	}
	switch path {
	case "/me":
		return http.StatusOK, map[string]any{"name": "somebody"}
	case "/lists/field", "/lists/page", "/lists/page_link", "/lists/url", "/lists/link", "/lists/last", "/lists/window",
		"/lists/whole":
		return f.list(header, strings.TrimPrefix(path, "/lists/"), r.URL, "thing", f.objectsChangedBetween)
	case "/events/field", "/events/url", "/events/link", "/events/window":
		return f.list(header, strings.TrimPrefix(path, "/events/"), r.URL, "event", f.eventsBetween)
	}
	return http.StatusNotFound, errorBody("no_such_path")
}

// thing returns one thing, as it is or was a short time before.
func (f *Fake) thing(id string) (int, any) {
	if plain, err := url.PathUnescape(id); err == nil {
		id = plain
	}
	o := f.object(id, f.Now().Add(-f.randomAge(f.options.Faults.Lag)))
	if o == nil || f.hidden[id] {
		return http.StatusNotFound, errorBody("no_such_thing")
	}
	return http.StatusOK, map[string]any{"data": map[string]any{"thing": o}}
}
