package redaction_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

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
	db             *testkit.DB
	pool, operator *pgxpool.Pool
	source         int32
	proc           *processor.Processor
	n              int
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	l := applied.New(t)
	return &testBundle{db: l.DB, pool: l.Pool, operator: l.Operator, source: l.Source, proc: l.Processor(t, nil)}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return redaction.Order{Source: b.source, Finds: []redaction.Find{f}}
}

func (b *testBundle) ask(t *testing.T, o redaction.Order) int64 {
	t.Helper()
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: redaction.Job, Asked: o, Who: "me", Reason: "she asked for it"})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func (b *testBundle) carry(t *testing.T) *runs.Hold {
	t.Helper()
	h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
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
	if err := h.End(t.Context(), runs.Done, ""); err != nil {
		t.Fatal(err)
	}
	return h
}

func (b *testBundle) state(t *testing.T, object string) string {
	t.Helper()
	return b.rows(t, `SELECT coalesce(state->'customer'->>'email', 'nothing') FROM objects WHERE object_id = $1`, object)[0]
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
