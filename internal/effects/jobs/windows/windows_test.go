package windows_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/timetable"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type fixture struct {
	db     *testkit.DB
	pool   *pgxpool.Pool
	source int32
	log    *strings.Builder
}

func setup(t testing.TB) *fixture {
	t.Helper()
	b := &fixture{db: testkit.Database(t), log: &strings.Builder{}}
	b.pool = b.db.Role(t, "processor")
	known, err := events.RegisterSources(t.Context(), b.pool, map[string]string{"shop": "stripe"})
	must(t, err)
	b.source = known.Number["shop"]
	return b
}

// setupRule returns the scheduler of a rule that starts at 10:30.
func setupRule(t testing.TB, page int, r *rules.Rule) (*fixture, *windows.Scheduler) {
	t.Helper()
	b := setup(t)
	a := b.newScheduler(page, r)
	b.tickAt(t, a, "10:30")
	return b, a
}

// setClock sets the database's clock to a time of day.
func (b *fixture) setClock(t testing.TB, clock string) {
	t.Helper()
	b.db.ReplaceClock(t, "timestamptz '2026-11-02 "+clock+"+00'")
}

// putObject stores an invoice that is certain, ambiguous, deleted, or bare: only its existence is
// known.
func (b *fixture) putObject(t testing.TB, id, state, is string) {
	t.Helper()
	b.put(t, "invoice", id, state, is)
}

// put stores an object of a type.
func (b *fixture) put(t testing.TB, objectType, id, state, is string) {
	t.Helper()
	b.db.Exec(t, `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank,
	tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash,
  state, sanitized, last_event_id, revision, rule_version, created_at, updated_at)
VALUES ($1, '', $5, $2, false, CASE WHEN $4 = 'bare' THEN -9223372036854775808 ELSE 1 END, 0, 0, '[]', false, 0,
	0, 0, $4 = 'ambiguous', $4 = 'deleted', sha256($3::text::bytea), sha256($3::text::bytea), CASE
	WHEN $4 IN ('certain', 'ambiguous') THEN $3::jsonb END,
  false, 1, 1, 1, clock_now(), clock_now())
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET version_at = excluded.version_at,
	state = excluded.state, state_hash = excluded.state_hash, exact_hash = excluded.exact_hash,
	ambiguous = excluded.ambiguous, deleted = excluded.deleted, updated_at = excluded.updated_at`,
		b.source, id, state, is, objectType)
}

// putInvoices stores invoices.
func (b *fixture) putInvoices(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		b.putObject(t, fmt.Sprintf("in_%03d", i), fmt.Sprintf(`{"id": "in_%03d", "n": 1}`, i), "certain")
	}
}

// keyPerWindow is a key that gives each object an effect in each window.
const keyPerWindow = "{{ object.id }} {{ window.start }} {{ window.end }}"

// rule returns an hourly rule about invoices of the shop.
func rule(t testing.TB, key, when string, length time.Duration) *rules.Rule {
	t.Helper()
	scope := rules.Scope{Window: true}
	text, err := rules.CompileText(key, scope)
	must(t, err)
	r := &rules.Rule{Name: "hourly", Source: "shop", Type: "invoice", On: rules.OnSchedule, Key: text, Version: 1,
		Approval: rules.ApproveNone, Steps: []rules.Step{{Name: "tell", Destination: "there"}}}
	times, err := timetable.Parse("0 * * * *", "UTC")
	must(t, err)
	r.Schedule = &rules.Schedule{Cron: "0 * * * *", TimeZone: "UTC", Times: times, WindowLength: length, CatchUp: 100}
	if when != "" {
		r.When, err = rules.Compile(when, scope, true)
		must(t, err)
	}
	return r
}

// ruleAt is rule with another schedule.
func ruleAt(t testing.TB, cron, key string) *rules.Rule {
	t.Helper()
	r := rule(t, key, "", 0)
	times, err := timetable.Parse(cron, "UTC")
	must(t, err)
	r.Schedule.Cron, r.Schedule.Times = cron, times
	return r
}

// newScheduler returns the scheduler of one of several processes.
func (b *fixture) newScheduler(page int, all ...*rules.Rule) *windows.Scheduler {
	s := windows.DefaultSettings
	s.Every, s.PageObjects, s.TxTimeout = time.Hour, page, time.Minute // a tick evaluates all that is due
	s.PauseFactor = 0
	a := windows.New(windows.Options{Pool: b.pool, Settings: s, Logger: slog.New(slog.NewTextHandler(b.log, nil))})
	a.Replace(effects.NewRules(all))
	return a
}

func tick(t testing.TB, a *windows.Scheduler) {
	t.Helper()
	must(t, a.Tick(t.Context()))
}

// tickAt runs a tick at a time of day.
func (b *fixture) tickAt(t testing.TB, a *windows.Scheduler, clock string) {
	t.Helper()
	b.setClock(t, clock)
	tick(t, a)
}

// planned returns the keys of effects, with times shortened to the time of day.
func (b *fixture) planned(t *testing.T) []string {
	t.Helper()
	return b.db.QueryStrings(t, `SELECT replace(replace(key, '2026-11-02T', ''), ':00:00Z', '') FROM effects
		WHERE event_id = 0
		AND run = 0 AND state = 'planned' ORDER BY effect`)
}

func wantPlanned(t *testing.T, got []string, want ...string) {
	t.Helper()
	testkit.Equal(t, "planned", want, got, cmpopts.EquateEmpty())
}

// Overlapping windows with a key per object plan one effect per object, also for an object that
// arrived after its own window. Another rule version plans them again.
func TestTick_overlappingWindows_planEachKeyOnce(t *testing.T) {
	t.Parallel()
	recent := rule(t, "new:{{ new.id }}",
		`new.created >= date(window.start).Unix() && new.created < date(window.end).Unix()`, 3*time.Hour)
	b, a := setupRule(t, 2, recent)
	invoice := func(id string, created string) {
		at, err := time.Parse(time.DateTime, "2026-11-02 "+created)
		must(t, err)
		b.putObject(t, id, fmt.Sprintf(`{"id": %q, "created": %d}`, id, at.Unix()), "certain")
	}
	invoice("in_old", "07:59:59")
	invoice("in_1", "10:10:00")
	invoice("in_2", "10:59:59")
	invoice("in_3", "11:00:00")
	tick(t, a)
	wantPlanned(t, b.planned(t))
	b.tickAt(t, a, "11:00:00.5")
	wantPlanned(t, b.planned(t), "new:in_1", "new:in_2")
	invoice("in_0_late", "10:40:00")
	for _, at := range []string{"11:59:59", "12:00", "12:30"} {
		b.tickAt(t, a, at)
	}
	wantPlanned(t, b.planned(t), "new:in_1", "new:in_2", "new:in_0_late", "new:in_3")
	again := *recent
	again.Version = 2
	b.tickAt(t, b.newScheduler(2, &again), "13:00")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT key FROM effects WHERE rule_version = 2 ORDER BY 1`), "new:in_0_late",
		"new:in_1", "new:in_2", "new:in_3")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT template_data::text FROM effects WHERE key = 'new:in_1'
		AND rule_version = 1`),
		`{"new": {"id": "in_1", "created": 1793614200}, "object": {"id": "in_1", "type": "invoice", `+
			`"source": "shop", "account": "", "deleted": false}, "window": {"end": "2026-11-02T11:00:00Z", `+
			`"start": "2026-11-02T08:00:00Z"}}`)
}

// A process may die at any point. Another one continues, and evaluates each object of a window
// exactly once, although the objects change meanwhile.
func TestTick_processDies_anotherContinues(t *testing.T) {
	t.Parallel()
	const objects = 11
	each := rule(t, keyPerWindow+" {{ new.n }}", "", 0)
	b, _ := setupRule(t, 3, each)
	b.putInvoices(t, objects)
	b.setClock(t, "12:01")
	b.failEveryOtherPage(t)
	pages := 0
	for died := 0; pages < 8; {
		ctx, die := context.WithCancel(t.Context())
		a := b.newScheduler(3, each)
		a.NotifyDestinations = func([]string) { pages++; die() } // after a commit
		err := a.Tick(ctx)
		die()
		if err != nil && strings.Contains(err.Error(), "dies") {
			died++
		}
		if died > 20 {
			t.Fatalf("makes no progress: %v", err)
		}
		// Evaluated objects change. A second evaluation would plan an effect with another key.
		b.db.Exec(t, `UPDATE objects o SET state = jsonb_set(state, '{n}', '2') FROM effect_windows w
			WHERE w.window_end IS NOT NULL AND o.object_id <= w.object_id`)
		if b.db.QueryStrings(t, `SELECT (window_end IS NULL AND decided_at = '2026-11-02 11:00+00')::text
			FROM effect_windows`)[0] == "true" {
			b.db.Exec(t, `UPDATE objects SET state = jsonb_set(state, '{n}', '1')`)
		}
	}
	got := b.planned(t)
	if len(got) != 2*objects {
		t.Errorf("%d effects, want %d: %q", len(got), 2*objects, got)
	}
	for i := range objects {
		for _, window := range []string{"10 11", "11 12"} {
			if want := fmt.Sprintf("in_%03d %s 1", i, window); !strings.Contains(strings.Join(got, "\n")+"\n",
				want+"\n") {
				t.Errorf("no effect %q", want)
			}
		}
	}
}

// failEveryOtherPage makes the transaction of every other page fail, with the error "dies".
func (b *fixture) failEveryOtherPage(t *testing.T) {
	t.Helper()
	b.db.Exec(t, `CREATE SEQUENCE moves`)
	b.db.Exec(t, `GRANT USAGE ON moves TO postern_processor`)
	b.db.Exec(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN IF nextval(''moves'') % 2 = 1 THEN RAISE EXCEPTION ''dies''; END IF; RETURN new; END'`)
	b.db.Exec(t, `CREATE TRIGGER dies BEFORE UPDATE ON effect_windows FOR EACH ROW EXECUTE FUNCTION die()`)
}

// Several processes with the same rule evaluate each object of each window.
func TestTick_severalProcesses_planEachWindowOnce(t *testing.T) {
	t.Parallel()
	const objects = 20
	each := rule(t, keyPerWindow, "", 0)
	b, _ := setupRule(t, 2, each)
	b.putInvoices(t, objects)
	b.setClock(t, "15:10")
	var processes sync.WaitGroup
	for range 4 {
		processes.Go(func() {
			a := b.newScheduler(2, each)
			a.Logger = slog.New(slog.DiscardHandler)
			for b.db.QueryStrings(t,
				`SELECT (decided_at = '2026-11-02 15:00+00')::text FROM effect_windows`)[0] != "true" {
				if err := a.Tick(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	processes.Wait()
	// An effect that is planned twice leaves a gap in the ids.
	wantPlanned(t, b.db.QueryStrings(t, `SELECT count(*) || ' of ' || count(DISTINCT template_data->'window') || ', ' ||
		max(effect) FROM effects`), fmt.Sprintf("%d of 5, %d", 5*objects, 5*objects))
}

// The scheduler waits for transactions that change or redact an object, so that planned effects
// match the state at the commit.
func TestTick_objectLockedByChange_waits(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 2, rule(t, keyPerWindow, "", 0))
	b.putObject(t, "in_1", `{"n": "private"}`, "certain")
	b.setClock(t, "11:00")
	tx, err := b.db.Role(t, "processor").Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	must(t, apply.LockObjects(t.Context(), tx, []versioning.Key{{Source: b.source, Type: "invoice", ID: "in_1"}}))
	done := make(chan error, 1)
	go func() { done <- a.Tick(t.Context()) }()
	testkit.Eventually(t, time.Minute, func() error {
		if len(done) == 0 && b.db.QueryStrings(t, `SELECT count(*)::text FROM pg_locks WHERE NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)[0] == "0" {
			return errors.New("it neither waits nor finishes")
		}
		return nil
	})
	testkit.ExecSQL(t, tx, `UPDATE objects SET state = '{"n": "redacted"}'`)
	must(t, tx.Commit(t.Context()))
	must(t, <-done)
	wantPlanned(t, b.db.QueryStrings(t, `SELECT template_data->'new'->>'n' FROM effects`), "redacted")
}

// A clock that is set back repeats no window. After an outage, missed windows are evaluated as far
// as catch_up allows, with their original bounds.
func TestTick_clockSetBackAndOutage_repeatsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.setClock(t, "01:30")
	b.putObject(t, "in_1", `{"n": 1}`, "certain")
	each := rule(t, keyPerWindow+" {{ new.n }}", "", 0)
	each.Schedule.CatchUp = 3
	a := b.newScheduler(2, each)
	tick(t, a)
	b.tickAt(t, a, "02:00")
	b.putObject(t, "in_1", `{"n": 2}`, "certain")
	for _, at := range []string{"01:20", "02:00", "02:59:59.999"} {
		b.tickAt(t, a, at)
	}
	wantPlanned(t, b.planned(t), "in_1 01 02 1")
	b.tickAt(t, a, "04:15")
	wantPlanned(t, b.planned(t)[1:], "in_1 02 03 2", "in_1 03 04 2")
	if b.log.Len() == 0 || strings.Contains(b.log.String(), "skipped") {
		t.Errorf("logged %s", b.log)
	}
	b.tickAt(t, a, "09:15")
	wantPlanned(t, b.planned(t)[3:], "in_1 06 07 2", "in_1 07 08 2", "in_1 08 09 2")
	if !strings.Contains(b.log.String(), "windows skipped") ||
		!strings.Contains(b.log.String(), "first_end=2026-11-02T05:00:00.000Z next_end=2026-11-02T07:00:00.000Z") {
		t.Errorf("logged %s", b.log)
	}
}

// A window waits until all events stored before its end have outcomes, so that events received
// while no processor ran are part of it. Events of other sources, and later events, do not delay
// it.
func TestTick_unappliedEvents_delayTheirWindow(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 2, rule(t, keyPerWindow, "", 0))
	b.db.Exec(t, `SELECT ensure_partitions(clock_ms(), clock_ms())`)
	other, err := events.RegisterSources(t.Context(), b.pool, map[string]string{"other": "stripe"})
	must(t, err)
	came := func(source int32, at string) int64 {
		b.setClock(t, at)
		receipts, err := events.Append(t.Context(), b.db.Pool,
			[]events.Delivery{{Source: source, ReceivedAt: time.Date(2026, 11, 2, 10, 59, 0, 0, time.UTC),
				Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`),
				Body: []byte(`{}`), Events: []provider.Event{{Key: at, Type: "thing", Fingerprint: [16]byte{1}}}}})
		must(t, err)
		return receipts[0][0].ID
	}
	applied := func(event int64, status string) {
		b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, attempts, at, rule_version) VALUES ($1, 0, $2, 0, '', '', '', $3, '', 1, now(), 1)`, event,
			b.source, status)
	}
	first, second := came(b.source, "10:58"), came(b.source, "10:59")
	came(other.Number["other"], "10:59:30")
	came(b.source, "11:00:01")
	b.tickAt(t, a, "11:00:02")
	applied(second, "applied")
	tick(t, a)
	b.putObject(t, "in_1", `{}`, "certain")
	wantPlanned(t, b.planned(t))
	applied(first, "dead")
	b.tickAt(t, a, "12:01")
	wantPlanned(t, b.planned(t), "in_1 10 11")
}

// A window waits for open appends, because an event that commits later was stored before the
// window's end.
func TestTick_openAppend_delaysTheWindow(t *testing.T) {
	t.Parallel()
	each := rule(t, keyPerWindow, "", 0)
	b, _ := setupRule(t, 2, each)
	b.putObject(t, "in_1", `{}`, "certain")
	b.setClock(t, "11:00")
	tx := testkit.OpenTx(t, b.db.Pool, `LOCK TABLE events IN ROW EXCLUSIVE MODE`) // as an insert holds it
	eager := b.newScheduler(2, each)
	eager.Settings.TxTimeout = 100 * time.Millisecond
	if err := eager.Tick(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("logged %v", err)
	}
	wantPlanned(t, b.planned(t))
	must(t, tx.Rollback(t.Context()))
	tick(t, b.newScheduler(2, each))
	wantPlanned(t, b.planned(t), "in_1 10 11")
}

// A new schedule starts at the current time, a known one continues. During a roll-out each process
// follows its own configuration, and a key that both want is planned once.
func TestTick_scheduleChanged_startsWithItsNextTime(t *testing.T) {
	t.Parallel()
	b, before := setupRule(t, 2, rule(t, keyPerWindow, "", 0))
	b.putObject(t, "in_1", `{}`, "certain")
	other := ruleAt(t, "*/30 * * * *", keyPerWindow)
	other.Schedule.WindowLength = time.Hour
	after := b.newScheduler(2, other)
	b.tickAt(t, after, "11:45")
	wantPlanned(t, b.planned(t))
	b.setClock(t, "12:05")
	for range 2 {
		tick(t, after)
		tick(t, before)
	}
	wantPlanned(t, b.planned(t), "in_1 11 12", "in_1 10 11")
}

// A rule is evaluated for objects of its source and type only, in all accounts.
func TestTick_otherSourcesAndTypes_areSkipped(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 2, rule(t, "{{ object.account }}/{{ object.id }}", "", 0))
	const copied = `INSERT INTO objects SELECT (jsonb_populate_record(o,
		jsonb_build_object('source', $1::int, 'account', $2::text, 'object_type', $3::text))).*
		FROM objects o WHERE source = $4 AND account = '' AND object_type = 'invoice'`
	b.putInvoices(t, 3)
	b.db.Exec(t, copied, b.source, "acct_1", "invoice", b.source)
	b.db.Exec(t, copied, b.source, "", "charge", b.source)
	b.db.Exec(t, copied, b.source, "acct_1", "payout", b.source)
	b.db.Exec(t, copied, b.source+1, "", "invoice", b.source)
	b.tickAt(t, a, "11:00")
	wantPlanned(t, b.planned(t), "/in_000", "/in_001", "/in_002", "acct_1/in_000", "acct_1/in_001", "acct_1/in_002")
}

// An uncertain object is deferred and evaluated when it is certain, with its original window. A
// removed object is skipped.
func TestTick_uncertainObject_isDeferred(t *testing.T) {
	t.Parallel()
	each := rule(t, keyPerWindow+" {{ new.n }}", "", 0)
	b, a := setupRule(t, 2, each)
	for id, is := range map[string]string{"in_1": "certain", "in_2": "ambiguous", "in_3": "deleted", "in_4": "bare",
		"in_5": "ambiguous", "in_6": "ambiguous"} {
		b.putObject(t, id, `{"n": 1}`, is)
	}
	b.tickAt(t, a, "12:05")
	tick(t, a)
	wantPlanned(t, b.planned(t), "in_1 10 11 1", "in_1 11 12 1")
	b.putObject(t, "in_2", `{"n": 2}`, "certain")
	b.putObject(t, "in_4", `{"n": 2}`, "certain")
	b.putObject(t, "in_5", `{"n": 2}`, "deleted")
	tick(t, b.newScheduler(2, each))
	tick(t, a)
	wantPlanned(t, b.planned(t)[2:], "in_2 10 11 2", "in_2 11 12 2", "in_4 10 11 2", "in_4 11 12 2")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT object_id || ' ' || count(*) FROM effect_window_waits
		GROUP BY object_id`), "in_6 2")
}

// An object for which the rule fails needs review, and does not stop the window.
func TestTick_ruleFails_needsReviewOnly(t *testing.T) {
	t.Parallel()
	b, a := setupRule(t, 2, rule(t, keyPerWindow, `new.total > 10`, 0))
	b.putObject(t, "in_1", `{"total": null}`, "certain")
	b.putObject(t, "in_2", `{"total": 11}`, "certain")
	b.tickAt(t, a, "12:00")
	wantPlanned(t, b.planned(t), "in_2 10 11", "in_2 11 12")
	wantPlanned(t, b.db.QueryStrings(t, `SELECT count(*) || ' ' || min(left(key, 17)) FROM effects
		WHERE state = 'needs_review'
		AND object_id = 'in_1' AND reason LIKE 'when: %'`), "2 hourly:trouble:0:")
	if n := strings.Count(b.log.String(), "level=WARN msg=\"the rule failed"); n != 2 {
		t.Errorf("logged %d times: %s", n, b.log)
	}
	all, err := effects.Show(t.Context(), b.pool, 1)
	const byHand = "this object, in the window up to 2026-11-02T11:00:00Z, by hand; then fix the rule, which is " +
		"evaluated again in the next window"
	if err != nil || all[0].State != effects.Review || !strings.Contains(all[0].AllowedActions, byHand) {
		t.Errorf("%+v, %v", all, err)
	}
	err = postgres.InTx(t.Context(), b.db.Pool, "retry", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := effects.Retry(ctx, tx, 1)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), byHand) {
		t.Errorf("error %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
