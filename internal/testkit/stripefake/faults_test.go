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

// What each fault looks like to a client, by script.
func TestEveryFaultByScript(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Faults: stripefake.Faults{SlowFor: 20 * time.Millisecond}})
	one := f.Create("", "customer", nil)
	f.Create("", "customer", nil)
	c := connect(t, f)
	next := url.Values{"starting_after": {one}}
	for _, k := range []struct {
		fault  stripefake.Fault
		status int // 0: none arrives
		reason bool
		body   string
	}{
		{stripefake.Limited, 429, true, "rate_limit"},
		{stripefake.Locked, 429, false, "lock_timeout"},
		{stripefake.Broken, 500, false, "api_error"},
		{stripefake.Garbled, 502, false, ""},
		{stripefake.Expired, 400, false, "resource_missing"},
		{stripefake.Dropped, 0, false, ""},
		{stripefake.Cut, 0, false, ""},
		{stripefake.Hung, 0, false, ""},
		{stripefake.Slow, 200, false, ""},
		{stripefake.Fine, 200, false, ""},
	} {
		f.Script(k.fault)
		c.http.Timeout = 30 * time.Second
		if k.fault == stripefake.Hung {
			c.http.Timeout = 100 * time.Millisecond
		}
		began := time.Now()
		status, header, body, err := c.ask("/v1/customers", next)
		if k.status == 0 {
			if err == nil {
				t.Errorf("fault %d: %d %s", k.fault, status, body)
			}
			continue
		}
		if err != nil || status != k.status || header.Get("Retry-After") != "" || (header.Get("Stripe-Rate-Limited-Reason") != "") != k.reason {
			t.Errorf("fault %d: %d %v %s (%v)", k.fault, status, header, body, err)
			continue
		}
		if k.fault == stripefake.Slow && time.Since(began) < 20*time.Millisecond {
			t.Error("slow is fast")
		}
		if k.body != "" {
			e := tree(t, body)["error"].(map[string]any)
			if e["code"] != k.body && e["type"] != k.body {
				t.Errorf("fault %d: %s", k.fault, body)
			}
		}
		if f.Met(k.fault) != 1 {
			t.Errorf("fault %d was met %d times", k.fault, f.Met(k.fault))
		}
	}
	if n := f.Counts()["GET /v1/customers"]; n != 10 {
		t.Errorf("%d requests were counted", n)
	}
}

func TestFaultsByChance(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 5, Faults: stripefake.Faults{
		Limited: 10, Locked: 10, Broken: 10, Garbled: 10, Dropped: 10, Cut: 10, Slow: 10, Expired: 10, SlowFor: time.Millisecond,
	}})
	c := connect(t, f)
	for range 300 {
		_, _, _, _ = c.ask("/v1/account", nil)
	}
	for fault := stripefake.Fine; fault <= stripefake.Expired; fault++ {
		if n := f.Met(fault); n > 60 || (n == 0) != (fault == stripefake.Hung) {
			t.Errorf("fault %d was met %d times", fault, n)
		}
	}
	f.SetFaults(stripefake.Faults{Hung: 100})
	hang(t, f, 1)()
	f.SetFaults(stripefake.Faults{})
	if got := c.get("/v1/account", nil); got["id"] != stripefake.Own {
		t.Errorf("without faults: %v", got)
	}
}

// Answers show states that are old, but not older than they may be; and not all equally old.
func TestLag(t *testing.T) {
	t.Parallel()
	const lag = 3 * time.Second
	f := stripefake.New(t, stripefake.Options{Seed: 6, Faults: stripefake.Faults{Lag: lag}})
	id := f.Create("", "customer", map[string]any{"balance": 0})
	for i := range 20 {
		f.Advance(time.Second)
		f.Set("", id, map[string]any{"balance": 1 + i})
	}
	c := connect(t, f)
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
				t.Errorf("the balance of %v ago was answered", balance)
			}
		}
		if len(seen) < 3 {
			t.Errorf("the answers were only %v", seen)
		}
	}
	f.SetFaults(stripefake.Faults{})
	if now := c.get("/v1/customers/"+id, nil)["balance"]; now != 20.0 {
		t.Errorf("without lag the balance is %v", now)
	}
}

// Events may come into the list after younger ones, so that a watermark at the youngest would miss some.
func TestLateEvents(t *testing.T) {
	t.Parallel()
	const late = 5 * time.Second
	f := stripefake.New(t, stripefake.Options{Seed: 7, Faults: stripefake.Faults{Late: late}})
	f.Live(100)
	c := connect(t, f)
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
				t.Errorf("an event of %s ago is not shown", f.Now().Sub(e.At))
			}
		case hidden > missed:
			missed = hidden // hidden ones that are older than a shown one
		}
	}
	if missed == 0 {
		t.Error("all events come in order")
	}
	f.Advance(late)
	if got := c.all("/v1/events", nil, 100); len(got) != len(f.Events()) {
		t.Errorf("in the end %d of %d are shown", len(got), len(f.Events()))
	}
}

func TestDate(t *testing.T) {
	t.Parallel()
	start := time.Date(2031, time.May, 5, 12, 0, 0, 0, time.UTC)
	f := stripefake.New(t, stripefake.Options{Seed: 8, Start: start})
	c := connect(t, f)
	dates := func() map[time.Duration]bool {
		out := map[time.Duration]bool{}
		for range 30 {
			_, header, _, err := c.ask("/v1/account", nil)
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
		t.Errorf("a standing clock shows %v", got)
	}
	f.SetFaults(stripefake.Faults{Skew: 2 * time.Second})
	got := dates()
	for d := range got {
		if d < -time.Second || d > 3*time.Second {
			t.Errorf("the clock is %s off", d-1500*time.Millisecond)
		}
	}
	if len(got) < 3 {
		t.Errorf("the clocks show only %v", got)
	}
	running := stripefake.New(t, stripefake.Options{Running: true})
	first := running.Now()
	testkit.Eventually(t, 30*time.Second, func() error {
		if !running.Now().After(first) {
			return errors.New("a running clock stands")
		}
		return nil
	})
}

// What is asked too fast or too much at once is counted and refused.
func TestLimits(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Faults: stripefake.Faults{Rate: 5}})
	c := connect(t, f)
	refused := 0
	for range 10 {
		status, header, _, err := c.ask("/v1/account", nil)
		if err != nil {
			t.Fatal(err)
		}
		if status == 429 {
			refused++
			if header.Get("Stripe-Rate-Limited-Reason") != "global-rate" {
				t.Errorf("refused for %v", header)
			}
		}
	}
	peak := f.Peak(time.Second)
	if refused == 0 && peak > 5 || refused > 0 && peak <= 5 || f.Peak(time.Hour) != 10 || f.Peak(1) != 1 {
		t.Errorf("%d requests were refused; at most %d were within a second", refused, peak)
	}
	f.Forget()
	if f.Peak(time.Hour) != 0 || len(f.Requests()) != 0 {
		t.Error("requests were not forgotten")
	}
	f.SetFaults(stripefake.Faults{Concurrent: 2})
	f.Script(stripefake.Hung, stripefake.Hung)
	end := hang(t, f, 2)
	if status, header, _, err := c.ask("/v1/account", nil); err != nil || status != 429 || header.Get("Stripe-Rate-Limited-Reason") != "global-concurrency" {
		t.Errorf("a third request at once is answered %d %v (%v)", status, header, err)
	}
	end()
	testkit.Eventually(t, 30*time.Second, func() error {
		if status, _, _, err := c.ask("/v1/account", nil); err != nil || status != http.StatusOK {
			return fmt.Errorf("after the others ended: %d (%w)", status, err)
		}
		return nil
	})
	if f.MostAtOnce() != 3 {
		t.Errorf("at most there were %d at once", f.MostAtOnce())
	}
}

// hang starts n requests that do not end, and waits for the fake to have them; the returned function ends them.
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
			if answer, err := connect(t, f).http.Do(r); err == nil {
				t.Errorf("a request that hangs was answered %d", answer.StatusCode)
				_ = answer.Body.Close()
			}
		})
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if met := f.Met(stripefake.Hung); met != n {
			return fmt.Errorf("%d of %d requests came", met, n)
		}
		return nil
	})
	return func() { stop(); all.Wait() }
}

// A revoked key is refused everywhere; a blind one finds its control and nothing else.
func TestRevokedAndBlind(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	id := f.Create("", "customer", nil)
	c := connect(t, f)
	defer func() {
		if n := f.Counts(); n["GET /v1/customers/{id}"] != 3 || n["GET /v1/account"] != 3 {
			t.Errorf("the requests were %v", n)
		}
	}()
	for _, k := range []struct {
		faults         stripefake.Faults
		control, found int
		listed         int
	}{
		{stripefake.Faults{}, 200, 200, 1},
		{stripefake.Faults{Blind: true}, 200, 404, 0},
		{stripefake.Faults{Revoked: true}, 401, 401, -1},
	} {
		f.SetFaults(k.faults)
		control, _, _, err := c.ask("/v1/account", nil)
		found, _, _, err2 := c.ask("/v1/customers/"+id, nil)
		if err := errors.Join(err, err2); err != nil || control != k.control || found != k.found {
			t.Errorf("%+v: control %d, customer %d (%v)", k.faults, control, found, err)
		}
		if k.listed >= 0 {
			if got := ids(c.get("/v1/events", nil)); len(got) != k.listed || len(ids(c.get("/v1/customers", nil))) != k.listed {
				t.Errorf("%+v: the lists show %v", k.faults, got)
			}
		}
	}
}

// What is hidden is neither found nor listed, and everything else is.
func TestHidden(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	id, other := f.Create("", "customer", nil), f.Create("", "customer", nil)
	c := connect(t, f)
	f.Advance(time.Minute)
	for _, hidden := range []bool{false, true, true, false, true, false} {
		f.Hide("", id, hidden)
		want, listed := http.StatusOK, []string{other, id}
		if hidden {
			want, listed = http.StatusNotFound, listed[:1]
		}
		status, _, _, err := c.ask("/v1/customers/"+id, nil)
		if got := ids(c.get("/v1/customers", nil)); err != nil || status != want || !slices.Equal(got, listed) {
			t.Errorf("hidden %t: %d (%v), listed %q", hidden, status, err, got)
		}
		f.Advance(time.Minute)
	}
}

// What answers show of an id that was given again is one of its lives at a time.
func TestLagOverARebirth(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 10, Reborn: 100, Faults: stripefake.Faults{Lag: 3 * time.Second}})
	id := f.Create("", "product", map[string]any{"name": "first"})
	f.Advance(time.Second)
	f.Do("", id, "product.deleted")
	f.Advance(time.Second)
	if again := f.Create("", "product", map[string]any{"name": "second"}); again != id {
		t.Fatalf("%s came back as %s", id, again)
	}
	f.Advance(time.Second / 2)
	c := connect(t, f)
	got, listed := map[string]int{}, map[string]int{}
	for range 100 {
		name := "none"
		if status, _, body, err := c.ask("/v1/products/"+id, nil); err != nil {
			t.Fatal(err)
		} else if status == http.StatusOK {
			name = tree(t, body)["name"].(string)
		}
		got[name]++
		page := c.get("/v1/products", nil)["data"].([]any)
		if len(page) > 1 {
			t.Fatalf("the list shows two lives: %v", page)
		}
		name = "none"
		for _, one := range page {
			name = one.(map[string]any)["name"].(string)
		}
		listed[name]++
	}
	if len(got) != 3 || len(listed) != 3 {
		t.Errorf("the answers were %v, the lists %v", got, listed)
	}
}
