package reconcile_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// used are the calls of a budget that are kept, and of how many days.
func (b *testBundle) used(t testing.TB, account string) (calls, days int) {
	t.Helper()
	row := b.db.Pool.QueryRow(t.Context(), `SELECT coalesce(sum(c.value::int), 0), count(*) FROM budgets b CROSS JOIN LATERAL jsonb_each_text(b.calls) c WHERE b.account = $1`, account)
	if err := row.Scan(&calls, &days); err != nil {
		t.Fatal(err)
	}
	return calls, days
}

// No thirty days have more calls than are allotted, whichever of two processes makes them and however they end; each counts once, and who is told to wait may call then, and not before.
func TestThirtyDaysHaveNoMoreCallsThanAreAllotted(t *testing.T) {
	t.Parallel()
	const monthly, byItself, day = 20, 18, 24 * time.Hour
	b := setup(t)
	forward := b.clock(t)
	first := time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC) // where that clock stands
	var clients []*reconcile.Client
	for range 2 {
		c, _ := b.client(t, nowhere, func(a *provider.API) { a.Rate, a.Concurrency, a.Monthly = 10000, 1000, monthly })
		clients = append(clients, c)
	}
	accounts, now := 0, first
	rapid.Check(t, func(r *rapid.T) {
		accounts++
		account := fmt.Sprint("acct_", accounts)
		var taken []time.Time
		move := func(d time.Duration) { forward(d); now = now.Add(d) }
		call := func(asked bool) (ok bool, wait time.Duration) {
			c, name := clients[len(taken)%2], fmt.Sprint(len(taken))
			try, bound := c.Try, byItself
			if asked {
				try, bound = c.TryAsked, monthly
			}
			counts := 0 // by the days that a call counts for, which is what the budget is to say
			for _, at := range taken {
				if now.Unix()/86400-at.Unix()/86400 <= 30 {
					counts++
				}
			}
			ok, _, err := try(t.Context(), account, name)
			wait, until, spent := reconcile.Spent(err)
			if err != nil && !spent || ok == spent || ok != (counts < bound) {
				r.Fatalf("%d calls count of %d: taken %t, %v", counts, bound, ok, err)
			}
			if spent && (wait <= 0 || !now.Add(wait).Equal(until)) {
				r.Fatalf("told to wait %s until %s, at %s", wait, until, now)
			}
			if ok {
				taken = append(taken, now)
			}
			return ok, wait
		}
		for range rapid.IntRange(4, 10).Draw(r, "steps") {
			if d := rapid.SampledFrom([]time.Duration{0, time.Hour, 7 * time.Hour, day, 9 * day, 29*day + 23*time.Hour, 31 * day}).Draw(r, "forward"); d > 0 {
				move(d)
			}
			asked := rapid.IntRange(0, 3).Draw(r, "asked") == 0
			for range rapid.IntRange(1, 12).Draw(r, "calls") {
				if ok, wait := call(asked); !ok {
					move(wait - time.Second)
					if ok, _ := call(asked); ok {
						r.Fatalf("a call was made a second before the end of the wait")
					}
					move(time.Second)
					if ok, wait := call(asked); !ok {
						r.Fatalf("wait %s more", wait)
					}
					break
				}
			}
		}
		for i, at := range taken {
			if i >= monthly && at.Sub(taken[i-monthly]) < 30*day {
				r.Fatalf("%d calls from %s to %s", monthly+1, taken[i-monthly], at)
			}
		}
		if _, days := b.used(t, account); days > 31 {
			r.Fatalf("%d days are kept", days)
		}
	})
}

// What was counted while the clock was ahead counts from the day on which that is noticed, and for no longer than any other call.
func TestACallOfADayThatHasNotComeCounts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	forward := b.clock(t)
	c, _ := b.client(t, nowhere, func(a *provider.API) { a.Monthly = 3 })
	names := 0
	call := func(want bool) {
		t.Helper()
		names++
		if ok, _, err := c.Try(t.Context(), "", fmt.Sprint(names)); ok != want {
			calls, days := b.used(t, "")
			t.Fatalf("taken %t (%v), of %d calls on %d days", ok, err, calls, days)
		}
	}
	call(true)
	forward(20 * 24 * time.Hour)
	call(true)
	call(true)
	forward(-20 * 24 * time.Hour)
	call(false)
	if calls, days := b.used(t, ""); calls != 3 || days != 1 {
		t.Errorf("%d calls on %d days", calls, days)
	}
	forward(30 * 24 * time.Hour)
	call(false)
	forward(24 * time.Hour)
	call(true)
	if calls, days := b.used(t, ""); calls != 1 || days != 1 {
		t.Errorf("%d calls on %d days", calls, days)
	}
}

// Accounts have an allocation each, a call that waits for it is not made, the log says so once for as long as calls wait, and a person may use the last tenth.
func TestWhatIsAllottedIsEachAccountsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	forward := b.clock(t)
	m := &meter{}
	c, _ := b.client(t, serve(t, m.ServeHTTP), func(a *provider.API) { a.Monthly = 10 })
	do := func(account string, asked, want bool) {
		t.Helper()
		_, err := c.Do(t.Context(), provider.Call{Account: account, Path: "/v1/customers/cus_1", Asked: asked})
		if _, _, spent := reconcile.Spent(err); (err == nil) != want || spent == want {
			t.Fatalf("of account %q, asked %t: %v", account, asked, err)
		}
	}
	for range 9 {
		do("", false, true)
	}
	for range 3 {
		do("", false, false)
	}
	do("acct_1", false, true)
	do("", true, true)
	do("", true, false)
	if n := b.log.count("calls to the API wait"); n != 1 || len(m.arrivals) != 11 {
		t.Errorf("said %d times, and %d calls were made", n, len(m.arrivals))
	}
	forward(31 * 24 * time.Hour)
	for range 9 {
		do("", false, true)
	}
	do("", false, false)
	if n := b.log.count("calls to the API wait"); n != 2 {
		t.Errorf("said %d times", n)
	}
	for _, part := range []string{"source=shop", "the calls of thirty days are used: 9 of 10 (api.monthly, the rest is for what a person asks for by its name); it goes on at 2027-01-23T00:00:00Z, or once api.monthly is raised"} {
		if b.log.count(part) == 0 {
			t.Errorf("the log does not say %q", part)
		}
	}
}

// spent is how runs and hints begin to say that they wait for calls.
const spent = "the calls of thirty days are used: 9 of 10 (api.monthly, the rest is for what a person asks for by its name); it goes on at "

// tenMonthly is the shop's API with ten calls a month, and the number of calls that have come to it. The twelfth is answered when the channel is closed.
func (b *shop) tenMonthly(t *testing.T, twelfth <-chan struct{}) (*provider.API, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	api := b.api(serve(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 12 {
			<-twelfth
		}
		b.fake.ServeHTTP(w, r)
	}))
	api.Monthly = 10
	return api, &calls
}

// pass lets so many days pass for what is counted of calls.
func (b *shop) pass(t *testing.T, days int) {
	t.Helper()
	b.DB.Exec(t, `UPDATE budgets SET calls = (SELECT coalesce(jsonb_object_agg(c.key::int - $1::int, c.value), '{}') FROM jsonb_each(calls) c)`, days)
}

// raised is the configuration with as many calls as there may be need for, as a reload would bring it.
func (b *shop) raised(t *testing.T, r *reconcile.Runner, api *provider.API) {
	t.Helper()
	more := *api
	more.Monthly = 1000
	other := b.runner(t, &more, asIs)
	for _, s := range other.Sources.All() {
		r.Sources.Replace(s)
	}
}

// A run whose calls are used waits, says so, and keeps within them; it goes on from where it was when days are over, or more calls are allowed, and misses nothing.
func TestARunWaitsForCalls(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]reconcile.Order{"events": {What: reconcile.Events}, "objects": {What: reconcile.Objects, Full: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShop(t, "", stripefake.Options{Seed: 41, Objects: 8})
			b.fake.Live(60)
			b.deliver(t, func(n int) bool { return n%3 == 0 })
			b.fake.Advance(time.Minute)
			twelfth := make(chan struct{})
			answer := sync.OnceFunc(func() { close(twelfth) })
			api, calls := b.tenMonthly(t, twelfth)
			t.Cleanup(answer)
			r := b.runner(t, api, asIs)
			r.Settings.Poll = 20 * time.Millisecond
			r.Settings.Span, r.Settings.MaxSpan, r.Settings.MinSpan, r.Settings.Kept = 10*time.Second, 10*time.Second, time.Second, 4*time.Minute
			b.carry(t, r)
			o.Source = b.Source
			run := b.order(t, o)
			waits := func(r *runs.Run) bool { return strings.HasPrefix(r.Detail, spent) }
			if w := b.Until(t, run, waits); w.Status != runs.Running || w.Troubles != 0 || calls.Load() != 9 {
				t.Errorf("after %d calls the run is %+v", calls.Load(), w)
			}
			b.pass(t, 30)
			b.Until(t, run, waits)
			if n := calls.Load(); n != 9 {
				t.Errorf("%d calls within thirty days", n)
			}
			b.pass(t, 1)
			b.Until(t, run, func(r *runs.Run) bool { return r.Detail == "" })
			answer()
			testkit.Eventually(t, time.Minute, func() error {
				if n := calls.Load(); n < 18 {
					return fmt.Errorf("%d calls", n)
				}
				return nil
			})
			b.Until(t, run, waits)
			if n := calls.Load(); n != 18 {
				t.Errorf("%d calls within sixty days", n)
			}
			b.raised(t, r, api)
			if w := b.ended(t, run); w.Status != runs.Done || w.Detail != "" {
				t.Errorf("with more calls the run is %+v", w)
			}
			if o.What == reconcile.Events {
				none(t, b.missed(t))
			}
		})
	}
}

// A list that waits for calls is no trouble of its type, although another call may be made: the run waits with it, and passes nothing over. So does an object that is asked for by its name.
func TestNoTypeIsPassedOverForCalls(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/list", "/things/gone"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 220, living)
			b.copied(t, "gone")
			var more atomic.Bool
			b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
				switch {
				case c.Path == path && !more.Load():
					return nil, reconcile.UsedUp(10 * time.Millisecond)
				case c.Path == "/others":
					return b.found(`{"things":[]}`), nil
				}
				return nil, nil
			}
			b.paired(t)
			run := b.order(t, reconcile.Order{What: reconcile.Objects})
			b.Until(t, run, func(r *runs.Run) bool { return strings.HasPrefix(r.Detail, spent) })
			times := b.api.made(path)
			testkit.Eventually(t, time.Minute, func() error {
				if n := b.api.made(path); n < times+2 {
					return fmt.Errorf("asked for %d times", n)
				}
				return nil
			})
			if r, err := runs.Show(t.Context(), b.Operator, run); err != nil || r.Status != runs.Running || r.Troubles != 0 {
				t.Errorf("the run is %+v, %v", r, err)
			}
			more.Store(true)
			r := b.ended(t, run)
			has(t, r, counts{reconcile.Unlisted: 0, reconcile.Ghosts: 1, reconcile.Left: 0})
		})
	}
}

// missed are the events of the account of which the log has none.
func (b *shop) missed(t *testing.T) (missed []string) {
	t.Helper()
	log := map[string]bool{}
	for _, key := range b.DB.Rows(t, `SELECT event_id FROM events`) {
		log[key] = true
	}
	for _, e := range b.fake.Events() {
		if !log[e.ID] {
			missed = append(missed, e.ID)
		}
	}
	return missed
}

// Looks whose calls are used wait, and their hints say so; a person's is made of what is kept for that. When more calls are allowed, all are made.
func TestHintsWaitForCalls(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 42, Objects: 8})
	b.fake.Live(60)
	b.deliver(t, every)
	b.fake.Advance(time.Minute)
	wanted := b.fake.Create("", "customer", nil)
	b.deliver(t, every)
	b.fake.Advance(time.Minute)
	owed := len(b.DB.Rows(t, `SELECT object_id FROM objects WHERE look_after <> 0`))
	if owed == 0 {
		t.Fatal("no object owes a look")
	}
	api, calls := b.tenMonthly(t, nil)
	b.DB.Exec(t, `INSERT INTO budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight, calls)
		VALUES ($1, '', 1, now(), now(), 0, '{}', jsonb_build_object(floor(extract(epoch FROM now()) / 86400)::int, 9))`, b.Source)
	r := b.runner(t, api, asIs)
	looksOf(t, r, "one")
	waiting := func(n int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if got := b.DB.Rows(t, `SELECT object_id FROM hints WHERE starts_with(error, $1) AND due > now() AND attempts = 0`, spent); len(got) != n {
				return fmt.Errorf("%d hints wait, want %d", len(got), n)
			}
			return nil
		})
	}
	waiting(owed)
	if n := calls.Load(); n != 0 {
		t.Errorf("%d calls were made", n)
	}
	b.wish(t, "customer", wanted, "me", "in doubt")
	testkit.Eventually(t, time.Minute, func() error {
		if got := b.DB.Rows(t, `SELECT event_id FROM events WHERE origin = 'reconcile'`); len(got) != 1 {
			return errors.New("no look was made")
		}
		return nil
	})
	waiting(owed)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls were made for one look", n)
	}
	b.raised(t, r, api)
	testkit.Eventually(t, time.Minute, func() error {
		if left := b.DB.Rows(t, `SELECT object_id FROM hints WHERE error <> ''`); len(left) > 0 {
			return fmt.Errorf("waiting are %q", left)
		}
		if made := b.DB.Rows(t, `SELECT DISTINCT object_id FROM events WHERE origin = 'reconcile'`); len(made) <= owed {
			return fmt.Errorf("looks were made at %d objects, of %d and the one that was wanted", len(made), owed)
		}
		return nil
	})
}
