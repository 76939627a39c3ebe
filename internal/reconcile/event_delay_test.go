package reconcile_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
)

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
