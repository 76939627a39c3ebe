package rebuild_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// What has failed in the rebuild and enters the mirror just before the lock is in what is swapped, whichever way it enters, and however much has failed.
func TestWhatEntersBeforeTheLock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// keys is how much a swap may look at alone.
		keys int
		// dead: it is final live, and enters by a run that a person asks for; later: it is stored and fails only after the first look.
		dead, later bool
	}{
		"failed live": {keys: 1000}, "failed live, of many": {keys: 1}, "dead live": {keys: 1000, dead: true}, "stored later": {keys: 1000, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 81)
			b := setup(t)
			m := moody{mended: new(atomic.Bool)}
			p := b.processor(t, m)
			evs := sim.Generate(r, kinds["event time"]).Events
			if m.mended.Store(c.later); c.later {
				b.live(t, r, b.append(t, r, b.source, evs))
			} else {
				applied.Apply(t, p, events.LiveRun, b.append(t, r, b.source, evs))
			}
			if c.dead {
				b.exec(t, `UPDATE outcomes SET status = 'dead', due = NULL`)
			}
			var compared, mended sync.Once
			var before []string
			rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, m), Settings: quick()}
			rebuilds.Settings.Keys = c.keys
			rebuild.Step(rebuilds, func(name string) error {
				switch {
				case name == "compare" && c.later:
					compared.Do(func() { m.mended.Store(false); b.append(t, r, b.source, renamed(evs, "late_")) })
				case name == "lock":
					mended.Do(func() { m.mended.Store(true); b.enter(t, p, c.dead); before = b.table(t, object, "objects") })
				}
				return nil
			})
			b.carry(t, "one", rebuilds)
			ended := b.rebuilt(t, b.source)
			if diff := cmp.Diff(before, b.table(t, object, "objects")); diff != "" || len(before) == 0 {
				t.Errorf("%v: %s", ended.Counts, diff)
			}
			if ended.Counts[rebuild.Processed] != int64(len(b.ids)) || ended.Counts[string(versioning.Failed)] != 0 {
				t.Errorf("%v", ended.Counts)
			}
		})
	}
}

// enter has all events applied live: what has failed is due, and what is dead tried again by a run that a person has asked for.
func (b *testBundle) enter(t *testing.T, p *processor.Processor, dead bool) {
	t.Helper()
	to := processor.Target{}
	if b.exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE run = 0 AND status = 'failed'`); dead {
		run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: "retry", Asked: struct{}{}})
		if err != nil {
			t.Fatal(err)
		}
		to.Again = run
	}
	if _, err := p.ApplyStored(t.Context(), to, b.ids, false); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `UPDATE runs SET status = 'done', ended_at = clock_now() WHERE run = $1`, to.Again)
}

// recorder keeps the statements that are sent between a swap's lock and its end, with their parameters.
type recorder struct {
	on   atomic.Bool
	mu   sync.Mutex
	sent []pgx.TraceQueryStartData
}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on.Load() && rebuild.Looks(q.SQL) {
		r.sent = append(r.sent, q)
	}
	return ctx
}

func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// failedSQL has many events fail in a run that are dead live, among more that do not.
const failedSQL = `
INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
SELECT g, r, %[1]d, g, '', 'thing', 'filler_' || g, CASE WHEN g %% 10 > 0 THEN 'applied' WHEN r = 0 OR g %% 20 = 0 THEN 'dead' ELSE 'failed' END,
  CASE WHEN g %% 40 = 0 THEN 'no' ELSE 'given up after 2 attempts' END, 1, CASE WHEN r > 0 AND g %% 20 = 10 THEN now() END, now(), 1
FROM generate_series(1, 200000) g, unnest(ARRAY[0, %[2]d]) r`

// picky reads no event of some objects.
type picky struct{ sim.Provider }

func (picky) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if strings.Contains(string(e.Body), "unread_") {
		return provider.Observation{}, errUnread
	}
	return sim.Provider{}.Observe(src, e)
}

// However much has failed for good, a swap looks at little of it while it holds up live events; and all of it is looked for by index, never through the whole ledger.
func TestMuchHasFailed(t *testing.T) {
	t.Parallel()
	r := seeded(t, 82)
	b := setup(t)
	evs := sim.Generate(r, kinds["event time"]).Events
	b.live(t, r, b.append(t, r, b.source, evs[3:]))
	unread := b.append(t, r, b.source, renamed(evs[:3], "unread_"))
	applied.Apply(t, b.processor(t, failing{}), events.LiveRun, unread)
	config, rec := b.pool.Config(), &recorder{}
	config.ConnConfig.Tracer = rec
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	rebuilds := &rebuild.Runner{Pool: pool, Processor: b.processor(t, picky{}), Settings: quick()}
	rebuilds.Settings.Keys = 1000
	rebuild.Step(rebuilds, func(name string) error { rec.on.Store(name == "locked"); return nil })
	b.carry(t, "one", rebuilds)
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	b.exec(t, fmt.Sprintf(failedSQL, b.source, run))
	b.exec(t, `ANALYZE outcomes`)
	if err := rebuild.Swap(t.Context(), b.operator, run); err != nil {
		t.Fatal(err)
	}
	b.until(t, run, done)
	rec.on.Store(false)
	if len(rec.sent) != 3 {
		t.Errorf("%d statements look for what has failed", len(rec.sent))
	}
	for _, q := range rec.sent {
		if read := b.read(t, q.SQL, q.Args...); read > 5*len(b.ids) || slices.Contains(rebuild.WholeSQL(), q.SQL) {
			t.Errorf("under the lock %d outcomes are read by%s", read, q.SQL)
		}
	}
	for i, sql := range rebuild.WholeSQL() {
		if read := b.read(t, sql, [][]any{{run, 0, 1000}, {run}}[i]...); read > 200_000 || read < 10_000 {
			t.Errorf("%d outcomes are read by%s", read, sql)
		}
	}
}

// read is how many outcomes a statement reads by index, with a plan for these parameters or for all; it reads none from end to end.
func (b *testBundle) read(t *testing.T, sql string, args ...any) (most int) {
	t.Helper()
	for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
		tx, err := b.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		// What other processes read for this one is not counted here.
		if _, err := tx.Exec(t.Context(), `SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL plan_cache_mode = `+plan); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		var scans, read int
		err = tx.QueryRow(t.Context(), `SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'outcomes'`).Scan(&scans, &read)
		if err != nil || scans != 0 {
			t.Errorf("%s: %d scans of all outcomes, %v:%s", plan, scans, err, sql)
		}
		most = max(most, read)
	}
	return most
}
