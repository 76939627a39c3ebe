package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

const (
	maxRetries      = 5
	rollbackTimeout = 5 * time.Second
)

// ErrNested is the error of a transaction inside another one, which could wait for itself.
var ErrNested = errors.New("a transaction inside a transaction")

type inTxKey struct{}

// InTx runs fn in a transaction and commits it if fn returns nil. After a serialization failure or
// deadlock it runs fn again, up to five times, so fn must have no effects outside its transaction.
// name (verb and object, "apply batch") begins every error. timeout limits all attempts together,
// but not the commit. A commit is never cancelled: one that waits for a synchronous standby would
// become visible without being durable there. fn must pass on its context; InTx rejects a second
// InTx with that context with ErrNested.
func InTx(ctx context.Context, pool *pgxpool.Pool, name string, timeout time.Duration,
	fn func(context.Context, pgx.Tx) error) error {
	if ctx.Value(inTxKey{}) != nil {
		return fmt.Errorf("%s: %w", name, ErrNested)
	}
	ctx, cancel := lifecycle.WithTimeout(context.WithValue(ctx, inTxKey{}, name), name, timeout)
	defer cancel()
	for try := 0; ; try++ {
		err := tryTx(ctx, pool, fn)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w (%w)", name, context.Cause(ctx), err)
		}
		if !isRetryable(err) || try == maxRetries {
			return fmt.Errorf("%s: %w", name, err)
		}
		backOff(ctx, try)
	}
}

func tryTx(ctx context.Context, pool *pgxpool.Pool, fn func(context.Context, pgx.Tx) error) (err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer conn.Release() // released after the commit, because the session's data says whether it was confirmed
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer func() {
		// After a commit this does nothing; after a panic of fn it ends the transaction.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := tx.Commit(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	if err := CheckConfirmed(tx.Conn()); err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	return nil
}

func isRetryable(err error) bool {
	code := Code(err)
	return code == "40001" || code == "40P01"
}

// backOff waits a random time that doubles with each attempt, so that two conflicting transactions
// do not collide again.
func backOff(ctx context.Context, try int) {
	ceiling := 10 * time.Millisecond << try
	timer := time.NewTimer(ceiling/4 + rand.N(ceiling))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
