package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// entry is an order as it comes into the ledger.
type entry struct {
	Order
	// schedule and planned are those that the run is of; "" and nil for none.
	schedule string
	planned  *time.Time
	// fault is why the run has failed before it began; "" for one that waits.
	fault string
}

// askSQL enters nothing where there is a run of the same key, and askPlannedSQL where there is one of the same planned time. What a job's own
// index refuses is an error.
const (
	askSQL        = enterSQL + ` ON CONFLICT (once_key) WHERE once_key IS NOT NULL DO NOTHING RETURNING run`
	askPlannedSQL = enterSQL + ` ON CONFLICT (schedule, planned_at) WHERE planned_at IS NOT NULL DO NOTHING RETURNING run`
)

const enterSQL = `
INSERT INTO runs (job, asked, who, reason, status, detail, expected, counts, made_at, ended_at, updated_at, schedule, planned_at, once_key, once_said)
VALUES ($1, $2, $3, $4, CASE WHEN $6::text <> '' THEN 'failed' WHEN $11 THEN 'proposed' ELSE 'waiting' END, $6, nullif($5::bigint, 0), '{}', clock_now(),
  CASE WHEN $6 <> '' THEN clock_now() END, clock_now(), nullif($7::text, ''), $8::timestamptz, nullif($9::text, ''), CASE WHEN $9 <> '' THEN $10::text END)`

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// enter returns the new run's number, 0 where there is one already.
func (e *entry) enter(ctx context.Context, db querier) (run int64, err error) {
	asked, err := json.Marshal(e.Asked)
	if err != nil {
		return 0, err
	}
	sql := askSQL
	if e.planned != nil {
		sql = askPlannedSQL
	}
	err = db.QueryRow(ctx, sql, e.Job, asked, events.Text(e.Who), events.Text(e.Reason), e.Expected, events.Text(e.fault), e.schedule, e.planned, e.OnceKey,
		events.Text(e.Said), e.Propose).Scan(&run)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("enter the run: %w", err)
	}
	return run, nil
}

// Ask enters a run into the ledger; the next process that has a hand free carries it out, once it is approved where that is needed. It returns the run's number, under a key that was
// used before that of the first. Errors: as of AskOnce.
func Ask(ctx context.Context, db postgres.DB, o Order) (run int64, err error) {
	run, _, err = AskOnce(ctx, db, o)
	return run, err
}

// AskIn is Ask in a transaction, for an order without a key.
func AskIn(ctx context.Context, tx pgx.Tx, o Order) (run int64, err error) {
	return (&entry{Order: o}).enter(ctx, tx)
}

// AskOnce is Ask, and says whether the run is new: where the order's key was used before, it is the run of the first that asked, however it
// stands. Errors: events.ErrInvalid for a key that was used for something else, or is none.
func AskOnce(ctx context.Context, db postgres.DB, o Order) (run int64, fresh bool, err error) {
	if err := checkKey(o.OnceKey); err != nil {
		return 0, false, err
	}
	for {
		run, refused := o.enter(ctx, db)
		if run != 0 || refused != nil && (o.OnceKey == "" || !noRoom(refused)) {
			return run, run != 0, refused
		}
		if run, err = o.earlier(ctx, db); err != nil || run != 0 {
			return run, false, err
		}
		if refused != nil {
			return 0, false, refused
		} // else it was forgotten in between
	}
}

// enter enters the order in a transaction of its own, or within the one that it is given, so that what a job's index refuses leaves that one of use.
func (o *Order) enter(ctx context.Context, db postgres.DB) (run int64, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		run, err = (&entry{Order: *o}).enter(ctx, tx)
		return err
	})
	return run, err
}

// Earlier is the run that the key of an order was used for; 0 where it was not, or the order has none. Errors: events.ErrInvalid for a key that was used for something else, or is none.
func Earlier(ctx context.Context, db postgres.DB, o Order) (run int64, err error) {
	if o.OnceKey == "" {
		return 0, nil
	}
	if err := checkKey(o.OnceKey); err != nil {
		return 0, err
	}
	return o.earlier(ctx, db)
}

// noRoom says that the job allows one open run where there is one: its own index on open runs has refused another.
func noRoom(err error) bool { return postgres.Code(err) == "23505" }

// maxKey bounds a key, in bytes.
const maxKey = 200

func checkKey(key string) error {
	if len(key) > maxKey || events.Text(key) != key {
		return fmt.Errorf("%w: the once key is longer than %d bytes, or no text", events.ErrInvalid, maxKey)
	}
	return nil
}

const earlierSQL = `SELECT run, job, once_said FROM runs WHERE once_key = $1`

// earlier is the run that the order's key was used for; 0 for none.
func (o *Order) earlier(ctx context.Context, db querier) (run int64, err error) {
	var job, said string
	err = db.QueryRow(ctx, earlierSQL, o.OnceKey).Scan(&run, &job, &said)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look for a run by its key: %w", err)
	case job != o.Job || said != events.Text(o.Said):
		return 0, fmt.Errorf("%w: the once key %q was used for run %d, which asked for something else (%s %s): give another key", events.ErrInvalid, o.OnceKey, run, job, said)
	}
	return run, nil
}
