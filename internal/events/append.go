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

// appendSQL appends a whole batch: keys, the events of new keys, and a receipt for each event. Each
// key occurs once. Keys come in sorted order, so that batches with common keys cannot deadlock.
//
// A subquery per row looks up its key. It always uses the index, whatever plan an empty table left
// behind; an anti-join's estimate of one row would turn the joins below into nested loops. Keys
// that exist get no id and no place in the insert, so a flood of duplicates writes no WAL.
//
// A delivery's columns are read from their arrays by its number, so that no body passes through a
// join or a sort. Origin and verification are read from shorter arrays of their distinct values.
// Ids are made here, above the floor, so that a reader who raised the floor knows which ids can
// still appear (FreezeBound).
//
// The fingerprints of duplicates are returned and compared in Go. The last column tells whether a
// standby must confirm what was found; reading it here saves another statement.
const appendSQL = `
WITH base AS MATERIALIZED (
  SELECT greatest(clock_ms(), (SELECT f.ms FROM log_floor f) + 1) << 20 AS id
), d AS MATERIALIZED (
  SELECT d.*, CASE WHEN d.old IS NULL THEN (SELECT base.id FROM base) | (nextval('event_sequence') & 1048575) END AS id
  FROM (
    SELECT d.*, (SELECT k.id FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) AS old
    FROM unnest($1::int[], $2::bytea[], $3::bytea[], $4::int[], $5::int[], $6::text[], $7::text[], $8::text[],
    	$9::text[], $10::text[], $11::text[], $12::timestamptz[])
      WITH ORDINALITY AS d(source, key, fingerprint, delivery, place, event_id, event_type, account, object_type,
      	object_id, api_version, occurred_at, n)
    OFFSET 0 -- each subquery once for each row
  ) d
), k AS (
  INSERT INTO event_keys (source, key, id, fingerprint)
  SELECT d.source, d.key, d.id, d.fingerprint FROM d WHERE d.id IS NOT NULL ORDER BY d.n
  ON CONFLICT DO NOTHING RETURNING id
), stored AS (
  SELECT k.id, min(k.id) OVER (PARTITION BY d.delivery) AS delivery_id FROM k JOIN d ON d.id = k.id
), e AS (
  INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, occurred_at, received_at,
  	origin,
    api_version, headers, verification, fingerprint, delivery_id, delivery_index, body)
  SELECT d.id, d.source, d.event_id, d.event_type, d.account, d.object_type, d.object_id, d.occurred_at,
    ($13::timestamptz[])[d.delivery], ($15::text[])[($14::int[])[d.delivery]], d.api_version,
    	($17::jsonb[])[d.delivery],
    ($16::jsonb[])[($14::int[])[d.delivery]], d.fingerprint, s.delivery_id, d.place, CASE
    	WHEN d.id = s.delivery_id THEN ($18::bytea[])[d.delivery] END
  FROM d JOIN stored s ON s.id = d.id
)
SELECT d.n, coalesce(d.old, k.id), k.id IS NULL, CASE WHEN d.old IS NOT NULL THEN
  (SELECT o.fingerprint FROM event_keys o WHERE o.source = d.source AND o.key = d.key LIMIT 1) END,
  current_setting('synchronous_standby_names') <> ''
FROM d LEFT JOIN k ON k.id = d.id`

// concurrentDuplicatesSQL looks up keys that another transaction committed after the snapshot of
// appendSQL.
const concurrentDuplicatesSQL = `
SELECT k.id, k.fingerprint FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS d(source, key, n)
CROSS JOIN LATERAL (SELECT k.id, k.fingerprint FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) k
	ORDER BY d.n`

const insertConflictsSQL = `
INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at, headers,
	verification, body)
SELECT * FROM unnest($1::int[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::timestamptz[],
	$8::jsonb[], $9::jsonb[], $10::bytea[])
ON CONFLICT DO NOTHING`

const raiseFloorSQL = `UPDATE log_floor SET ms = greatest(ms + 1, clock_ms())`

// batchRow is one event of a batch, in the order of the keys.
type batchRow struct {
	delivery, index int
	digest          [16]byte
	// repeated is true if the row before has the same key. Only the first of them goes into the
	// statement.
	repeated bool
	receipt  Receipt
	// mayLackStandby is true if there may be a synchronous standby that does not have the stored
	// event yet.
	mayLackStandby bool
	// fingerprint is the stored fingerprint of the key.
	fingerprint []byte
	// rendering is the rendering of the stored event, if it is known without a query.
	rendering rendering
}

// Append makes a batch of deliveries durable, each key once. It returns the receipts of each
// delivery's events in their order. It returns after the commit, with synchronous_commit on.
//
// After an error the events may be stored or not. The caller must not acknowledge them; appending
// again is safe. A cancelled wait for the standby is such an error. A statement in progress is
// never cancelled, because its commit may be waiting for a standby: ctx bounds only the wait for a
// connection. Only a lost connection ends a statement. Errors: ErrUnavailable.
func Append(ctx context.Context, pool *pgxpool.Pool, batch []Delivery) ([][]Receipt, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil { // the deliveries are never the cause
		return nil, fmt.Errorf("append %d deliveries: %w: %w", len(batch), ErrUnavailable, err)
	}
	defer conn.Release()
	receipts, err := appendBatch(context.WithoutCancel(ctx), conn.Conn(), batch)
	if err != nil {
		if postgres.IsUnavailable(err) || postgres.NeedsOperator(err) || noPartition(err) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, fmt.Errorf("append %d deliveries: %w", len(batch), err)
	}
	return receipts, nil
}

// appendBatch appends a batch in one statement, or in several if a delivery needs that.
func appendBatch(ctx context.Context, conn *pgx.Conn, batch []Delivery) ([][]Receipt, error) {
	if slices.ContainsFunc(batch, needsSeparateAppend) {
		return appendSeparately(ctx, conn, batch)
	}
	rows := sortRowsByKey(batch)
	if err := appendRows(ctx, conn, batch, rows); err != nil {
		return nil, err
	}
	return collectReceipts(batch, rows), nil
}

func collectReceipts(batch []Delivery, rows []batchRow) [][]Receipt {
	receipts := make([][]Receipt, len(batch))
	flat := make([]Receipt, len(rows))
	for i := range batch {
		receipts[i], flat = flat[:len(batch[i].Events):len(batch[i].Events)], flat[len(batch[i].Events):]
	}
	for _, r := range rows {
		receipts[r.delivery][r.index] = r.receipt
	}
	for i := range batch {
		if batch[i].RejectConflicts {
			clearReceiptsOnConflict(receipts[i])
		}
	}
	return receipts
}

func sortRowsByKey(batch []Delivery) []batchRow {
	rows := make([]batchRow, 0, len(batch))
	for i := range batch {
		for j := range batch[i].Events {
			key := batch[i].Events[j].Key
			rows = append(rows, batchRow{delivery: i, index: j, digest: KeyDigest(key), receipt: Receipt{Key: key}})
		}
	}
	slices.SortStableFunc(rows, func(a, b batchRow) int {
		return cmp.Or(cmp.Compare(batch[a.delivery].Source, batch[b.delivery].Source),
			bytes.Compare(a.digest[:], b.digest[:]))
	})
	for i := 1; i < len(rows); i++ {
		a, b := &rows[i-1], &rows[i]
		b.repeated = a.digest == b.digest && batch[a.delivery].Source == batch[b.delivery].Source
	}
	return rows
}

// firstOfEachKey returns the rows that go into the statement, each key once.
func firstOfEachKey(rows []batchRow) []*batchRow {
	out := make([]*batchRow, 0, len(rows))
	for i := range rows {
		if !rows[i].repeated {
			out = append(out, &rows[i])
		}
	}
	return out
}

// fillRepeatedRows copies to each row with a repeated key the result of the first one.
func fillRepeatedRows(rows []batchRow) {
	for i := range rows {
		if r := &rows[i]; r.repeated {
			first := &rows[i-1]
			r.receipt.ID, r.receipt.Duplicate, r.fingerprint, r.rendering = first.receipt.ID, true, first.fingerprint,
				first.rendering
		}
	}
}

// maxAppendAttempts bounds the retries of a batch, after a missing partition, a used id or a
// deadlock.
const maxAppendAttempts = 5

func appendRows(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []batchRow) error {
	first := firstOfEachKey(rows)
	params := appendParams(conn, batch, first)
	defer params.Release()
	for attempt := 1; ; attempt++ {
		err := insert(ctx, params, batch, first)
		if err == nil {
			break
		}
		if err2 := prepareRetry(ctx, conn, err); err2 != nil || attempt == maxAppendAttempts {
			return errors.Join(err2, err) // the error of prepareRetry shows the real cause
		}
	}
	if err := findConcurrentDuplicates(ctx, conn, batch, first); err != nil {
		return err
	}
	fillRepeatedRows(rows)
	if err := findConflicts(ctx, conn, batch, rows); err != nil {
		return err
	}
	if err := insertConflicts(ctx, conn, batch, rows); err != nil {
		return err
	}
	if err := awaitStandby(ctx, conn, rows); err != nil {
		return err
	}
	return postgres.CheckConfirmed(conn)
}

// awaitStandbySQL commits a logical message, so that the session waits for a synchronous standby if
// there is one.
const awaitStandbySQL = `SELECT pg_logical_emit_message(true, 'postern', '')
	WHERE current_setting('synchronous_standby_names') <> ''`

// awaitStandby waits until a synchronous standby has everything that the receipts confirm, if no
// commit of this batch has waited for that. PostgreSQL shows commits that the standby has not
// confirmed: after a restart of the primary, and after a session that waited was ended. A batch
// that contains only duplicates of such a commit would acknowledge them without a standby.
//
// If no standby is configured, the append statement has already reported that, and this costs
// nothing. Only conflicts, which are looked up later, need the extra statement.
func awaitStandby(ctx context.Context, conn *pgx.Conn, rows []batchRow) error {
	hasNew := slices.ContainsFunc(rows, func(r batchRow) bool { return !r.receipt.Duplicate })
	mayLackStandby := slices.ContainsFunc(rows, func(r batchRow) bool { return r.mayLackStandby })
	hasConflicts := slices.ContainsFunc(rows, func(r batchRow) bool { return r.receipt.Conflict })
	// the commit of the new events came after the commits of all duplicates in this batch
	if (hasNew || !mayLackStandby) && !hasConflicts {
		return nil
	}
	_, err := conn.Exec(ctx, awaitStandbySQL)
	return err
}

// errNotRetryable means that trying the same batch again would not help.
var errNotRetryable = errors.New("a retry would not help")

// prepareRetry removes the cause of a failed append, if it can.
func prepareRetry(ctx context.Context, conn *pgx.Conn, err error) error {
	if noPartition(err) {
		return EnsurePartitions(ctx, conn, 2*24*time.Hour)
	}
	switch postgres.Code(err) {
	case "23505": // the id is used: the clock went back, or a millisecond had more than a million ids
		_, err := conn.Exec(ctx, raiseFloorSQL)
		return err
	case "40P01", "40001",
		"26000", "0A000": // the prepared statement was dropped or the tables changed: it is prepared again
		return nil
	}
	return errNotRetryable
}

// noPartition returns true if there is no partition for the id. The violation of a check constraint
// has the same code, but also a constraint name.
func noPartition(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23514" && pg.ConstraintName == ""
}

// insert runs appendSQL. The receipts in rows are valid only if it returns nil.
func insert(ctx context.Context, params *postgres.Params, batch []Delivery, rows []*batchRow) error {
	n := 0
	_, err := params.Run(ctx, func(result postgres.Row) error {
		n++
		return readReceipt(result, batch, rows)
	})
	if err == nil && n != len(rows) {
		err = fmt.Errorf("%d receipts for %d events", n, len(rows))
	}
	return err
}

// readReceipt reads one row of the result of appendSQL.
func readReceipt(result postgres.Row, batch []Delivery, rows []*batchRow) error {
	n := result.Int64(0)
	if n < 1 || n > int64(len(rows)) {
		return fmt.Errorf("a receipt for event %d of %d", n, len(rows))
	}
	r := rows[n-1]
	r.receipt.ID = result.Int64(1) // 0 if appendSQL found no id: it is looked up later
	r.receipt.Duplicate = result.Bool(2)
	r.fingerprint = batch[r.delivery].Events[r.index].Fingerprint[:]
	if r.receipt.Duplicate {
		r.fingerprint, r.mayLackStandby = bytes.Clone(result.Bytes(3)), result.Bool(4)
	}
	return nil
}

// SanitizeText returns s as a PostgreSQL text can store it: without NUL and invalid UTF-8. Keys are
// compared by their digests, which are computed before that. The stored body is unchanged.
func SanitizeText(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\ufffd"), "\ufffd")
}

// findConcurrentDuplicates looks up the keys for which appendSQL returned no id.
func findConcurrentDuplicates(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []*batchRow) error {
	var missing []*batchRow
	var sources []int32
	var keys [][]byte
	for _, r := range rows {
		if r.receipt.ID == 0 {
			missing, sources, keys = append(missing, r), append(sources, batch[r.delivery].Source),
				append(keys, r.digest[:])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	n := 0
	var id int64
	var fingerprint []byte
	err := postgres.ForEach(ctx, conn, concurrentDuplicatesSQL, []any{sources, keys}, []any{&id, &fingerprint},
		func() error {
			// it was committed after the statement that checked for a standby
			missing[n].receipt.ID, missing[n].fingerprint, missing[n].mayLackStandby = id, bytes.Clone(fingerprint),
				true
			n++
			return nil
		})
	if err == nil && n != len(missing) {
		err = fmt.Errorf("%d concurrent duplicates found of %d", n, len(missing))
	}
	return err
}

// insertConflicts stores deliveries that came with a stored key and another fingerprint, before
// they are acknowledged. A trigger drops the conflicts of an event that was redacted.
func insertConflicts(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []batchRow) error {
	var sources []int32
	var ids []int64
	var keys, types, accounts []string
	var fingerprints, headers, verifications, bodies [][]byte
	var received []time.Time
	for i := range rows {
		r := &rows[i]
		d := &batch[r.delivery]
		e := &d.Events[r.index]
		if !r.receipt.Conflict || d.RejectConflicts {
			continue
		}
		sources, ids = append(sources, d.Source), append(ids, r.receipt.ID)
		keys, types, accounts = append(keys, SanitizeText(e.Key)), append(types, SanitizeText(e.Type)),
			append(accounts, SanitizeText(e.Account))
		fingerprints, bodies = append(fingerprints, e.Fingerprint[:]), append(bodies, d.Body)
		headers, verifications = append(headers, d.Headers), append(verifications, d.Verification)
		received = append(received, d.ReceivedAt)
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := conn.Exec(ctx, insertConflictsSQL, sources, ids, keys, types, accounts, fingerprints, received, headers,
		verifications, bodies)
	return err
}
