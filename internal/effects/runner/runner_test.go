package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

// quick are settings that nobody has to wait for.
var quick = runner.Settings{PollEvery: 50 * time.Millisecond, Margin: 300 * time.Millisecond, LapseEvery: 50 * time.Millisecond, Within: 10 * time.Second, StopWithin: time.Second}

type bundle struct {
	db    *testkit.DB
	pool  *pgxpool.Pool
	sink  *sink.Sink
	rules *effects.Rules
	reach []config.Reach
}

// setup has a sink and the steps of a rule "follow" about invoices of the shop, whose key is the object's id.
func setup(t *testing.T, steps string) *bundle {
	t.Helper()
	db := testkit.Database(t)
	b := &bundle{db: db, pool: db.Role(t, "processor"), sink: sink.New(t)}
	text := fmt.Sprintf(`
database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  sink: {url: %q, allow: [127.0.0.1], timeout: 300ms}
effects:
  follow:
    source: shop
    type: invoice
    key: "follow:{{ object.id }}"
    steps: %s
`, b.sink.URL, steps)
	cfg, err := config.Parse([]byte(text), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b.rules, b.reach = effects.NewRules(cfg.Rules()), cfg.Reaches()
	return b
}

// plan plans effects of so many objects.
func (b *bundle) plan(t *testing.T, first, count int) {
	t.Helper()
	var all []effects.Intent
	for n := first; n < first+count; n++ {
		all = append(all, b.rules.Intents(&effects.Transition{Source: "shop", Number: 1, Type: "invoice", ID: fmt.Sprint(n), New: fmt.Appendf(nil, `{"total": %d}`, n), Event: effects.Event{ID: int64(n)}})...)
	}
	b.enter(t, all)
}

// enter plans intents.
func (b *bundle) enter(t *testing.T, all []effects.Intent) {
	t.Helper()
	err := postgres.InTx(t.Context(), b.pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := effects.Plan(ctx, tx, 0, all)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// run carries out until stop is called, which is at the latest when the test ends.
func (b *bundle) run(t *testing.T, id string, pool *pgxpool.Pool) (stop func()) {
	t.Helper()
	return b.runWith(t, id, pool, quick)
}

func (b *bundle) runWith(t *testing.T, id string, pool *pgxpool.Pool, settings runner.Settings) (stop func()) {
	t.Helper()
	r := runner.New(runner.Options{Pool: pool, ID: id, Settings: settings, Logger: slog.New(slog.DiscardHandler)})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// states counts effects by their state.
func (b *bundle) states(t *testing.T) map[string]int {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT state, count(*) FROM effects GROUP BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	var state string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { all[state] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// settled waits until nothing is to be done any more without a person.
func (b *bundle) settled(t *testing.T) map[string]int {
	t.Helper()
	var all map[string]int
	testkit.Eventually(t, patience, func() error {
		if all = b.states(t); all["planned"]+all["running"]+all["failed"] > 0 {
			return fmt.Errorf("%v", all)
		}
		return nil
	})
	return all
}

const twoSteps = `
      - {name: customer, to: sink, path: "/customers", json: {ref: "{{ object.id }}"}, capture: {id: id}, retry: {first: 10ms, longest: 50ms}}
      - {name: invoice, to: sink, path: "/invoices", json: {ref: "{{ object.id }}", customer: "{{ steps.customer.id }}", total: "{{ new.total }}"}, retry: {first: 10ms, longest: 50ms}}`

// Steps are taken one after the other, see what those before captured, and are in the ledger with what they brought.
func TestStepsFollowEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	b.plan(t, 1, 3)
	b.plan(t, 1, 3) // the same again
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 3 {
		t.Fatal(got)
	}
	calls := b.sink.Calls()
	if len(calls) != 6 {
		t.Fatalf("%d calls", len(calls))
	}
	for _, c := range calls {
		if c.Path == "/invoices" && !strings.HasPrefix(fmt.Sprint(c.JSON(t)["customer"]), "customers_") {
			t.Errorf("%s", c.Body)
		}
	}
	var captured string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT string_agg(DISTINCT split_part(captured->>'id', '_', 1), ',') FROM effect_steps WHERE step = 'customer' AND state = 'done'`).Scan(&captured); err != nil || captured != "customers" {
		t.Errorf("%q %v", captured, err)
	}
}

// lying makes a sink fail as the seed says, but for the last of so many requests.
func lying(s *sink.Sink, seed uint64, requests int, faults ...sink.Fault) {
	var mu sync.Mutex
	r, n := rand.New(rand.NewPCG(seed, 9)), 0
	s.Next = func(*http.Request) sink.Fault {
		mu.Lock()
		defer mu.Unlock()
		if n++; n > requests || r.IntN(2) == 0 {
			return sink.Fine
		}
		return faults[r.IntN(len(faults))]
	}
}

var allFaults = []sink.Fault{sink.Refuses, sink.FailsFirst, sink.ActsFails, sink.ActsDrops, sink.ActsHangs, sink.Drops}

// Whatever the other side does, with one that honours keys each step happens exactly once, by several runners at once, of which some end in the middle.
func TestExactlyOnceWhereKeysAreHonoured(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			b := setup(t, twoSteps)
			lying(b.sink, seed, 150, allFaults...)
			b.plan(t, 1, 20)
			for n := range 3 {
				b.dies(t, fmt.Sprint("mortal ", n))
			}
			b.run(t, "a", b.pool)
			b.run(t, "b", b.pool)
			if got := b.settled(t); got["done"] != 20 {
				t.Fatal(got)
			}
			did := b.sink.Did()
			if len(did) != 40 {
				t.Errorf("%d things were done, want 40", len(did))
			}
			for what, n := range did {
				if n != 1 {
					t.Errorf("%s: %d times", what, n)
				}
			}
		})
	}
}

// dies lets a runner begin, takes the database from it in the middle of its calls, and ends it.
func (b *bundle) dies(t *testing.T, id string) {
	t.Helper()
	proxy := testkit.Proxy(t, b.db.URL)
	before := len(b.sink.Calls())
	stop := b.run(t, id, (&testkit.DB{URL: proxy.URL}).Role(t, "processor"))
	testkit.Eventually(t, patience, func() error {
		if len(b.sink.Calls()) <= before {
			return fmt.Errorf("no call")
		}
		return nil
	})
	proxy.Cut()
	stop()
}

// A step that must not be repeated is never done twice; where nobody knows whether it was done, the ledger says so.
func TestOnceIsNeverRepeated(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, once: true, person_resolves: true, retry: {first: 10ms, longest: 50ms}}`)
			b.sink.Honours = false
			lying(b.sink, seed, 60, allFaults...)
			b.plan(t, 1, 30)
			b.dies(t, "mortal")
			b.run(t, "a", b.pool)
			got := b.settled(t)
			if got["done"] == 0 || got["review"] == 0 || got["done"]+got["review"] != 30 {
				t.Fatal(got)
			}
			var unknown int
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM effects JOIN effect_steps USING (effect) WHERE effects.state = 'review' AND effect_steps.state = 'unknown'`).Scan(&unknown); err != nil || unknown != got["review"] {
				t.Errorf("%d unknown of %d in review, %v", unknown, got["review"], err)
			}
			did := b.sink.Did()
			for what, n := range did {
				if n != 1 {
					t.Errorf("%s: %d times", what, n)
				}
			}
			if len(did) < got["done"] {
				t.Errorf("%d are done, and %d were", got["done"], len(did))
			}
		})
	}
}

// Where the other side ignores keys and can be asked, it is asked before anything is sent again.
func TestTheOtherSideIsAsked(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, capture: {id: id}, check: {path: "/did?key={{ step_key }}", done: answer.status == 200, settles: 500ms}, retry: {first: 10ms, longest: 50ms}}`)
	b.sink.Honours = false
	lying(b.sink, 1, 100, allFaults...)
	b.plan(t, 1, 30)
	b.dies(t, "mortal")
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 30 {
		t.Fatal(got)
	}
	did := b.sink.Did()
	if len(did) != 30 {
		t.Errorf("%d were done", len(did))
	}
	for what, n := range did {
		if n != 1 {
			t.Errorf("%s: %d times", what, n)
		}
	}
}
