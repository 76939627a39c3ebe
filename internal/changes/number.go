// Package changes numbers the changes of the mirror, and reads them in the order of their numbers.
//
// A transaction that changes objects inserts a row into the outbox. After its commit, Number gives
// each of these objects the next number, in transactions that run one after the other. The order of
// the numbers is therefore the order in which they become visible, and a reader who continues after
// the last number that he read skips nothing. The table keeps one row for each object, with the
// number of its last change. It needs no retention: a reader who starts at 0 gets every object
// once.
package changes

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// numberedTogether is how many rows of the outbox get their numbers in one transaction.
	numberedTogether = 200
	numberTimeout    = 30 * time.Second
	// keptEpochs is how many epochs are kept. A cursor of an older one must start again.
	keptEpochs = 100
)

// lockFeedSQL lets one process at a time assign numbers.
const lockFeedSQL = `SELECT f.newest, f.server, server_identity() FROM change_feed f FOR UPDATE`

const beginEpochSQL = `
UPDATE change_feed SET server = $1, epochs = (epochs || new_epoch())[greatest(cardinality(epochs) + 2 - $2, 1):],
	epoch_starts = (epoch_starts || newest)[greatest(cardinality(epochs) + 2 - $2, 1):]`

const setServerSQL = `UPDATE change_feed SET server = $1`

// numberSQL numbers the objects of some rows of the outbox after $1, each object once, in the order
// of the rows. It does not read the objects, because that would take processor time from applying:
// readers join them. It skips rows that the sender has locked, so that the two cannot deadlock; the
// next pass numbers them. The times never decrease in the order of the numbers, so that beforeSQL
// can search them: a row that committed late, or that a swap dated back, gets the time of the
// change before it.
const numberSQL = `
WITH taken AS MATERIALIZED (
  SELECT o.batch FROM outbox o WHERE NOT o.numbered ORDER BY o.batch LIMIT $2 FOR UPDATE SKIP LOCKED
), marked AS (
  UPDATE outbox o SET numbered = true WHERE o.batch = ANY (ARRAY(SELECT t.batch FROM taken t))
  RETURNING o.batch, o.sources, o.accounts, o.types, o.ids, o.created_at
), dated AS (
  SELECT m.*, greatest(max(m.created_at) OVER (ORDER BY m.batch),
    (SELECT x.changed_at FROM changes x WHERE x.number = $1)) AS changed_at
  FROM marked m
), keys AS (
  SELECT k.source, k.account, k.object_type, k.object_id, max(d.batch) AS batch, max(d.changed_at) AS changed_at
  FROM dated d, unnest(d.sources, d.accounts, d.types, d.ids) AS k(source, account, object_type, object_id)
  GROUP BY 1, 2, 3, 4
), put AS (
  INSERT INTO changes AS c (source, account, object_type, object_id, number, changed_at)
  SELECT k.source, k.account, k.object_type, k.object_id, $1 + row_number() OVER (ORDER BY k.batch, k.object_id),
    k.changed_at
  FROM keys k
  ON CONFLICT (object_id, object_type, account, source) DO UPDATE SET number = excluded.number,
    changed_at = excluded.changed_at
  RETURNING c.number
), advanced AS (
  UPDATE change_feed f SET newest = p.last FROM (SELECT max(number) AS last FROM put) p WHERE p.last IS NOT NULL
)
SELECT (SELECT count(*) FROM taken), (SELECT count(*) FROM put)`

// Number gives the next numbers to the changes of up to 200 rows of the outbox. It returns how many
// objects got one, and whether there may be more rows. Any number of processes may call it.
func Number(ctx context.Context, pool *pgxpool.Pool) (objects int64, more bool, err error) {
	var rows int64
	err = postgres.InTx(ctx, pool, "number changes", numberTimeout, func(ctx context.Context, tx pgx.Tx) error {
		newest, err := lockFeed(ctx, tx)
		if err != nil {
			return err
		}
		// A cached plan, made while the outbox was small, would read all of it.
		return tx.QueryRow(ctx, numberSQL, pgx.QueryExecModeExec, newest, numberedTogether).Scan(&rows, &objects)
	})
	if err != nil {
		return 0, false, fmt.Errorf("number changes: %w", err)
	}
	return objects, rows == numberedTogether, nil
}

// lockFeed returns the newest number, and blocks other callers until the transaction ends. On
// another server or in another database than before, or after a restore, it begins a new epoch
// first.
func lockFeed(ctx context.Context, tx pgx.Tx) (newest int64, err error) {
	var before, now string
	if err := tx.QueryRow(ctx, lockFeedSQL).Scan(&newest, &before, &now); err != nil {
		return 0, err
	}
	switch {
	case now == before || now == "":
		return newest, nil
	case before == "":
		_, err = tx.Exec(ctx, setServerSQL, now)
	default:
		_, err = tx.Exec(ctx, beginEpochSQL, now, keptEpochs)
	}
	return newest, err
}

const unnumberedSQL = `SELECT EXISTS (SELECT FROM outbox WHERE NOT numbered)`

// Unnumbered reports whether there are changes without a number.
func Unnumbered(ctx context.Context, pool *pgxpool.Pool) (found bool, err error) {
	err = pool.QueryRow(ctx, unnumberedSQL, pgx.QueryExecModeExec).Scan(&found) // as numberSQL
	return found, err
}
