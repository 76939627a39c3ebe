package admin

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
)

var (
	// SpoolParams choose a page of spools.
	SpoolParams = []Param{limitParam, cursorParam}

	// ForgetSpoolParams say why a spool is forgotten.
	ForgetSpoolParams = []Param{
		{"reason", "why; must be given, and is kept in the audit"},
		{"force", "true or false"},
	}
)

// Spools lists the spools that the database knows, by SpoolParams. Errors: events.ErrInvalid.
func Spools(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[redaction.Spool], error) {
	q := newQuery(ctx, pool, values, SpoolParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[redaction.Spool]{}, q.err
	}
	return redaction.Spools(ctx, pool, q.text("cursor"), limit)
}

// ForgetSpool has no redaction wait for a spool any more, and returns it as it was. A reason must be given; force takes one whose gateway may run. Errors: events.ErrNotFound, events.ErrInvalid.
func ForgetSpool(ctx context.Context, pool *pgxpool.Pool, name string, values url.Values, by By) (*redaction.Spool, error) {
	q := newQuery(ctx, pool, values, ForgetSpoolParams)
	by.Reason = strings.TrimSpace(q.text("reason"))
	force := q.flag("force")
	if by.Reason == "" {
		q.fail("say why with a reason: what is in the spool is lost with it, and the audit keeps who said so")
	}
	if q.err != nil {
		return nil, q.err
	}
	return change(ctx, pool, by, "spool forget", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*redaction.Spool, error) {
		s, err := redaction.ForgetSpool(ctx, tx, name, force != nil && *force)
		if err != nil {
			return nil, err
		}
		e.Target = "spool " + s.Name + ", " + s.Place
		if s.Deliveries != nil {
			e.Target += fmt.Sprintf(", last told to hold %d deliveries", *s.Deliveries)
		}
		return s, nil
	})
}

// spoolRoutes serve the spools: POST /spools/NAME/forget takes {"reason": "...", "force": true}.
func (h *handler) spoolRoutes(api *echo.Group) {
	api.GET("/spools", list(h, Spools))
	api.GET("/spools/:spool", h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		return redaction.ShowSpool(ctx, h.Pool, param(c, "spool"))
	}))
	api.POST("/spools/:spool/forget", h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		values, err := asked(c.Request().Body)
		if err != nil {
			return nil, err
		}
		return ForgetSpool(ctx, h.Pool, param(c, "spool"), values, by(c))
	}), fromOurselves, h.once)
}
