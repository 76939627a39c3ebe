package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

const (
	// lockSQL runs before the snapshot. It prevents that partitions of the log are dropped before
	// the transaction ends. Appends do not wait for it.
	lockSQL = `SET LOCAL lock_timeout = '10s'; LOCK TABLE events IN ACCESS SHARE MODE; SET LOCAL lock_timeout = 0`

	// sessionSettingsSQL allows for a long sort of all keys, and for idle sessions that wait for
	// others.
	sessionSettingsSQL = `SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '10min';
		SET LOCAL work_mem = '64MB'; SET LOCAL cursor_tuple_fraction = 1`

	snapshotSQL = `SELECT pg_export_snapshot(), clock_now()`
)

// snapshot is one view of the database that several connections share.
type snapshot struct {
	at  time.Time
	txs []pgx.Tx
	// release returns the connections to the pool.
	release []func()
}

// open starts read-only transactions with the same view. The caller closes it, also after an error.
func (s *snapshot) open(ctx context.Context, pool *pgxpool.Pool, n int) error {
	var name string
	for i := range n {
		tx, err := s.begin(ctx, pool)
		if err != nil {
			return err
		}
		if i == 0 {
			if _, err := tx.Conn().PgConn().Exec(ctx, lockSQL).ReadAll(); err != nil {
				return fmt.Errorf("lock the log's partitions: %w", err)
			}
			if err := tx.QueryRow(ctx, snapshotSQL).Scan(&name, &s.at); err != nil {
				return fmt.Errorf("take a snapshot: %w", err)
			}
		} else if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+name+"'"); err != nil {
			return fmt.Errorf("share a snapshot: %w", err)
		}
		if _, err := tx.Conn().PgConn().Exec(ctx, sessionSettingsSQL).ReadAll(); err != nil {
			return fmt.Errorf("set up a session: %w", err)
		}
	}
	return nil
}

func (s *snapshot) begin(ctx context.Context, pool *pgxpool.Pool) (pgx.Tx, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("start a verification: %w", err)
	}
	s.release = append(s.release, conn.Release)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("start a verification: %w", err)
	}
	s.txs = append(s.txs, tx)
	return tx, nil
}

// close ends all transactions.
func (s *snapshot) close(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "end the snapshot", 5*time.Second)
	defer cancel()
	for _, tx := range s.txs {
		_ = tx.Rollback(ctx) // the transactions were read-only
	}
	for _, release := range s.release {
		release()
	}
}
