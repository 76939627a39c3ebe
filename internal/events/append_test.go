package events_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

type testBundle struct {
	db                *testkit.DB
	gateway, operator *pgxpool.Pool
	source            int32
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	db := testkit.Database(t)
	b := &testBundle{db: db, gateway: db.Role(t, "gateway"), operator: db.Role(t, "operator")}
	registered, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"shop": "shopify"})
	testkit.Must(t, err)
	b.source = registered.Number["shop"]
	return b
}

// delivery returns a delivery with the given keys and body.
func (b *testBundle) delivery(body string, keys ...string) events.Delivery {
	d := events.Delivery{Source: b.source, ReceivedAt: time.Date(2026, 11, 20, 10, 0, 0, 123_000, time.UTC),
		Origin:  events.OriginWebhook,
		Headers: []byte(`{"X-Test":"1"}`), Verification: []byte(`{"scheme":"test","secret":"main"}`),
		Body: []byte(body)}
	for _, k := range keys {
		d.Events = append(d.Events, provider.Event{Key: k, Type: "orders/create", Account: "a", ObjectType: "order",
			ObjectID: "1", Fingerprint: provider.BodyFingerprint([]byte(body))})
	}
	return d
}

func (b *testBundle) append(t *testing.T, ds ...events.Delivery) [][]events.Receipt {
	t.Helper()
	r, err := events.Append(t.Context(), b.gateway, ds)
	testkit.Must(t, err)
	return r
}

// count returns the number of rows of a table, or of the rest of a query.
func (b *testBundle) count(t interface {
	Context() context.Context
	Helper()
	Fatal(args ...any)
}, from string) (n int) {
	t.Helper()
	testkit.Must(t, b.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM "+from).Scan(&n))
	return n
}

func TestAppend_unusualContent_isReadBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	body := "\x00\xff not JSON, \u2028 stored byte for byte" + strings.Repeat("x", 10_000)
	r := b.append(t, b.delivery(body, "k\x00\xff1"))
	recs, err := events.Read(t.Context(), b.gateway, []int64{r[0][0].ID, 42}, events.UnlimitedBody)
	if err != nil || len(recs) != 1 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	if string(recs[0].Body) != body {
		t.Error("the body differs from the appended one")
	}
	if got := recs[0].ReceivedAt.UTC(); !got.Equal(time.Date(2026, 11, 20, 10, 0, 0, 123_000, time.UTC)) {
		t.Errorf("received at %s", got)
	}
	if !b.append(t, b.delivery(body, "k\x00\xff1"))[0][0].Duplicate {
		t.Error("a key with NUL is not found again")
	}
}

// wantEvents checks the number of events, each with a key, and of conflicts.
func (b *testBundle) wantEvents(t *testing.T, events, conflicts int) {
	t.Helper()
	if n, keys, c := b.count(t, "events"), b.count(t, "event_keys"), b.count(t, "event_conflicts"); n != events ||
		keys != events || c != conflicts {
		t.Errorf("%d events, %d keys and %d conflicts, want %d of both and %d", n, keys, c, events, conflicts)
	}
}

func TestAppend_conflict_storesBoth(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, b.delivery("first", "k"))[0][0]
	for range 2 {
		r := b.append(t, b.delivery("second", "k"))[0][0]
		if r.ID != first.ID || !r.Duplicate || !r.Conflict {
			t.Fatalf("receipt %+v", r)
		}
	}
	stored := b.db.QueryStrings(t, `SELECT convert_from(c.body, 'UTF8') || ' beside ' || convert_from(e.body, 'UTF8')
		FROM event_conflicts c JOIN events e ON e.id = c.event`)
	if !slices.Equal(stored, []string{"second beside first"}) {
		t.Errorf("stored %q", stored)
	}
}

// 200 concurrent senders of one delivery create one event, and all get the same receipt except for
// Duplicate.
func TestAppend_concurrentDuplicates_storeOneEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	receipts := make([]events.Receipt, 200)
	var wg sync.WaitGroup
	for i := range receipts {
		wg.Go(func() {
			r, err := events.Append(t.Context(), b.gateway, []events.Delivery{b.delivery("same", "k")})
			if err != nil {
				t.Error(err)
				return
			}
			receipts[i] = r[0][0]
		})
	}
	wg.Wait()
	news := 0
	for _, r := range receipts {
		if !r.Duplicate {
			news++
		}
		if r.ID != receipts[0].ID || r.Conflict {
			t.Fatalf("receipts differ: %+v and %+v", r, receipts[0])
		}
	}
	if b.wantEvents(t, 1, 0); news != 1 {
		t.Errorf("%d of 200 receipts say that the event is new", news)
	}
}

// Batches with the same keys in different orders neither deadlock nor lose a receipt.
func TestAppend_overlappingBatches_doNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for round := range 10 {
				var ds []events.Delivery
				for i := range 40 {
					k := (i*(w*2+1) + round*20) % 300
					ds = append(ds, b.delivery(fmt.Sprint("body ", k), fmt.Sprint("k", k)))
				}
				r, err := events.Append(t.Context(), b.gateway, ds)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range r {
					if r[i][0].ID == 0 || r[i][0].Conflict {
						t.Errorf("receipt %+v", r[i][0])
					}
				}
			}
		})
	}
	wg.Wait()
	if n := b.count(t, "event_keys k FULL JOIN events e ON e.id = k.id WHERE e.id IS NULL OR k.id IS NULL"); n != 0 {
		t.Errorf("%d keys without event or events without key", n)
	}
}

// Receipts arrive before the commit. If it fails, they do not count.
func TestAppend_failedCommit_returnsNoReceipts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("x", "before")) // creates the partition
	b.db.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
	b.db.Exec(t, `CREATE CONSTRAINT TRIGGER late AFTER INSERT ON event_keys DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if r, err := events.Append(t.Context(), b.gateway, []events.Delivery{b.delivery("x", "k")}); err == nil {
		t.Errorf("receipts %+v of an append that was not committed", r)
	}
	if n := b.count(t, "events"); n != 1 {
		t.Errorf("%d events, want only the one before", n)
	}
}

// A statement that was prepared on empty tables must use the index of event_keys when the tables
// are full.
func TestAppend_planFromEmptyTables_usesIndex(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{"never analyzed": "SELECT 1", "analyzed while empty": "ANALYZE"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.db.Exec(t, prepare)
			b.gateway = b.connect(t, "pool_max_conns=1&plan_cache_mode=force_generic_plan")
			for i := range 21 {
				b.append(t, b.delivery("x", fmt.Sprint("k", i)))
			}
			flushStatistics(t, b.gateway)
			b.db.WantRows(t, 1, `pg_stat_user_tables WHERE relname = 'event_keys' AND seq_scan = 0`)
		})
	}
}

// flushStatistics makes a session report its statistics, at the end of its next transaction.
func flushStatistics(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, sql := range []string{`SELECT pg_stat_force_next_flush()`, `SELECT 1`} {
		testkit.ExecSQL(t, pool, sql)
	}
}

// connect returns a pool of sessions with the given parameters.
func (b *testBundle) connect(t *testing.T, parameters string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), b.db.URL+"&search_path=postern&"+parameters)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// A missing partition is created on demand; a used id raises the floor.
func TestAppend_missingPartitionOrUsedID_isRetried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, b.delivery("x", "k0"))[0][0]
	// The clock goes back to the millisecond of the first id, and the sequence to the value before
	// it.
	b.db.Exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE
		AS 'SELECT to_timestamp(%d / 1000.0)'`, first.ID>>20))
	b.db.Exec(t, fmt.Sprintf(`ALTER SEQUENCE event_sequence RESTART WITH %d`, first.ID&(1<<20-1)))
	b.gateway.Reset() // sessions cache sequence values
	second := b.append(t, b.delivery("x", "k1"))[0][0]
	if second.ID <= first.ID {
		t.Errorf("id %d after %d", second.ID, first.ID)
	}
	if n := b.count(t, "pg_inherits WHERE inhparent = 'events'::regclass"); n == 0 {
		t.Error("no partitions")
	}
}

// If the database rejects everything, no delivery is the cause: a database that cannot be reached,
// no session, or no permission to append.
func TestAppend_databaseRejects_isUnavailable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	wantUnavailable := func(what string, pool *pgxpool.Pool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := events.Append(ctx, pool, []events.Delivery{b.delivery("x", "k")}); !errors.Is(err,
			events.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", what, err)
		}
	}
	wantUnavailable("no permission", b.operator)
	closed := b.gateway.Config()
	closed.AfterConnect = func(context.Context, *pgx.Conn) error { return errors.New("other error") }
	away, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none")
	testkit.Must(t, err)
	for what, cfg := range map[string]*pgxpool.Config{"no session": closed, "unreachable": away} {
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		testkit.Must(t, err)
		defer pool.Close()
		wantUnavailable(what, pool)
	}
	b.db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE
		AS 'SELECT clock_timestamp() + make_interval(days => 40)'`)
	b.db.Exec(t, `REVOKE EXECUTE ON FUNCTION ensure_partitions FROM postern_gateway`)
	wantUnavailable("no partition, and no permission to create one", b.gateway)
}

func TestMain(m *testing.M) { testkit.Main(m) }
