package runner_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience bounds the wait for an expected result.
const patience = 60 * time.Second

// quick are settings with short timings.
var quick = runner.Settings{PollEvery: 50 * time.Millisecond, LeaseMargin: 5 * time.Second,
	ReclaimEvery: 50 * time.Millisecond, TxTimeout: 10 * time.Second, StopTimeout: time.Second}

type fixture struct {
	db           *testkit.DB
	pool         *pgxpool.Pool
	operatorPool *pgxpool.Pool
	sink         *sink.Sink
	rules        *effects.Rules
	destinations []config.ResolvedDestination
}

// setup configures a sink and the steps of a rule "follow" about invoices of the shop, with the
// object's id as key.
func setup(t *testing.T, steps string) *fixture {
	t.Helper()
	db := testkit.Database(t)
	b := &fixture{db: db, pool: db.Role(t, "processor"), sink: sink.New(t)}
	b.configure(t, `
destinations:
  sink: {url: %q, allow: [127.0.0.1], timeout: 1s}
effects:
  follow:
    source: shop
    type: invoice
    key: "follow:{{ object.id }}"
    steps: %s
`, b.sink.URL, steps)
	return b
}

// configure reads rules and destinations from a configuration with source shop.
func (b *fixture) configure(t *testing.T, format string, args ...any) {
	t.Helper()
	const source = `
database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
`
	cfg, err := config.Parse(fmt.Appendf([]byte(source), format, args...), func(string) string { return "" })
	must(t, err)
	b.rules, b.destinations = effects.NewRules(cfg.Rules()), cfg.ResolveDestinations()
}

// plan plans effects of a number of objects.
func (b *fixture) plan(t *testing.T, first, count int) {
	t.Helper()
	var all []effects.PlannedEffect
	for n := first; n < first+count; n++ {
		all = append(all, b.rules.Evaluate(&effects.Transition{Source: "shop", Number: 1, Type: "invoice",
			ID: fmt.Sprint(n), New: fmt.Appendf(nil, `{"total": %d}`, n), Event: effects.Event{ID: int64(n)}})...)
	}
	b.insert(t, all)
}

// insert inserts planned effects.
func (b *fixture) insert(t *testing.T, all []effects.PlannedEffect) {
	t.Helper()
	err := postgres.InTx(t.Context(), b.pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := effects.Plan(ctx, tx, 0, all)
		return err
	})
	must(t, err)
}

// wantCalls checks the number of calls of the sink.
func (b *fixture) wantCalls(t *testing.T, want int) {
	t.Helper()
	if calls := b.sink.Calls(); len(calls) != want {
		t.Errorf("%d calls, want %d: %+v", len(calls), want, calls)
	}
}

// wantValues checks the values of a query of one text column.
func (b *fixture) wantValues(t *testing.T, query string, want ...string) {
	t.Helper()
	testkit.Equal(t, query, want, b.db.QueryStrings(t, query))
}

// launch runs a runner with options until stop is called, at the latest until the test ends. Unset
// options are those of setup.
func (b *fixture) launch(t *testing.T, o runner.Options) (r *runner.Runner, stop func()) {
	t.Helper()
	o.Pool, o.ID = cmp.Or(o.Pool, b.pool), cmp.Or(o.ID, "a")
	o.Settings, o.Logger = cmp.Or(o.Settings, quick), cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	r = runner.New(o)
	r.Replace(b.rules, b.destinations)
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

// run is launch with another process id.
func (b *fixture) run(t *testing.T, id string, pool *pgxpool.Pool) (stop func()) {
	t.Helper()
	_, stop = b.launch(t, runner.Options{ID: id, Pool: pool})
	return stop
}

// logged is launch with a captured log.
func (b *fixture) logged(t *testing.T, o runner.Options) (r *runner.Runner, stop func(), log *logBuffer) {
	t.Helper()
	log = &logBuffer{}
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	r, stop = b.launch(t, o)
	return r, stop, log
}

// states counts effects by state.
func (b *fixture) states(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, state := range b.db.QueryStrings(t, `SELECT state FROM effects`) {
		all[state]++
	}
	return all
}

// waitIdle waits until all that remains needs an operator, and counts the effects by state.
func (b *fixture) waitIdle(t *testing.T) map[string]int {
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

// wantIdle waits until all that remains needs an operator, and checks the number of effects in a
// state.
func (b *fixture) wantIdle(t *testing.T, state effects.State, want int) {
	t.Helper()
	if got := b.waitIdle(t); got[string(state)] != want {
		t.Fatalf("effects %v, want %d %s: %q", got, want, state,
			b.db.QueryStrings(t, `SELECT DISTINCT reason FROM effects WHERE reason <> ''`))
	}
}

const twoSteps = `
      - {name: customer, to: sink, path: "/customers", json: {ref: "{{ object.id }}"}, capture: {id: id}, ` +
	`retry: {first_wait: 10ms, max_wait: 50ms}}
      - {name: invoice, to: sink, path: "/invoices", json: {ref: "{{ object.id }}", ` +
	`customer: "{{ steps.customer.id }}", total: "{{ new.total }}"}, retry: {first_wait: 10ms, max_wait: 50ms}}`

// Steps are executed in order, see the values that earlier steps captured, and are stored with the
// values that they capture.
func TestRun_steps_seeEarlierCaptures(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	b.plan(t, 1, 3)
	b.plan(t, 1, 3) // repeated
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 3)
	b.wantCalls(t, 6)
	for _, c := range b.sink.Calls() {
		if c.Path == "/invoices" && !strings.HasPrefix(fmt.Sprint(c.JSON(t)["customer"]), "customers_") {
			t.Errorf("%s", c.Body)
		}
	}
	b.wantValues(t, `SELECT DISTINCT split_part(captured->>'id', '_', 1) FROM effect_steps
		WHERE step = 'customer' AND state = 'done'`, "customers")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A step is sent to the destination of the current rule, even if the ledger has another one.
func TestNextCall_ruleChanged_usesItsDestination(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	other := sink.New(t)
	elsewhere := b.destinations[0]
	elsewhere.Name, elsewhere.URL = "elsewhere", other.URL
	b.destinations = append(slices.Clone(b.destinations), elsewhere)
	b.plan(t, 1, 5)
	b.db.Exec(t, `UPDATE effects SET destination = 'elsewhere'`)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 5)
	if here, there := len(b.sink.Calls()), len(other.Calls()); here != 10 || there != 0 {
		t.Errorf("%d calls where the rule says, %d elsewhere", here, there)
	}
}

// The ledger stores how a lost response of each step is cleared up, and whether the step can be
// compensated.
func TestReserve_storesRecovery(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: keyed, to: sink, path: "/keyed", json: {ref: "{{ object.id }}"}, compensate: {path: "/keyed/undo"}}
      - {name: checked, to: sink, path: "/checked", json: {ref: "{{ object.id }}"}, `+
		`check: {path: "/did?key={{ step_key }}", done: "answer.status == 200"}}
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, at_most_once: true, `+
		`operator_resolves: true}`)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 1)
	b.wantValues(t, `SELECT concat_ws(' ', step, resolved_by, undoable::text) FROM effect_steps ORDER BY position`,
		"keyed key true", "checked check false", "mail operator false")
}

// If a step with an unknown outcome has a new name in the rule, it is not executed under that name
// before an operator decides.
func TestNextCall_unknownStepRenamed_needsReview(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.plan(t, 1, 1)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts,
		reserved_at) VALUES (1, 'client', 0, 'unknown', 'sink', '', 1, now())`)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "needs_review", 1)
	b.wantCalls(t, 0)
	must(t, b.resolve(t, effects.ResolveParams{Step: "client"}))
	b.wantIdle(t, "done", 1)
	b.wantCalls(t, 2)
}

// A forced effect is executed again even if the destination recognizes keys, once per run, however
// often the run plans it.
func TestRun_forcedEffect_isSentWithNewKey(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.waitIdle(t)
	for _, run := range []int64{7, 7, 8} {
		err := postgres.InTx(t.Context(), b.pool, "again", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
			_, err := effects.PlanForced(ctx, tx, b.rules, run, time.Now().Add(time.Hour), []int64{1})
			return err
		})
		must(t, err)
		b.waitIdle(t)
	}
	b.wantIdle(t, "done", 3)
	b.wantCalls(t, 6)
	keys := map[string]bool{}
	for _, call := range b.sink.Calls() {
		keys[call.Key] = true
	}
	if len(keys) != 6 {
		t.Errorf("%d keys", len(keys))
	}
}

// A forwarded change is signed according to Standard Webhooks, with the same id for each attempt,
// and keeps the spelling of its numbers.
func TestRun_forwardedChange_isSigned(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: tell, to: sink, forward: true, retry: {first_wait: 10ms}}`)
	b.destinations[0].SigningKey = []byte("01234567890123456789012345678901")
	b.sink.HonoursKeys = false
	b.failRequests("/", sink.ActsThenFails)
	b.insert(t, b.rules.Evaluate(&effects.Transition{Source: "shop", Number: 1, Type: "invoice", ID: "in_1",
		New: []byte(`{"total": 820982911946154508.10}`), Event: effects.Event{ID: 7, Key: "evt_7",
			ReceivedAt: time.Unix(1_700_000_000, 0)}}))
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 1)
	calls := b.sink.Calls()
	if len(calls) != 2 || calls[0].Header.Get("Webhook-Id") != calls[1].Header.Get("Webhook-Id") ||
		calls[0].Body != calls[1].Body || calls[0].Path != "/" {
		t.Fatalf("%+v", calls)
	}
	for _, c := range calls {
		wantSigned(t, c.Header, []byte(c.Body))
		if data := c.JSON(t); data["type"] != "invoice.changed" || data["timestamp"] != "2023-11-14T22:13:20Z" ||
			!strings.Contains(c.Body, `820982911946154508.10`) {
			t.Errorf("%s", c.Body)
		}
	}
}

// The statements lease, record and reclaim effects through indexes, however large the ledger is,
// also with generic plans.
func TestStatements_largeLedger_useIndexes(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, sql := range []string{
		`INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state,
			destination, due, planned_at, updated_at)
		 SELECT n::text, 1, 'r', 1, '', 't', n::text, n, 0, CASE WHEN n % 4 > 0 THEN 'planned' ELSE 'done' END,
		 	'd' || n % 2, CASE WHEN n % 4 > 0 THEN clock_now() END, clock_now(), clock_now()
		 	FROM generate_series(1, 40000) n`,
		`INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts, reserved_at)
			SELECT effect, 's', 0, 'done', 'd', '', 1, planned_at FROM effects WHERE state = 'done'`,
		`ANALYZE effects, effect_steps`,
	} {
		db.Exec(t, sql)
	}
	conn, err := db.Pool.Acquire(t.Context())
	must(t, err)
	t.Cleanup(conn.Release)
	testkit.ExecSQL(t, conn, `SET plan_cache_mode = force_generic_plan`)
	for statement, sql := range testkit.Statements("internal/effects/jobs/runner") {
		if strings.Contains(sql, "WHERE state = 'planned' AND") {
			continue // it counts them
		}
		d, err := conn.Conn().Prepare(t.Context(), statement, sql)
		must(t, err)
		execute := fmt.Sprintf("EXPLAIN EXECUTE %q", statement)
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
			t.Errorf("effects that are not due yet are read: %s", text)
		}
	}
}
