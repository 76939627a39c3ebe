package events_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	known, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"shop": "shopify"})
	if err != nil {
		t.Fatal(err)
	}
	b.source = known.Number["shop"]
	return b
}

// delivery is one with the given keys and body.
func (b *testBundle) delivery(body string, keys ...string) events.Delivery {
	d := events.Delivery{Source: b.source, ReceivedAt: time.Date(2026, 11, 20, 10, 0, 0, 123_000, time.UTC), Origin: events.OriginWebhook,
		Headers: []byte(`{"X-Test":"1"}`), Verification: []byte(`{"scheme":"test","secret":"main"}`), Body: []byte(body)}
	for _, k := range keys {
		d.Events = append(d.Events, provider.Event{Key: k, Type: "orders/create", Account: "a", ObjectType: "order", ObjectID: "1",
			Fingerprint: provider.BodyFingerprint([]byte(body))})
	}
	return d
}

func (b *testBundle) append(t *testing.T, ds ...events.Delivery) [][]events.Receipt {
	t.Helper()
	r, err := events.Append(t.Context(), b.gateway, ds)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (b *testBundle) count(t *testing.T, table string) (n int) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAppendStoresEachKeyOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, b.delivery("one", "k1"), b.delivery("two", "k2"), b.delivery("one", "k1"))
	if first[0][0].ID != first[2][0].ID || first[0][0].Duplicate == first[2][0].Duplicate {
		t.Errorf("twins in one batch: %+v and %+v", first[0][0], first[2][0])
	}
	again := b.append(t, b.delivery("two", "k2"))
	want := first[1][0]
	want.Duplicate = true
	if diff := cmp.Diff(want, again[0][0]); diff != "" {
		t.Errorf("receipt of the second delivery (-want +got):\n%s", diff)
	}
	if n := b.count(t, "events"); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	if n := b.count(t, "event_conflicts"); n != 0 {
		t.Errorf("%d conflicts, want none", n)
	}
}

func TestAppendReadsBackExactly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	body := "\x00\xff not JSON, \u2028 kept byte for byte" + strings.Repeat("x", 10_000)
	r := b.append(t, b.delivery(body, "k\x00\xff1"))
	recs, err := events.Read(t.Context(), b.gateway, []int64{r[0][0].ID, 42}, events.AnyBody)
	if err != nil || len(recs) != 1 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	if string(recs[0].Body) != body {
		t.Error("the body is not what was appended")
	}
	if got := recs[0].ReceivedAt.UTC(); !got.Equal(time.Date(2026, 11, 20, 10, 0, 0, 123_000, time.UTC)) {
		t.Errorf("received at %s", got)
	}
	if !b.append(t, b.delivery(body, "k\x00\xff1"))[0][0].Duplicate {
		t.Error("a key with NUL is not found again")
	}
}

func TestSeveralEventsShareOneBody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("earlier", "k2"))
	r := b.append(t, b.delivery("batch", "k1", "k2", "k3"))[0]
	if r[0].Duplicate || !r[1].Duplicate || !r[1].Conflict || r[2].Duplicate {
		t.Fatalf("receipts %+v", r)
	}
	recs, err := events.Read(t.Context(), b.gateway, []int64{r[0].ID, r[2].ID}, events.AnyBody)
	if err != nil || len(recs) != 2 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	for _, rec := range recs {
		if string(rec.Body) != "batch" {
			t.Errorf("event %s has body %q", rec.Key, rec.Body)
		}
	}
	var bodies int
	if err := b.db.Pool.QueryRow(t.Context(), "SELECT count(body) FROM events WHERE event_id IN ('k1', 'k3')").Scan(&bodies); err != nil || bodies != 1 {
		t.Errorf("%d bodies stored for one delivery, want 1 (%v)", bodies, err)
	}
}

func TestConflictKeepsBoth(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, b.delivery("first", "k"))[0][0]
	for range 2 {
		r := b.append(t, b.delivery("second", "k"))[0][0]
		if r.ID != first.ID || !r.Duplicate || !r.Conflict {
			t.Fatalf("receipt %+v", r)
		}
	}
	var kept, stored string
	err := b.db.Pool.QueryRow(t.Context(), "SELECT convert_from(c.body, 'UTF8'), convert_from(e.body, 'UTF8') FROM event_conflicts c JOIN events e ON e.id = c.event").Scan(&kept, &stored)
	if err != nil || kept != "second" || stored != "first" {
		t.Errorf("kept %q beside %q, %v", kept, stored, err)
	}
}

// A delivery sent by 200 senders at once makes one event, and all get the same receipt but for Duplicate.
func TestTwoHundredTwinsMakeOneEvent(t *testing.T) {
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
	if news != 1 || b.count(t, "events") != 1 || b.count(t, "event_keys") != 1 {
		t.Errorf("%d of 200 were told that theirs is new; %d events, %d keys", news, b.count(t, "events"), b.count(t, "event_keys"))
	}
}

// Batches that share keys in different orders neither deadlock nor lose a receipt.
func TestOverlappingBatches(t *testing.T) {
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
	var orphans int
	err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM event_keys k FULL JOIN events e ON e.id = k.id WHERE e.id IS NULL OR k.id IS NULL`).Scan(&orphans)
	if err != nil || orphans != 0 {
		t.Errorf("%d keys without event or events without key, %v", orphans, err)
	}
}

// Receipts arrive before the commit; when that fails nothing may count.
func TestFailingCommitGivesNoReceipt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("x", "before")) // makes the partition
	for _, sql := range []string{
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`,
		`CREATE CONSTRAINT TRIGGER late AFTER INSERT ON event_keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
	} {
		if _, err := b.db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := events.Append(t.Context(), b.gateway, []events.Delivery{b.delivery("x", "k")}); err == nil {
		t.Errorf("receipts %+v of an append that was not committed", r)
	}
	if n := b.count(t, "events"); n != 1 {
		t.Errorf("%d events, want only the one before", n)
	}
}

// A statement prepared on empty tables stays right on full ones: its plan must reach event_keys by index.
func TestPlansFromEmptyTablesStayRight(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{"never analysed": "SELECT 1", "analysed while empty": "ANALYZE"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if _, err := b.db.Pool.Exec(t.Context(), prepare); err != nil {
				t.Fatal(err)
			}
			b.plansStayRight(t)
		})
	}
}

func (b *testBundle) plansStayRight(t *testing.T) {
	t.Helper()
	conn, err := pgxpool.New(t.Context(), b.db.URL+"&pool_max_conns=1&search_path=postern&plan_cache_mode=force_generic_plan")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b.mustAppend(t, conn, "before")
	fill := `INSERT INTO event_keys SELECT $1, sha256(n::text::bytea), n, '\x00' FROM generate_series(1, 200000) n`
	if _, err := b.db.Pool.Exec(t.Context(), fill, b.source); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := range 20 {
		b.mustAppend(t, conn, fmt.Sprint("after", i))
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("20 appends took %s on 200,000 keys: the plan scans", took)
	}
	var scans int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'event_keys'`).Scan(&scans); err != nil || scans > 0 {
		t.Errorf("%d sequential scans of event_keys, %v", scans, err)
	}
}

func (b *testBundle) mustAppend(t *testing.T, pool *pgxpool.Pool, key string) {
	t.Helper()
	if _, err := events.Append(t.Context(), pool, []events.Delivery{b.delivery("x", key)}); err != nil {
		t.Fatal(err)
	}
}

// A missing partition is made on demand; a taken id raises the floor.
func TestAppendMendsPartitionsAndIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, b.delivery("x", "k0"))[0][0]
	// The clock steps back to the very millisecond of the first id, and the sequence to before it.
	for _, sql := range []string{
		fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT to_timestamp(%d / 1000.0)'`, first.ID>>20),
		fmt.Sprintf(`ALTER SEQUENCE event_sequence RESTART WITH %d`, first.ID&(1<<20-1)),
	} {
		if _, err := b.db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	b.gateway.Reset() // sessions cache sequence values
	second := b.append(t, b.delivery("x", "k1"))[0][0]
	if second.ID <= first.ID {
		t.Errorf("id %d after %d", second.ID, first.ID)
	}
	var parts int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass`).Scan(&parts); err != nil || parts == 0 {
		t.Errorf("%d partitions, %v", parts, err)
	}
}

func TestAppendOutOfReach(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = events.Append(ctx, pool, []events.Delivery{b.delivery("x", "k")})
	if !isUnavailable(err) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

// What refuses everything is no delivery's fault: no session that may be had, or no right to append.
func TestAppendRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	refused := func(pool *pgxpool.Pool) {
		t.Helper()
		if _, err := events.Append(t.Context(), pool, []events.Delivery{b.delivery("x", "k")}); !isUnavailable(err) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	}
	refused(b.operator) // may not
	cfg := b.gateway.Config()
	cfg.AfterConnect = func(context.Context, *pgx.Conn) error { return errors.New("not like this") }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	refused(pool)
	for _, sql := range []string{ // no day is there, and none may be made
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() + interval ''40 days'''`,
		`REVOKE EXECUTE ON FUNCTION ensure_partitions FROM postern_gateway`,
	} {
		b.db.Exec(t, sql)
	}
	refused(b.gateway)
}
