package providerapi_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

func TestClock_responses_setOffsetAndLongest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c providerapi.Clock
		if now := time.Now(); !c.Now().Equal(now) || c.MaxLatency() != 0 {
			t.Errorf("before any response: %s, %s", c.Now(), c.MaxLatency())
		}
		observe := func(elapsed, ahead time.Duration) {
			c.Observe(time.Now(), elapsed, time.Now().Add(ahead), 0)
		}
		observe(3*time.Second, -time.Minute)
		if got := time.Until(c.Now()); got != -time.Minute {
			t.Errorf("ahead by %s", got)
		}
		c.Observe(time.Now(), time.Second, time.Time{}, 0)
		if got := time.Until(c.Now()); got != -time.Minute || c.MaxLatency() != 3*time.Second {
			t.Errorf("after a response without Date: ahead by %s, longest %s", got, c.MaxLatency())
		}
		// The longest duration is remembered for five to ten minutes.
		<-time.After(5 * time.Minute)
		observe(time.Second, 0)
		if c.MaxLatency() != 3*time.Second {
			t.Errorf("longest %s", c.MaxLatency())
		}
		<-time.After(5 * time.Minute)
		if c.MaxLatency() != time.Second {
			t.Errorf("longest %s", c.MaxLatency())
		}
		<-time.After(time.Hour)
		if c.MaxLatency() != 0 {
			t.Errorf("longest %s", c.MaxLatency())
		}
	})
}

// If the Date of a response differs from the database's clock, the time range holds by both clocks.
// If they differ too much, one clock is wrong and the range stays.
func TestResponse_dateOffDatabaseClock_windowHoldsByBoth(t *testing.T) {
	t.Parallel()
	database := time.Date(2026, time.November, 22, 12, 0, 0, 500e6, time.UTC)
	requested := time.Now()
	at := func(d time.Duration) time.Time { return requested.Add(d) }
	const reported, began, now = 10 * time.Millisecond, 20 * time.Millisecond, 120 * time.Millisecond
	for off, want := range map[time.Duration]providerapi.Response{
		0:               {},
		-time.Second:    {}, // less than a second is not noticed
		3 * time.Second: {Skew: 2380 * time.Millisecond, Widened: 2390 * time.Millisecond},
		// The smallest possible offset, and as much as is needed to reach the end of the call.
		-3 * time.Second: {Skew: -2510 * time.Millisecond, Widened: 2620 * time.Millisecond},
		time.Hour:        {Skew: time.Hour - 620*time.Millisecond},
		-time.Hour:       {Skew: -time.Hour + 490*time.Millisecond},
	} {
		r := &providerapi.Response{Date: database.Add(off).Truncate(time.Second), Elapsed: now - began}
		if off == -time.Second {
			r.Date = r.Date.Add(time.Second)
		}
		from, until := r.Date.Add(-r.Elapsed), r.Date.Add(time.Second)
		r.Widen(database, requested, at(reported), at(began), at(now))
		if r.Skew != want.Skew || r.Widened != want.Widened || r.Elapsed != now-began+want.Widened {
			t.Errorf("off by %s: skew %s, widened %s, elapsed %s", off, r.Skew, r.Widened, r.Elapsed)
		}
		lo, hi := r.Date.Add(-r.Elapsed), r.Date.Add(time.Second)
		if lo.After(from) || hi.Before(until) {
			t.Errorf("off by %s: %s to %s does not hold by the API's clock", off, lo, hi)
		}
		if off.Abs() < time.Minute && (lo.After(database.Add(began-reported)) || hi.Before(database.Add(now))) {
			t.Errorf("off by %s: %s to %s does not hold by the database's clock", off, lo, hi)
		}
	}
	r := &providerapi.Response{Elapsed: time.Second}
	if r.Widen(database, requested, requested, requested, requested); r.Elapsed != time.Second || !r.Date.IsZero() ||
		r.Skew != 0 {
		t.Errorf("without Date: %+v", r)
	}
}

// The reader of the database's clock may have waited long after the database read it, or before. A
// Date that is ahead or behind widens the range for both cases, up to the limit. The range holds
// for any time of the reading.
func TestResponse_slowClockReading_widensTheWindow(t *testing.T) {
	t.Parallel()
	const s = time.Second
	database := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	requested := time.Now()
	for _, tc := range []struct{ waited, ahead, skew, widened time.Duration }{
		// A Date that is ahead is from the end of the call, a second after its start.
		{0, 3 * s, 3 * s, 3 * s},
		{2 * s, 3 * s, s, 3 * s},
		{4 * s, 3 * s, 0, 3 * s},
		{4 * s, 8 * s, 4 * s, maxSkew}, // if all of it were an offset, one clock would be wrong
		{4 * s, 10 * s, 6 * s, 0},
		// A Date that is behind is from the start of the call, after the wait.
		{0, 0, 0, 0},
		{0, -3 * s, -2 * s, 3 * s}, // the call lasted for another second
		{2 * s, -3 * s, 0, 3 * s},
		{4 * s, -3 * s, 0, 3 * s},
		{4 * s, -8 * s, -3 * s, s + maxSkew},
		{4 * s, -11 * s, -6 * s, 0},
		{6 * s, -2 * s, 0, 5 * s}, // two seconds behind, or three ahead
	} {
		began := requested.Add(tc.waited)
		now := began.Add(s)
		r := &providerapi.Response{Date: database.Add(s + tc.ahead), Elapsed: s}
		if tc.ahead <= 0 {
			r.Date = database.Add(tc.waited + tc.ahead)
		}
		r.Widen(database, requested, began, began, now)
		if r.Skew != tc.skew || r.Widened != tc.widened || r.Elapsed != s+tc.widened {
			t.Errorf("waited %s, ahead %s: skew %s, widened %s, elapsed %s", tc.waited, tc.ahead, r.Skew, r.Widened,
				r.Elapsed)
		}
		lo, hi := r.Date.Add(-r.Elapsed), r.Date.Add(s)
		if tc.ahead.Abs() <= maxSkew && (lo.After(database) ||
			tc.ahead <= 0 && hi.Before(database.Add(now.Sub(requested)))) {
			t.Errorf("waited %s, ahead %s: from %s to %s, and the call may have begun at %s", tc.waited, tc.ahead, lo,
				hi, database)
		}
	}
}

// maxSkew is the largest offset that widens the range.
const maxSkew = 5 * time.Second

// Clocks that differ are logged once in a while and set a metric.
func TestClient_clocksDiffer_logsOnceAndSetsMetric(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	c, reg := b.client(t, reconciled.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		fmt.Fprint(w, `{}`)
	}), nil)
	for range 3 {
		mustCall(t, c, customerCall)
	}
	if n := b.log.Count("the API's clock and the database's differ"); n != 1 {
		t.Errorf("logged %d times: %s", n, b.log.String())
	}
	if skew := c.Skew(); skew > -time.Hour+2*time.Second || skew < -2*time.Hour {
		t.Errorf("skew %s", skew)
	}
	if got := metricSum(t, reg, "postern_api_clock_skew_seconds", ""); got != c.Skew().Seconds() {
		t.Errorf("the metric has a skew of %v s", got)
	}
}

// The largest skew is remembered, and reported again after it was forgotten.
func TestClock_largestSkew_isRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c providerapi.Clock
		observe := func(skew, of time.Duration, first bool) {
			t.Helper()
			if gotOf, got := c.Observe(time.Now(), 0, time.Now(), skew); gotOf != of || got != first || c.Skew() != of {
				t.Errorf("after the skew %s: %s, first %t, skew %s", skew, gotOf, got, c.Skew())
			}
		}
		observe(time.Second, time.Second, false) // it is tolerated
		observe(-2*time.Second, -2*time.Second, true)
		observe(1500*time.Millisecond, -2*time.Second, false)
		<-time.After(6 * time.Minute)
		observe(3*time.Second, 3*time.Second, false)
		<-time.After(20 * time.Minute)
		observe(0, 0, false)
		observe(4*time.Second, 4*time.Second, true)
	})
}

// The time range of a response holds by the clock that stamps events, whether it is between the
// API's and the database's clock or outside.
func TestResponse_eventsAreStampedByAnotherClock_holdsByThatClock(t *testing.T) {
	t.Parallel()
	const s = time.Second
	database := time.Date(2026, time.November, 25, 12, 0, 0, 0, time.UTC)
	requested := time.Now()
	began, now := requested, requested.Add(s)
	for name, tc := range map[string]struct {
		// ahead is the offset of the API's clock and stamps that of the events' clock, both from
		// the database's.
		ahead, stamps time.Duration
		// delivery is the shortest time until an event arrives.
		delivery time.Duration
		// widest is the longest allowed time range.
		widest time.Duration
	}{
		"all clocks agree":                    {0, 0, 0, 2 * s},
		"events arrive after a second":        {0, 0, s, 3 * s},
		"stamps behind both":                  {0, -4 * s, s, 7 * s},
		"stamps ahead of both":                {0, 4 * s, s, 7 * s},
		"API ahead, stamps with the database": {4 * s, 0, 0, 7 * s},
		"API and stamps behind the database":  {-4 * s, -4 * s, s, 8 * s},
	} {
		r := &providerapi.Response{Date: database.Add(s + tc.ahead), Elapsed: s}
		r.Widen(database, requested, requested, began, now)
		r.WidenForEvents(database, requested, requested, began, now, tc.delivery-tc.stamps)
		from, until := r.Date.Add(-r.Elapsed), r.Date.Add(s)
		first, last := database.Add(tc.stamps), database.Add(s+tc.stamps)
		if from.After(first) || until.Before(last) {
			t.Errorf("%s: %s to %s, and the call lasted from %s to %s on the clock of events", name, from, until, first,
				last)
		}
		if got := until.Sub(from); got > tc.widest {
			t.Errorf("%s: a time range of %s, want %s at most", name, got, tc.widest)
		}
	}
	r := &providerapi.Response{Elapsed: s}
	if r.WidenForEvents(database, requested, requested, began, now, 0); r.Elapsed != s || !r.Date.IsZero() {
		t.Errorf("a response without Date became %+v", r)
	}
}

// The delay of a source's events comes from the newest outcomes. Outcomes of other sources,
// replays, refetches, integer versions and simulated clocks are skipped.
func TestReadEventDelay_outcomesOfAllKinds_takesTheLeastOfTheSource(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	pool := b.db.Role(t, "processor")
	b.db.Exec(t, `INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'stripe'),
		(2, 'other', 'stripe')`)
	n := 0
	outcome := func(source, run int, age, delay time.Duration, seen string) {
		t.Helper()
		n++
		b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, version, attempts, at, rule_version)
			SELECT (ms << 20) + $6, $2, $1, 1, '', 'customer', 'cus_1', 'applied', 'new', jsonb_build_object('at',
				ms * 1000 - $4::bigint, 'seen', $5::bigint), 1, now(), 3
			FROM (SELECT ((extract(epoch FROM now()) - $3::float8) * 1000)::bigint AS ms) m`, source, run,
			age.Seconds(), delay.Microseconds(), seen, n)
	}
	want := func(want time.Duration, known bool) {
		t.Helper()
		got, ok, err := providerapi.ReadEventDelay(t.Context(), pool, 1)
		if err != nil || got != want || ok != known {
			t.Errorf("%s, %t (%v), want %s, %t", got, ok, err, want, known)
		}
	}
	want(0, false)
	outcome(2, 0, 0, 100*time.Millisecond, "0")          // another source
	outcome(1, 7, 0, 200*time.Millisecond, "0")          // a replay
	outcome(1, 0, 0, 300*time.Millisecond, "1795176001") // a refetch
	outcome(1, 0, 0, -3*time.Hour, "0")                  // a simulated clock
	outcome(1, 0, 2*time.Hour, 400*time.Millisecond, "0")
	want(0, false)
	outcome(1, 0, time.Minute, 50_000*time.Hour, "0") // an integer version
	outcome(1, 0, time.Minute, 9*time.Second, "0")
	want(9*time.Second, true)
	outcome(1, 0, 30*time.Minute, 700*time.Millisecond, "0")
	want(700*time.Millisecond, true)
	outcome(1, 0, time.Second, -2*time.Second, "0")
	want(-2*time.Second, true)
}

// A client reads the delay from the log and applies it to each response.
func TestClient_eventsArriveLongAfterTheirStamps_widensTheWindow(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	url := reconciled.Serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) })
	widened := func() time.Duration {
		t.Helper()
		c, _ := b.client(t, url, nil)
		return mustCall(t, c, customerCall).Widened
	}
	if got := widened(); got >= time.Second { // the response may fall into the next second of the Date
		t.Errorf("without events the time range is wider by %s", got)
	}
	b.db.Exec(t, `INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'stripe')`)
	b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		version,
			attempts, at, rule_version)
		SELECT ms << 20, 0, 1, 1, '', 'customer', 'cus_1', 'applied', 'new', jsonb_build_object('at',
			ms * 1000 - 4000000, 'seen', 0),
			1, now(), 3 FROM (SELECT (extract(epoch FROM now()) * 1000)::bigint AS ms) m`)
	// Date is cut to the second, up to which the range is not widened
	if got := widened(); got < 2*time.Second || got > maxSkew {
		t.Errorf("with events that take 4 s the time range is wider by %s", got)
	}
}
