package reconcile_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
)

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

// Who asked for the database's clock may have waited long after it was read, or before: a Date that is ahead is made up for either way, as far as that is done.
func TestWidenedByWhatMayBe(t *testing.T) {
	t.Parallel()
	database := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	asked := time.Now()
	for _, tc := range []struct{ waited, ahead, skew, widened time.Duration }{
		{0, 3 * time.Second, 3 * time.Second, 3 * time.Second},
		{2 * time.Second, 3 * time.Second, time.Second, 3 * time.Second},
		{4 * time.Second, 3 * time.Second, 0, 3 * time.Second},
		{4 * time.Second, 8 * time.Second, 4 * time.Second, mostSkew}, // were it all of it, one clock would be wrong
		{4 * time.Second, 10 * time.Second, 6 * time.Second, 0},
	} {
		told := asked.Add(tc.waited)
		began := told
		now := began.Add(time.Second)
		r := &reconcile.Response{Date: database.Add(time.Second + tc.ahead), Elapsed: time.Second}
		r.Widen(database, asked, told, began, now)
		if r.Skew != tc.skew || r.Widened != tc.widened || r.Elapsed != time.Second+tc.widened {
			t.Errorf("waited %s, ahead %s: skew %s, widened %s, elapsed %s", tc.waited, tc.ahead, r.Skew, r.Widened, r.Elapsed)
		}
		if lo := r.Date.Add(-r.Elapsed); tc.ahead <= mostSkew && lo.After(database) {
			t.Errorf("waited %s, ahead %s: from %s on, and the call may have begun at %s", tc.waited, tc.ahead, lo, database)
		}
	}
}

// A Date that is behind is made up for likewise. Where the wait was so long that it may be either, the answer's window holds whenever it was that the database read its clock.
func TestWidenedByWhatMayBeBehind(t *testing.T) {
	t.Parallel()
	database := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	asked := time.Now()
	for _, tc := range []struct{ waited, behind, skew, widened time.Duration }{
		{0, 0, 0, 0},
		{0, 3 * time.Second, -2 * time.Second, 3 * time.Second}, // the call lasted for a second more
		{2 * time.Second, 3 * time.Second, 0, 3 * time.Second},
		{4 * time.Second, 3 * time.Second, 0, 3 * time.Second},
		{4 * time.Second, 8 * time.Second, -3 * time.Second, time.Second + mostSkew},
		{4 * time.Second, 11 * time.Second, -6 * time.Second, 0},
		{6 * time.Second, 2 * time.Second, 0, 5 * time.Second}, // two behind, or three ahead
	} {
		began := asked.Add(tc.waited)
		now := began.Add(time.Second)
		r := &reconcile.Response{Date: database.Add(tc.waited - tc.behind), Elapsed: time.Second}
		r.Widen(database, asked, began, began, now)
		if r.Skew != tc.skew || r.Widened != tc.widened || r.Elapsed != time.Second+tc.widened {
			t.Errorf("waited %s, behind %s: skew %s, widened %s, elapsed %s", tc.waited, tc.behind, r.Skew, r.Widened, r.Elapsed)
		}
		lo, hi := r.Date.Add(-r.Elapsed), r.Date.Add(time.Second)
		if tc.behind <= mostSkew && (lo.After(database) || hi.Before(database.Add(now.Sub(asked)))) {
			t.Errorf("waited %s, behind %s: from %s to %s, and the call may have begun at %s, or ended at %s", tc.waited, tc.behind, lo, hi, database, database.Add(now.Sub(asked)))
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
