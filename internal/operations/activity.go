package operations

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/activity"
)

// ActivityParams select what happened in a time range.
type ActivityParams struct {
	Source   string `json:"source,omitzero"`
	BySource bool   `json:"by_source,omitzero"`
	Since    Time   `json:"since,omitzero"`
	Until    Time   `json:"until,omitzero"`
	Step     string `json:"step,omitzero" validate:"omitempty,activity_step"`
}

// Activity returns what happened by minute or hour. Errors: events.ErrInvalid.
func Activity(ctx context.Context, pool *pgxpool.Pool, p ActivityParams) (*activity.Points, error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	if err != nil {
		return nil, err
	}
	return activity.ReadPoints(ctx, pool, activity.Filter{Source: source, BySource: p.BySource, Since: p.Since.at,
		Until: p.Until.at, Step: p.Step})
}
