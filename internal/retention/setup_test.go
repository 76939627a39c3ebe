package retention_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// testBundle is a log of several days whose events were applied live.
type testBundle struct {
	log                        *applied.Log
	db                         *testkit.DB
	pool, operator, maintainer *pgxpool.Pool
	source                     int32
	proc                       *processor.Processor
	// days are the ids of the events of each day, the oldest first; the last is today.
	days [][]int64
	now  time.Time
	// folder is where partitions are exported to.
	folder string
}

// setup appends a random history over some days, in a random order, and applies it; the auditor has passed all of it.
func setup(t *testing.T, seed uint64, days, objects int) *testBundle {
	t.Helper()
	return setupDays(t, seed, days, objects, func(*testBundle, int) {})
}

// setupDays does something after each day, numbered from 0.
func setupDays(t *testing.T, seed uint64, days, objects int, then func(b *testBundle, day int)) *testBundle {
	t.Helper()
	l := applied.New(t)
	b := &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.Operator, maintainer: l.DB.Role(t, "maintenance"), source: l.Source, now: time.Now().UTC()}
	b.proc = b.processor(t, applied.Name)
	r := rand.New(rand.NewPCG(seed, 1))
	h := sim.Generate(r, sim.Options{Objects: objects, Changes: 12, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70, Twins: 20, Deletes: 15, Partial: 5})
	r.Shuffle(len(h.Events), func(i, j int) { h.Events[i], h.Events[j] = h.Events[j], h.Events[i] })
	for day := range days {
		b.clock(t, days-1-day)
		var part []sim.Event
		for i := day; i < len(h.Events); i += days {
			part = append(part, h.Events[i])
		}
		b.days = append(b.days, b.append(t, part))
		b.apply(t, b.days[day])
		then(b, day)
	}
	b.audited(t, b.days[days-1][len(b.days[days-1])-1])
	return b
}

// clock sets the database's clock back by some days.
func (b *testBundle) clock(t *testing.T, days int) {
	t.Helper()
	b.exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() - interval ''%d days'''`, days))
}

func (b *testBundle) exec(t *testing.T, sql string, args ...any) int64 {
	t.Helper()
	return b.db.Exec(t, sql, args...)
}

// append stores events and returns their ids in order.
func (b *testBundle) append(t *testing.T, evs []sim.Event) []int64 {
	t.Helper()
	return slices.Sorted(slices.Values(b.log.Append(t, b.source, evs)))
}

func (b *testBundle) processor(t *testing.T, source string) *processor.Processor {
	return b.log.Processor(t, nil, source)
}

func (b *testBundle) apply(t *testing.T, ids []int64) {
	t.Helper()
	applied.Apply(t, b.proc, events.LiveRun, ids)
}

// audited moves the auditor's checkpoint.
func (b *testBundle) audited(t *testing.T, to int64) {
	t.Helper()
	b.exec(t, `INSERT INTO checkpoints (job, run, cursor, leased_by, leased_until, updated_at) VALUES ('auditor', 0, $1, '', now(), now())
		ON CONFLICT (job, run) DO UPDATE SET cursor = excluded.cursor`, to)
}

func (b *testBundle) runner() *retention.Runner {
	return &retention.Runner{Pool: b.pool, Keeper: b.maintainer, Processor: b.proc, Chunk: 7, Folder: b.folder}
}

// ask enters a run of a policy.
func (b *testBundle) ask(t *testing.T, p retention.Policy) int64 {
	t.Helper()
	order, err := retention.Now(t.Context(), b.operator, p)
	must(t, err)
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: retention.Job, Asked: order})
	must(t, err)
	return run
}

// carry has a runner go on with the open run, as a process does that has just started.
func (b *testBundle) carry(t *testing.T, r *retention.Runner) (runs.Status, error) {
	t.Helper()
	h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, retention.Job)
	if err != nil || h == nil {
		t.Fatalf("no run is taken: %v", err)
	}
	status, err := r.Carry(t.Context(), h, slog.New(slog.DiscardHandler))
	if err == nil && status == runs.Running {
		return runs.Done, h.End(t.Context(), runs.Done, "")
	}
	if e := h.Release(t.Context()); e != nil {
		t.Fatal(e)
	}
	return status, err
}

// do carries out a policy to its end.
func (b *testBundle) do(t *testing.T, p retention.Policy) {
	t.Helper()
	b.ask(t, p)
	b.finishes(t, b.runner())
}

func (b *testBundle) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.Rows(t, sql, args...)
}

func (b *testBundle) stored(t *testing.T) (ids []int64) {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT id FROM events ORDER BY id`)
	must(t, err)
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		t.Fatal(err)
	}
	return ids
}

// same is what two tables of objects must agree in, whatever order their events came in.
func same(table string) string {
	return `SELECT (to_jsonb(o) - 'revision' - 'last_event_id' - 'created_at' - 'updated_at' - 'look_after')::text FROM ` + table + ` o ORDER BY object_id`
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errOf is the error of a call whose other result is not of interest.
func errOf[T any](_ T, err error) error { return err }

// equal reports how a value differs from the one that is wanted.
func equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// execSQL runs a statement over a pool, a session or a transaction.
func execSQL(t testing.TB, over interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := over.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// hold runs a statement in a transaction that stays open until it is rolled back, at the latest at
// the end of the test.
func hold(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	execSQL(t, tx, sql, args...)
	return tx
}

// taken is the next run of a job, taken by a process.
func taken(t testing.TB, pool *pgxpool.Pool, by string, lease time.Duration, job string) *runs.Hold {
	t.Helper()
	h, err := runs.Take(t.Context(), pool, by, lease, job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	return h
}

// says fails unless a query of one text answers it.
func (b *testBundle) says(t *testing.T, want, sql string, args ...any) {
	t.Helper()
	if got := b.rows(t, sql, args...)[0]; got != want {
		t.Errorf("%s: %s, want %s", sql, got, want)
	}
}

// awaitSome waits until a count is above 0.
func (b *testBundle) awaitSome(t *testing.T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if b.rows(t, sql, args...)[0] == "0" {
			return errors.New("still 0: " + sql)
		}
		return nil
	})
}

// finishes has a runner carry out the open run to its end.
func (b *testBundle) finishes(t *testing.T, r *retention.Runner) {
	t.Helper()
	if status, err := b.carry(t, r); err != nil || status != runs.Done {
		t.Fatalf("%s, %v", status, err)
	}
}

// refuses has a runner fail at the open run, for a reason.
func (b *testBundle) refuses(t *testing.T, r *retention.Runner, why string) {
	t.Helper()
	if _, err := b.carry(t, r); err == nil || !strings.Contains(err.Error(), why) {
		t.Fatalf("%v, want it to say %q", err, why)
	}
}
