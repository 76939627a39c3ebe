package objectscan

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

// PhaseNotListable is the phase of a type that a scan skips, because its list cannot be read while
// the key works. Its watermarks do not advance, and the run does not try again.
const PhaseNotListable = "not_listable"

// isListFailure reports whether a list cannot be read: it is rejected, fails repeatedly, or cannot
// be used.
func isListFailure(err error) bool {
	return errors.As(err, new(*refetch.RejectedError)) || errors.As(err, new(*listError))
}

// skipType skips a type whose list cannot be read, with the reason, while the key works otherwise.
// A key need not have access to everything, and an account need not have every product. It returns
// the error if the run must end or be tried again.
func (s *objectScan) skipType(ctx context.Context, err error) error {
	if ctx.Err() != nil || !isListFailure(err) {
		return err
	}
	if _, keyErr := s.CheckKey(ctx, s.Params.Account); keyErr != nil { // the failure is not limited to the type
		return keyErr
	}
	s.Logger.Warn("type skipped, because its list cannot be read", "source", s.Source.Name, "type", s.objectType,
		"error",
		err)
	return s.markNotListable(ctx, err)
}

// markNotListableSQL ends the scan of a type whose list cannot be read. It inserts a row if the
// scan could not even start.
const markNotListableSQL = `
INSERT INTO object_scans AS s (run, source, account, object_type, phase, reason, started_at, updated_at)
	VALUES ($1, $3, $4, $2, 'not_listable', $5, to_timestamp(0), clock_now())
ON CONFLICT (run, object_type) DO UPDATE SET phase = excluded.phase, reason = excluded.reason, cursor = '',
	started_at = excluded.started_at, updated_at = excluded.updated_at RETURNING ` + progressColumns

// markNotListable stores that the list of the type cannot be read, and the reason. It deletes the
// listed and the missing objects of the type, so no tombstones are written.
func (s *objectScan) markNotListable(ctx context.Context, reason error) error {
	return s.change(ctx, "skip a type", func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{deleteListedSQL, deleteOrphansSQL} {
			if _, err := tx.Exec(ctx, sql, s.Lease.Run.ID, s.objectType); err != nil {
				return err
			}
		}
		return s.scan(tx.QueryRow(ctx, markNotListableSQL, s.Lease.Run.ID, s.objectType, s.Source.Number,
			s.Params.Account, events.SanitizeText(reason.Error())))
	})
}

// skippedTypes are the types and parts of lists that a scan of all types has skipped.
type skippedTypes struct {
	// notListable are the types whose lists cannot be read; lastFailure has the reason of the last.
	notListable int
	lastFailure error
	// unmirrored are the types that the mirror has no objects of and whose lists are expensive.
	// parts are the parts of lists that could not be read.
	unmirrored, parts int
}

// addType counts a type that the run has finished.
func (o *skippedTypes) addType(s *objectScan) {
	switch s.phase {
	case PhaseNotListable:
		o.notListable, o.lastFailure = o.notListable+1,
			runs.Permanent(fmt.Errorf("type %s: %s", s.objectType, s.reason))
	case PhaseSkipped:
		o.unmirrored++
	}
	o.parts += len(s.skipped)
}

// counts returns the counts by their names in the run ledger.
func (o *skippedTypes) counts() map[string]int {
	return map[string]int{NotListable: o.notListable, SkippedTypes: o.unmirrored, SkippedParts: o.parts}
}
