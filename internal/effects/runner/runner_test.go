package runner_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
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
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/standardwebhooks"
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
	must(t, err)
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
	must(t, err)
}

// launch runs a runner with these options until stop is called, which is at the latest when the test ends. Options that are
// not set are those of setup.
func (b *bundle) launch(t *testing.T, o runner.Options) (r *runner.Runner, stop func()) {
	t.Helper()
	o.Pool, o.ID = cmp.Or(o.Pool, b.pool), cmp.Or(o.ID, "a")
	o.Settings, o.Logger = cmp.Or(o.Settings, quick), cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	r = runner.New(o)
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

// run is launch under another id.
func (b *bundle) run(t *testing.T, id string, pool *pgxpool.Pool) (stop func()) {
	t.Helper()
	_, stop = b.launch(t, runner.Options{ID: id, Pool: pool})
	return stop
}

// logged is launch with what is logged.
func (b *bundle) logged(t *testing.T, o runner.Options) (r *runner.Runner, stop func(), said *spoken) {
	t.Helper()
	said = &spoken{}
	o.Logger = slog.New(slog.NewTextHandler(said, nil))
	r, stop = b.launch(t, o)
	return r, stop, said
}

// states counts effects by their state.
func (b *bundle) states(t *testing.T) map[string]int {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT state, count(*) FROM effects GROUP BY 1`)
	must(t, err)
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

// must ends the test where there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A step is sent where its rule says, also where the ledger has another destination: its rule may be another one by now.
func TestStepsGoWhereTheRuleSays(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	other := sink.New(t)
	elsewhere := b.reach[0]
	elsewhere.Name, elsewhere.URL = "elsewhere", other.URL
	b.reach = append(slices.Clone(b.reach), elsewhere)
	b.plan(t, 1, 5)
	b.db.Exec(t, `UPDATE effects SET destination = 'elsewhere'`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 5 {
		t.Fatal(got)
	}
	if here, there := len(b.sink.Calls()), len(other.Calls()); here != 10 || there != 0 {
		t.Errorf("%d calls where the rule says, %d elsewhere", here, there)
	}
}

// The ledger says of each step how a lost answer is cleared up, and whether it can be undone.
func TestTheLedgerSaysHowDoubtsAreCleared(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: keyed, to: sink, path: "/keyed", json: {ref: "{{ object.id }}"}, compensate: {path: "/keyed/undo"}}
      - {name: checked, to: sink, path: "/checked", json: {ref: "{{ object.id }}"}, check: {path: "/did?key={{ step_key }}", done: "answer.status == 200"}}
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, once: true, person_resolves: true}`)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	want := []string{"keyed key true", "checked check false", "mail person false"}
	if got := b.db.Rows(t, `SELECT concat_ws(' ', step, doubt, undoable::text) FROM effect_steps ORDER BY place`); !slices.Equal(want, got) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A step in doubt that its rule has under another name now is not done under that name, before a person says what happened.
func TestDoubtOutlivesTheNameOfAStep(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 1)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) VALUES (1, 'client', 0, 'unknown', 'sink', '', 1, now())`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != 1 || len(b.sink.Calls()) != 0 {
		t.Fatal(got)
	}
	must(t, b.resolve(t, effects.Word{Step: "client"}))
	if got := b.settled(t); got["done"] != 1 || len(b.sink.Calls()) != 2 {
		t.Error(got)
	}
}

// What is forced happens again also where the other side honours keys, and once for each run, however often that is planned.
func TestForcedHappensAgain(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.settled(t)
	for _, run := range []int64{7, 7, 8} {
		err := postgres.InTx(t.Context(), b.pool, "again", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
			_, err := effects.PlanAgain(ctx, tx, b.rules, run, time.Now().Add(time.Hour), []int64{1})
			return err
		})
		must(t, err)
		b.settled(t)
	}
	if got := b.states(t); got["done"] != 3 {
		t.Error(got)
	}
	sent := map[string]bool{}
	for _, call := range b.sink.Calls() {
		sent[call.Key] = true
	}
	if n := len(sent); n != 6 || len(b.sink.Calls()) != 6 {
		t.Errorf("%d calls under %d keys", len(b.sink.Calls()), n)
	}
}

// A change that is forwarded is signed, as whoever takes Standard Webhooks proves, by one id at each attempt, and has its numbers as they came.
func TestForward(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: tell, to: sink, forward: true, retry: {first: 10ms}}`)
	const secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	b.reach[0].Sign = []byte("01234567890123456789012345678901")
	b.sink.Honours = false
	first := true
	b.sink.Next = func(*http.Request) sink.Fault {
		defer func() { first = false }()
		if first {
			return sink.ActsFails
		}
		return sink.Fine
	}
	b.enter(t, b.rules.Intents(&effects.Transition{Source: "shop", Number: 1, Type: "invoice", ID: "in_1", New: []byte(`{"total": 820982911946154508.10}`), Event: effects.Event{ID: 7, Key: "evt_7", ReceivedAt: time.Unix(1_700_000_000, 0)}}))
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	calls := b.sink.Calls()
	if len(calls) != 2 || calls[0].Header.Get("Webhook-Id") != calls[1].Header.Get("Webhook-Id") || calls[0].Body != calls[1].Body || calls[0].Path != "/" {
		t.Fatalf("%+v", calls)
	}
	for _, c := range calls {
		src := &provider.Source{Name: "x", Secrets: []provider.Secret{{Name: "s", Value: []byte(secret)}}}
		if _, err := (standardwebhooks.New()).Verify(src, &provider.Delivery{Body: []byte(c.Body), Header: c.Header, ReceivedAt: time.Now()}); err != nil {
			t.Error(err)
		}
		if data := c.JSON(t); data["type"] != "invoice.changed" || data["timestamp"] != "2023-11-14T22:13:20Z" || !strings.Contains(c.Body, `820982911946154508.10`) {
			t.Errorf("%s", c.Body)
		}
	}
}

// However large the ledger is, and though PostgreSQL keeps one plan for all, an effect is taken, recorded and given back by indexes.
func TestStatementsReadLittle(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, sql := range []string{
		`INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, due, planned_at, updated_at)
		 SELECT n::text, 1, 'r', 1, '', 't', n::text, n, 0, CASE WHEN n % 4 > 0 THEN 'planned' ELSE 'done' END, 'd' || n % 2, CASE WHEN n % 4 > 0 THEN clock_now() END, clock_now(), clock_now() FROM generate_series(1, 40000) n`,
		`INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) SELECT effect, 's', 0, 'done', 'd', '', 1, planned_at FROM effects WHERE state = 'done'`,
		`ANALYZE effects, effect_steps`,
	} {
		db.Exec(t, sql)
	}
	conn, err := db.Pool.Acquire(t.Context())
	must(t, err)
	t.Cleanup(conn.Release)
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	for i, sql := range runner.Statements() {
		if strings.Contains(sql, "WHERE state = 'planned' AND") {
			continue // it counts them
		}
		name := fmt.Sprintf("s%d", i)
		d, err := conn.Conn().Prepare(t.Context(), name, sql)
		must(t, err)
		execute := "EXPLAIN EXECUTE " + name
		if n := len(d.ParamOIDs); n > 0 {
			execute += "(" + strings.Repeat("NULL, ", n-1) + "NULL)"
		}
		rows, err := conn.Query(t.Context(), execute, pgx.QueryExecModeSimpleProtocol)
		must(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err, sql)
		}
		text := strings.Join(plan, "\n")
		if strings.Contains(text, "Seq Scan") {
			t.Errorf("%s\n%s", sql, text)
		}
		if strings.Contains(sql, "ORDER BY due") && !strings.Contains(text, "Index Cond: ((destination = ") {
			t.Errorf("what is not due yet is gone through: %s", text)
		}
	}
}
