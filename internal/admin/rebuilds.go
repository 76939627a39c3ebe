package admin

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
)

// RebuildParams say what to rebuild.
var RebuildParams = append([]Param{
	{"source", "name of the source whose objects are made anew"},
	{"type", "only objects of this type"},
	{"object_type", "the same as type, named as in the other lists"},
}, onceParams...)

// Rebuild enters a rebuild into the ledger by RebuildParams; a running processor carries it out, and swaps at its end if swap says so. Errors:
// events.ErrInvalid, also where the source has an open rebuild.
func Rebuild(ctx context.Context, pool *pgxpool.Pool, values url.Values, swap bool, by By) (*Asked, error) {
	q := newQuery(ctx, pool, values, RebuildParams)
	o := &rebuild.Order{Source: q.source(), Type: q.either("type", "object_type"), Swap: swap, Words: map[string]string{}}
	if o.Source == 0 {
		q.fail("name the source to rebuild")
	}
	if q.err != nil {
		return nil, q.err
	}
	for name := range values {
		if !slices.ContainsFunc(onceParams, func(p Param) bool { return p.Name == name }) {
			o.Words[name] = values.Get(name)
		}
	}
	expected, err := events.Estimate(ctx, pool, &events.Filter{Source: o.Source, ObjectType: o.Type})
	if err != nil {
		return nil, err
	}
	if swap { // a flag of its own
		values = maps.Clone(values)
		values.Set("swap", "true")
	}
	run, err := ask(ctx, pool, by, "rebuild", runs.Order{Job: rebuild.Job, Asked: o, Expected: expected.Events}, values)
	return run, rebuild.Explain(ctx, pool, o, err)
}

// CompareRebuild is a part of a comparison of live and staged objects, by limit and cursor. Errors: events.ErrInvalid, events.ErrNotFound.
func CompareRebuild(ctx context.Context, pool *pgxpool.Pool, run int64, values url.Values) (*rebuild.Page, error) {
	q := newQuery(ctx, pool, values, []Param{limitParam, cursorParam})
	limit := q.limit()
	if q.err != nil {
		return nil, q.err
	}
	return rebuild.Compare(ctx, pool, run, q.text("cursor"), limit)
}

// SteerRebuild has a rebuild swapped or discarded and returns it as it stands then. Errors: events.ErrInvalid, events.ErrNotFound.
func SteerRebuild(ctx context.Context, pool *pgxpool.Pool, run int64, what string, by By) (*runs.Run, error) {
	do, ok := map[string]func(context.Context, postgres.DB, int64) error{"swap": rebuild.Swap, "discard": rebuild.Discard}[what]
	if !ok {
		return nil, fmt.Errorf("%w: %q is nothing that can be done to a rebuild", events.ErrInvalid, what)
	}
	return steer(ctx, pool, run, "rebuild "+what, by, func(ctx context.Context, tx pgx.Tx) error { return do(ctx, tx, run) })
}

// rebuildRoutes takes orders for rebuilds and compares what they have staged.
func (h *handler) rebuildRoutes(api *echo.Group) {
	api.POST("/rebuilds", h.show(h.rebuild), fromOurselves, h.once)
	api.GET("/rebuilds/:run/compare", h.show(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return CompareRebuild(ctx, h.Pool, run, values)
	}))
	for _, what := range []string{"swap", "discard"} {
		api.POST("/rebuilds/:run/"+what, h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
			run, err := runNumber(c)
			if err != nil {
				return nil, err
			}
			by, err := why(c)
			if err != nil {
				return nil, err
			}
			return SteerRebuild(ctx, h.Pool, run, what, by)
		}), fromOurselves, h.once)
	}
}

// rebuild takes {"source": "stripe", "type": "invoice", "swap": true, "reason": "..."}.
func (h *handler) rebuild(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: what to rebuild is said in the body, not in the address", events.ErrInvalid)
	}
	values, err := asked(c.Request().Body)
	if err != nil {
		return nil, err
	}
	swap, err := flag(values, "swap")
	if err != nil {
		return nil, err
	}
	return Rebuild(ctx, h.Pool, values, swap, by(c))
}
