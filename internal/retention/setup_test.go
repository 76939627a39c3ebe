package retention_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The checks of package testkit by short names, because most lines of these tests use one.
var (
	must, equal, execSQL = testkit.Must, testkit.Equal, testkit.ExecSQL
	openTx, leaseRun     = testkit.OpenTx, applied.LeaseRun
)

// testBundle is a log of several days whose events were applied live.
type testBundle struct {
	log                        *applied.Log
	db                         *testkit.DB
	pool, operator, maintainer *pgxpool.Pool
	source                     int32
	proc                       *apply.Applier
	// days are the ids of the events of each day, oldest day first; the last is today.
	days [][]int64
	now  time.Time
	// folder is the folder for exports.
	folder string
}

// setup appends a random history over some days, in random order, and applies it. The republisher
// has passed all of it.
func setup(t *testing.T, seed uint64, days, objects int) *testBundle {
	t.Helper()
	return setupDays(t, seed, days, objects, func(*testBundle, int) {})
}

// setupDays calls a function after each day, numbered from 0.
func setupDays(t *testing.T, seed uint64, days, objects int, then func(b *testBundle, day int)) *testBundle {
	t.Helper()
	l := applied.New(t)
	b := &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.OperatorPool, maintainer: l.DB.Role(t, "maintenance"),
		source: l.Source, now: time.Now().UTC()}
	b.proc = b.applier(t, applied.SourceName)
	r := rand.New(rand.NewPCG(seed, 1))
	h := sim.Generate(r, sim.Options{Objects: objects, Changes: 12, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70,
		DuplicateEvents: 20, Deletes: 15, Partial: 5})
	r.Shuffle(len(h.Events), func(i, j int) { h.Events[i], h.Events[j] = h.Events[j], h.Events[i] })
	for day := range days {
		b.setClock(t, days-1-day)
		var part []sim.Event
		for i := day; i < len(h.Events); i += days {
			part = append(part, h.Events[i])
		}
		b.days = append(b.days, b.append(t, part))
		b.apply(t, b.days[day])
		then(b, day)
	}
	b.moveRepublisher(t, b.days[days-1][len(b.days[days-1])-1])
	return b
}

// setClock sets the database's clock back by some days.
func (b *testBundle) setClock(t *testing.T, days int) {
	t.Helper()
	b.db.ReplaceClock(t, fmt.Sprintf("clock_timestamp() - interval '%d days'", days))
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

func (b *testBundle) applier(t *testing.T, source string) *apply.Applier {
	return b.log.Applier(t, nil, source)
}

func (b *testBundle) apply(t *testing.T, ids []int64) {
	t.Helper()
	applied.Apply(t, b.proc, events.LiveRun, ids)
}

// moveRepublisher sets the republisher's cursor.
func (b *testBundle) moveRepublisher(t *testing.T, to int64) {
	t.Helper()
	b.exec(t, `INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
		VALUES ('republisher', 0, $1, '', now(), now())
		ON CONFLICT (job, run) DO UPDATE SET cursor = excluded.cursor`, to)
}

func (b *testBundle) runner() *retention.Runner {
	return &retention.Runner{Pool: b.pool, MaintenancePool: b.maintainer, Applier: b.proc, Chunk: 7, Folder: b.folder}
}

// requestRun inserts a run with a policy.
func (b *testBundle) requestRun(t *testing.T, p retention.Policy) int64 {
	t.Helper()
	params, err := retention.NewParams(t.Context(), b.operator, p)
	must(t, err)
	run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: retention.Job, Params: params})
	must(t, err)
	return run
}

// executeOpenRun makes a runner execute the open run, like a process that has just started.
func (b *testBundle) executeOpenRun(t *testing.T, r *retention.Runner) (runs.Status, error) {
	t.Helper()
	h, err := runs.Acquire(t.Context(), b.pool, "test", time.Minute, retention.Job)
	if err != nil || h == nil {
		t.Fatalf("no run was taken: %v", err)
	}
	status, err := r.Execute(t.Context(), h, slog.New(slog.DiscardHandler))
	if err == nil && status == runs.Running {
		return runs.Done, h.End(t.Context(), runs.Done, "")
	}
	if e := h.Release(t.Context()); e != nil {
		t.Fatal(e)
	}
	return status, err
}

// runPolicy executes a policy to its end.
func (b *testBundle) runPolicy(t *testing.T, p retention.Policy) {
	t.Helper()
	b.requestRun(t, p)
	b.executeToEnd(t, b.runner())
}

func (b *testBundle) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.QueryStrings(t, sql, args...)
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

// sharedColumnsSQL selects the part of a table of objects that does not depend on the order of
// events.
func sharedColumnsSQL(table string) string {
	return `SELECT (to_jsonb(o) - 'revision' - 'last_event_id' - 'created_at' - 'updated_at' - 'refetch_after')::text
		FROM ` + table + ` o ORDER BY object_id`
}

// errOf returns the error of a call whose other result is not needed.
func errOf[T any](_ T, err error) error { return err }

// checkText fails unless a query of one text returns it.
func (b *testBundle) checkText(t *testing.T, want, sql string, args ...any) {
	t.Helper()
	if got := b.rows(t, sql, args...)[0]; got != want {
		t.Errorf("%s: %s, want %s", sql, got, want)
	}
}

// awaitNonZero waits until a count is above 0.
func (b *testBundle) awaitNonZero(t *testing.T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if b.rows(t, sql, args...)[0] == "0" {
			return errors.New("still 0: " + sql)
		}
		return nil
	})
}

// executeToEnd makes a runner execute the open run to its end.
func (b *testBundle) executeToEnd(t *testing.T, r *retention.Runner) {
	t.Helper()
	if status, err := b.executeOpenRun(t, r); err != nil || status != runs.Done {
		t.Fatalf("%s, %v", status, err)
	}
}

// executeAndFail makes a runner fail at the open run, with a reason.
func (b *testBundle) executeAndFail(t *testing.T, r *retention.Runner, reason string) {
	t.Helper()
	if _, err := b.executeOpenRun(t, r); err == nil || !strings.Contains(err.Error(), reason) {
		t.Fatalf("%v, want it to contain %q", err, reason)
	}
}
