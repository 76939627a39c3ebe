package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// resendRows bounds the outbox rows of one round, resendObjects the objects that are read and
	// sent at once.
	resendRows    = 64
	resendObjects = 100
)

// outboxRow is a row of the outbox with the objects that it names.
type outboxRow struct {
	id   int64
	keys []versioning.Key
}

// resend publishes changes that stayed unsent for a while, whichever process committed them. It
// reads the objects again and sends each once per round, even if several rows name it. After a
// failure the next resend waits, because the stream may reject a message each time.
func (s *sender) resend(ctx context.Context) error {
	if time.Now().Before(s.resendAfter) || !s.p.Conn.Connected() {
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
			s.resendAfter = time.Now().Add(s.p.Settings.ResendAfter)
			return err
		}
	}
	return nil
}

const nowSQL = `SELECT clock_now()`

// clockStepTolerance is how far in the future a batch's time must be to show that the database's
// clock went back. The batch then counts as old enough.
const clockStepTolerance = time.Minute

const unsentSQL = `
SELECT batch, sources, accounts, types, ids FROM outbox WHERE sent_at IS NULL AND (created_at < $1 OR created_at > $3)
	ORDER BY created_at, batch LIMIT $2`

func (s *sender) unsent(ctx context.Context) ([]outboxRow, error) {
	var now time.Time
	if err := s.p.Pool.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	before, ahead := now.Add(-s.p.Settings.ResendAfter), now.Add(clockStepTolerance)
	return readOutbox(ctx, s.p.Pool, unsentSQL, before, resendRows, ahead)
}

// readOutbox reads the rows that a statement selects.
func readOutbox(ctx context.Context, db postgres.DB, sql string, args ...any) ([]outboxRow, error) {
	var rows []outboxRow
	var id int64
	var sources []int32
	var accounts, types, ids []string
	err := postgres.ForEach(ctx, db, sql, args, []any{&id, &sources, &accounts, &types, &ids}, func() error {
		r := outboxRow{id: id}
		for i := range sources {
			r.keys = append(r.keys, versioning.Key{Source: sources[i], Account: accounts[i], Type: types[i],
				ID: ids[i]})
		}
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read changes of the outbox: %w", err)
	}
	return rows, nil
}

// sendRows sends the objects that rows name and marks the rows whose objects were all acknowledged.
// All messages of a round carry the id of its greatest row. All rows of the round get the sequence
// of its last message. checkForLoss looks for the id in the message with this sequence.
func (s *sender) sendRows(ctx context.Context, rows []outboxRow) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	var keys []versioning.Key
	added := map[versioning.Key]bool{}
	round := int64(0)
	for _, r := range rows {
		round = max(round, r.id)
		for _, k := range r.keys {
			if !added[k] {
				added[k], keys = true, append(keys, k)
			}
		}
	}
	failed := map[versioning.Key]bool{}
	var last uint64
	var failure error
	for from := 0; from < len(keys); from += resendObjects {
		sequence, err := s.sendCurrent(ctx, round, keys[from:min(from+resendObjects, len(keys))], failed)
		last, failure = max(last, sequence), errors.Join(failure, err)
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
	return errors.Join(s.markSent(ctx, done), failure)
}

// sendCurrent sends the current state of some objects and adds those that were not acknowledged to
// failed. An object that is no longer stored has nothing to announce.
func (s *sender) sendCurrent(ctx context.Context, round int64, keys []versioning.Key,
	failed map[versioning.Key]bool) (last uint64, err error) {
	changes, err := readCurrent(ctx, s.p.Pool, keys)
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

// currentSQL converts a state to text only if its size in memory shows that the text may fit:
// numbers may need 50 times as many bytes as text. Any value that fits takes at most four times as
// many bytes in memory as in text.
const currentSQL = `
SELECT d.n, o.version_final, o.version_at, o.version_seen, o.version_rank, o.revision, o.last_event_id, o.deleted,
	o.ambiguous,
  CASE WHEN fits.state THEN o.state END, o.state IS NOT NULL AND NOT fits.state,
  o.tied_states = '[]' AND o.version_at > -9223372036854775808
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(source, account, object_type, object_id,
	n)
CROSS JOIN LATERAL (SELECT o.* FROM objects o WHERE o.source = d.source AND o.account = d.account
	AND o.object_type = d.object_type
  AND o.object_id = d.object_id LIMIT 1) o
CROSS JOIN LATERAL (SELECT CASE WHEN pg_column_size(o.state || '{}') <= 8 * $5::int THEN octet_length(o.state::text) <=
	$5 ELSE false END AS state
  OFFSET 0) fits`

// readCurrent reads the current rows of objects. State and revision of an object come from one row.
func readCurrent(ctx context.Context, db postgres.DB, keys []versioning.Key) ([]objectChange, error) {
	args := append(versioning.KeyArgs(keys, func(k versioning.Key) versioning.Key { return k }), maxEnvelope)
	found, err := postgres.Collect(ctx, db, func(row pgx.CollectableRow) (c objectChange, err error) {
		var position int64
		err = row.Scan(&position, &c.version.Final, &c.version.At, &c.version.Seen, &c.version.Rank, &c.revision,
			&c.event, &c.deleted, &c.ambiguous, &c.state, &c.omitted, &c.redacted)
		if err == nil {
			c.key = keys[position-1]
		}
		return c, err
	}, currentSQL, args...)
	if err != nil {
		return nil, fmt.Errorf("read %d changed objects: %w", len(keys), err)
	}
	return found, nil
}
