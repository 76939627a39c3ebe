package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// requestRefetchSQL requests a refetch of an object, due at once. An object has one request; a new
// one replaces the reason of an earlier one.
const requestRefetchSQL = `
WITH h AS (
  INSERT INTO refetch_requests AS h (source, account, object_type, object_id, reason, requested_by, requested_at, due,
  	start_after)
  SELECT $1, $2, $3, $4, $5, $6, n.at, n.at, 0 FROM (SELECT clock_now() AS at) n
  ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET reason = excluded.reason,
  	requested_by = excluded.requested_by,
    requested_at = greatest(excluded.requested_at, h.requested_at + interval '1 microsecond'), due = excluded.due,
    	attempts = 0,
    	error = ''
  RETURNING *
)
SELECT ` + refetchRequestColumns + ` FROM h JOIN sources s ON s.number = h.source`

// RequestRefetch requests a manual refetch of an object. A running processor makes it at its next
// pass, or later if the object's pending refetch must begin later.
func RequestRefetch(ctx context.Context, db postgres.DB, k versioning.Key, actor, reason string) (*RefetchRequest,
	error) {
	return changeRequest(ctx, db, k, "insert", requestRefetchSQL, k.Source, k.Account, k.Type, k.ID,
		events.SanitizeText(reason), events.SanitizeText(actor))
}

// deleteAnyRequestSQL deletes a request. insertPendingSQL inserts it again if the object still has
// a pending refetch.
const deleteAnyRequestSQL = `
WITH h AS (
  DELETE FROM refetch_requests h WHERE h.source = $1 AND h.account = $2 AND h.object_type = $3 AND h.object_id = $4
  	RETURNING *
)
SELECT ` + refetchRequestColumns + ` FROM h JOIN sources s ON s.number = h.source`

// CancelRefetch deletes a manual or suspended request. It does not stop a refetch in progress.
// Errors: events.ErrNotFound.
func CancelRefetch(ctx context.Context, db postgres.DB, k versioning.Key) (*RefetchRequest, error) {
	return changeRequest(ctx, db, k, "delete", deleteAnyRequestSQL, k.Source, k.Account, k.Type, k.ID)
}

func changeRequest(ctx context.Context, db postgres.DB, k versioning.Key, verb, sql string,
	args ...any) (*RefetchRequest, error) {
	rows, err := db.Query(ctx, sql, args...)
	var h RefetchRequest
	if err == nil {
		h, err = pgx.CollectExactlyOneRow(rows, scanRefetchRequest)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = events.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("%s refetch request of %s %s: %w", verb, k.Type, k.ID, err)
	}
	return &h, nil
}

// manualVerification returns the verification of a manual refetch, in the place of a delivery's
// verification result. The time makes each manual refetch a different event.
func manualVerification(one refetchRequest) ([]byte, error) {
	return json.Marshal(struct {
		Scheme      string    `json:"scheme"`
		RequestedBy string    `json:"requested_by"`
		Reason      string    `json:"reason"`
		RequestedAt time.Time `json:"requested_at"`
	}{"api", one.requestedBy, one.reason, one.requestedAt.UTC()})
}

// manualKey returns the key of a manual refetch. It is a separate event, so that the log records
// the operator and the reason even if another refetch has found the same state.
func manualKey(refetch string, verification []byte) string {
	return operatorKey("manual:", refetch, verification)
}
