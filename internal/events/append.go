package events

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// appendSQL appends a whole batch: keys, events for the new ones, a receipt for each. Keys come sorted, so that batches which
// share some cannot deadlock, and each once. A key is looked up by a subquery of its row: it keeps to the index whatever plan an
// empty table left behind, and an anti-join's guess of one row would make nested loops of the joins below. What is there
// already takes no id and no place in the insert: a flood of duplicates burns no WAL. A delivery's columns are taken from
// their arrays by its number, so that no body passes through a join or a sort, and how it came and was proven from arrays of what differs in that. Ids are made here, above the floor, so that a
// reader who raised the floor knows what can still appear (FreezeBound). The fingerprint comes back for duplicates and is
// compared in Go, and with it whether a standby must have what was found: read in the statement that finds it, that costs no question of its own.
const appendSQL = `
WITH base AS MATERIALIZED (
  SELECT greatest(clock_ms(), (SELECT f.ms FROM log_floor f) + 1) << 20 AS id
), d AS MATERIALIZED (
  SELECT d.*, CASE WHEN d.old IS NULL THEN (SELECT base.id FROM base) | (nextval('event_sequence') & 1048575) END AS id
  FROM (
    SELECT d.*, (SELECT k.id FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) AS old
    FROM unnest($1::int[], $2::bytea[], $3::bytea[], $4::int[], $5::int[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::timestamptz[])
      WITH ORDINALITY AS d(source, key, fingerprint, delivery, place, event_id, event_type, account, object_type, object_id, api_version, occurred_at, n)
    OFFSET 0 -- each subquery once for each row
  ) d
), k AS (
  INSERT INTO event_keys (source, key, id, fingerprint)
  SELECT d.source, d.key, d.id, d.fingerprint FROM d WHERE d.id IS NOT NULL ORDER BY d.n
  ON CONFLICT DO NOTHING RETURNING id
), stored AS (
  SELECT k.id, min(k.id) OVER (PARTITION BY d.delivery) AS delivery_id FROM k JOIN d ON d.id = k.id
), e AS (
  INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, occurred_at, received_at, origin,
    api_version, headers, verification, fingerprint, delivery_id, delivery_index, body)
  SELECT d.id, d.source, d.event_id, d.event_type, d.account, d.object_type, d.object_id, d.occurred_at,
    ($13::timestamptz[])[d.delivery], ($15::text[])[($14::int[])[d.delivery]], d.api_version, ($17::jsonb[])[d.delivery],
    ($16::jsonb[])[($14::int[])[d.delivery]], d.fingerprint, s.delivery_id, d.place, CASE WHEN d.id = s.delivery_id THEN ($18::bytea[])[d.delivery] END
  FROM d JOIN stored s ON s.id = d.id
)
SELECT d.n, coalesce(d.old, k.id), k.id IS NULL, CASE WHEN d.old IS NOT NULL THEN
  (SELECT o.fingerprint FROM event_keys o WHERE o.source = d.source AND o.key = d.key LIMIT 1) END,
  current_setting('synchronous_standby_names') <> ''
FROM d LEFT JOIN k ON k.id = d.id`

// twinSQL looks up keys whose twin committed after the snapshot of appendSQL.
const twinSQL = `
SELECT k.id, k.fingerprint FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS d(source, key, n)
CROSS JOIN LATERAL (SELECT k.id, k.fingerprint FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) k ORDER BY d.n`

const conflictSQL = `
INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at, headers, verification, body)
SELECT * FROM unnest($1::int[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::timestamptz[], $8::jsonb[], $9::jsonb[], $10::bytea[])
ON CONFLICT DO NOTHING`

const raiseFloorSQL = `UPDATE log_floor SET ms = greatest(ms + 1, clock_ms())`

// row is one event of a batch, in the order of the keys.
type row struct {
	delivery, place int
	digest          [16]byte
	// twin: the row before has the same key; only the first of them goes into the statement.
	twin    bool
	receipt Receipt
	// unsure: there may be a synchronous standby that does not have what is stored under the key.
	unsure bool
	// fingerprint is what is stored under the key.
	fingerprint []byte
	// rendering is of what is stored under the key, where that is known without a question to the log.
	rendering rendering
}

// Append makes a batch of deliveries durable, each key once, and returns the receipts of each delivery's events in their
// order. It returns only after the commit, with synchronous_commit on; on an error nothing may be acknowledged, and
// appending again is safe. A commit whose wait for the standby somebody cancels is such an error. A started statement is never cancelled (a commit may be waiting for a standby) but where its connection is lost: ctx bounds only
// the wait for a connection. Errors: ErrUnavailable.
func Append(ctx context.Context, pool *pgxpool.Pool, batch []Delivery) ([][]Receipt, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil { // whatever the reason is, it is not the deliveries'
		return nil, fmt.Errorf("append %d deliveries: %w: %w", len(batch), ErrUnavailable, err)
	}
	defer conn.Release()
	receipts, err := appendBatch(context.WithoutCancel(ctx), conn.Conn(), batch)
	if err != nil {
		if postgres.IsUnavailable(err) || postgres.IsRefused(err) || noPartition(err) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, fmt.Errorf("append %d deliveries: %w", len(batch), err)
	}
	return receipts, nil
}

// appendBatch appends what may go together in one statement, and what is stored whole or not at all in a transaction.
func appendBatch(ctx context.Context, conn *pgx.Conn, batch []Delivery) ([][]Receipt, error) {
	if slices.ContainsFunc(batch, apart) {
		return appendApart(ctx, conn, batch)
	}
	rows := sortedRows(batch)
	if err := appendRows(ctx, conn, batch, rows); err != nil {
		return nil, err
	}
	return receiptsOf(batch, rows), nil
}

func receiptsOf(batch []Delivery, rows []row) [][]Receipt {
	receipts := make([][]Receipt, len(batch))
	flat := make([]Receipt, len(rows))
	for i := range batch {
		receipts[i], flat = flat[:len(batch[i].Events):len(batch[i].Events)], flat[len(batch[i].Events):]
	}
	for _, r := range rows {
		receipts[r.delivery][r.place] = r.receipt
	}
	for i := range batch {
		if batch[i].Exact {
			onlyConflicts(receipts[i])
		}
	}
	return receipts
}

func sortedRows(batch []Delivery) []row {
	rows := make([]row, 0, len(batch))
	for i := range batch {
		for j := range batch[i].Events {
			key := batch[i].Events[j].Key
			rows = append(rows, row{delivery: i, place: j, digest: KeyDigest(key), receipt: Receipt{Key: key}})
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(batch[a.delivery].Source, batch[b.delivery].Source), bytes.Compare(a.digest[:], b.digest[:]))
	})
	for i := 1; i < len(rows); i++ {
		a, b := &rows[i-1], &rows[i]
		b.twin = a.digest == b.digest && batch[a.delivery].Source == batch[b.delivery].Source
	}
	return rows
}

// firsts are the rows that go into the statement, each key once.
func firsts(rows []row) []*row {
	out := make([]*row, 0, len(rows))
	for i := range rows {
		if !rows[i].twin {
			out = append(out, &rows[i])
		}
	}
	return out
}

// answerTwins gives each row whose key stood in the batch before what the first one got.
func answerTwins(rows []row) {
	for i := range rows {
		if r := &rows[i]; r.twin {
			before := &rows[i-1]
			r.receipt.ID, r.receipt.Duplicate, r.fingerprint, r.rendering = before.receipt.ID, true, before.fingerprint, before.rendering
		}
	}
}

// appendAttempts bounds what one batch may be tried again for: a missing partition, an id that is taken, a deadlock.
const appendAttempts = 5

func appendRows(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []row) error {
	first := firsts(rows)
	params := appendParams(conn, batch, first)
	defer params.Release()
	for attempt := 1; ; attempt++ {
		err := insert(ctx, params, batch, first)
		if err == nil {
			break
		}
		if err2 := mend(ctx, conn, err); err2 != nil || attempt == appendAttempts {
			return errors.Join(err2, err) // that which could not be mended tells whose trouble it is
		}
	}
	if err := findTwins(ctx, conn, batch, first); err != nil {
		return err
	}
	answerTwins(rows)
	if err := findConflicts(ctx, conn, batch, rows); err != nil {
		return err
	}
	if err := keepConflicts(ctx, conn, batch, rows); err != nil {
		return err
	}
	if err := awaitStandby(ctx, conn, rows); err != nil {
		return err
	}
	return postgres.Confirmed(conn)
}

// awaitStandbySQL commits something, so that the session waits for a synchronous standby where there is one.
const awaitStandbySQL = `SELECT pg_logical_emit_message(true, 'postern', '') WHERE current_setting('synchronous_standby_names') <> ''`

// awaitStandby waits until a synchronous standby has what the receipts stand for, where this batch has committed nothing that waited for that. PostgreSQL shows a commit that does not have its
// standby's word: after a restart of the primary, and where the session that waited was ended. A duplicate of it is found, and would be acknowledged for good by who only reads. Where no standby
// is configured that is known already, and costs nothing; only conflicts, which were looked up since, ask again.
func awaitStandby(ctx context.Context, conn *pgx.Conn, rows []row) error {
	fresh := slices.ContainsFunc(rows, func(r row) bool { return !r.receipt.Duplicate })
	unsure := slices.ContainsFunc(rows, func(r row) bool { return r.unsure })
	conflicts := slices.ContainsFunc(rows, func(r row) bool { return r.receipt.Conflict })
	if (fresh || !unsure) && !conflicts { // the commit of what is new came after that of every duplicate beside it
		return nil
	}
	_, err := conn.Exec(ctx, awaitStandbySQL)
	return err
}

// errNotMended says that trying the same batch again would not help.
var errNotMended = errors.New("not mended by trying again")

// mend removes what made an append fail, where that is in our hands.
func mend(ctx context.Context, conn *pgx.Conn, err error) error {
	if noPartition(err) {
		return EnsurePartitions(ctx, conn, 2*24*time.Hour)
	}
	switch postgres.Code(err) {
	case "23505": // the id is taken: the clock went back, or more than a million ids in a millisecond
		_, err := conn.Exec(ctx, raiseFloorSQL)
		return err
	case "40P01", "40001",
		"26000", "0A000": // the prepared statement is gone, or was made for other tables: it will be prepared again
		return nil
	}
	return errNotMended
}

// noPartition: there is none for the id. A row that a constraint refuses has the same code, and names it.
func noPartition(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23514" && pg.ConstraintName == ""
}

// insert runs appendSQL; only where it returns nil do the receipts in rows count.
func insert(ctx context.Context, params *postgres.Params, batch []Delivery, rows []*row) error {
	n := 0
	_, err := params.Run(ctx, func(answer postgres.Row) error {
		n++
		return readReceipt(answer, batch, rows)
	})
	if err == nil && n != len(rows) {
		err = fmt.Errorf("%d receipts for %d events", n, len(rows))
	}
	return err
}

// readReceipt takes one row of appendSQL's answer.
func readReceipt(answer postgres.Row, batch []Delivery, rows []*row) error {
	n := answer.Int64(0)
	if n < 1 || n > int64(len(rows)) {
		return fmt.Errorf("a receipt for event %d of %d", n, len(rows))
	}
	r := rows[n-1]
	r.receipt.ID = answer.Int64(1) // 0 without one: to be looked up
	r.receipt.Duplicate = answer.Bool(2)
	r.fingerprint = batch[r.delivery].Events[r.place].Fingerprint[:]
	if r.receipt.Duplicate {
		r.fingerprint, r.unsure = bytes.Clone(answer.Bytes(3)), answer.Bool(4)
	}
	return nil
}

// Text is s as a PostgreSQL text can hold it: without NUL and invalid UTF-8. Keys are compared by their digest, which is
// made before; the body keeps the truth.
func Text(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\ufffd"), "\ufffd")
}

// findTwins looks up the keys that came without an id.
func findTwins(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []*row) error {
	var missing []*row
	var sources []int32
	var keys [][]byte
	for _, r := range rows {
		if r.receipt.ID == 0 {
			missing, sources, keys = append(missing, r), append(sources, batch[r.delivery].Source), append(keys, r.digest[:])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	res, err := conn.Query(ctx, twinSQL, sources, keys)
	if err != nil {
		return err
	}
	n := 0
	var id int64
	var fingerprint []byte
	if _, err = pgx.ForEachRow(res, []any{&id, &fingerprint}, func() error {
		missing[n].receipt.ID, missing[n].fingerprint, missing[n].unsure = id, bytes.Clone(fingerprint), true // it committed after the statement that asked for a standby
		n++
		return nil
	}); err == nil && n != len(missing) {
		err = fmt.Errorf("%d twins found of %d", n, len(missing))
	}
	return err
}

// keepConflicts stores whole what came under a known key with another fingerprint, before it is acknowledged; of an event that was redacted nothing is
// stored again.
func keepConflicts(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []row) error {
	var sources []int32
	var ids []int64
	var keys, types, accounts []string
	var fingerprints, headers, verifications, bodies [][]byte
	var received []time.Time
	for i := range rows {
		r := &rows[i]
		d := &batch[r.delivery]
		e := &d.Events[r.place]
		if !r.receipt.Conflict || d.Exact {
			continue
		}
		sources, ids = append(sources, d.Source), append(ids, r.receipt.ID)
		keys, types, accounts = append(keys, Text(e.Key)), append(types, Text(e.Type)), append(accounts, Text(e.Account))
		fingerprints, bodies = append(fingerprints, e.Fingerprint[:]), append(bodies, d.Body)
		headers, verifications = append(headers, d.Headers), append(verifications, d.Verification)
		received = append(received, d.ReceivedAt)
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := conn.Exec(ctx, conflictSQL, sources, ids, keys, types, accounts, fingerprints, received, headers, verifications, bodies)
	return err
}
