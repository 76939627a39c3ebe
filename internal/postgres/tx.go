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

// ErrNested is the error of a transaction that was begun inside another one: its caller would wait for itself.
var ErrNested = errors.New("a transaction inside a transaction")

type inTx struct{}

// InTx runs fn in a transaction and commits it if fn returns nil. Serialisation failures and deadlocks run it again, up to
// five times, so fn must have no effect but through its transaction. name (verb and object, "apply batch") begins every
// error; timeout bounds all attempts together but for the commit: a commit is never cancelled, since one that waits for a
// synchronous standby would then become visible without being as durable as promised.
// fn must hand its context on; a second InTx under it is refused with ErrNested.
func InTx(ctx context.Context, pool *pgxpool.Pool, name string, timeout time.Duration, fn func(context.Context, pgx.Tx) error) error {
	if ctx.Value(inTx{}) != nil {
		return fmt.Errorf("%s: %w", name, ErrNested)
	}
	ctx, cancel := lifecycle.WithTimeout(context.WithValue(ctx, inTx{}, name), name, timeout)
	defer cancel()
	for try := 0; ; try++ {
		err := attempt(ctx, pool, fn)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w (%w)", name, context.Cause(ctx), err)
		}
		if !retryable(err) || try == maxRetries {
			return fmt.Errorf("%s: %w", name, err)
		}
		pause(ctx, try)
	}
}

func attempt(ctx context.Context, pool *pgxpool.Pool, fn func(context.Context, pgx.Tx) error) (err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer conn.Release() // not by the commit: what the session says of it is read after
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
	if err := Confirmed(tx.Conn()); err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	return nil
}

func retryable(err error) bool {
	code := Code(err)
	return code == "40001" || code == "40P01"
}

// pause waits a random time that doubles with each try, so that two losers of a race do not meet again.
func pause(ctx context.Context, try int) {
	ceiling := 10 * time.Millisecond << try
	timer := time.NewTimer(ceiling/4 + rand.N(ceiling))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
