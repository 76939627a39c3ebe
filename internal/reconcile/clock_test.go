package reconcile_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
)

func TestClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c reconcile.Clock
		if now := time.Now(); !c.Now().Equal(now) || c.Longest() != 0 {
			t.Errorf("before any answer: %s, %s", c.Now(), c.Longest())
		}
		tell := func(elapsed, ahead time.Duration) {
			c.Told(time.Now(), elapsed, time.Now().Add(ahead), 0)
		}
		tell(3*time.Second, -time.Minute)
		if got := time.Until(c.Now()); got != -time.Minute {
			t.Errorf("ahead by %s", got)
		}
		c.Told(time.Now(), time.Second, time.Time{}, 0)
		if got := time.Until(c.Now()); got != -time.Minute || c.Longest() != 3*time.Second {
			t.Errorf("after an answer without Date: ahead by %s, longest %s", got, c.Longest())
		}
		// The longest is remembered for five minutes at least, and for ten at most.
		<-time.After(5 * time.Minute)
		tell(time.Second, 0)
		if c.Longest() != 3*time.Second {
			t.Errorf("longest %s", c.Longest())
		}
		<-time.After(5 * time.Minute)
		if c.Longest() != time.Second {
			t.Errorf("longest %s", c.Longest())
		}
		<-time.After(time.Hour)
		if c.Longest() != 0 {
			t.Errorf("longest %s", c.Longest())
		}
	})
}

// An answer whose Date is off the database's clock tells of a time that holds by either clock, unless they are so far apart that one is wrong.
func TestAnswersHoldByEitherClock(t *testing.T) {
	t.Parallel()
	database := time.Date(2026, time.November, 22, 12, 0, 0, 500e6, time.UTC)
	asked := time.Now()
	at := func(d time.Duration) time.Time { return asked.Add(d) }
	const told, began, now = 10 * time.Millisecond, 20 * time.Millisecond, 120 * time.Millisecond
	for off, want := range map[time.Duration]reconcile.Response{
		0:               {},
		-time.Second:    {}, // what is less than a second is not seen
		3 * time.Second: {Skew: 2380 * time.Millisecond, Widened: 2390 * time.Millisecond},
		// As little as it can be behind, and as much as it takes to reach the end of the call.
		-3 * time.Second: {Skew: -2510 * time.Millisecond, Widened: 2620 * time.Millisecond},
		time.Hour:        {Skew: time.Hour - 620*time.Millisecond},
		-time.Hour:       {Skew: -time.Hour + 490*time.Millisecond},
	} {
		r := &reconcile.Response{Date: database.Add(off).Truncate(time.Second), Elapsed: now - began}
		if off == -time.Second {
			r.Date = r.Date.Add(time.Second)
		}
		from, until := r.Date.Add(-r.Elapsed), r.Date.Add(time.Second)
		r.Widen(database, asked, at(told), at(began), at(now))
		if r.Skew != want.Skew || r.Widened != want.Widened || r.Elapsed != now-began+want.Widened {
			t.Errorf("off by %s: skew %s, widened %s, elapsed %s", off, r.Skew, r.Widened, r.Elapsed)
		}
		lo, hi := r.Date.Add(-r.Elapsed), r.Date.Add(time.Second)
		if lo.After(from) || hi.Before(until) {
			t.Errorf("off by %s: %s to %s does not hold by the API's clock", off, lo, hi)
		}
		if off.Abs() < time.Minute && (lo.After(database.Add(began-told)) || hi.Before(database.Add(now))) {
			t.Errorf("off by %s: %s to %s does not hold by the database's clock", off, lo, hi)
		}
	}
	r := &reconcile.Response{Elapsed: time.Second}
	if r.Widen(database, asked, asked, asked, asked); r.Elapsed != time.Second || !r.Date.IsZero() || r.Skew != 0 {
		t.Errorf("without Date: %+v", r)
	}
}

// Who asked for the database's clock may have waited long after it was read, or before: a Date
// that is ahead, or behind, is made up for either way, as far as that is done. The window holds
// whenever the database read its clock.
func TestWidenedByWhatMayBe(t *testing.T) {
	t.Parallel()
	const s = time.Second
	database := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	asked := time.Now()
	for _, tc := range []struct{ waited, ahead, skew, widened time.Duration }{
		// A Date that is ahead is told at the end of the call, a second after its beginning.
		{0, 3 * s, 3 * s, 3 * s},
		{2 * s, 3 * s, s, 3 * s},
		{4 * s, 3 * s, 0, 3 * s},
		{4 * s, 8 * s, 4 * s, mostSkew}, // were it all of it, one clock would be wrong
		{4 * s, 10 * s, 6 * s, 0},
		// One that is behind is of the beginning, after the wait.
		{0, 0, 0, 0},
		{0, -3 * s, -2 * s, 3 * s}, // the call lasted for a second more
		{2 * s, -3 * s, 0, 3 * s},
		{4 * s, -3 * s, 0, 3 * s},
		{4 * s, -8 * s, -3 * s, s + mostSkew},
		{4 * s, -11 * s, -6 * s, 0},
		{6 * s, -2 * s, 0, 5 * s}, // two behind, or three ahead
	} {
		began := asked.Add(tc.waited)
		now := began.Add(s)
		r := &reconcile.Response{Date: database.Add(s + tc.ahead), Elapsed: s}
		if tc.ahead <= 0 {
			r.Date = database.Add(tc.waited + tc.ahead)
		}
		r.Widen(database, asked, began, began, now)
		if r.Skew != tc.skew || r.Widened != tc.widened || r.Elapsed != s+tc.widened {
			t.Errorf("waited %s, ahead %s: skew %s, widened %s, elapsed %s", tc.waited, tc.ahead, r.Skew, r.Widened, r.Elapsed)
		}
		lo, hi := r.Date.Add(-r.Elapsed), r.Date.Add(s)
		if tc.ahead.Abs() <= mostSkew && (lo.After(database) ||
			tc.ahead <= 0 && hi.Before(database.Add(now.Sub(asked)))) {
			t.Errorf("waited %s, ahead %s: from %s to %s, and the call may have begun at %s", tc.waited, tc.ahead, lo, hi, database)
		}
	}
}

// mostSkew is what is made up for at most.
const mostSkew = 5 * time.Second

// Somebody is told of clocks that differ, once in a while, and by a metric.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c, reg := b.client(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		fmt.Fprint(w, `{}`)
	}), nil)
	for range 3 {
		if _, err := c.Do(t.Context(), customer); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.log.count("the API's clock and the database's differ"); n != 1 {
		t.Errorf("said %d times: %s", n, b.log.String())
	}
	if skew := c.Skew(); skew > -time.Hour+2*time.Second || skew < -2*time.Hour {
		t.Errorf("skew %s", skew)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "postern_api_clock_skew_seconds" && f.GetMetric()[0].GetGauge().GetValue() == c.Skew().Seconds() {
			return
		}
	}
	t.Error("the metric does not say so")
}

// The skew farthest from 0 is remembered, and said again when it was forgotten.
func TestSkewIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c reconcile.Clock
		tell := func(skew, of time.Duration, first bool) {
			t.Helper()
			if gotOf, got := c.Told(time.Now(), 0, time.Now(), skew); gotOf != of || got != first || c.Skew() != of {
				t.Errorf("told of %s: %s, first %t, skew %s", skew, gotOf, got, c.Skew())
			}
		}
		tell(time.Second, time.Second, false) // which is tolerated
		tell(-2*time.Second, -2*time.Second, true)
		tell(1500*time.Millisecond, -2*time.Second, false)
		<-time.After(6 * time.Minute)
		tell(3*time.Second, 3*time.Second, false)
		<-time.After(20 * time.Minute)
		tell(0, 0, false)
		tell(4*time.Second, 4*time.Second, true)
	})
}

// The window of a response holds by the clock that stamps events, wherever between the API's and the database's that is, or
// beside both.
func TestResponse_eventsAreStampedByAnotherClock_holdsByThatClock(t *testing.T) {
	t.Parallel()
	const s = time.Second
	database := time.Date(2026, time.November, 25, 12, 0, 0, 0, time.UTC)
	asked := time.Now()
	began, now := asked, asked.Add(s)
	for name, tc := range map[string]struct {
		// ahead is the API's clock, and stamps the events' clock, both counted from the database's.
		ahead, stamps time.Duration
		// delivery is what events take to arrive, at least.
		delivery time.Duration
		// widest is how long the window may be.
		widest time.Duration
	}{
		"all clocks agree":                    {0, 0, 0, 2 * s},
		"events arrive after a second":        {0, 0, s, 3 * s},
		"stamps behind both":                  {0, -4 * s, s, 7 * s},
		"stamps ahead of both":                {0, 4 * s, s, 7 * s},
		"API ahead, stamps with the database": {4 * s, 0, 0, 7 * s},
		"API and stamps behind the database":  {-4 * s, -4 * s, s, 8 * s},
	} {
		r := &reconcile.Response{Date: database.Add(s + tc.ahead), Elapsed: s}
		r.Widen(database, asked, asked, began, now)
		r.HoldForEvents(database, asked, asked, began, now, tc.delivery-tc.stamps)
		from, until := r.Date.Add(-r.Elapsed), r.Date.Add(s)
		first, last := database.Add(tc.stamps), database.Add(s+tc.stamps)
		if from.After(first) || until.Before(last) {
			t.Errorf("%s: %s to %s, and the call lasted from %s to %s on the clock of events", name, from, until, first, last)
		}
		if got := until.Sub(from); got > tc.widest {
			t.Errorf("%s: a window of %s, want %s at most", name, got, tc.widest)
		}
	}
	r := &reconcile.Response{Elapsed: s}
	if r.HoldForEvents(database, asked, asked, began, now, 0); r.Elapsed != s || !r.Date.IsZero() {
		t.Errorf("a response without Date became %+v", r)
	}
}

// The delay of a source's events comes from the newest outcomes, whatever other sources, refetches, integers and simulated clocks
// are among them.
func TestReadEventDelay_outcomesOfAllKinds_takesTheLeastOfTheSource(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool := b.db.Role(t, "processor")
	b.db.Exec(t, `INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'stripe'), (2, 'other', 'stripe')`)
	n := 0
	outcome := func(source, run int, age, delay time.Duration, seen string) {
		t.Helper()
		n++
		b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, version, attempts, at, rule_version)
			SELECT (ms << 20) + $6, $2, $1, 1, '', 'customer', 'cus_1', 'applied', 'new', jsonb_build_object('at', ms * 1000 - $4::bigint, 'seen', $5::bigint), 1, now(), 3
			FROM (SELECT ((extract(epoch FROM now()) - $3::float8) * 1000)::bigint AS ms) m`, source, run, age.Seconds(), delay.Microseconds(), seen, n)
	}
	want := func(want time.Duration, known bool) {
		t.Helper()
		got, ok, err := reconcile.ReadEventDelay(t.Context(), pool, 1)
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
	outcome(1, 0, time.Minute, 50_000*time.Hour, "0") // an integer
	outcome(1, 0, time.Minute, 9*time.Second, "0")
	want(9*time.Second, true)
	outcome(1, 0, 30*time.Minute, 700*time.Millisecond, "0")
	want(700*time.Millisecond, true)
	outcome(1, 0, time.Second, -2*time.Second, "0")
	want(-2*time.Second, true)
}

// A client learns the delay from the log, and applies it to each response.
func TestClient_eventsArriveLongAfterTheirStamps_widensTheWindow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) })
	widened := func() time.Duration {
		t.Helper()
		c, _ := b.client(t, url, nil)
		r, err := c.Do(t.Context(), customer)
		if err != nil {
			t.Fatal(err)
		}
		return r.Widened
	}
	if got := widened(); got >= time.Second { // the response may pass into the next second, which Date then tells
		t.Errorf("without events the window is wider by %s", got)
	}
	b.db.Exec(t, `INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'stripe')`)
	b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, version,
			attempts, at, rule_version)
		SELECT ms << 20, 0, 1, 1, '', 'customer', 'cus_1', 'applied', 'new', jsonb_build_object('at', ms * 1000 - 4000000, 'seen', 0),
			1, now(), 3 FROM (SELECT (extract(epoch FROM now()) * 1000)::bigint AS ms) m`)
	if got := widened(); got < 2*time.Second || got > mostSkew { // Date is cut to the second, up to which nothing is widened
		t.Errorf("with events that take 4 s the window is wider by %s", got)
	}
}
