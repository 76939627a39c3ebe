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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The checks of package testkit by short names, because most lines of these tests use one.
var (
	must, equal, execSQL = testkit.Must, testkit.Equal, testkit.ExecSQL
	holdTx, leaseRun     = testkit.OpenTx, applied.LeaseRun
)

const email = "ada.lovelace@example.org"

type fixture struct {
	log            *applied.Log
	db             *testkit.DB
	pool, operator *pgxpool.Pool
	source         int32
	proc           *apply.Applier
	n              int
}

func setup(t *testing.T) *fixture {
	t.Helper()
	l := applied.New(t)
	return &fixture{log: l, db: l.DB, pool: l.Pool, operator: l.OperatorPool, source: l.Source, proc: l.Applier(t, nil)}
}

// body returns the body of an event: an object at a time, with an address.
func body(object string, at int64, address string) []byte {
	b, err := json.Marshal(map[string]any{"id": fmt.Sprint(object, at, address), "type": "thing.updated",
		"object_id": object, "rank": 1, "time": sim.Start + at, "unit": 1,
		"object": map[string]any{"id": object, "customer": map[string]any{"email": address}, "at": at}})
	if err != nil {
		panic(err)
	}
	return b
}

// store appends one delivery with an event for each key.
func (b *fixture) store(t *testing.T, object string, text []byte, keys ...string) []int64 {
	t.Helper()
	return b.storeAt(t, time.Now().UTC(), object, text, keys...)
}

// storeAt is store with an earlier time of receipt, as for a delivery from a spool.
func (b *fixture) storeAt(t *testing.T, received time.Time, object string, text []byte, keys ...string) []int64 {
	t.Helper()
	d := events.Delivery{Source: b.source, ReceivedAt: received, Origin: events.OriginWebhook, Body: text}
	if strings.Contains(string(text), email) {
		d.Headers = []byte(`{"From": "` + email + `"}`)
	}
	for _, key := range keys {
		d.Events = append(d.Events, provider.Event{Key: key, Type: "thing", ObjectType: "thing", ObjectID: object})
	}
	return b.appendDelivery(t, d)
}

// appendDelivery appends a delivery as a gateway does, and returns the ids of its events. The
// delivery needs no headers, verification and fingerprints.
func (b *fixture) appendDelivery(t *testing.T, d events.Delivery) (ids []int64) {
	t.Helper()
	d.Verification = []byte(`{}`)
	if d.Headers == nil {
		d.Headers = []byte(`{}`)
	}
	for i := range d.Events {
		d.Events[i].Fingerprint = provider.BodyFingerprint(d.Body)
	}
	receipts, err := events.Append(t.Context(), b.db.Role(t, "gateway"), []events.Delivery{d})
	must(t, err)
	for _, r := range receipts[0] {
		ids = append(ids, r.ID)
	}
	return ids
}

// wantPreview checks how many events and objects a preview shows, and returns it.
func (b *fixture) wantPreview(t *testing.T, o redaction.Params, events, objects int64) *redaction.Preview {
	t.Helper()
	p, err := redaction.BuildPreview(t.Context(), b.operator, &o, nil)
	must(t, err)
	if p.Events != events || p.Objects != objects {
		t.Errorf("%+v shows %+v, want %d events and %d objects", o, p, events, objects)
	}
	return p
}

// thing selects an object of the simulated source for a redaction.
func (b *fixture) thing(id string) redaction.Object {
	return redaction.Object{Source: b.source, Type: "thing", ID: id}
}

// event stores one event and applies it.
func (b *fixture) event(t *testing.T, object string, at int64, address string) int64 {
	t.Helper()
	b.n++
	ids := b.store(t, object, body(object, at, address), fmt.Sprint("k", b.n))
	b.apply(t, 0, ids...)
	return ids[0]
}

func (b *fixture) apply(t *testing.T, run int64, ids ...int64) {
	t.Helper()
	applied.Apply(t, b.proc, run, ids)
}

func (b *fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	b.db.Exec(t, sql, args...)
}

func (b *fixture) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.QueryStrings(t, sql, args...)
}

// tablesWith returns the tables that contain a text, in a text, JSON or binary column.
func (b *fixture) tablesWith(t *testing.T, text string) (found []string) {
	t.Helper()
	for _, table := range b.rows(t, `SELECT oid::regclass::text FROM pg_class
		WHERE relnamespace = 'postern'::regnamespace AND relkind = 'r' ORDER BY 1`) {
		for _, has := range b.rows(t, `SELECT count(*)::text FROM `+table+` t WHERE t::text ILIKE '%' || $1 || '%'
			OR t::text ILIKE '%' || $2 || '%'`, text, hex.EncodeToString([]byte(text))) {
			if has != "0" {
				found = append(found, table)
			}
		}
	}
	return found
}

// byEmail returns parameters that redact an address.
func (b *fixture) byEmail(t *testing.T, address string) redaction.Params {
	t.Helper()
	f, err := redaction.NewValueMatcher("$.object.customer.email", address)
	must(t, err)
	return redaction.Params{Source: b.source, Matchers: []redaction.ValueMatcher{f}}
}

func (b *fixture) request(t *testing.T, o redaction.Params) int64 {
	t.Helper()
	run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: redaction.Job, Params: o, Actor: "me",
		Reason: "she asked for it"})
	must(t, err)
	return run
}

func (b *fixture) execute(t *testing.T) *runs.Lease {
	t.Helper()
	h, status, err := b.tryExecute(t, nil)
	if err != nil || status != runs.Running {
		t.Fatalf("%s, %v", status, err)
	}
	return h
}

// tryExecute executes the open run. It returns the result, which may be an error.
func (b *fixture) tryExecute(t *testing.T, conn *stream.Conn) (h *runs.Lease, status runs.Status, err error) {
	t.Helper()
	h = leaseRun(t, b.pool, "test", time.Minute, redaction.Job)
	status, err = (&redaction.Runner{Pool: b.pool, Applier: b.proc, Conn: conn}).Execute(t.Context(), h,
		slog.New(slog.DiscardHandler))
	return h, status, err
}

// run executes a redaction and returns the run.
func (b *fixture) run(t *testing.T, o redaction.Params) *runs.Lease {
	t.Helper()
	b.request(t, o)
	h := b.execute(t)
	must(t, h.End(t.Context(), runs.Done, ""))
	return h
}

func (b *fixture) state(t *testing.T, object string) string {
	t.Helper()
	return b.rows(t, `SELECT coalesce(state->'customer'->>'email', 'nothing') FROM objects WHERE object_id = $1`,
		object)[0]
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

// errOf returns the error of a call whose other result is not needed.
func errOf[T any](_ T, err error) error { return err }

// wantGone reports the tables that contain a text.
func (b *fixture) wantGone(t *testing.T, text string) {
	t.Helper()
	if left := b.tablesWith(t, text); len(left) > 0 {
		t.Errorf("%s remains in %v", text, left)
	}
}

// wantBodies checks which events still have a body.
func (b *fixture) wantBodies(t *testing.T, want ...int64) {
	t.Helper()
	var ids []string
	for _, id := range want {
		ids = append(ids, fmt.Sprint(id))
	}
	equal(t, "events with a body", ids, b.rows(t, `SELECT id::text FROM events WHERE body IS NOT NULL ORDER BY id`))
}

// wantCounts checks some counts of a run.
func wantCounts(t *testing.T, h *runs.Lease, want map[string]int64) {
	t.Helper()
	for name, n := range want {
		if h.Counts[name] != n {
			t.Errorf("%s: %d, want %d", name, h.Counts[name], n)
		}
	}
}

// runWant executes a redaction and checks how many events it clears.
func (b *fixture) runWant(t *testing.T, o redaction.Params, events int64) {
	t.Helper()
	wantCounts(t, b.run(t, o), map[string]int64{redaction.CountEvents: events})
}

// wantStates checks the addresses in the states of some objects.
func (b *fixture) wantStates(t *testing.T, want map[string]string) {
	t.Helper()
	for object, address := range want {
		if got := b.state(t, object); got != address {
			t.Errorf("%s has %s, want %s", object, got, address)
		}
	}
}

// wantText checks the result of a query with one text.
func (b *fixture) wantText(t *testing.T, want, sql string, args ...any) {
	t.Helper()
	if got := b.rows(t, sql, args...)[0]; got != want {
		t.Errorf("%s: %s, want %s", sql, got, want)
	}
}

// awaitSome waits until a count is above 0.
func (b *fixture) awaitSome(t *testing.T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if b.rows(t, sql, args...)[0] == "0" {
			return errors.New("still 0: " + sql)
		}
		return nil
	})
}

// executeInBackground executes the open run while the test does something else; the channel returns
// the result.
func (b *fixture) executeInBackground(t *testing.T, p *apply.Applier) (h *runs.Lease, ended <-chan error) {
	t.Helper()
	h = leaseRun(t, b.pool, "test", time.Minute, redaction.Job)
	done := make(chan error, 1)
	go func() {
		_, err := (&redaction.Runner{Pool: b.pool, Applier: p}).Execute(context.WithoutCancel(t.Context()), h,
			slog.New(slog.DiscardHandler))
		done <- err
	}()
	return h, done
}

// waitForLock waits until a session waits for a lock with a statement.
func (b *fixture) waitForLock(t *testing.T, statement string) {
	t.Helper()
	b.awaitSome(t, `SELECT count(*)::text FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'`, statement)
}
