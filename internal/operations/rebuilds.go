package operations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
)

// RebuildParams select what to rebuild. Type has two names.
type RebuildParams struct {
	Source     string `json:"source,omitzero"`
	Type       string `json:"type,omitzero"`
	ObjectType string `json:"object_type,omitzero"`
	// Swap swaps as soon as all objects are staged.
	Swap bool `json:"swap,omitzero"`
	RunRequest
}

// Rebuild queues a rebuild. A running processor executes it. Errors: events.ErrInvalid, also where
// the source has an open rebuild.
func Rebuild(ctx context.Context, pool *pgxpool.Pool, p RebuildParams, by Requester) (*StartedRun, error) {
	o := &rebuild.Params{Swap: p.Swap, Input: selectionTexts(p, "swap")}
	var err error
	if o.Type, err = either("type", p.Type, "object_type", p.ObjectType); err != nil {
		return nil, err
	}
	if o.Source, err = sourceNumber(ctx, pool, p.Source); err != nil {
		return nil, err
	}
	switch {
	case o.Source == 0:
		return nil, invalid("name the source to rebuild (--source)")
	case p.Swap && by.Separate && by.Verified():
		return nil, fmt.Errorf("%w: with approvals.separate, a rebuild cannot be requested together with its swap. "+
			"Leave out swap: somebody with another token swaps the staged objects", adminauth.ErrOwnRequest)
	}
	expected, err := events.Estimate(ctx, pool, &events.Filter{Source: o.Source, ObjectType: o.Type})
	if err != nil {
		return nil, err
	}
	run, err := startRun(ctx, pool, by, "rebuild", runs.Request{Job: rebuild.Job, Params: o, Expected: expected.Events},
		p.RunRequest, selectionTexts(p))
	return run, rebuild.ExplainConflict(ctx, pool, o, err)
}

// CompareParams select a page of the comparison of a rebuild.
type CompareParams struct {
	Run int64 `json:"id"`
	Page
}

// CompareRebuild returns a page of the comparison of live and staged objects. Errors:
// events.ErrInvalid, events.ErrNotFound.
func CompareRebuild(ctx context.Context, pool *pgxpool.Pool, p CompareParams) (*rebuild.Page, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	return rebuild.Compare(ctx, pool, p.Run, p.Cursor, p.limit())
}
