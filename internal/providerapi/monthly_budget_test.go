package providerapi_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// storedCalls returns the number of stored calls of a budget and of their days.
func (b *databaseEnv) storedCalls(t testing.TB, account string) (calls, days int) {
	t.Helper()
	row := b.db.Pool.QueryRow(t.Context(), `SELECT coalesce(sum(c.value::int), 0), count(*) FROM rate_budgets b CROSS
		JOIN LATERAL jsonb_each_text(b.calls) c WHERE b.account = $1`, account)
	testkit.Must(t, row.Scan(&calls, &days))
	return calls, days
}

// No thirty days have more calls than the quota, with two processes and any result of the calls.
// Each call counts once. A caller may call after the returned wait and not before.
func TestMonthlyQuota_anyThirtyDays_neverExceeded(t *testing.T) {
	t.Parallel()
	const monthly, byItself, day = 20, 18, 24 * time.Hour
	b := newDatabaseEnv(t)
	forward := b.stopClock(t)
	first := time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC) // the time of the stopped clock
	var clients []*providerapi.Client
	for range 2 {
		c, _ := b.client(t, unusedURL, func(a *provider.API) {
			a.Rate, a.Concurrency, a.MonthlyCalls = 10000, 1000, monthly
		})
		clients = append(clients, c)
	}
	accounts, now := 0, first
	rapid.Check(t, func(r *rapid.T) {
		accounts++
		account := fmt.Sprint("acct_", accounts)
		var taken []time.Time
		move := func(d time.Duration) { forward(d); now = now.Add(d) }
		call := func(requested bool) (ok bool, wait time.Duration) {
			c, name := clients[len(taken)%2], fmt.Sprint(len(taken))
			try, bound := c.TryTake, byItself
			if requested {
				try, bound = c.TryTakeForOperator, monthly
			}
			counts := 0 // by the days for which a call counts, as the budget does
			for _, at := range taken {
				if now.Unix()/86400-at.Unix()/86400 <= 30 {
					counts++
				}
			}
			ok, _, err := try(t.Context(), account, name)
			wait, until, spent := providerapi.MonthlyBudgetWait(err)
			if err != nil && !spent || ok == spent || ok != (counts < bound) {
				r.Fatalf("%d calls count of %d: taken %t, %v", counts, bound, ok, err)
			}
			if spent && (wait <= 0 || !now.Add(wait).Equal(until)) {
				r.Fatalf("the returned wait is %s until %s, at %s", wait, until, now)
			}
			if ok {
				taken = append(taken, now)
			}
			return ok, wait
		}
		for range rapid.IntRange(4, 10).Draw(r, "steps") {
			if d := rapid.SampledFrom([]time.Duration{0, time.Hour, 7 * time.Hour, day, 9 * day, 29*day + 23*time.Hour,
				31 * day}).Draw(r, "forward"); d > 0 {
				move(d)
			}
			requested := rapid.IntRange(0, 3).Draw(r, "requested") == 0
			for range rapid.IntRange(1, 12).Draw(r, "calls") {
				if ok, wait := call(requested); !ok {
					move(wait - time.Second)
					if ok, _ := call(requested); ok {
						r.Fatalf("a call succeeded a second before the end of the wait")
					}
					move(time.Second)
					if ok, wait := call(requested); !ok {
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
		if _, days := b.storedCalls(t, account); days > 31 {
			r.Fatalf("%d days are stored", days)
		}
	})
}

// A call that was counted while the clock was ahead counts from the day on which this is noticed,
// and no longer than any other call.
func TestMonthlyQuota_clockSetBack_countsFutureCalls(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	forward := b.stopClock(t)
	c, _ := b.client(t, unusedURL, func(a *provider.API) { a.MonthlyCalls = 3 })
	names := 0
	call := func(want bool) {
		t.Helper()
		names++
		if ok, _, err := c.TryTake(t.Context(), "", fmt.Sprint(names)); ok != want {
			calls, days := b.storedCalls(t, "")
			t.Fatalf("taken %t (%v), of %d calls on %d days", ok, err, calls, days)
		}
	}
	call(true)
	forward(20 * 24 * time.Hour)
	call(true)
	call(true)
	forward(-20 * 24 * time.Hour)
	call(false)
	if calls, days := b.storedCalls(t, ""); calls != 3 || days != 1 {
		t.Errorf("%d calls on %d days", calls, days)
	}
	forward(30 * 24 * time.Hour)
	call(false)
	forward(24 * time.Hour)
	call(true)
	if calls, days := b.storedCalls(t, ""); calls != 1 || days != 1 {
		t.Errorf("%d calls on %d days", calls, days)
	}
}

// Each account has its own quota. A call above it is not made, and the log reports it once for as
// long as calls wait. Operators may use the last tenth.
func TestMonthlyQuota_severalAccounts_areSeparate(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	forward := b.stopClock(t)
	m := &countingAPI{}
	c, _ := b.client(t, reconciled.Serve(t, m.ServeHTTP), func(a *provider.API) { a.MonthlyCalls = 10 })
	do := func(account string, requested, want bool) {
		t.Helper()
		_, err := c.Do(t.Context(), provider.Call{Account: account, Path: "/v1/customers/cus_1", Manual: requested})
		if _, _, spent := providerapi.MonthlyBudgetWait(err); (err == nil) != want || spent == want {
			t.Fatalf("of account %q, requested %t: %v", account, requested, err)
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
	if n := b.log.Count("calls to the API wait"); n != 1 || len(m.arrivals) != 11 {
		t.Errorf("logged %d times, and %d calls were made", n, len(m.arrivals))
	}
	forward(31 * 24 * time.Hour)
	for range 9 {
		do("", false, true)
	}
	do("", false, false)
	if n := b.log.Count("calls to the API wait"); n != 2 {
		t.Errorf("logged %d times", n)
	}
	for _, part := range []string{"source=shop", "the calls of thirty days are used: 9 of 10 (api.monthly, the rest " +
		"is reserved for requests of an operator for one object); calls resume at 2027-01-23T00:00:00Z, or when " +
		"api.monthly is raised"} {
		if b.log.Count(part) == 0 {
			t.Errorf("the log does not say %q", part)
		}
	}
}
