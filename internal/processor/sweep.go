package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// sweepRows bounds the outbox rows of one round, sweepObjects the objects read and sent at once.
	sweepRows    = 64
	sweepObjects = 100
)

// row is an outbox row that stayed unsent.
type row struct {
	id   int64
	keys []versioning.Key
}

// sweep sends what stayed unsent for a while, whoever committed it, from a fresh read of the objects: each object once per round,
// however many rows name it. After trouble the next sweep waits, so that a message the stream refuses is not sent all the time.
func (s *sender) sweep(ctx context.Context) error {
	if time.Now().Before(s.sweepAfter) || !s.p.Conn.Connected() {
		return nil
	}
	for ctx.Err() == nil {
		rows, err := s.unsent(ctx)
		if err == nil && len(rows) == 0 {
			return nil
		}
		if err == nil {
			err = s.sendRows(ctx, rows)
		}
		if err != nil {
			s.sweepAfter = time.Now().Add(s.p.Settings.SweepAfter)
			return err
		}
	}
	return nil
}

const nowSQL = `SELECT clock_now()`

// clockBack is how far ahead a batch must have been made for the database's clock to have gone back since: its age tells nothing.
const clockBack = time.Minute

const unsentSQL = `
SELECT batch, sources, accounts, types, ids FROM outbox WHERE sent_at IS NULL AND (made_at < $1 OR made_at > $3) ORDER BY made_at, batch LIMIT $2`

func (s *sender) unsent(ctx context.Context) ([]row, error) {
	var now time.Time
	if err := s.p.Pool.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	res, err := s.p.Pool.Query(ctx, unsentSQL, now.Add(-s.p.Settings.SweepAfter), sweepRows, now.Add(clockBack))
	if err != nil {
		return nil, fmt.Errorf("read unsent changes: %w", err)
	}
	var rows []row
	var id int64
	var sources []int32
	var accounts, types, ids []string
	_, err = pgx.ForEachRow(res, []any{&id, &sources, &accounts, &types, &ids}, func() error {
		r := row{id: id}
		for i := range sources {
			r.keys = append(r.keys, versioning.Key{Source: sources[i], Account: accounts[i], Type: types[i], ID: ids[i]})
		}
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read unsent changes: %w", err)
	}
	return rows, nil
}

// sendRows sends the objects that rows name and marks the rows whose objects all arrived. All messages of a round carry the
// greatest row's number, and all rows the round's last sequence, so that recheck finds the one by the other.
func (s *sender) sendRows(ctx context.Context, rows []row) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	var keys []versioning.Key
	known := map[versioning.Key]bool{}
	round := int64(0)
	for _, r := range rows {
		round = max(round, r.id)
		for _, k := range r.keys {
			if !known[k] {
				known[k], keys = true, append(keys, k)
			}
		}
	}
	failed := map[versioning.Key]bool{}
	var last uint64
	var trouble error
	for from := 0; from < len(keys); from += sweepObjects {
		sequence, err := s.sendCurrent(ctx, round, keys[from:min(from+sweepObjects, len(keys))], failed)
		last, trouble = max(last, sequence), errors.Join(trouble, err)
	}
	done := map[int64]uint64{}
	for _, r := range rows {
		ok := true
		for _, k := range r.keys {
			ok = ok && !failed[k]
		}
		if ok {
			done[r.id] = last
		}
	}
	return errors.Join(s.mark(ctx, done), trouble)
}

// sendCurrent sends some objects as they are now and notes those that did not arrive. An object that is no longer there has
// nothing to announce.
func (s *sender) sendCurrent(ctx context.Context, round int64, keys []versioning.Key, failed map[versioning.Key]bool) (last uint64, err error) {
	changes, err := s.current(ctx, keys)
	var acks []stream.Ack
	if err == nil {
		acks, err = s.publish(ctx, changes, slices.Repeat([]int64{round}, len(changes)))
	}
	if err != nil {
		for _, k := range keys {
			failed[k] = true
		}
		return 0, err
	}
	for i, a := range acks {
		last = max(last, a.Sequence)
		if a.Err != nil {
			failed[changes[i].key], err = true, a.Err
		}
	}
	return last, err
}

// currentSQL makes no text of a state whose size in memory excludes that it fits, since its numbers may need 50 times as
// many bytes there. Of what fits, no value takes more than four times as many bytes in memory as in text.
const currentSQL = `
SELECT d.n, o.version_final, o.version_at, o.version_seen, o.version_rank, o.revision, o.last_event_id, o.deleted, o.ambiguous,
  CASE WHEN fits.state THEN o.state END, o.state IS NOT NULL AND NOT fits.state,
  o.tie_set = '[]' AND o.version_at > -9223372036854775808
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(source, account, object_type, object_id, n)
CROSS JOIN LATERAL (SELECT o.* FROM objects o WHERE o.source = d.source AND o.account = d.account AND o.object_type = d.object_type
  AND o.object_id = d.object_id LIMIT 1) o
CROSS JOIN LATERAL (SELECT CASE WHEN pg_column_size(o.state || '{}') <= 8 * $5::int THEN octet_length(o.state::text) <= $5 ELSE false END AS state
  OFFSET 0) fits`

// current reads objects as they are now; a state is never older than the revision it travels with.
func (s *sender) current(ctx context.Context, keys []versioning.Key) ([]changed, error) {
	n := len(keys)
	sources, accounts, types, ids := make([]int32, n), make([]string, n), make([]string, n), make([]string, n)
	for i, k := range keys {
		sources[i], accounts[i], types[i], ids[i] = k.Source, k.Account, k.Type, k.ID
	}
	rows, err := s.p.Pool.Query(ctx, currentSQL, sources, accounts, types, ids, maxEnvelope)
	if err != nil {
		return nil, fmt.Errorf("read %d changed objects: %w", n, err)
	}
	var found []changed
	for rows.Next() {
		var place int64
		var c changed
		if err := rows.Scan(&place, &c.version.Final, &c.version.At, &c.version.Seen, &c.version.Rank, &c.revision, &c.event, &c.deleted,
			&c.ambiguous, &c.state, &c.omitted, &c.redacted); err != nil {
			return nil, fmt.Errorf("read changed objects: %w", err)
		}
		c.key = keys[place-1]
		found = append(found, c)
	}
	return found, rows.Err()
}
