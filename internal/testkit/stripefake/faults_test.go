package stripefake_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// Each percentage causes its fault, in the format of Stripe.
func TestFaults_percentages_reachTheClient(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	address := "/v1/customers?starting_after=" + f.Create("", "customer", nil)
	for fault, c := range map[stripefake.Fault]struct {
		faults stripefake.Faults
		status int // 0: the response is lost
		// code is the error's code or, without one, its type. reason: the header names the limit.
		code   string
		reason bool
	}{
		stripefake.RateLimited:   {stripefake.Faults{RateLimited: 100}, 429, "rate_limit", true},
		stripefake.Locked:        {stripefake.Faults{Locked: 100}, 429, "lock_timeout", false},
		stripefake.ServerError:   {stripefake.Faults{ServerError: 100}, 500, "api_error", false},
		stripefake.Garbled:       {stripefake.Faults{Garbled: 100}, 502, "", false},
		stripefake.CursorExpired: {stripefake.Faults{CursorExpired: 100}, 400, "resource_missing", false},
		stripefake.Dropped:       {stripefake.Faults{Dropped: 100}, 0, "", false},
		stripefake.Truncated:     {stripefake.Faults{Truncated: 100}, 0, "", false},
		stripefake.Slow:          {stripefake.Faults{Slow: 100, SlowDuration: time.Millisecond}, 200, "", false},
		stripefake.NoFault:       {stripefake.Faults{}, 200, "", false},
	} {
		f.SetFaults(c.faults)
		w := serveOrLose(t, f, address)
		if w == nil {
			w = &httptest.ResponseRecorder{}
		}
		if h := w.Header(); w.Code != c.status || h.Get("Retry-After") != "" ||
			(h.Get("Stripe-Rate-Limited-Reason") != "") != c.reason || f.FaultCount(fault) != 1 {
			t.Errorf("fault %d, %d times: %d %v %s", fault, f.FaultCount(fault), w.Code, h, w.Body)
		}
		if c.code != "" {
			if e := tree(t, w.Body.Bytes())["error"].(map[string]any); e["code"] != c.code && e["type"] != c.code {
				t.Errorf("fault %d: %s", fault, w.Body)
			}
		}
	}
}

// serveOrLose serves a request, and returns nil if the response is lost.
func serveOrLose(t *testing.T, f *stripefake.Fake, address string) (w *httptest.ResponseRecorder) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil && r != http.ErrAbortHandler {
			panic(r)
		}
	}()
	return serve(t, f, address)
}

// Responses show old states of different ages, but none older than the lag. With a reused id each
// response shows either the old or the new object. Lists may be older than objects.
func TestFaults_lag_returnsOlderStates(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 10, ReusedIDs: 100,
		Faults: stripefake.Faults{Lag: 3 * time.Second}})
	id := f.Create("", "product", map[string]any{"name": "first"})
	f.Advance(time.Second)
	f.ApplyEvent("", id, "product.deleted")
	f.Advance(time.Second)
	if again := f.Create("", "product", map[string]any{"name": "second"}); again != id {
		t.Fatalf("%s was created again as %s", id, again)
	}
	f.Advance(time.Second / 2)
	// want reads the object and the list many times, and checks how many states each shows
	want := func(when string, objectStates, listStates int) {
		t.Helper()
		objects, lists := map[string]int{}, map[string]int{}
		for range 100 {
			if w := serve(t, f, "/v1/products/"+id); w.Code == http.StatusOK {
				objects[tree(t, w.Body.Bytes())["name"].(string)]++
			} else {
				objects["none"]++
			}
			name := "none"
			for n, listed := range list[string](t, f, "/v1/products", "name") {
				if name = listed; n > 0 {
					t.Fatal("the list shows two objects with one id")
				}
			}
			lists[name]++
		}
		if len(objects) != objectStates || len(lists) != listStates || objects["second"] == 0 || lists["second"] == 0 {
			t.Errorf("%s: the responses were %v, the lists %v", when, objects, lists)
		}
	}
	want("within the lag of both objects", 3, 3)
	f.Advance(3 * time.Second)
	want("after the lag", 1, 1)
	f.SetFaults(stripefake.Faults{ListLag: 6 * time.Second})
	want("with a lag of lists", 1, 3)
}

// Lists may show events after newer ones, so that a watermark at the newest event would miss some.
// Events older than thirty days are not listed and not found.
func TestListEvents_listDelayAndRetention_hideEvents(t *testing.T) {
	t.Parallel()
	const late = 5 * time.Second
	f := stripefake.New(t, stripefake.Options{Seed: 7, Faults: stripefake.Faults{MaxListDelay: late}})
	f.RunSteps(40)
	shown := map[string]bool{}
	for _, id := range list[string](t, f, "/v1/events?limit=100", "id") {
		shown[id] = true
	}
	missed, hidden := 0, 0
	for _, e := range f.Events() {
		switch {
		case !shown[e.ID]:
			hidden++
			if f.Now().Sub(e.At) > late {
				t.Errorf("an event is not listed after %s", f.Now().Sub(e.At))
			}
		case hidden > missed:
			missed = hidden // number of omitted events that are older than a listed one
		}
	}
	if missed == 0 {
		t.Error("all events are listed in order")
	}
	f.Advance(late)
	if n := len(list[string](t, f, "/v1/events?limit=100", "id")); n != len(f.Events()) || n == 100 {
		t.Errorf("at the end %d of %d events are listed", n, len(f.Events()))
	}
	f.Advance(30*24*time.Hour - late)
	old := f.Events()[0].ID
	if got := list[string](t, f, "/v1/events?limit=100", "id"); len(got) != 0 {
		t.Errorf("after 30 days there are %v", got)
	}
	for address, want := range map[string]int{"/v1/events/" + old: 404, "/v1/events?starting_after=" + old: 400} {
		if w := serve(t, f, address); w.Code != want {
			t.Errorf("after 30 days %s: %d %s", address, w.Code, w.Body)
		}
	}
}

func TestFaults_dateSkew_isBounded(t *testing.T) {
	t.Parallel()
	start := time.Date(2031, time.May, 5, 12, 0, 0, 0, time.UTC)
	f := stripefake.New(t, stripefake.Options{Seed: 8, Start: start,
		Faults: stripefake.Faults{DateSkew: 2 * time.Second}})
	f.Advance(1500 * time.Millisecond)
	dates := map[time.Duration]bool{}
	for range 30 {
		at, err := http.ParseTime(serve(t, f, "/v1/account").Header().Get("Date"))
		if d := at.Sub(start); err != nil || d < -time.Second || d > 3*time.Second {
			t.Errorf("the clock is %s off (%v)", d-1500*time.Millisecond, err)
		}
		dates[at.Sub(start)] = true
	}
	if len(dates) < 3 {
		t.Errorf("all clocks show %v", dates)
	}
}
