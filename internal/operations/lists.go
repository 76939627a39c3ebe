package operations

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// RejectionFilter selects rejected deliveries.
type RejectionFilter struct {
	Source string `json:"source,omitzero"`
	Reason string `json:"rejection_reason,omitzero" validate:"omitempty,rejection_reason"`
	Since  Time   `json:"since,omitzero"`
	Until  Time   `json:"until,omitzero"`
}

// filter returns the filter for the stored rejections. Errors: events.ErrInvalid.
func (p RejectionFilter) filter(ctx context.Context, pool *pgxpool.Pool) (f ingest.RejectionFilter, err error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	return ingest.RejectionFilter{Source: source, Reason: p.Reason, Since: p.Since.at, Until: p.Until.at}, err
}

// RejectionParams select rejected deliveries of a list.
type RejectionParams struct {
	RejectionFilter
	Page
}

// Rejections lists rejected deliveries. Errors: events.ErrInvalid.
func Rejections(ctx context.Context, pool *pgxpool.Pool, p RejectionParams) (page events.Page[ingest.Rejection],
	err error) {
	if err := check(p); err != nil {
		return page, err
	}
	f, err := p.filter(ctx, pool)
	if err != nil {
		return page, err
	}
	return ingest.ListRejections(ctx, pool, f, p.Cursor, p.limit())
}

// RejectionGroups groups rejected deliveries by source and reason, with a diagnosis. Errors:
// events.ErrInvalid.
func RejectionGroups(ctx context.Context, pool *pgxpool.Pool,
	p RejectionFilter) (page events.Page[ingest.RejectionGroup], err error) {
	f, err := p.filter(ctx, pool)
	if err != nil {
		return page, err
	}
	return ingest.GroupRejections(ctx, pool, f)
}

// AuditParams select audit entries.
type AuditParams struct {
	Since  Time   `json:"since,omitzero"`
	Until  Time   `json:"until,omitzero"`
	Actor  string `json:"actor,omitzero"`
	Action string `json:"action,omitzero"`
	Target string `json:"target,omitzero"`
	Run    int64  `json:"run,omitzero"`
	Page
}

// Audit lists audit entries. Errors: events.ErrInvalid.
func Audit(ctx context.Context, pool *pgxpool.Pool, p AuditParams) (page events.Page[adminauth.AuditEntry], err error) {
	if err := check(p); err != nil {
		return page, err
	}
	return adminauth.ListAudit(ctx, pool, adminauth.AuditFilter{Since: p.Since.at, Until: p.Until.at, Actor: p.Actor,
		Action: p.Action, Target: p.Target, Run: p.Run}, p.Cursor, p.limit())
}

// SourceParams select a page of what a list has of a source.
type SourceParams struct {
	Source string `json:"source,omitzero"`
	Page
}

// PendingRefetchParams select objects that wait for a refetch.
type PendingRefetchParams struct {
	Source    string `json:"source,omitzero"`
	Suspended bool   `json:"suspended,omitzero"`
	Page
}

// Refetches lists the objects that wait for a refetch. Errors: events.ErrInvalid.
func Refetches(ctx context.Context, pool *pgxpool.Pool, p PendingRefetchParams) (page events.Page[refetch.Request],
	err error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	if err != nil {
		return page, err
	}
	return refetch.Requests(ctx, pool, source, p.Suspended, p.Cursor, p.limit())
}

// ObjectRefetch returns the refetch request of an object, or nil if it has none. Errors:
// events.ErrInvalid, *SeveralObjectsError.
func ObjectRefetch(ctx context.Context, pool *pgxpool.Pool, p ObjectKey) (*refetch.Request, error) {
	k, err := p.key(ctx, pool)
	if err != nil {
		return nil, err
	}
	return refetch.Find(ctx, pool, k)
}

// Watermarks lists until when the log and the mirror are complete. Errors: events.ErrInvalid.
func Watermarks(ctx context.Context, pool *pgxpool.Pool, p SourceParams) (page events.Page[watermarks.Completeness],
	err error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	if err != nil {
		return page, err
	}
	return watermarks.List(ctx, pool, source, p.Cursor, p.limit())
}

// DifferenceParams select differences of a run.
type DifferenceParams struct {
	Run    int64  `json:"id"`
	Kind   string `json:"kind,omitzero" validate:"omitempty,difference_kind"`
	Result string `json:"result,omitzero" validate:"omitempty,difference_result"`
	Page
}

// Differences lists the objects for which a run found a difference between mirror and provider.
// Errors: events.ErrInvalid.
func Differences(ctx context.Context, pool *pgxpool.Pool, p DifferenceParams) (page events.Page[objectscan.Difference],
	err error) {
	if err := check(p); err != nil {
		return page, err
	}
	return objectscan.Differences(ctx, pool, p.Run, p.Kind, p.Result, p.Cursor, p.limit())
}

// ObjectDifferenceParams select the differences of an object.
type ObjectDifferenceParams struct {
	ObjectName
	Page
}

// ObjectDifferences lists the differences between mirror and provider that object scans have found
// for one object, those of the newest runs first. Errors: events.ErrNotFound for the source,
// *SeveralObjectsError, events.ErrInvalid.
func ObjectDifferences(ctx context.Context, pool *pgxpool.Pool,
	p ObjectDifferenceParams) (page events.Page[objectscan.ObjectDifference], err error) {
	if err := check(p); err != nil {
		return page, err
	}
	key, err := p.key(ctx, pool)
	if err != nil {
		return page, err
	}
	return objectscan.DifferencesOf(ctx, pool, key, p.Cursor, p.limit())
}

// RunParams select runs.
type RunParams struct {
	Job      string `json:"job,omitzero" validate:"omitempty,job"`
	Status   string `json:"status,omitzero" validate:"omitempty,run_status"`
	Schedule string `json:"schedule,omitzero"`
	Page
}

// Runs lists runs. Errors: events.ErrInvalid.
func Runs(ctx context.Context, pool *pgxpool.Pool, p RunParams) (page events.Page[runs.Run], err error) {
	if err := check(p); err != nil {
		return page, err
	}
	return runs.List(ctx, pool, runs.Filter{Job: p.Job, Status: runs.Status(p.Status), Schedule: p.Schedule}, p.Cursor,
		p.limit())
}

// ListPages makes an operation of a list without parameters besides the page. Errors of the
// operation: events.ErrInvalid.
func ListPages[T any](list func(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[T],
	error)) func(context.Context, *pgxpool.Pool, Page) (events.Page[T], error) {
	return func(ctx context.Context, pool *pgxpool.Pool, p Page) (page events.Page[T], err error) {
		if err := check(p); err != nil {
			return page, err
		}
		return list(ctx, pool, p.Cursor, p.limit())
	}
}
