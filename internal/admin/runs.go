package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// maxAsked bounds the body of a request, in bytes.
const maxAsked = 1 << 20

// runRoutes serves the ledger of runs, and takes orders.
func (h *handler) runRoutes(api *echo.Group) {
	api.GET("/runs", list(h, Runs))
	api.GET("/runs/:run", h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return runs.Show(ctx, h.Pool, run)
	}))
	for change := range changes {
		api.POST("/runs/:run/"+change, h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
			run, err := runNumber(c)
			if err != nil {
				return nil, err
			}
			by, err := why(c)
			if err != nil {
				return nil, err
			}
			return ChangeRun(ctx, h.Pool, run, change, by)
		}), fromOurselves, h.once)
	}
	api.POST("/runs/:run/approve", h.show(h.approve), fromOurselves, h.once)
	api.POST("/replays", h.show(h.replay), fromOurselves, h.once)
	api.POST("/retries", h.show(h.retry), fromOurselves, h.once)
	h.rebuildRoutes(api)
}

// approve takes {"reason": "..."}.
func (h *handler) approve(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	run, err := runNumber(c)
	if err != nil {
		return nil, err
	}
	by, err := why(c)
	if err != nil {
		return nil, err
	}
	return ApproveRun(ctx, h.Pool, run, by)
}

func runNumber(c echo.Context) (int64, error) {
	run, err := strconv.ParseInt(c.Param("run"), 10, 64)
	if err != nil {
		return 0, echo.ErrNotFound
	}
	return run, nil
}

// fromOurselves refuses what a foreign page could make a browser send without asking: it can post forms and text, but no JSON.
func fromOurselves(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if kind, _, err := mime.ParseMediaType(c.Request().Header.Get("Content-Type")); err != nil || kind != "application/json" {
			return echo.NewHTTPError(http.StatusUnsupportedMediaType, "send Content-Type: application/json, also with an empty body")
		}
		return next(c)
	}
}

// replay takes {"source": "stripe", "type": "invoice.*", ..., "rate": 100, "reason": "...", "preview": true, "exact": true, "dry_run": true,
// "publish": true}: with preview it only says how much that would be, and with dry_run what would become of it.
func (h *handler) replay(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: what to replay is said in the body, not in the address", events.ErrInvalid)
	}
	values, err := asked(c.Request().Body)
	if err != nil {
		return nil, err
	}
	preview, err1 := flag(values, "preview")
	exact, err2 := flag(values, "exact")
	dry, err3 := flag(values, "dry_run")
	publish, err4 := flag(values, "publish")
	if err := cmp.Or(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	order, err := PlanReplay(ctx, h.Pool, values)
	if err != nil {
		return nil, err
	}
	order.Publish = publish
	if dry {
		return h.tryReplay(ctx, order)
	}
	expected, err := PreviewReplay(ctx, h.Pool, order, exact)
	if err != nil || preview {
		return expected, err
	}
	return Replay(ctx, h.Pool, order, by(c), values, expected.Events)
}

// flag takes a member that is true or false out of what was asked.
func flag(values url.Values, name string) (bool, error) {
	text := values.Get(name)
	values.Del(name)
	if text != "" && text != "true" && text != "false" {
		return false, fmt.Errorf("%w: %s: want true or false", events.ErrInvalid, name)
	}
	return text == "true", nil
}

// asked reads a body of names and plain values as parameters. It must be an object, and nothing else: an empty one asks for everything. What the names of whole have may be an object; it is kept as JSON.
func asked(body io.Reader, whole ...string) (url.Values, error) {
	var fields map[string]any
	d := json.NewDecoder(io.LimitReader(body, maxAsked))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil || fields == nil {
		return nil, fmt.Errorf("%w: the body is no JSON object; send {} where there is nothing to say", events.ErrInvalid)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: the body goes on behind its JSON object", events.ErrInvalid)
	}
	values := url.Values{}
	for name, v := range fields {
		switch v := v.(type) {
		case string:
			values.Set(name, v)
		case json.Number, bool:
			values.Set(name, fmt.Sprint(v))
		case map[string]any:
			b, err := json.Marshal(v)
			if err != nil || !slices.Contains(whole, name) {
				return nil, fmt.Errorf("%w: %s: want a text, a number, true or false", events.ErrInvalid, name)
			}
			values.Set(name, string(b))
		default:
			return nil, fmt.Errorf("%w: %s: want a text, a number, true or false", events.ErrInvalid, name)
		}
	}
	return values, nil
}
