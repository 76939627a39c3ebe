package verify_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/verify"
)

// receipt is a time of receipt after all times of the simulated provider.
var receipt = time.UnixMicro(sim.Start).Add(24 * time.Hour).UTC()

func TestMain(m *testing.M) { testkit.Main(m) }

// simOptions configures the simulated provider for most tests.
var simOptions = sim.Options{Objects: 8, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60,
	Partial: 5, DuplicateEvents: 20, MaxDelay: 5_000_000, Deletes: 10, FinalDeletes: true}

// testBundle is a log with applied events up to the republisher's checkpoint.
type testBundle struct {
	log      *applied.Log
	db       *testkit.DB
	operator *pgxpool.Pool
	proc     *apply.Applier
	// ids are the events in the order of ids.
	ids []int64
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	b := empty(t)
	b.ids = slices.Sorted(slices.Values(b.log.Append(t, b.log.Source, sim.Generate(rand.New(rand.NewPCG(1, 2)),
		simOptions).Events)))
	applied.Apply(t, b.proc, events.LiveRun, b.ids)
	b.setCheckpoint(t, b.ids[len(b.ids)-1])
	return b
}

func empty(t *testing.T) *testBundle {
	t.Helper()
	l := applied.New(t)
	return &testBundle{log: l, db: l.DB, operator: l.OperatorPool, proc: l.Applier(t, nil)}
}

// setCheckpoint sets the republisher's checkpoint.
func (b *testBundle) setCheckpoint(t *testing.T, to int64) {
	t.Helper()
	b.exec(t, `INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
		VALUES ('republisher', 0, $1, '', now(), now())
		ON CONFLICT (job, run) DO UPDATE SET cursor = excluded.cursor`, to)
}

func (b *testBundle) exec(t *testing.T, sql string, args ...any) int64 {
	t.Helper()
	return b.db.Exec(t, sql, args...)
}

// damage changes data without the database's checks. It fails unless it changes something.
func (b *testBundle) damage(t *testing.T, sql string, args ...any) {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	testkit.Must(t, err)
	testkit.Must(t, errOf(tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`)))
	tag, err := tx.Exec(t.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		t.Fatalf("%s: %d rows, %v", sql, tag.RowsAffected(), err)
	}
	testkit.Must(t, tx.Commit(t.Context()))
}

// options returns the options of most tests.
func (b *testBundle) options(t *testing.T) verify.Options {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.operator, nil)
	testkit.Must(t, err)
	return verify.Options{Pool: b.operator, Known: known, Sources: b.log.Sources, MaxItems: 3, MaxWait: time.Hour}
}

func (b *testBundle) verify(t *testing.T) *verify.Report {
	t.Helper()
	return run(t, b.options(t))
}

// verifyLog verifies without the configuration of the sources, so that objects are not compared.
func (b *testBundle) verifyLog(t *testing.T) *verify.Report {
	t.Helper()
	o := b.options(t)
	o.Sources = nil
	return run(t, o)
}

func run(t *testing.T, o verify.Options) *verify.Report {
	t.Helper()
	r, err := verify.Verify(t.Context(), o)
	testkit.Must(t, err)
	return r
}

// clean fails if there is a violation.
func (b *testBundle) clean(t *testing.T) *verify.Report {
	t.Helper()
	r := b.verify(t)
	for _, f := range r.Findings {
		t.Errorf("%s, %d: %+v", f.Kind, f.Count, f.Items)
	}
	return r
}

// finds fails unless there are n violations of one kind and no others, and returns the first.
func (b *testBundle) finds(t *testing.T, kind verify.Kind, n int64) verify.Item {
	t.Helper()
	return found(t, b.verify(t), kind, n)
}

func found(t *testing.T, r *verify.Report, kind verify.Kind, n int64) verify.Item {
	t.Helper()
	if len(r.Findings) != 1 || r.Findings[0].Kind != kind || r.Findings[0].Count != n || r.Findings[0].Meaning == "" ||
		r.Findings[0].Repair == "" {
		t.Fatalf("want %d of %s: %+v", n, kind, r.Findings)
	}
	return r.Findings[0].Items[0]
}

// errOf returns the error of a call and drops the other result.
func errOf[T any](_ T, err error) error { return err }

// wantValue fails unless a query returns the given text.
func (b *testBundle) wantValue(t *testing.T, want, sql string) {
	t.Helper()
	if got := b.db.QueryStrings(t, sql)[0]; got != want {
		t.Fatalf("%s: %s, want %s", sql, got, want)
	}
}
