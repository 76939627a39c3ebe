package redaction_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const email = "ada.lovelace@example.org"

type testBundle struct {
	log            *applied.Log
	db             *testkit.DB
	pool, operator *pgxpool.Pool
	source         int32
	proc           *processor.Processor
	n              int
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	l := applied.New(t)
	return &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.Operator, source: l.Source, proc: l.Processor(t,
		nil)}
}

// body is an event's: an object at a time, with somebody's address.
func body(object string, at int64, address string) []byte {
	b, err := json.Marshal(map[string]any{"id": fmt.Sprint(object, at, address), "type": "thing.updated", "object_id": object, "rank": 1, "time": sim.Start + at, "unit": 1,
		"object": map[string]any{"id": object, "customer": map[string]any{"email": address}, "at": at}})
	if err != nil {
		panic(err)
	}
	return b
}

// store appends one delivery with an event of each key.
func (b *testBundle) store(t *testing.T, object string, text []byte, keys ...string) []int64 {
	t.Helper()
	return b.storeAt(t, time.Now().UTC(), object, text, keys...)
}

// storeAt does so with what was received at a time, as what comes out of a spool.
func (b *testBundle) storeAt(t *testing.T, received time.Time, object string, text []byte, keys ...string) []int64 {
	t.Helper()
	d := events.Delivery{Source: b.source, ReceivedAt: received, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: text}
	if strings.Contains(string(text), email) {
		d.Headers = []byte(`{"From": "` + email + `"}`)
	}
	for _, key := range keys {
		d.Events = append(d.Events, provider.Event{Key: key, Type: "thing", ObjectType: "thing", ObjectID: object, Fingerprint: provider.BodyFingerprint(text)})
	}
	receipts, err := events.Append(t.Context(), b.db.Role(t, "gateway"), []events.Delivery{d})
	must(t, err)
	var ids []int64
	for _, r := range receipts[0] {
		ids = append(ids, r.ID)
	}
	return ids
}

// event stores one event and applies it.
func (b *testBundle) event(t *testing.T, object string, at int64, address string) int64 {
	t.Helper()
	b.n++
	ids := b.store(t, object, body(object, at, address), fmt.Sprint("k", b.n))
	b.apply(t, 0, ids...)
	return ids[0]
}

func (b *testBundle) apply(t *testing.T, run int64, ids ...int64) {
	t.Helper()
	applied.Apply(t, b.proc, run, ids)
}

func (b *testBundle) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	b.db.Exec(t, sql, args...)
}

func (b *testBundle) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.Rows(t, sql, args...)
}

// holding are the tables that have a text anywhere: in a text, in JSON, or in bytes.
func (b *testBundle) holding(t *testing.T, text string) (found []string) {
	t.Helper()
	for _, table := range b.rows(t, `SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'postern'::regnamespace AND relkind = 'r' ORDER BY 1`) {
		for _, has := range b.rows(t, `SELECT count(*)::text FROM `+table+` t WHERE t::text ILIKE '%' || $1 || '%' OR t::text ILIKE '%' || $2 || '%'`, text, hex.EncodeToString([]byte(text))) {
			if has != "0" {
				found = append(found, table)
			}
		}
	}
	return found
}

// byEmail is the order that forgets an address.
func (b *testBundle) byEmail(t *testing.T, address string) redaction.Order {
	t.Helper()
	f, err := redaction.NewFind("$.object.customer.email", address)
	must(t, err)
	return redaction.Order{Source: b.source, Finds: []redaction.Find{f}}
}

func (b *testBundle) ask(t *testing.T, o redaction.Order) int64 {
	t.Helper()
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: redaction.Job, Asked: o, Who: "me", Reason: "she asked for it"})
	must(t, err)
	return run
}

func (b *testBundle) carry(t *testing.T) *runs.Hold {
	t.Helper()
	h := taken(t, b.pool, "test", time.Minute, redaction.Job)
	if status, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatalf("%s, %v", status, err)
	}
	return h
}

// do carries out an order to its end and returns the run.
func (b *testBundle) do(t *testing.T, o redaction.Order) *runs.Hold {
	t.Helper()
	b.ask(t, o)
	h := b.carry(t)
	must(t, h.End(t.Context(), runs.Done, ""))
	return h
}

func (b *testBundle) state(t *testing.T, object string) string {
	t.Helper()
	return b.rows(t, `SELECT coalesce(state->'customer'->>'email', 'nothing') FROM objects WHERE object_id = $1`, object)[0]
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
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

// gone reports the tables that have a text anywhere.
func (b *testBundle) gone(t *testing.T, text string) {
	t.Helper()
	if left := b.holding(t, text); len(left) > 0 {
		t.Errorf("%s is left in %v", text, left)
	}
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

// carrying has a process carry out the open run while the test does something else; the channel
// says how that ended.
func (b *testBundle) carrying(t *testing.T, p *processor.Processor) (h *runs.Hold, ended <-chan error) {
	t.Helper()
	h = taken(t, b.pool, "test", time.Minute, redaction.Job)
	done := make(chan error, 1)
	go func() {
		_, err := (&redaction.Runner{Pool: b.pool, Processor: p}).Carry(context.WithoutCancel(t.Context()), h,
			slog.New(slog.DiscardHandler))
		done <- err
	}()
	return h, done
}

// waits waits until a session waits for a lock with some statement.
func (b *testBundle) waits(t *testing.T, statement string) {
	t.Helper()
	b.awaitSome(t, `SELECT count(*)::text FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'`, statement)
}
