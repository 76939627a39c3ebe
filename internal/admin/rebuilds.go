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

// RebuildParams select what to rebuild.
var RebuildParams = append([]Param{
	{"source", "name of the source whose objects are rebuilt"},
	{"type", "only objects of this type"},
	{"object_type", "the same as type, named as in the other lists"},
}, requestParams...)

// Rebuild queues a rebuild by RebuildParams. A running processor executes it, and swaps at its end
// if swap is true. Errors: events.ErrInvalid, also where the source has an open rebuild.
func Rebuild(ctx context.Context, pool *pgxpool.Pool, values url.Values, swap bool, by Requester) (*StartedRun, error) {
	q := newQuery(ctx, pool, values, RebuildParams)
	o := &rebuild.Params{Source: q.source(), Type: q.either("type", "object_type"), Swap: swap,
		Input: map[string]string{}}
	if o.Source == 0 {
		q.fail("name the source to rebuild")
	}
	if q.err != nil {
		return nil, q.err
	}
	for name := range values {
		if !slices.ContainsFunc(requestParams, func(p Param) bool { return p.Name == name }) {
			o.Input[name] = values.Get(name)
		}
	}
	expected, err := events.Estimate(ctx, pool, &events.Filter{Source: o.Source, ObjectType: o.Type})
	if err != nil {
		return nil, err
	}
	if swap { // swap is a separate flag
		values = maps.Clone(values)
		values.Set("swap", "true")
	}
	run, err := startRun(ctx, pool, by, "rebuild", runs.Request{Job: rebuild.Job, Params: o, Expected: expected.Events},
		values)
	return run, rebuild.ExplainConflict(ctx, pool, o, err)
}

// CompareRebuild returns a page of the comparison of live and staged objects, by limit and cursor.
// Errors: events.ErrInvalid, events.ErrNotFound.
func CompareRebuild(ctx context.Context, pool *pgxpool.Pool, run int64, values url.Values) (*rebuild.Page, error) {
	q := newQuery(ctx, pool, values, []Param{limitParam, cursorParam})
	limit := q.limit()
	if q.err != nil {
		return nil, q.err
	}
	return rebuild.Compare(ctx, pool, run, q.text("cursor"), limit)
}

// ChangeRebuild swaps or discards a rebuild and returns its run. Errors: events.ErrInvalid,
// events.ErrNotFound.
func ChangeRebuild(ctx context.Context, pool *pgxpool.Pool, run int64, action string, by Requester) (*runs.Run, error) {
	do, ok := map[string]func(context.Context, postgres.DB, int64) error{"swap": rebuild.Swap,
		"discard": rebuild.Discard}[action]
	if !ok {
		return nil, fmt.Errorf("%w: %q is not an action for a rebuild: use swap or discard", events.ErrInvalid, action)
	}
	return changeRun(ctx, pool, run, "rebuild "+action, by,
		func(ctx context.Context, tx pgx.Tx) error { return do(ctx, tx, run) })
}

// rebuildRoutes starts rebuilds and compares staged objects.
func (h *handler) rebuildRoutes(api *echo.Group) {
	api.POST("/rebuilds", h.serveJSON(h.rebuild), requireJSON, h.withIdempotencyKey)
	api.GET("/rebuilds/:run/compare", h.serveJSON(func(ctx context.Context, c echo.Context, values url.Values) (any,
		error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return CompareRebuild(ctx, h.Pool, run, values)
	}))
	for _, action := range []string{"swap", "discard"} {
		api.POST("/rebuilds/:run/"+action,
			h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
				run, err := runNumber(c)
				if err != nil {
					return nil, err
				}
				by, err := requesterWithReason(c)
				if err != nil {
					return nil, err
				}
				return ChangeRebuild(ctx, h.Pool, run, action, by)
			}), requireJSON, h.withIdempotencyKey)
	}
}

// rebuild takes {"source": "stripe", "type": "invoice", "swap": true, "reason": "..."}.
func (h *handler) rebuild(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: send the parameters of a rebuild in the body, not in the URL", events.ErrInvalid)
	}
	values, err := parseBody(c.Request().Body)
	if err != nil {
		return nil, err
	}
	swap, err := flag(values, "swap")
	if err != nil {
		return nil, err
	}
	return Rebuild(ctx, h.Pool, values, swap, requesterOf(c))
}
