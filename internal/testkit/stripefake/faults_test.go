package stripefake_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// The client sees each scripted fault.
func TestFaults_scripted_reachTheClient(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Faults: stripefake.Faults{SlowDuration: 20 * time.Millisecond}})
	one := f.Create("", "customer", nil)
	f.Create("", "customer", nil)
	c := newClient(t, f)
	next := url.Values{"starting_after": {one}}
	for _, k := range []struct {
		fault  stripefake.Fault
		status int // 0: no response
		reason bool
		body   string
	}{
		{stripefake.RateLimited, 429, true, "rate_limit"},
		{stripefake.Locked, 429, false, "lock_timeout"},
		{stripefake.ServerError, 500, false, "api_error"},
		{stripefake.Garbled, 502, false, ""},
		{stripefake.CursorExpired, 400, false, "resource_missing"},
		{stripefake.Dropped, 0, false, ""},
		{stripefake.Truncated, 0, false, ""},
		{stripefake.Hung, 0, false, ""},
		{stripefake.Slow, 200, false, ""},
		{stripefake.NoFault, 200, false, ""},
	} {
		f.ScriptFaults(k.fault)
		c.http.Timeout = 30 * time.Second
		if k.fault == stripefake.Hung {
			c.http.Timeout = 100 * time.Millisecond
		}
		began := time.Now()
		status, header, body, err := c.request("/v1/customers", next)
		if k.status == 0 {
			if err == nil {
				t.Errorf("fault %d: %d %s", k.fault, status, body)
			}
			continue
		}
		if err != nil || status != k.status || header.Get("Retry-After") != "" ||
			(header.Get("Stripe-Rate-Limited-Reason") != "") != k.reason {
			t.Errorf("fault %d: %d %v %s (%v)", k.fault, status, header, body, err)
			continue
		}
		if k.fault == stripefake.Slow && time.Since(began) < 20*time.Millisecond {
			t.Error("a slow response is fast")
		}
		if k.body != "" {
			e := tree(t, body)["error"].(map[string]any)
			if e["code"] != k.body && e["type"] != k.body {
				t.Errorf("fault %d: %s", k.fault, body)
			}
		}
		if f.FaultCount(k.fault) != 1 {
			t.Errorf("fault %d occurred %d times", k.fault, f.FaultCount(k.fault))
		}
	}
	if n := f.RequestsByRoute()["GET /v1/customers"]; n != 10 {
		t.Errorf("%d requests were counted", n)
	}
}

func TestFaults_percentages_matchTheirRates(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 5, Faults: stripefake.Faults{
		RateLimited: 10, Locked: 10, ServerError: 10, Garbled: 10, Dropped: 10, Truncated: 10, Slow: 10,
		CursorExpired: 10,
		SlowDuration:  time.Millisecond,
	}})
	c := newClient(t, f)
	for range 300 {
		_, _, _, _ = c.request("/v1/account", nil)
	}
	for fault := stripefake.NoFault; fault <= stripefake.CursorExpired; fault++ {
		if n := f.FaultCount(fault); n > 60 || (n == 0) != (fault == stripefake.Hung) {
			t.Errorf("fault %d occurred %d times", fault, n)
		}
	}
	f.SetFaults(stripefake.Faults{Hung: 100})
	hang(t, f, 1)()
	f.SetFaults(stripefake.Faults{})
	if got := c.get("/v1/account", nil); got["id"] != stripefake.OwnAccount {
		t.Errorf("without faults: %v", got)
	}
}

// Responses show old states of different ages, but none older than the lag.
func TestFaults_lag_returnsOlderStates(t *testing.T) {
	t.Parallel()
	const maxLag = 3 * time.Second
	f := stripefake.New(t, stripefake.Options{Seed: 6, Faults: stripefake.Faults{Lag: maxLag}})
	id := f.Create("", "customer", map[string]any{"balance": 0})
	for i := range 20 {
		f.Advance(time.Second)
		f.Set("", id, map[string]any{"balance": 1 + i})
	}
	c := newClient(t, f)
	for _, read := range []func() any{
		func() any { return c.get("/v1/customers/"+id, nil)["balance"] },
		func() any { return c.get("/v1/customers", nil)["data"].([]any)[0].(map[string]any)["balance"] },
	} {
		seen := map[any]bool{}
		for range 40 {
			seen[read()] = true
		}
		for balance := range seen {
			if balance.(float64) < 17 {
				t.Errorf("a response has the balance %v", balance)
			}
		}
		if len(seen) < 3 {
			t.Errorf("all responses have the balances %v", seen)
		}
	}
	f.SetFaults(stripefake.Faults{})
	if now := c.get("/v1/customers/"+id, nil)["balance"]; now != 20.0 {
		t.Errorf("without lag the balance is %v", now)
	}
}

// Lists may show events after newer ones, so that a watermark at the newest event would miss some.
func TestFaults_listDelay_showsEventsLater(t *testing.T) {
	t.Parallel()
	const late = 5 * time.Second
	f := stripefake.New(t, stripefake.Options{Seed: 7, Faults: stripefake.Faults{MaxListDelay: late}})
	f.RunSteps(100)
	c := newClient(t, f)
	shown := map[string]bool{}
	for _, id := range c.all("/v1/events", nil, 100) {
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
	if got := c.all("/v1/events", nil, 100); len(got) != len(f.Events()) {
		t.Errorf("at the end %d of %d events are listed", len(got), len(f.Events()))
	}
}

func TestFaults_dateSkew_isBounded(t *testing.T) {
	t.Parallel()
	start := time.Date(2031, time.May, 5, 12, 0, 0, 0, time.UTC)
	f := stripefake.New(t, stripefake.Options{Seed: 8, Start: start})
	c := newClient(t, f)
	dates := func() map[time.Duration]bool {
		out := map[time.Duration]bool{}
		for range 30 {
			_, header, _, err := c.request("/v1/account", nil)
			at, err2 := http.ParseTime(header.Get("Date"))
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			out[at.Sub(start)] = true
		}
		return out
	}
	f.Advance(1500 * time.Millisecond)
	if got := dates(); !reflect.DeepEqual(got, map[time.Duration]bool{time.Second: true}) {
		t.Errorf("a fixed clock shows %v", got)
	}
	f.SetFaults(stripefake.Faults{DateSkew: 2 * time.Second})
	got := dates()
	for d := range got {
		if d < -time.Second || d > 3*time.Second {
			t.Errorf("the clock is %s off", d-1500*time.Millisecond)
		}
	}
	if len(got) < 3 {
		t.Errorf("all clocks show %v", got)
	}
	running := stripefake.New(t, stripefake.Options{Running: true})
	first := running.Now()
	testkit.Eventually(t, 30*time.Second, func() error {
		if !running.Now().After(first) {
			return errors.New("a running clock does not move")
		}
		return nil
	})
}

// Requests above the limits are counted and rejected.
func TestFaults_limits_rejectRequestsAboveThem(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Faults: stripefake.Faults{MaxPerSecond: 5}})
	c := newClient(t, f)
	refused := 0
	for range 10 {
		status, header, _, err := c.request("/v1/account", nil)
		if err != nil {
			t.Fatal(err)
		}
		if status == 429 {
			refused++
			if header.Get("Stripe-Rate-Limited-Reason") != "global-rate" {
				t.Errorf("rejected with the headers %v", header)
			}
		}
	}
	peak := f.PeakRequests(time.Second)
	if refused == 0 && peak > 5 || refused > 0 && peak <= 5 || f.PeakRequests(time.Hour) != 10 ||
		f.PeakRequests(1) != 1 {
		t.Errorf("%d requests were rejected; the maximum within a second is %d", refused, peak)
	}
	f.ResetRequests()
	if f.PeakRequests(time.Hour) != 0 || len(f.Requests()) != 0 {
		t.Error("ResetRequests left requests")
	}
	f.SetFaults(stripefake.Faults{MaxConcurrent: 2})
	f.ScriptFaults(stripefake.Hung, stripefake.Hung)
	end := hang(t, f, 2)
	if status, header, _, err := c.request("/v1/account", nil); err != nil || status != 429 ||
		header.Get("Stripe-Rate-Limited-Reason") != "global-concurrency" {
		t.Errorf("a third concurrent request has the status %d, %v (%v)", status, header, err)
	}
	end()
	testkit.Eventually(t, 30*time.Second, func() error {
		if status, _, _, err := c.request("/v1/account", nil); err != nil || status != http.StatusOK {
			return fmt.Errorf("after the others ended: %d (%w)", status, err)
		}
		return nil
	})
	if f.MaxInFlight() != 3 {
		t.Errorf("the maximum of concurrent requests is %d", f.MaxInFlight())
	}
}

// hang starts n hanging requests and waits until the fake has received them. The returned function
// ends them.
func hang(t *testing.T, f *stripefake.Fake, n int) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL+"/v1/account", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+stripefake.Key)
		all.Go(func() {
			if response, err := newClient(t, f).http.Do(r); err == nil {
				t.Errorf("a hanging request got the status %d", response.StatusCode)
				_ = response.Body.Close()
			}
		})
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if met := f.FaultCount(stripefake.Hung); met != n {
			return fmt.Errorf("%d of %d requests arrived", met, n)
		}
		return nil
	})
	return func() { stop(); all.Wait() }
}

// A revoked key is rejected everywhere. A key that sees nothing finds the control object only.
func TestFaults_revokedOrSeesNothing_hideTheAccount(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	id := f.Create("", "customer", nil)
	c := newClient(t, f)
	defer func() {
		if n := f.RequestsByRoute(); n["GET /v1/customers/{id}"] != 3 || n["GET /v1/account"] != 3 {
			t.Errorf("the requests were %v", n)
		}
	}()
	for _, k := range []struct {
		faults         stripefake.Faults
		control, found int
		listed         int
	}{
		{stripefake.Faults{}, 200, 200, 1},
		{stripefake.Faults{SeesNothing: true}, 200, 404, 0},
		{stripefake.Faults{Revoked: true}, 401, 401, -1},
	} {
		f.SetFaults(k.faults)
		control, _, _, err := c.request("/v1/account", nil)
		found, _, _, err2 := c.request("/v1/customers/"+id, nil)
		if err := errors.Join(err, err2); err != nil || control != k.control || found != k.found {
			t.Errorf("%+v: control %d, customer %d (%v)", k.faults, control, found, err)
		}
		if k.listed >= 0 {
			if got := ids(c.get("/v1/events", nil)); len(got) != k.listed ||
				len(ids(c.get("/v1/customers", nil))) != k.listed {
				t.Errorf("%+v: the lists show %v", k.faults, got)
			}
		}
	}
}

// A hidden object is neither found nor listed. Other objects are.
func TestSetHidden_hiddenObject_isNotFoundUntilShown(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	id, other := f.Create("", "customer", nil), f.Create("", "customer", nil)
	c := newClient(t, f)
	f.Advance(time.Minute)
	for _, hidden := range []bool{false, true, true, false, true, false} {
		f.SetHidden("", id, hidden)
		want, listed := http.StatusOK, []string{other, id}
		if hidden {
			want, listed = http.StatusNotFound, listed[:1]
		}
		status, _, _, err := c.request("/v1/customers/"+id, nil)
		if got := ids(c.get("/v1/customers", nil)); err != nil || status != want || !slices.Equal(got, listed) {
			t.Errorf("hidden %t: %d (%v), listed %q", hidden, status, err, got)
		}
		f.Advance(time.Minute)
	}
}

// With a reused id each response shows either the old or the new object.
func TestFaults_lagAcrossReusedID_returnsTheOlderObject(t *testing.T) {
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
	c := newClient(t, f)
	got, listed := map[string]int{}, map[string]int{}
	for range 100 {
		name := "none"
		if status, _, body, err := c.request("/v1/products/"+id, nil); err != nil {
			t.Fatal(err)
		} else if status == http.StatusOK {
			name = tree(t, body)["name"].(string)
		}
		got[name]++
		page := c.get("/v1/products", nil)["data"].([]any)
		if len(page) > 1 {
			t.Fatalf("the list shows two objects with one id: %v", page)
		}
		name = "none"
		for _, one := range page {
			name = one.(map[string]any)["name"].(string)
		}
		listed[name]++
	}
	if len(got) != 3 || len(listed) != 3 {
		t.Errorf("the responses were %v, the lists %v", got, listed)
	}
}
