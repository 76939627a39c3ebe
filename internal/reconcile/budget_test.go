package reconcile_test

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
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
)

// meter is an API that notes when it was called and how many calls were there at once.
type meter struct {
	mu       sync.Mutex
	arrivals []time.Time
	here     int
	most     int
	// refuse is how many of the next calls are answered that they are too many, with the wait in seconds.
	refuse  int
	wait    string
	refused []time.Time
}

func (m *meter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	m.arrivals = append(m.arrivals, time.Now())
	m.here++
	m.most = max(m.most, m.here)
	refuse := m.refuse > 0
	if refuse {
		m.refuse--
		w.Header().Set("Retry-After", m.wait)
		w.WriteHeader(http.StatusTooManyRequests)
		m.refused = append(m.refused, time.Now())
	}
	m.mu.Unlock()
	if !refuse {
		fmt.Fprint(w, `{"id": "cus_1"}`)
	}
	m.mu.Lock()
	m.here--
	m.mu.Unlock()
}

// four are clients of four processes.
func (b *testBundle) four(t *testing.T, url string, edit func(*provider.API)) []*reconcile.Client {
	t.Helper()
	var out []*reconcile.Client
	for range 4 {
		c, _ := b.client(t, url, edit)
		out = append(out, c)
	}
	return out
}

// callAll has each client call some times in several goroutines.
func callAll(t *testing.T, clients []*reconcile.Client, each, times int, then func(*reconcile.Response)) {
	t.Helper()
	var wg sync.WaitGroup
	for _, c := range clients {
		for range each {
			wg.Go(func() {
				for range times {
					r, err := c.Do(t.Context(), customer)
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

// However many processes call, together they begin no more than the rate in a second, and no more at once than there are places.
func TestFourProcessesShareOneBudget(t *testing.T) {
	t.Parallel()
	b, m := setup(t), &meter{}
	const rate, places, calls = 50, 3, 4 * 4 * 6
	clients := b.four(t, serve(t, m.ServeHTTP), func(a *provider.API) { a.Rate, a.Concurrency = rate, places })
	began := time.Now()
	callAll(t, clients, 4, 6, func(r *reconcile.Response) {
		if r.Verdict.Kind != provider.Found {
			t.Errorf("%+v", r.Verdict)
		}
	})
	// Of a full bucket of 5, which 46 a second fill.
	if least, took := (calls-5)*time.Second/46, time.Since(began); took < least {
		t.Errorf("%d calls took %s, less than %s", calls, took, least)
	}
	if len(m.arrivals) != calls || m.most > places {
		t.Errorf("%d calls, want %d; %d at once, want %d at most", len(m.arrivals), calls, m.most, places)
	}
	// A call that has begun may be held up on its way by as much as anything; those are no more than the places.
	for i, first := range m.arrivals {
		if n := count(m.arrivals[i:], first.Add(time.Second)); n > rate+places {
			t.Errorf("%d calls in the second from the %d. call on", n, i)
		}
	}
}

func count(sorted []time.Time, until time.Time) int {
	n, _ := slices.BinarySearchFunc(sorted, until, time.Time.Compare)
	return n
}

// What one process is told, all obey: nobody calls before the time that the provider asked for.
func TestOneThrottledProcessStopsAll(t *testing.T) {
	t.Parallel()
	b, m := setup(t), &meter{refuse: 1, wait: "1"}
	clients := b.four(t, serve(t, m.ServeHTTP), func(a *provider.API) { a.Concurrency = 1 })
	var mu sync.Mutex
	throttled := 0
	callAll(t, clients, 1, 3, func(r *reconcile.Response) {
		if r.Verdict.Kind == provider.Throttled {
			mu.Lock()
			throttled++
			mu.Unlock()
		}
	})
	if throttled != 1 || len(m.arrivals) != 12 {
		t.Fatalf("%d were told to wait, of %d", throttled, len(m.arrivals))
	}
	if pause := m.arrivals[1].Sub(m.refused[0]); pause < time.Second {
		t.Errorf("the next call came after %s", pause)
	}
}

// In no second of the database's clock do more calls begin than the rate says, whenever they are
// asked for and by whom. A tenth of the rate may come at once, one call at least, and who waits
// as long as is said may call then.
func TestNoSecondHasMoreThanTheRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	forward := b.clock(t)
	accounts, atOnce, clients := 0, map[int]int{1: 1, 2: 1, 7: 1, 20: 2, 45: 4, 300: 30}, map[int][]*reconcile.Client{}
	rates := slices.Sorted(maps.Keys(atOnce))
	for _, rate := range rates {
		for range 2 {
			c, _ := b.client(t, nowhere, func(a *provider.API) { a.Rate, a.Concurrency = rate, 1000 })
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
			ok, wait, err := clients[rate][i%2].Try(t.Context(), account, fmt.Sprint(i, len(taken)))
			if err != nil {
				r.Fatal(err)
			}
			if !ok && (wait <= 0 || wait > time.Second) {
				r.Fatalf("told to wait %s", wait)
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
			r.Fatalf("%d calls at once, of a rate of %d", len(taken), rate)
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
					move(wait + time.Microsecond) // both are cut to it
					if ok, wait := call(i); !ok {
						r.Fatalf("wait %s more", wait)
					}
				}
				break
			}
		}
		for i, first := range taken {
			if n, _ := slices.BinarySearch(taken[i:], first+time.Second); n > rate {
				r.Fatalf("%d calls in the second from %s on, of a rate of %d", n, first, rate)
			}
		}
	})
}

// Each throttling in a row doubles the wait, up to five minutes; what was under way when the first was told counts once, and a call that is answered ends it.
func TestThrottlingInARowWaitsLonger(t *testing.T) {
	t.Parallel()
	b := setup(t)
	forward := b.clock(t)
	c, _ := b.client(t, nowhere, nil)
	try := func(call string) (bool, time.Duration) {
		t.Helper()
		ok, wait, err := c.Try(t.Context(), "", call)
		if err != nil {
			t.Fatal(err)
		}
		return ok, wait
	}
	give := func(call string, v provider.Verdict) {
		t.Helper()
		if err := c.Give(t.Context(), "", call, v); err != nil {
			t.Fatal(err)
		}
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
		t.Errorf("after an answer: %s", wait)
	}
	forward(time.Second)
	try("a")
	give("a", provider.Verdict{Kind: provider.Throttled, Wait: time.Hour})
	forward(59 * time.Minute)
	if ok, _ := try("c"); ok {
		t.Error("asked for an hour, and called before")
	}
}

// Accounts and sources have budgets of their own.
func TestAnAccountThatIsBlockedBlocksNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.clock(t)
	c, _ := b.client(t, nowhere, nil)
	if ok, _, err := c.Try(t.Context(), "acct_1", "a"); !ok || err != nil {
		t.Fatal(err)
	}
	if err := c.Give(t.Context(), "acct_1", "a", provider.Verdict{Kind: provider.Refused, Wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for account, want := range map[string]bool{"acct_1": false, "acct_2": true, "": true} {
		if ok, _, err := c.Try(t.Context(), account, "b"); ok != want || err != nil {
			t.Errorf("%q: %v, %v", account, ok, err)
		}
	}
}

// Who goes away in the middle of a call gives its place back all the same, and at once.
func TestACallThatIsCancelledGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.clock(t) // which stands, so that no place comes back by itself
	arrived, answer := make(chan struct{}), make(chan struct{})
	url := serve(t, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-answer
	})
	t.Cleanup(sync.OnceFunc(func() { close(answer) }))
	c, _ := b.client(t, url, func(a *provider.API) { a.Concurrency = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := c.Do(ctx, customer); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if ok, wait, err := c.Try(t.Context(), "", "next"); !ok || err != nil {
		t.Errorf("no place after a call that was cancelled: %s, %v", wait, err)
	}
}

// A process that ends in the middle of its calls keeps their places until their time is over, and no longer.
func TestPlacesOfADeadProcessComeBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	forward := b.clock(t)
	arrived, answer := make(chan struct{}, 2), make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
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
	call := func(c *reconcile.Client) { _, err := c.Do(t.Context(), customer); ended <- err }
	go call(dying)
	<-arrived
	dying.ClosePool() // it dies: nobody gives its place back
	go call(living)
	waiting := func() error {
		ok, _, err := living.Try(t.Context(), "", "x")
		if err == nil && ok {
			t.Fatal("there is a place that nobody gave back")
		}
		return err
	}
	forward(40 * time.Second)
	if err := waiting(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-arrived:
		t.Fatal("a call began while the place was taken")
	default:
	}
	forward(6 * time.Second)
	select {
	case <-arrived:
	case <-time.After(30 * time.Second):
		t.Fatal("the place did not come back")
	}
	release()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		ok, wait, err := living.Try(t.Context(), "", "y")
		if err == nil && !ok {
			forward(time.Second)
			err = errors.New("no place after " + wait.String())
		}
		return err
	})
}
