package admin

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
)

var (
	// SpoolParams select a page of spools.
	SpoolParams = []Param{limitParam, cursorParam}

	// RemoveSpoolParams are the parameters of RemoveSpool.
	RemoveSpoolParams = []Param{
		{"reason", "reason; required, and stored in the audit"},
		{"force", "true or false"},
	}
)

// Spools lists the registered spools, by SpoolParams. Errors: events.ErrInvalid.
func Spools(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[redaction.Spool], error) {
	q := newQuery(ctx, pool, values, SpoolParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[redaction.Spool]{}, q.err
	}
	return redaction.Spools(ctx, pool, q.text("cursor"), limit)
}

// RemoveSpool removes a spool, so that no redaction waits for it, and returns its last state. A
// reason is required. force also removes one whose gateway may be running. Errors:
// events.ErrNotFound, events.ErrInvalid.
func RemoveSpool(ctx context.Context, pool *pgxpool.Pool, name string, values url.Values,
	by Requester) (*redaction.Spool, error) {
	q := newQuery(ctx, pool, values, RemoveSpoolParams)
	by.Reason = strings.TrimSpace(q.text("reason"))
	force := q.flag("force")
	if by.Reason == "" {
		q.fail("give a reason: the deliveries in the spool are lost with it, and the audit records who removed it")
	}
	if q.err != nil {
		return nil, q.err
	}
	return change(ctx, pool, by, "spool remove", func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*redaction.Spool, error) {
		s, err := redaction.RemoveSpool(ctx, tx, name, force != nil && *force)
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

// spoolRoutes serves the spools: POST /spools/NAME/remove takes {"reason": "...", "force": true}.
func (h *handler) spoolRoutes(api *echo.Group) {
	api.GET("/spools", list(h, Spools))
	api.GET("/spools/:spool", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		return redaction.ShowSpool(ctx, h.Pool, param(c, "spool"))
	}))
	api.POST("/spools/:spool/remove", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		values, err := parseBody(c.Request().Body)
		if err != nil {
			return nil, err
		}
		return RemoveSpool(ctx, h.Pool, param(c, "spool"), values, requesterOf(c))
	}), requireJSON, h.withIdempotencyKey)
}
