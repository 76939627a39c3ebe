package events_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// incompressible returns text that hardly compresses.
func incompressible(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	out := make([]byte, n)
	for i := range out {
		out[i] = byte('!' + rng.IntN(90))
	}
	return string(out)
}

// Every column is read back as it was given, also empty, unusual and extreme values, and in every
// query mode that a URL can request.
func TestAppend_allColumns_areReadBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type columns struct {
		Key, Type, Account, ObjectType, ObjectID, APIVersion, Origin, Headers, Verification, Body string
		OccurredAt                                                                                *time.Time
		ReceivedAt                                                                                time.Time
		Index                                                                                     int
	}
	at := func(s string) *time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		testkit.Must(t, err)
		return &v
	}
	received := time.Date(1999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	wants := map[string]columns{
		"all": {"all", "order/é", "ac ct", "or\"der", `\1,{}`, "v1", "import", `{"a": "\"b\\"}`, `{"c": 1}`,
			"\x00{\"x\":1}\\", at("2026-11-21T10:00:00.123456Z"), received, 0},
		"none": {Key: "none", Origin: "webhook", Headers: "{}", Verification: "{}", ReceivedAt: received},
		"early": {Key: "early", Origin: "reconcile", Headers: "{}", Verification: "{}",
			OccurredAt: at("0001-02-03T04:05:06Z"), ReceivedAt: received},
		"late": {Key: "late", Origin: "reconcile", Headers: "{}", Verification: "{}",
			OccurredAt: at("9999-12-31T23:59:59.999999Z"), ReceivedAt: received},
	}
	modes := []string{"cache_statement", "exec", "cache_describe"}
	for _, mode := range modes {
		pool := b.connect(t, "default_query_exec_mode="+mode)
		var batch []events.Delivery
		for _, w := range wants {
			d := b.delivery(w.Body, mode+w.Key)
			d.Origin, d.Headers, d.Verification, d.ReceivedAt = w.Origin, []byte(w.Headers), []byte(w.Verification),
				w.ReceivedAt
			e := &d.Events[0]
			e.Type, e.Account, e.ObjectType, e.ObjectID, e.APIVersion = w.Type, w.Account, w.ObjectType, w.ObjectID,
				w.APIVersion
			if w.OccurredAt != nil {
				e.OccurredAt = *w.OccurredAt
			}
			batch = append(batch, d)
		}
		_, err := events.Append(t.Context(), pool, batch)
		testkit.Must(t, err)
		for key, want := range wants {
			want.Key = mode + key
			var got columns
			var body []byte
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT event_id, event_type, account, object_type, object_id,
				api_version, origin, headers::text, verification::text,
				body, occurred_at, received_at, delivery_index FROM events WHERE event_id = $1 AND delivery_id = id`,
				want.Key).Scan(&got.Key, &got.Type, &got.Account, &got.ObjectType, &got.ObjectID,
				&got.APIVersion, &got.Origin, &got.Headers, &got.Verification, &body, &got.OccurredAt, &got.ReceivedAt,
				&got.Index); err != nil {
				t.Fatalf("%s: %v", want.Key, err)
			}
			got.Body = string(body)
			testkit.Equal(t, want.Key, want, got)
		}
	}
}

// A year in a body that PostgreSQL cannot store becomes null.
func TestAppend_timeOutOfRange_isNull(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, year := range []int{-5000, 0, 10_000, 300_000} {
		d := b.delivery("x", time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).String())
		d.Events[0].OccurredAt = time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		b.append(t, d)
	}
	if n := b.count(t, "events WHERE occurred_at IS NULL"); n != 4 {
		t.Errorf("%d of 4 events have no time", n)
	}
}

// A body is stored in its event's row as long as that fits a page. A longer one is stored in the
// TOAST table, with long keys.
func TestAppend_bodies_areInlineIfShort(t *testing.T) {
	t.Parallel()
	b := setup(t)
	toastBytes := func() (bytes int64) {
		err := b.db.Pool.QueryRow(t.Context(), `SELECT sum(pg_relation_size(c.reltoastrelid)) FROM pg_inherits i
			JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass`).Scan(&bytes)
		testkit.Must(t, err)
		return bytes
	}
	b.append(t, b.delivery(incompressible(2400), "2"), b.delivery(incompressible(7000), "7"),
		b.delivery(strings.Repeat("much the same ", 10_000), "long but compressible"))
	if n := toastBytes(); n != 0 {
		t.Errorf("%d bytes outside the rows, want none", n)
	}
	key := incompressible(12_000)
	d := b.delivery(incompressible(20_000), key)
	d.Events[0].ObjectID = incompressible(9_000)
	r := b.append(t, d)[0][0]
	if n := toastBytes(); n == 0 {
		t.Error("no bytes outside the rows")
	}
	recs, err := events.Read(t.Context(), b.gateway, []int64{r.ID}, events.UnlimitedBody)
	if err != nil || len(recs) != 1 || recs[0].Key != key || string(recs[0].Body) != incompressible(20_000) {
		t.Errorf("%d records, %v, different from the appended ones", len(recs), err)
	}
}

// Appends of single deliveries are not planned each time.
func TestAppend_singleDeliveries_planOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool := b.connect(t, "pool_max_conns=1")
	b.gateway = pool
	for i := range 20 {
		b.append(t, b.delivery("x", incompressible(10+i)))
	}
	var custom, generic int
	err := pool.QueryRow(t.Context(), `SELECT custom_plans, generic_plans FROM pg_prepared_statements
		WHERE statement LIKE '%INSERT INTO events%' AND statement NOT LIKE '%pg_prepared_statements%'`).Scan(&custom,
		&generic)
	if err != nil || custom != 0 || generic < 20 {
		t.Errorf("%d plans for one batch and %d runs of the generic plan, %v", custom, generic, err)
	}
}

// A session whose prepared statement was dropped, or whose tables changed, prepares it again.
func TestAppend_lostStatement_isPreparedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.gateway = b.connect(t, "pool_max_conns=1")
	for i, command := range []string{"SELECT 1", "DEALLOCATE ALL", "DEALLOCATE ALL", "DISCARD PLANS"} {
		testkit.ExecSQL(t, b.gateway, command, pgx.QueryExecModeSimpleProtocol)
		b.append(t, b.delivery("x", fmt.Sprint("again", i)))
	}
}

// Bodies are copied once, into the message, however long the keys are. Not parallel: memory is
// measured for the whole process.
func TestAppend_body_isCopiedOnce(t *testing.T) {
	b := setup(t)
	b.append(t, b.delivery("x", "prepared"))
	one, two := incompressible(2<<20), incompressible(3<<20)
	batch := []events.Delivery{b.delivery(one, incompressible(200_000)), b.delivery(two, "short")}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.append(t, batch...)
	runtime.ReadMemStats(&after)
	if size, cost := uint64(len(one)+len(two)), after.TotalAlloc-before.TotalAlloc; cost > size*3/2 {
		t.Errorf("%d bytes of bodies cost %d", size, cost)
	}
}

// Deliveries of a batch with different origins and verifications are stored with their own: equal
// to the previous one, to an earlier one, or to none.
func TestAppend_provenances_areStoredPerDelivery(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rng := rand.New(rand.NewPCG(5, 8))
	origins := []string{"webhook", "import", "reconcile"}
	want := map[string]string{}
	var batch []events.Delivery
	for i := range 300 {
		d := b.delivery(fmt.Sprint("body ", i), fmt.Sprint("k", i), fmt.Sprint("k", i, "b"))
		d.Origin = origins[min(rng.IntN(6), 2)]
		d.Verification = fmt.Appendf(nil, `{"secret": "s%d"}`, min(rng.IntN(12), 7))
		batch = append(batch, d)
		for _, e := range d.Events {
			want[e.Key] = d.Origin + " " + string(d.Verification)
		}
	}
	b.append(t, batch...)
	rows, err := b.db.Pool.Query(t.Context(), `SELECT event_id, origin || ' ' || verification FROM events`)
	testkit.Must(t, err)
	got := map[string]string{}
	var key, provenance string
	_, err = pgx.ForEachRow(rows, []any{&key, &provenance}, func() error { got[key] = provenance; return nil })
	testkit.Must(t, err)
	testkit.Equal(t, "provenances", want, got)
}

// Without a standby, an append of duplicates is one message to the database, like that of new
// events, so a flood of duplicates costs no more.
func TestAppend_duplicates_costOneMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sent := b.countMessages(t)
	b.append(t, b.delivery("before", "before")) // prepares the statement
	for _, c := range []struct {
		what  string
		batch []events.Delivery
		want  int64
	}{
		{"new", []events.Delivery{b.delivery("one", "a", "b"), b.delivery("two", "c")}, 1},
		{"all stored", []events.Delivery{b.delivery("one", "a", "b"), b.delivery("two", "c")}, 1},
		{"all stored, and repeated", []events.Delivery{b.delivery("one", "a"), b.delivery("one", "a"),
			b.delivery("two", "c")}, 1},
		{"some new", []events.Delivery{b.delivery("one", "a"), b.delivery("three", "d")}, 1},
	} {
		before := sent.Load()
		b.append(t, c.batch...)
		if n := sent.Load() - before; n != c.want {
			t.Errorf("%s: %d messages, want %d", c.what, n, c.want)
		}
	}
}

// countMessages reconnects the gateway's sessions, and counts the messages that they send.
func (b *testBundle) countMessages(t *testing.T) *atomic.Int64 {
	t.Helper()
	var sent atomic.Int64
	cfg := b.gateway.Config()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return countingWriter{conn, &sent}, err
	}
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	b.gateway = pool
	return &sent
}

// countingWriter counts the messages over a connection.
type countingWriter struct {
	net.Conn
	sent *atomic.Int64
}

func (c countingWriter) Write(p []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(p)
}

// A flood of duplicates uses no ids: each id would cost a transaction id and a WAL record.
func TestAppend_duplicates_useNoIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var flood []events.Delivery
	for i := range 40 {
		flood = append(flood, b.delivery("same", fmt.Sprint("k", i%10)))
	}
	b.append(t, flood...)
	used := func() (n int64) {
		testkit.Must(t, b.db.Pool.QueryRow(t.Context(), `SELECT last_value FROM event_sequence`).Scan(&n))
		return n
	}
	before := used()
	for range 50 {
		for _, r := range b.append(t, flood...) {
			if !r[0].Duplicate || r[0].Conflict || r[0].ID == 0 {
				t.Fatalf("receipt %+v", r[0])
			}
		}
	}
	if after := used(); after != before { // more ids than a session caches
		t.Errorf("the sequence went from %d to %d", before, after)
	}
}

// Events with a repeated key in one batch get the receipt of the first one. One with different
// content is stored as a conflict, whether the key is new or stored.
func TestAppend_repeatedKeyInBatch_isDuplicateOrConflict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 2 {
		// The second delivery has nothing new except its conflict; the third has one key of the
		// first and one of its own.
		batch := []events.Delivery{b.delivery("one", "a", "b"), b.delivery("two", "a"), b.delivery("three", "b", "c"),
			b.delivery("one", "a", "b")}
		r := b.append(t, batch...)
		duplicate := round == 1
		for _, c := range []struct {
			delivery, place     int
			like                events.Receipt
			duplicate, conflict bool
		}{
			{0, 0, r[0][0], duplicate, false}, {0, 1, r[0][1], duplicate, false},
			{1, 0, r[0][0], true, true},
			{2, 0, r[0][1], true, true}, {2, 1, r[2][1], duplicate, false},
			{3, 0, r[0][0], true, false}, {3, 1, r[0][1], true, false},
		} {
			got := r[c.delivery][c.place]
			if got.ID != c.like.ID || got.ID == 0 || got.Duplicate != c.duplicate || got.Conflict != c.conflict {
				t.Errorf("round %d, delivery %d, event %d: %+v", round, c.delivery, c.place, got)
			}
		}
		recs, err := events.Read(t.Context(), b.gateway, []int64{r[0][0].ID, r[0][1].ID, r[2][1].ID},
			events.UnlimitedBody)
		if err != nil || len(recs) != 3 {
			t.Fatalf("%d records, %v", len(recs), err)
		}
		for _, rec := range recs {
			if want := map[string]string{"a": "one", "b": "one", "c": "three"}[rec.Key]; string(rec.Body) != want {
				t.Errorf("event %s has body %q, want %q", rec.Key, rec.Body, want)
			}
		}
	}
	b.wantEvents(t, 3, 2)
	if n := b.count(t, "events WHERE body IS NOT NULL"); n != 2 {
		t.Errorf("%d bodies are stored for two deliveries with new events", n)
	}
}

// An event belongs to its source: an event of another source with the same key is another event.
func TestAppend_idOfAnotherSource_isNoDuplicate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	registered, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"other": "shopify"})
	testkit.Must(t, err)
	other := func(key string) events.Delivery {
		d := b.delivery("of the other", key)
		d.Source = registered.Number["other"]
		return d
	}
	stored := b.append(t, b.delivery("of the shop", "a"))
	stored = append(stored, b.append(t, other("a"))...)                                 // an earlier commit has the key
	stored = append(stored, b.append(t, b.delivery("of the shop", "b"), other("b"))...) // its own batch has the key
	for i, r := range stored {
		if r[0].Duplicate || r[0].Conflict {
			t.Errorf("append %d: %+v, want a new event", i, r[0])
		}
	}
	for i, r := range b.append(t, other("a"), other("b")) {
		if want := stored[2*i+1][0].ID; r[0].ID != want || !r[0].Duplicate || r[0].Conflict {
			t.Errorf("again: %+v, want a duplicate of event %d", r[0], want)
		}
	}
}
