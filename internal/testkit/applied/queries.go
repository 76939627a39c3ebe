package applied

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// MaxWait is how long a test waits for an expected result. It is no measure of speed.
const MaxWait = 3 * time.Minute

// Object reads the row of a thing of the first source with the store's own function.
func (l *Log) Object(t testing.TB, id string) *versioning.Object {
	t.Helper()
	tx, err := l.DB.Pool.Begin(t.Context())
	testkit.Must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	objs, err := versioning.Load(t.Context(), tx, versioning.Mirror,
		[]versioning.LoadRequest{{Key: versioning.Key{Source: l.Source, Type: "thing", ID: id}, MinAt: -1 << 63,
			MaxAt: 1<<63 - 1}})
	testkit.Must(t, err)
	return objs[0]
}

// comparedFields excludes the parts of a row that may depend on the order of arrival.
var comparedFields = cmp.Options{
	cmpopts.IgnoreFields(versioning.Row{}, "RefetchAfter"),
	cmpopts.IgnoreFields(versioning.State{}, "JSON"), // jsonb writes it in its own form; ExactHash covers it
}

// RowDifference returns the difference between the row that the pure rule gives and the row in the
// database, without what may depend on the order of arrival. It is empty if the rows agree.
func RowDifference(want, got versioning.Row, opts ...cmp.Option) string {
	return cmp.Diff(want, got, append(opts, comparedFields)...)
}

// Scan reads the single row of a query as the superuser.
func (l *Log) Scan(t testing.TB, sql string, into ...any) {
	t.Helper()
	if err := l.DB.Pool.QueryRow(t.Context(), sql).Scan(into...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// OutcomeOf returns the live outcome of an event.
func (l *Log) OutcomeOf(t testing.TB, id int64) (status, reason string, attempts int) {
	t.Helper()
	err := l.DB.Pool.QueryRow(t.Context(), `SELECT status, reason, attempts FROM outcomes WHERE event_id = $1
		AND run = 0`, id).Scan(&status, &reason, &attempts)
	if err != nil {
		t.Fatalf("outcome of %d: %v", id, err)
	}
	return status, reason, attempts
}

// AwaitAtLeast waits until a query counts at least a number.
func (l *Log) AwaitAtLeast(t testing.TB, least int, sql string) {
	t.Helper()
	testkit.Eventually(t, MaxWait, func() error {
		var n int
		if l.Scan(t, sql, &n); n < least {
			return fmt.Errorf("%s: %d, want %d", sql, n, least)
		}
		return nil
	})
}

// AwaitLockWait waits until a transaction waits for the lock of an object. It fails if ended
// reports first that the transaction has ended.
func (l *Log) AwaitLockWait(t testing.TB, ended <-chan error) {
	t.Helper()
	testkit.Eventually(t, MaxWait, func() error {
		select {
		case err := <-ended:
			t.Fatalf("it did not wait for the object (%v)", err)
		default:
		}
		var n int
		l.Scan(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, &n)
		if n == 0 {
			return errors.New("no transaction waits for an object")
		}
		return nil
	})
}

// CheckLockOrder locks the row of a table whose column has the value first. It checks that do waits
// for it, and locks no other row of the table before it.
func (l *Log) CheckLockOrder(t testing.TB, table, column, first string, do func() error) {
	t.Helper()
	where := " FROM " + table + " WHERE " + column + "::text "
	tx := testkit.OpenTx(t, l.DB.Pool, "SELECT"+where+"= $1 FOR SHARE", first)
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	testkit.Eventually(t, MaxWait, func() error {
		select {
		case err := <-ended:
			t.Fatalf("it did not wait for the row (%v)", err)
		default:
		}
		if len(l.DB.QueryStrings(t, `SELECT pid::text FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`,
			tx.Conn().PgConn().PID())) == 0 {
			return errors.New("no transaction waits for the row")
		}
		return nil
	})
	others := l.DB.QueryStrings(t, "SELECT "+column+"::text"+where+"<> $1 ORDER BY 1", first)
	free := l.DB.QueryStrings(t, "SELECT "+column+"::text"+where+"<> $1 ORDER BY 1 FOR UPDATE SKIP LOCKED", first)
	testkit.Equal(t, "rows of "+table+" that are not locked", others, free)
	testkit.Must(t, tx.Rollback(t.Context()))
	testkit.Must(t, <-ended)
}
