package processor_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// fillSQL makes the tables large: objects of no test, and outcomes below and above the test's
// events.
const fillSQL = `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank,
	tied_states, overflow, time_from,
  time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id, revision,
  	rule_version, created_at, updated_at)
SELECT %[1]d, '', 'thing', 'filler_' || g, false, g, 0, 1, '[]', false, g, g, 0, false, false, sha256(g::text::bytea),
	sha256(g::text::bytea), '{}', false,
  g, 1, 1, now(), now() FROM generate_series(1, 200000) g;
INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at,
	rule_version)
SELECT g, 0, %[1]d, g, '', 'thing', 'filler_' || g, 'applied', '', 1, now(), 1
	FROM generate_series(1000001, 1200000) g;`

// Plans that were made while the tables were empty stay efficient when they are full: no statement
// of applying or of the republisher scans objects or outcomes completely.
func TestApply_tablesGrow_plansUseIndexes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for _, table := range []string{"objects", "outcomes", "events", "outbox"} { // an ANALYZE would make new plans
		if _, err := w.DB.Pool.Exec(t.Context(), `ALTER TABLE `+table+
			` SET (autovacuum_enabled = false)`); table != "events" && err != nil {
			t.Fatal(err)
		}
	}
	p, pool := w.withGenericPlans(t, applied.FaultyProvider{})
	pass := processor.RepublishPass(p)
	round := func(seed uint64) {
		h := sim.Generate(rand.New(rand.NewPCG(seed, 11)), applied.ProviderKinds["event time"])
		var batch []stream.Event
		for i, e := range h.Events {
			batch = append(batch, applied.Message(i+1000*int(seed), e))
		}
		batch[0].Key = "fails"
		for i, id := range h.ObjectIDs() { // these reload the history of the objects
			batch = append(batch, overwriteAt(t, h, id, 500+i+1000*int(seed)))
		}
		for range 2 { // the second time all events are finished
			must(t, p.Apply(t.Context(), events.LiveRun, batch))
		}
		must(t, pass(t.Context()))
	}
	round(1)
	w.DB.Exec(t, fmt.Sprintf(fillSQL, w.Source))
	before, read := scanCounts(t, pool)
	began := time.Now()
	for seed := range uint64(20) {
		round(seed + 2)
	}
	took := time.Since(began)
	after, readAfter := scanCounts(t, pool)
	if before != after {
		t.Errorf("sequential scans of objects and outcomes: %s before, %s after 20 rounds on full tables", before,
			after)
	}
	if rows := readAfter - read; rows > 100_000 {
		t.Errorf("20 rounds read %d rows by index", rows)
	}
	if took > maxWait {
		t.Errorf("20 rounds took %s", took)
	}
}

// withGenericPlans returns a processor that does nothing by itself, and its pool of one session,
// whose plans are made once for all parameters.
func (w *world) withGenericPlans(t *testing.T, reads provider.Provider) (*processor.Processor, *pgxpool.Pool) {
	t.Helper()
	sep := "?"
	if strings.Contains(w.DB.URL, "?") {
		sep = "&"
	}
	pool, err := postgres.Connect(t.Context(),
		postgres.Options{URL: w.DB.URL + sep + "plan_cache_mode=force_generic_plan", Role: "postern_processor",
			MaxConns: 1})
	must(t, err)
	t.Cleanup(pool.Close)
	o := w.options(t, reads)
	o.Pool, o.Conn, o.Limits = pool, w.conn, w.limits
	return newProcessor(t, o), pool
}

// overwriteAt is a refetch by which an operator overwrites an object after all of its changes.
func overwriteAt(t *testing.T, h *sim.History, id string, n int) stream.Event {
	t.Helper()
	refetch := h.StoredRefetch(id, sim.Refetch{Began: h.LastChangeAt(id) + int64(n)*1_000_000, Elapsed: 200_000,
		Overwrites: true})
	body, err := refetch.Encode()
	must(t, err)
	return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(n), Key: "overwrite",
		Type: provider.RefetchType, Origin: events.OriginReconcile,
		ReceivedAt: refetch.Overwrite.Before.Add(refetch.Elapsed), Body: body}}
}

// scanCounts returns the sequential scans of the large tables so far, and the rows read through
// their indexes.
func scanCounts(t *testing.T, pool *pgxpool.Pool) (seq string, read int64) {
	t.Helper()
	// the session reports its counts at the end of its next transaction
	for _, sql := range []string{`SELECT pg_stat_force_next_flush()`, `SELECT 1`} {
		must(t, errOf(pool.Exec(context.WithoutCancel(t.Context()), sql)))
	}
	err := pool.QueryRow(t.Context(), `SELECT string_agg(relname || ' ' || seq_scan, ', ' ORDER BY relname),
		sum(idx_tup_fetch) FROM pg_stat_user_tables WHERE relname IN ('objects', 'outcomes')`).Scan(&seq, &read)
	must(t, err)
	return seq, read
}

// Marking changes as sent reads only their rows, however many rows were added to the outbox since
// the first marking.
func TestMarkSent_largeOutbox_readsOnlyMarkedRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.DB.Exec(t, `ALTER TABLE outbox SET (autovacuum_enabled = false)`) // a VACUUM would make new plans
	p, pool := w.withGenericPlans(t, nil)
	mark := processor.MarkSent(p)
	round := func(rows int) {
		w.DB.Exec(t, fmt.Sprintf(`INSERT INTO outbox (sources, accounts, types, ids, created_at) SELECT '{1}', '{a}',
			'{t}', ARRAY[repeat('i', 200)], now() FROM generate_series(1, %d)`, rows))
		for range 10 {
			var last int64
			w.Scan(t, `SELECT max(batch) FROM outbox`, &last)
			must(t, mark(t.Context(), map[int64]uint64{last: 7, last - 1: 8, last - 2: 9}))
		}
	}
	read := func() (n int64) {
		_, _ = scanCounts(t, pool) // makes the session report its counts
		w.Scan(t, `SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'outbox'`, &n)
		return n
	}
	round(10)
	before := read()
	round(20_000)
	var marked int
	if w.Scan(t, `SELECT count(*) FROM outbox WHERE sent_at IS NOT NULL AND sequence BETWEEN 7 AND 9`,
		&marked); marked != 6 {
		t.Fatalf("%d rows are marked, want 6", marked)
	}
	if n := read() - before; n > 100_000 { // two queries of the test itself scan it completely
		t.Errorf("marking 3 of 20,000 rows ten times read %d rows sequentially", n)
	}
}

// Counting events without an outcome reads the rows after the republisher's cursor, however large
// the log is, with each plan.
func TestReadPendingWork_largeLog_readsRowsAfterTheCursor(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, `
SELECT ensure_partitions(clock_ms() - 86400000, clock_ms());
CREATE TEMP TABLE made AS SELECT ((SELECT clock_ms()) << 20) - n AS id, n FROM generate_series(1, 30000) n;
INSERT INTO sources (name, provider, api_reads) VALUES ('stripe', 'stripe', '{}');
INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, received_at, origin, api_version,
  headers, verification, fingerprint, delivery_id, delivery_index, body)
SELECT id, 1, id, '', '', '', '', now(), 'webhook', '', '{}', '{}', '', id, 0, '' FROM made ORDER BY id;
INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at,
  rule_version)
SELECT id, 0, 1, 0, '', '', '', 'applied', '', 1, now(), 1 FROM made WHERE n <> 50 ORDER BY id;
INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
SELECT 'republisher', 0, id, '', now(), now() FROM made WHERE n = 101`)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		read := func() (n int) {
			must(t, tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int
				FROM pg_stat_xact_user_tables WHERE relname ~ '^(events|outcomes)'`).Scan(&n))
			return n
		}
		before := read()
		var cursor, count, first int64
		must(t, tx.QueryRow(t.Context(), `SELECT cursor FROM checkpoints`).Scan(&cursor))
		must(t, tx.QueryRow(t.Context(), processor.UnappliedSQL, cursor, int64(math.MaxInt64),
			processor.MaxPendingCount).Scan(&count, &first))
		if n := read() - before; count != 1 || n > 300 {
			t.Errorf("%s: %d events without an outcome, %d rows read", name, count, n)
		}
	})
}

// Partitions are created eight days ahead. If one is missing, the log and the metric report the
// first missing day, not the last existing one.
func TestMaintain_partitionsMissing_reportsInLogAndMetric(t *testing.T) {
	t.Parallel()
	b := setup(t)
	maintenancePool := b.DB.Role(t, "maintenance")
	var logged bytes.Buffer
	reg := prometheus.NewRegistry()
	o := b.options(t, nil)
	o.Logger, o.Metrics = slog.New(slog.NewTextHandler(&logged, nil)), reg
	p := newProcessor(t, o)
	day := func(ahead int) string { return time.Now().UTC().AddDate(0, 0, ahead).Format("20060102") }
	checkMetric := func(ahead int) {
		t.Helper()
		want, err := time.Parse("20060102", day(ahead))
		must(t, err)
		got := metricValue(t, reg, "postern_partitions_until_timestamp_seconds", "")
		if got != float64(want.Unix()) {
			t.Errorf("the metric is %v, want %s", got, want)
		}
	}
	if err := processor.MaintainOnce(t.Context(), p, maintenancePool); err != nil || logged.Len() > 0 {
		t.Fatal(err, logged.String())
	}
	checkMetric(9)
	b.DB.Exec(t, "DROP TABLE events_"+day(3))
	// This role cannot create it.
	if err := processor.MaintainOnce(t.Context(), p, b.DB.Role(t, "reader")); err == nil {
		t.Error("a reader creates partitions")
	}
	checkMetric(3)
	if !strings.Contains(logged.String(), "level=ERROR") || !strings.Contains(logged.String(), "end too soon") {
		t.Errorf("logged %q", logged.String())
	}
}
