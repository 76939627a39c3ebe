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

// newRun is a run that is not in the ledger yet.
type newRun struct {
	Request
	// schedule and plannedAt name the schedule and its planned time; "" and nil for a run that an
	// operator requested.
	schedule  string
	plannedAt *time.Time
	// failure is the reason why the run failed before it started; "" for a run that can start.
	failure string
}

// insertRequestedSQL inserts nothing if a run with the same idempotency key exists.
// insertPlannedSQL inserts nothing if a run for the same planned time exists. A violation of a
// job's own unique index is an error.
const (
	insertRequestedSQL = insertSQL + ` ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
		RETURNING run`
	insertPlannedSQL = insertSQL + ` ON CONFLICT (schedule, planned_at) WHERE planned_at IS NOT NULL DO NOTHING
		RETURNING run`
)

const insertSQL = `
INSERT INTO runs (job, params, actor, reason, status, detail, expected, counts, created_at, ended_at, updated_at,
	schedule,
	planned_at, idempotency_key, idempotency_request)
VALUES ($1, $2, $3, $4, CASE WHEN $6::text <> '' THEN 'failed' WHEN $11 THEN 'awaiting_approval' ELSE 'queued' END, $6,
	nullif($5::bigint, 0), '{}', clock_now(),
  CASE WHEN $6 <> '' THEN clock_now() END, clock_now(), nullif($7::text, ''), $8::timestamptz, nullif($9::text, ''),
  	CASE WHEN $9 <> '' THEN $10::text END)`

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// insert returns the number of the new run, or 0 if the run exists already.
func (e *newRun) insert(ctx context.Context, db querier) (run int64, err error) {
	params, err := json.Marshal(e.Params)
	if err != nil {
		return 0, err
	}
	sql := insertRequestedSQL
	if e.plannedAt != nil {
		sql = insertPlannedSQL
	}
	err = db.QueryRow(ctx, sql, e.Job, params, events.SanitizeText(e.Actor), events.SanitizeText(e.Reason), e.Expected,
		events.SanitizeText(e.failure), e.schedule, e.plannedAt, e.IdempotencyKey,
		events.SanitizeText(e.ParamsText), e.NeedsApproval).Scan(&run)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("insert the run: %w", err)
	}
	return run, nil
}

// Create adds a run to the ledger and returns its number. A process executes it as soon as it has
// capacity and the run is approved, if it needs approval. With a key that was used before, Create
// returns the earlier run. Errors: as CreateIdempotent.
func Create(ctx context.Context, db postgres.DB, o Request) (run int64, err error) {
	run, _, err = CreateIdempotent(ctx, db, o)
	return run, err
}

// CreateInTx is Create in the caller's transaction, for a request without an idempotency key.
func CreateInTx(ctx context.Context, tx pgx.Tx, o Request) (run int64, err error) {
	return (&newRun{Request: o}).insert(ctx, tx)
}

// CreateIdempotent is Create, and reports whether the run is new. With a key that was used before
// it returns the earlier run, whatever its status. Errors: events.ErrInvalid if the key is invalid
// or was used for another request.
func CreateIdempotent(ctx context.Context, db postgres.DB, o Request) (run int64, created bool, err error) {
	if err := checkKey(o.IdempotencyKey); err != nil {
		return 0, false, err
	}
	for {
		run, insertErr := o.insert(ctx, db)
		if run != 0 || insertErr != nil && (o.IdempotencyKey == "" || !isOpenRunConflict(insertErr)) {
			return run, run != 0, insertErr
		}
		if run, err = o.findByKey(ctx, db); err != nil || run != 0 {
			return run, false, err
		}
		if insertErr != nil {
			return 0, false, insertErr
		}
		// the other run expired in between: insert again
	}
}

// insert inserts the run in a separate transaction, or in a savepoint of the given one. So a
// violation of a job's index does not abort the caller's transaction.
func (o *Request) insert(ctx context.Context, db postgres.DB) (run int64, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		run, err = (&newRun{Request: *o}).insert(ctx, tx)
		return err
	})
	return run, err
}

// FindByKey returns the run that was created with the request's key; 0 if there is none or the
// request has no key. Errors: events.ErrInvalid if the key is invalid or was used for another
// request.
func FindByKey(ctx context.Context, db postgres.DB, o Request) (run int64, err error) {
	if o.IdempotencyKey == "" {
		return 0, nil
	}
	if err := checkKey(o.IdempotencyKey); err != nil {
		return 0, err
	}
	return o.findByKey(ctx, db)
}

// isOpenRunConflict reports whether an insert violated a job's unique index on open runs: the job
// allows only one.
func isOpenRunConflict(err error) bool { return postgres.Code(err) == "23505" }

// maxKeyBytes is the maximum length of an idempotency key in bytes.
const maxKeyBytes = 200

func checkKey(key string) error {
	if len(key) > maxKeyBytes || events.SanitizeText(key) != key {
		return fmt.Errorf("%w: the idempotency key is longer than %d bytes or is not valid text", events.ErrInvalid,
			maxKeyBytes)
	}
	return nil
}

const findByKeySQL = `SELECT run, job, idempotency_request FROM runs WHERE idempotency_key = $1`

// findByKey returns the run that was created with the request's key, or 0.
func (o *Request) findByKey(ctx context.Context, db querier) (run int64, err error) {
	var job, paramsText string
	err = db.QueryRow(ctx, findByKeySQL, o.IdempotencyKey).Scan(&run, &job, &paramsText)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("find a run by its key: %w", err)
	case job != o.Job || paramsText != events.SanitizeText(o.ParamsText):
		return 0, fmt.Errorf("%w: the idempotency key %q was used for run %d, which has other parameters (%s %s): use "+
			"another key", events.ErrInvalid, o.IdempotencyKey, run, job, paramsText)
	}
	return run, nil
}
