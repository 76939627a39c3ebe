package admin

import (
	"context"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// Retention says what a policy means for the log as it is; with count also how much else is past its age. Errors: events.ErrInvalid.
func Retention(ctx context.Context, pool *pgxpool.Pool, p retention.Policy, count bool) (*retention.View, *retention.Order, error) {
	order, err := retention.Now(ctx, pool, p)
	if err != nil {
		return nil, nil, err
	}
	look := retention.Show
	if count {
		look = retention.Preview
	}
	view, err := look(ctx, pool, order)
	return view, order, err
}

// Retain enters a run of retention into the ledger; a running processor carries it out. It returns the run's number.
// Errors: events.ErrInvalid where one is open already.
func Retain(ctx context.Context, pool *pgxpool.Pool, o *retention.Order, who, reason string) (run int64, err error) {
	run, err = runs.Ask(ctx, pool, runs.Order{Job: retention.Job, Asked: o, Who: who, Reason: reason})
	return run, retention.Explain(err)
}

// retention serves GET /retention: the policy of this process and what it means for the log.
func (h *handler) retention(ctx context.Context, pool *pgxpool.Pool, values url.Values) (any, error) {
	if q := newQuery(ctx, pool, values, nil); q.err != nil {
		return nil, q.err
	}
	view, _, err := Retention(ctx, pool, h.Options.Retention, false)
	return view, err
}
