package rebuild

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
)

// stageTimeout bounds a transaction that copies or clears some rows.
const stageTimeout = 30 * time.Second

// columns are the columns of a table of objects.
const columns = `source, account, object_type, object_id, version_final, version_at, version_seen, version_rank,
  tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash, state,
  sanitized, last_event_id, revision, rule_version, created_at, updated_at, overwritten_at, overwrite_seen`

// stagedLock is the class of the advisory locks of sources' staged rows. Clearing rows takes it.
const stagedLock = 0x706f7375

const sourceLockSQL = `SELECT pg_advisory_xact_lock($1, $2)`

const clearSQL = `
DELETE FROM staged_objects WHERE source = $1 AND ctid = ANY(ARRAY(SELECT s.ctid FROM staged_objects s
	WHERE s.source = $1 LIMIT $2))`

// clear removes the staged rows that another rebuild of the source left.
func (w *work) clear(ctx context.Context) error {
	return clearStaged(ctx, w.Pool, w.params.Source, w.Settings.Rows, func(ctx context.Context,
		tx pgx.Tx) (bool, error) {
		if err := w.beforeStep("clear"); err != nil {
			return false, err
		}
		return true, w.lease.Guard(ctx, tx)
	})
}

// clearStaged removes the staged rows of a source in chunks, as long as allowed returns true. It
// calls allowed under a lock that every clearing takes.
func clearStaged(ctx context.Context, pool *pgxpool.Pool, source int32, rows int,
	allowed func(context.Context, pgx.Tx) (bool, error)) error {
	for {
		cleared := int64(0)
		err := postgres.InTx(ctx, pool, "clear staged objects", stageTimeout,
			func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, sourceLockSQL, stagedLock, source); err != nil {
					return err
				}
				if ok, err := allowed(ctx, tx); err != nil || !ok {
					return err
				}
				done, err := tx.Exec(ctx, clearSQL, source, rows)
				cleared = done.RowsAffected()
				return err
			})
		if err != nil || cleared == 0 {
			return err
		}
	}
}

const copyRetainedSQL = `
WITH page AS MATERIALIZED (
  SELECT ` + columns + ` FROM retained_objects b WHERE b.source = $1 AND (b.account, b.object_type, b.object_id) > ($2,
	$3, $4)
	AND ($5 = '' OR b.object_type = $5)
  ORDER BY b.account, b.object_type, b.object_id LIMIT $6
), put AS (
  INSERT INTO staged_objects (` + columns + `) SELECT ` + columns + ` FROM page ON CONFLICT DO NOTHING
)
SELECT p.account, p.object_type, p.object_id FROM page p ORDER BY p.account DESC, p.object_type DESC, p.object_id DESC
	LIMIT 1`

// copyRetained stages the retained objects of dropped partitions. A repetition changes nothing.
func (w *work) copyRetained(ctx context.Context) error {
	var account, objectType, id string
	for {
		more := true
		if err := w.beforeStep("copy"); err != nil {
			return err
		}
		err := postgres.InTx(ctx, w.Pool, "copy retained objects", stageTimeout,
			func(ctx context.Context, tx pgx.Tx) error {
				if err := w.lease.Guard(ctx, tx); err != nil {
					return err
				}
				err := tx.QueryRow(ctx, copyRetainedSQL, w.params.Source, account, objectType, id, w.params.Type,
					w.Settings.Rows).Scan(&account, &objectType, &id)
				if errors.Is(err, pgx.ErrNoRows) {
					more, err = false, nil
				}
				return err
			})
		if err != nil || !more {
			return err
		}
	}
}

// ClearAbandoned clears the staged rows of sources without an open rebuild, after a swap,
// cancellation or failure. It runs until ctx ends. Several processes may run it at once. It retries
// after failures, and logs the first of consecutive ones.
func ClearAbandoned(ctx context.Context, pool *pgxpool.Pool, every time.Duration, log *slog.Logger) error {
	return lifecycle.Repeat(ctx, every, nil, func(err error) {
		log.Warn("staged objects not cleared; retrying later", "error", err)
	}, func(ctx context.Context) (bool, error) { return false, clearAbandoned(ctx, pool) })
}

const nextSourceSQL = `SELECT source FROM staged_objects WHERE source > $1 ORDER BY source LIMIT 1`

const abandonedSQL = `SELECT NOT EXISTS (SELECT FROM runs r WHERE r.job = 'rebuild'
	AND r.params ->> 'source' = $1::int::text
	AND r.ended_at IS NULL)`

// clearAbandoned clears one source after the other.
func clearAbandoned(ctx context.Context, pool *pgxpool.Pool) error {
	for source := int32(-1); ; {
		err := pool.QueryRow(ctx, nextSourceSQL, source).Scan(&source)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find staged objects: %w", err)
		}
		err = clearStaged(ctx, pool, source, DefaultSettings.Rows, func(ctx context.Context,
			tx pgx.Tx) (abandoned bool, err error) {
			err = tx.QueryRow(ctx, abandonedSQL, source).Scan(&abandoned)
			return abandoned, err
		})
		if err != nil {
			return err
		}
	}
}
