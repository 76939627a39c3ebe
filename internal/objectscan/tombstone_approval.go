package objectscan

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

// tombstoneApproval is the subject that an operator approves to let a run delete the objects that
// its detail names. The approved number is stored with each type.
const tombstoneApproval = "tombstones"

const (
	countOrphansSQL = `SELECT count(*) FROM orphans WHERE run = $1 AND object_type = $2`

	// countUnapprovedSQL returns the number of tombstones of the run beyond the approved ones, and
	// the number of written ones. The first includes tombstones that are still to be written.
	countUnapprovedSQL = `
SELECT coalesce(sum(greatest(0, s.orphans + (SELECT count(*) FROM orphans g WHERE g.run = s.run
	AND g.object_type = s.object_type) - s.tombstones_proposed)), 0)::bigint, coalesce(sum(s.orphans), 0)::bigint
FROM object_scans s WHERE s.run = $1`

	countLivingSQL = `SELECT count(*) FROM objects o WHERE o.source = $1 AND o.account = $2
		AND o.object_type = ANY($3::text[]) AND NOT o.deleted AND o.version_at > -9223372036854775808`

	requestApprovalSQL = `UPDATE object_scans s SET phase = 'awaiting_approval', cursor = '', tombstones_proposed = $3,
		updated_at = clock_now()
		WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

	deleteOrphansSQL = `DELETE FROM orphans WHERE run = $1 AND object_type = $2`
)

// stopForApproval makes the type wait for an operator if the run would write too many tombstones:
// of this type, of all types of the run together, or beyond the approved number. It deletes the
// stored missing objects. They are refetched after the approval.
func (s *objectScan) stopForApproval(ctx context.Context) (stopped bool, err error) {
	if s.Params.DryRun {
		return false, nil
	}
	var orphans, unapproved, written int64
	if err := s.Pool.QueryRow(ctx, countOrphansSQL, s.Lease.Run.ID, s.objectType).Scan(&orphans); err != nil {
		return false, fmt.Errorf("count orphans: %w", err)
	}
	total := s.Orphans + orphans                      // of this type
	if orphans == 0 || total <= s.approvalRequested { // all of them are approved
		return false, nil
	}
	if err := s.Pool.QueryRow(ctx, countUnapprovedSQL, s.Lease.Run.ID).Scan(&unapproved, &written); err != nil {
		return false, fmt.Errorf("count the tombstones of the run: %w", err)
	}
	needed, err := s.needsApproval(ctx, total-s.approvalRequested, s.Orphans, s.objectType)
	if err == nil && !needed {
		needed, err = s.needsApproval(ctx, unapproved, written, s.types...)
	}
	if err != nil || !needed {
		return false, err
	}
	return true, s.change(ctx, "make a type wait for approval", func(ctx context.Context, tx pgx.Tx) error {
		if err := s.scan(tx.QueryRow(ctx, requestApprovalSQL, s.Lease.Run.ID, s.objectType, total)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, deleteOrphansSQL, s.Lease.Run.ID, s.objectType)
		return err
	})
}

// needsApproval reports whether a number of tombstones of some types together needs an operator's
// approval. The number is compared with the living objects before the written ones.
func (r *Run) needsApproval(ctx context.Context, tombstones, written int64, types ...string) (bool, error) {
	if tombstones <= refetch.ApprovalMinimum {
		return false, nil
	}
	living, err := r.countLiving(ctx, types...)
	return tombstones*refetch.ApprovalDivisor > living+written, err
}

func (r *Run) countLiving(ctx context.Context, types ...string) (n int64, err error) {
	if err := r.Pool.QueryRow(ctx, countLivingSQL, r.Source.Number, r.Params.Account, types).Scan(&n); err != nil {
		return 0, fmt.Errorf("count living objects: %w", err)
	}
	return n, nil
}

const (
	awaitingApprovalSQL = `SELECT s.object_type, s.tombstones_proposed - s.orphans FROM object_scans s WHERE s.run = $1
		AND s.phase = 'awaiting_approval'
		ORDER BY s.object_type`

	resumeApprovedSQL = `UPDATE object_scans s SET phase = 'orphans', updated_at = clock_now() WHERE s.run = $1
		AND s.phase = 'awaiting_approval'`
)

// requestApproval requests approval for the tombstones of all waiting types, once no other type can
// be scanned.
func (r *Run) requestApproval(ctx context.Context) (runs.Status, error) {
	var objectType string
	var count int64
	counts := map[string]int64{}
	var types []string
	err := postgres.ForEach(ctx, r.Pool, awaitingApprovalSQL, []any{r.Lease.Run.ID}, []any{&objectType, &count},
		func() error {
			types, counts[objectType] = append(types, objectType), count
			return nil
		})
	if err != nil {
		return "", fmt.Errorf("read which types wait for approval: %w", err)
	}
	if len(types) == 0 {
		return runs.Running, nil
	}
	for i, t := range types {
		living, err := r.countLiving(ctx, t)
		if err != nil {
			return "", err
		}
		types[i] = fmt.Sprintf("%d of %d living objects of type %s", counts[t], living, t)
	}
	detail := fmt.Sprintf("%s are in the mirror and missing in the API of source %s: an operator must approve so many "+
		"deletions (postern runs approve %d --reason TEXT); does the key belong to the account of the mirror?",
		strings.Join(types, ", "), r.Source.Name, r.Lease.Run.ID)
	err = postgres.InTx(ctx, r.Pool, "request approval", stateTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if err := r.Lease.RequestApproval(ctx, tx, tombstoneApproval, detail); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, resumeApprovedSQL, r.Lease.Run.ID)
		return err
	})
	if err != nil {
		return "", err
	}
	return runs.AwaitingApproval, nil
}
