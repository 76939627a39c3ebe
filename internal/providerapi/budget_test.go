package providerapi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// countingAPI records the times of the calls and the number of concurrent calls.
type countingAPI struct {
	mu          sync.Mutex
	arrivals    []time.Time
	inFlight    int
	maxInFlight int
	// throttleNext is the number of following calls that get 429, with a wait in seconds.
	throttleNext int
	wait         string
	throttledAt  []time.Time
}

func (m *countingAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	m.arrivals = append(m.arrivals, time.Now())
	m.inFlight++
	m.maxInFlight = max(m.maxInFlight, m.inFlight)
	refuse := m.throttleNext > 0
	if refuse {
		m.throttleNext--
		w.Header().Set("Retry-After", m.wait)
		w.WriteHeader(http.StatusTooManyRequests)
		m.throttledAt = append(m.throttledAt, time.Now())
	}
	m.mu.Unlock()
	if !refuse {
		fmt.Fprint(w, `{"id": "cus_1"}`)
	}
	m.mu.Lock()
	m.inFlight--
	m.mu.Unlock()
}

// fourClients returns the clients of four processes.
func (b *databaseEnv) fourClients(t *testing.T, url string, edit func(*provider.API)) []*providerapi.Client {
	t.Helper()
	var out []*providerapi.Client
	for range 4 {
		c, _ := b.client(t, url, edit)
		out = append(out, c)
	}
	return out
}

// callAll makes several calls with each client in several goroutines.
func callAll(t *testing.T, clients []*providerapi.Client, each, times int, then func(*providerapi.Response)) {
	t.Helper()
	var wg sync.WaitGroup
	for _, c := range clients {
		for range each {
			wg.Go(func() {
				for range times {
					r, err := c.Do(t.Context(), customerCall)
					if err != nil {
						t.Error(err)
						return
					}
					then(r)
				}
			})
		}
	}
	wg.Wait()
}

// Four processes together start no more calls in a second than the rate, and no more concurrent
// calls than the limit.
func TestRateBudget_fourProcesses_shareRateAndConcurrency(t *testing.T) {
	t.Parallel()
	b, m := newDatabaseEnv(t), &countingAPI{}
	const rate, places, calls = 50, 3, 4 * 4 * 6
	clients := b.fourClients(t, reconciled.Serve(t, m.ServeHTTP), func(a *provider.API) {
		a.Rate, a.Concurrency = rate, places
	})
	began := time.Now()
	callAll(t, clients, 4, 6, func(r *providerapi.Response) {
		if r.Verdict.Kind != provider.Found {
			t.Errorf("%+v", r.Verdict)
		}
	})
	// A full bucket has 5 calls and is refilled at 46 a second.
	if least, took := (calls-5)*time.Second/46, time.Since(began); took < least {
		t.Errorf("%d calls took %s, less than %s", calls, took, least)
	}
	if len(m.arrivals) != calls || m.maxInFlight > places {
		t.Errorf("%d calls, want %d; %d at once, want %d at most", len(m.arrivals), calls, m.maxInFlight, places)
	}
	// A call may be delayed on its way by any time. The number of such calls is limited by the
	// concurrency.
	for i, first := range m.arrivals {
		if n := countBefore(m.arrivals[i:], first.Add(time.Second)); n > rate+places {
			t.Errorf("%d calls in the second from call %d on", n, i)
		}
	}
}

func countBefore(sorted []time.Time, until time.Time) int {
	n, _ := slices.BinarySearchFunc(sorted, until, time.Time.Compare)
	return n
}

// When one process is throttled, no process calls before the requested time.
func TestRateBudget_oneProcessThrottled_allWait(t *testing.T) {
	t.Parallel()
	b, m := newDatabaseEnv(t), &countingAPI{throttleNext: 1, wait: "1"}
	clients := b.fourClients(t, reconciled.Serve(t, m.ServeHTTP), func(a *provider.API) { a.Concurrency = 1 })
	var mu sync.Mutex
	throttled := 0
	callAll(t, clients, 1, 3, func(r *providerapi.Response) {
		if r.Verdict.Kind == provider.Throttled {
			mu.Lock()
			throttled++
			mu.Unlock()
		}
	})
	if throttled != 1 || len(m.arrivals) != 12 {
		t.Fatalf("%d of %d calls were throttled", throttled, len(m.arrivals))
	}
	if pause := m.arrivals[1].Sub(m.throttledAt[0]); pause < time.Second {
		t.Errorf("the next call came after %s", pause)
	}
}

// In no second of the database's clock do more calls start than the rate allows. A tenth of the
// rate may start at once, at least one call. A caller may call after the wait that TryTake
// returned.
func TestRateBudget_anySecond_neverExceedsTheRate(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	forward := b.stopClock(t)
	accounts, atOnce := 0, map[int]int{1: 1, 2: 1, 7: 1, 20: 2, 45: 4, 300: 30}
	clients := map[int][]*providerapi.Client{}
	rates := slices.Sorted(maps.Keys(atOnce))
	for _, rate := range rates {
		for range 2 {
			c, _ := b.client(t, unusedURL, func(a *provider.API) { a.Rate, a.Concurrency = rate, 1000 })
			clients[rate] = append(clients[rate], c)
		}
	}
	steps := []time.Duration{0, 0, time.Millisecond, 30 * time.Millisecond, 400 * time.Millisecond, 3 * time.Second}
	rapid.Check(t, func(r *rapid.T) {
		rate := rapid.SampledFrom(rates).Draw(r, "rate")
		accounts++
		account := fmt.Sprint("acct_", accounts)
		var now time.Duration
		var taken []time.Duration
		move := func(d time.Duration) { forward(d); now += d }
		call := func(i int) (ok bool, wait time.Duration) {
			ok, wait, err := clients[rate][i%2].TryTake(t.Context(), account, fmt.Sprint(i, len(taken)))
			if err != nil {
				r.Fatal(err)
			}
			if !ok && (wait <= 0 || wait > time.Second) {
				r.Fatalf("the returned wait is %s", wait)
			}
			if ok {
				taken = append(taken, now)
			}
			return ok, wait
		}
		for i := 0; ; i++ {
			if ok, _ := call(i); !ok {
				break
			}
		}
		if len(taken) != atOnce[rate] {
			r.Fatalf("%d calls at once, with the rate %d", len(taken), rate)
		}
		for i := range rapid.IntRange(5, 20).Draw(r, "steps") {
			if d := rapid.SampledFrom(steps).Draw(r, "forward"); d > 0 {
				move(d)
			}
			for range rapid.IntRange(1, 10).Draw(r, "calls") {
				ok, wait := call(i)
				if ok {
					continue
				}
				if rapid.Bool().Draw(r, "waits") {
					move(wait + time.Microsecond) // both are rounded to microseconds
					if ok, wait := call(i); !ok {
						r.Fatalf("wait %s more", wait)
					}
				}
				break
			}
		}
		for i, first := range taken {
			if n, _ := slices.BinarySearch(taken[i:], first+time.Second); n > rate {
				r.Fatalf("%d calls in the second from %s on, with the rate %d", n, first, rate)
			}
		}
	})
}

// Each consecutive throttling doubles the wait, up to five minutes. Calls that were in progress at
// the first one count once. A successful call resets the wait.
func TestRateBudget_repeatedThrottling_doublesTheWait(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	forward := b.stopClock(t)
	c, _ := b.client(t, unusedURL, nil)
	try := func(call string) (bool, time.Duration) {
		t.Helper()
		ok, wait, err := c.TryTake(t.Context(), "", call)
		testkit.Must(t, err)
		return ok, wait
	}
	give := func(call string, v provider.Verdict) {
		t.Helper()
		testkit.Must(t, c.Release(t.Context(), "", call, v))
	}
	throttled := provider.Verdict{Kind: provider.Throttled, Wait: time.Second}
	for i := range 10 {
		if ok, wait := try("a"); !ok {
			t.Fatalf("blocked for %s", wait)
		}
		if ok, wait := try("b"); !ok {
			t.Fatalf("blocked for %s", wait)
		}
		give("a", throttled)
		give("b", throttled)
		want := min(time.Second<<i, 5*time.Minute)
		if _, wait := try("c"); wait != min(want, 30*time.Second) {
			t.Fatalf("after %d: %s, want %s", i+1, wait, want)
		}
		forward(want)
	}
	try("a")
	give("a", provider.Verdict{Kind: provider.Found})
	try("a")
	give("a", throttled)
	if _, wait := try("c"); wait != time.Second {
		t.Errorf("after a successful call: %s", wait)
	}
	forward(time.Second)
	try("a")
	give("a", provider.Verdict{Kind: provider.Throttled, Wait: time.Hour})
	forward(59 * time.Minute)
	if ok, _ := try("c"); ok {
		t.Error("the provider requested an hour, and a call started earlier")
	}
}

// Each account and each source has its own budget.
func TestRateBudget_blockedAccount_blocksNoOther(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	b.stopClock(t)
	c, _ := b.client(t, unusedURL, nil)
	if ok, _, err := c.TryTake(t.Context(), "acct_1", "a"); !ok || err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, c.Release(t.Context(), "acct_1", "a", provider.Verdict{Kind: provider.Rejected, Wait: time.Minute}))
	for account, want := range map[string]bool{"acct_1": false, "acct_2": true, "": true} {
		if ok, _, err := c.TryTake(t.Context(), account, "b"); ok != want || err != nil {
			t.Errorf("%q: %v, %v", account, ok, err)
		}
	}
}

// A cancelled call frees its slot at once.
func TestRateBudget_cancelledCall_freesItsSlot(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	b.stopClock(t) // the clock stands still, so that no slot expires
	arrived, answer := make(chan struct{}), make(chan struct{})
	url := reconciled.Serve(t, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-answer
	})
	t.Cleanup(sync.OnceFunc(func() { close(answer) }))
	c, _ := b.client(t, url, func(a *provider.API) { a.Concurrency = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := c.Do(ctx, customerCall); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if ok, wait, err := c.TryTake(t.Context(), "", "next"); !ok || err != nil {
		t.Errorf("no free slot after a cancelled call: %s, %v", wait, err)
	}
}

// The slots of a process that ends during its calls stay taken until they expire.
func TestRateBudget_deadProcess_slotsExpire(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	forward := b.stopClock(t)
	arrived, answer := make(chan struct{}, 2), make(chan struct{})
	url := reconciled.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-answer
		fmt.Fprint(w, `{}`)
	})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	one := func(a *provider.API) { a.Concurrency, a.Timeout = 1, 40*time.Second }
	dying, _ := b.client(t, url, one)
	living, _ := b.client(t, url, one)
	ended := make(chan error, 2)
	call := func(c *providerapi.Client) { _, err := c.Do(t.Context(), customerCall); ended <- err }
	go call(dying)
	<-arrived
	dying.ClosePool() // the process dies, so its slot is not freed
	go call(living)
	waiting := func() error {
		ok, _, err := living.TryTake(t.Context(), "", "x")
		if err == nil && ok {
			t.Fatal("a slot is free that no call has freed")
		}
		return err
	}
	forward(40 * time.Second)
	testkit.Must(t, waiting())
	select {
	case <-arrived:
		t.Fatal("a call started while the slot was taken")
	default:
	}
	forward(6 * time.Second)
	select {
	case <-arrived:
	case <-time.After(30 * time.Second):
		t.Fatal("the slot did not expire")
	}
	release()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		ok, wait, err := living.TryTake(t.Context(), "", "y")
		if err == nil && !ok {
			forward(time.Second)
			err = errors.New("no free slot after " + wait.String())
		}
		return err
	})
}
