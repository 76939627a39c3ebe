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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// appendSQL appends a whole batch: keys, events for the new ones, a receipt for each. Rows come sorted by key, so that
// batches which share keys cannot deadlock. LATERAL ... LIMIT 1 keeps the index whatever plan an empty table left behind;
// the anti-join keeps a flood of duplicates from burning WAL; the stored fingerprint is returned and compared in Go.
// Ids are made here, above the floor, so that a reader who raised the floor knows what can still appear (FreezeBound).
const appendSQL = `
WITH d AS MATERIALIZED (
  SELECT * FROM unnest($1::int[], $2::bytea[], $3::bytea[], $4::int[], $5::int[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::timestamptz[], $12::text[])
    WITH ORDINALITY AS d(source, key, fingerprint, delivery, place, event_id, event_type, account, object_type, object_id, occurred_at, api_version, n)
), old AS MATERIALIZED (
  SELECT d.n, k.id, k.fingerprint FROM d CROSS JOIN LATERAL
    (SELECT k.id, k.fingerprint FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) k
), above AS MATERIALIZED (
  SELECT greatest(clock_ms(), (SELECT f.ms FROM log_floor f) + 1) AS ms
), fresh AS MATERIALIZED (
  SELECT d.n, d.source, d.key, d.fingerprint, d.delivery, (above.ms << 20) | (nextval('event_sequence') & 1048575) AS id
  FROM d CROSS JOIN above WHERE NOT EXISTS (SELECT FROM old WHERE old.n = d.n) ORDER BY d.n
), k AS (
  INSERT INTO event_keys (source, key, id, fingerprint)
  SELECT source, key, id, fingerprint FROM fresh ORDER BY n
  ON CONFLICT DO NOTHING RETURNING source, key, id, fingerprint
), stored AS (
  SELECT fresh.n, fresh.id, fresh.delivery, min(fresh.id) OVER (PARTITION BY fresh.delivery) AS delivery_id
  FROM fresh JOIN k ON k.id = fresh.id
), e AS (
  INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, occurred_at, received_at, origin,
    api_version, headers, verification, fingerprint, delivery_id, delivery_index, body)
  SELECT s.id, d.source, d.event_id, d.event_type, d.account, d.object_type, d.object_id, d.occurred_at, b.received_at, b.origin,
    d.api_version, b.headers, b.verification, d.fingerprint, s.delivery_id, d.place, CASE WHEN s.id = s.delivery_id THEN b.body END
  FROM unnest($13::timestamptz[], $14::text[], $15::jsonb[], $16::jsonb[], $17::bytea[])
    WITH ORDINALITY AS b(received_at, origin, headers, verification, body, delivery)
  JOIN stored s ON s.delivery = b.delivery JOIN d ON d.n = s.n
)
SELECT coalesce(old.id, k.id), coalesce(k.id <> fresh.id, true), coalesce(old.fingerprint, k.fingerprint)
FROM d LEFT JOIN old ON old.n = d.n LEFT JOIN fresh ON fresh.n = d.n LEFT JOIN k ON k.source = d.source AND k.key = d.key
ORDER BY d.n`

// twinSQL looks up keys whose twin committed after the snapshot of appendSQL.
const twinSQL = `
SELECT k.id, k.fingerprint FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS d(source, key, n)
CROSS JOIN LATERAL (SELECT k.id, k.fingerprint FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) k ORDER BY d.n`

const conflictSQL = `
INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at, headers, verification, body)
SELECT * FROM unnest($1::int[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::timestamptz[], $8::jsonb[], $9::jsonb[], $10::bytea[])
ON CONFLICT DO NOTHING`

const raiseFloorSQL = `UPDATE log_floor SET ms = greatest(ms + 1, clock_ms())`

// row is one event of a batch in the order of the statement.
type row struct {
	delivery, place int
	digest          [16]byte
	receipt         Receipt
	fingerprint     []byte
}

// Append makes a batch of deliveries durable, each key once, and returns the receipts of each delivery's events in their
// order. It returns only after the commit, with synchronous_commit on; on an error nothing may be acknowledged, and
// appending again is safe. A started statement is never cancelled (a commit may be waiting for a standby): ctx bounds only
// the wait for a connection. Errors: ErrUnavailable.
func Append(ctx context.Context, pool *pgxpool.Pool, batch []Delivery) ([][]Receipt, error) {
	rows := sortedRows(batch)
	if err := appendRows(ctx, pool, batch, rows); err != nil {
		if postgres.IsUnavailable(err) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, fmt.Errorf("append %d deliveries: %w", len(batch), err)
	}
	receipts := make([][]Receipt, len(batch))
	flat := make([]Receipt, len(rows))
	for i := range batch {
		receipts[i], flat = flat[:len(batch[i].Events):len(batch[i].Events)], flat[len(batch[i].Events):]
	}
	for _, r := range rows {
		receipts[r.delivery][r.place] = r.receipt
	}
	return receipts, nil
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
	return rows
}

// appendAttempts bounds what one batch may be tried again for: a missing partition, an id that is taken, a deadlock.
const appendAttempts = 5

func appendRows(ctx context.Context, pool *pgxpool.Pool, batch []Delivery, rows []row) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	ctx = context.WithoutCancel(ctx)
	for attempt := 1; ; attempt++ {
		if err = insert(ctx, conn.Conn(), batch, rows); err == nil {
			break
		}
		if err2 := mend(ctx, conn.Conn(), err); err2 != nil || attempt == appendAttempts {
			return errors.Join(err, err2)
		}
	}
	if err := findTwins(ctx, conn.Conn(), batch, rows); err != nil {
		return err
	}
	return keepConflicts(ctx, conn.Conn(), batch, rows)
}

// errNotMended says that trying the same batch again would not help.
var errNotMended = errors.New("not mended by trying again")

// mend removes what made an append fail, where that is in our hands.
func mend(ctx context.Context, conn *pgx.Conn, err error) error {
	switch postgres.Code(err) {
	case "23514": // no partition for the id
		return EnsurePartitions(ctx, conn, 2*24*time.Hour)
	case "23505": // the id is taken: the clock went back, or more than a million ids in a millisecond
		_, err := conn.Exec(ctx, raiseFloorSQL)
		return err
	case "40P01", "40001":
		return nil
	}
	return errNotMended
}

func insert(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []row) error {
	res, err := conn.Query(ctx, appendSQL, appendArgs(batch, rows)...)
	if err != nil {
		return err
	}
	n := 0
	var id *int64
	var duplicate bool
	var fingerprint []byte
	_, err = pgx.ForEachRow(res, []any{&id, &duplicate, &fingerprint}, func() error {
		r := &rows[n]
		n++
		r.receipt.ID, r.receipt.Duplicate, r.fingerprint = 0, duplicate, bytes.Clone(fingerprint)
		if id != nil {
			r.receipt.ID = *id
		}
		return nil
	})
	// The receipts count only now: rows of the answer arrive before the commit.
	if err == nil && n != len(rows) {
		err = fmt.Errorf("%d receipts for %d events", n, len(rows))
	}
	return err
}

func appendArgs(batch []Delivery, rows []row) []any {
	n, m := len(rows), len(batch)
	sources, deliveries, places := make([]int32, n), make([]int32, n), make([]int32, n)
	keys, fingerprints := make([][]byte, n), make([][]byte, n)
	texts := make([]string, 6*n)
	occurred := make([]*time.Time, n)
	for i := range rows {
		r := &rows[i]
		d := &batch[r.delivery]
		e := &d.Events[r.place]
		sources[i], deliveries[i], places[i] = d.Source, int32(r.delivery+1), int32(r.place)
		keys[i], fingerprints[i] = r.digest[:], e.Fingerprint[:]
		for j, text := range [...]string{e.Key, e.Type, e.Account, e.ObjectType, e.ObjectID, e.APIVersion} {
			texts[j*n+i] = Text(text)
		}
		if y := e.OccurredAt.Year(); !e.OccurredAt.IsZero() && y > 0 && y < 10_000 { // what the body claims beyond is no time
			occurred[i] = &e.OccurredAt
		}
	}
	received, origins := make([]time.Time, m), make([]string, m)
	headers, verifications, bodies := make([][]byte, m), make([][]byte, m), make([][]byte, m)
	for i := range batch {
		d := &batch[i]
		received[i], origins[i], headers[i], verifications[i], bodies[i] = d.ReceivedAt, d.Origin, d.Headers, d.Verification, d.Body
		if bodies[i] == nil {
			bodies[i] = []byte{}
		}
	}
	return []any{sources, keys, fingerprints, deliveries, places, texts[:n], texts[n : 2*n], texts[2*n : 3*n], texts[3*n : 4*n],
		texts[4*n : 5*n], occurred, texts[5*n:], received, origins, headers, verifications, bodies}
}

// Text is s as a PostgreSQL text can hold it: without NUL and invalid UTF-8. Keys are compared by their digest, which is
// made before; the body keeps the truth.
func Text(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\ufffd"), "\ufffd")
}

func findTwins(ctx context.Context, conn *pgx.Conn, batch []Delivery, rows []row) error {
	var missing []*row
	var sources []int32
	var keys [][]byte
	for i := range rows {
		if r := &rows[i]; r.receipt.ID == 0 {
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
		missing[n].receipt.ID, missing[n].fingerprint = id, bytes.Clone(fingerprint)
		n++
		return nil
	}); err == nil && n != len(missing) {
		err = fmt.Errorf("%d twins found of %d", n, len(missing))
	}
	return err
}

// keepConflicts stores whole what came under a known key with another fingerprint, before it is acknowledged.
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
		r.receipt.Conflict = !bytes.Equal(r.fingerprint, e.Fingerprint[:])
		if !r.receipt.Conflict {
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
