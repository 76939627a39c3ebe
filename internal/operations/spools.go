package operations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/redaction"
)

// RemoveSpoolParams name a spool to remove. Force also removes one whose gateway may be running.
type RemoveSpoolParams struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitzero"`
	Force  bool   `json:"force,omitzero"`
}

// RemoveSpool removes a spool, so that no redaction waits for it, and returns its last state. A
// reason is required. Errors: events.ErrNotFound, events.ErrInvalid.
func RemoveSpool(ctx context.Context, pool *pgxpool.Pool, p RemoveSpoolParams, by Requester) (*redaction.Spool, error) {
	reason := strings.TrimSpace(p.Reason)
	if reason == "" {
		return nil, invalid("give a reason: the deliveries in the spool are lost with it, and the audit records who " +
			"removed it")
	}
	return change(ctx, pool, by, "spool remove", reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*redaction.Spool, error) {
		s, err := redaction.RemoveSpool(ctx, tx, p.Name, p.Force)
		if err != nil {
			return nil, err
		}
		e.Target = "spool " + s.Name + ", " + s.Location
		if s.Deliveries != nil {
			e.Target += fmt.Sprintf(", last reported with %d deliveries", *s.Deliveries)
		}
		return s, nil
	})
}
