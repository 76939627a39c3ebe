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

// maxBodyBytes limits the body of a request.
const maxBodyBytes = 1 << 20

// runRoutes serves and starts runs.
func (h *handler) runRoutes(api *echo.Group) {
	api.GET("/runs", list(h, Runs))
	api.GET("/runs/:run", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return runs.Show(ctx, h.Pool, run)
	}))
	for change := range runChanges {
		api.POST("/runs/:run/"+change,
			h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
				run, err := runNumber(c)
				if err != nil {
					return nil, err
				}
				by, err := requesterWithReason(c)
				if err != nil {
					return nil, err
				}
				return ChangeRun(ctx, h.Pool, run, change, by)
			}), requireJSON, h.withIdempotencyKey)
	}
	api.POST("/runs/:run/approve", h.serveJSON(h.approve), requireJSON, h.withIdempotencyKey)
	api.POST("/replays", h.serveJSON(h.replay), requireJSON, h.withIdempotencyKey)
	api.POST("/retries", h.serveJSON(h.retry), requireJSON, h.withIdempotencyKey)
	h.rebuildRoutes(api)
}

// approve takes {"reason": "..."}.
func (h *handler) approve(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	run, err := runNumber(c)
	if err != nil {
		return nil, err
	}
	by, err := requesterWithReason(c)
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

// requireJSON rejects requests that a foreign web page could make a browser send: forms and text,
// but not JSON.
func requireJSON(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if kind, _, err := mime.ParseMediaType(c.Request().Header.Get("Content-Type")); err != nil ||
			kind != "application/json" {
			return echo.NewHTTPError(http.StatusUnsupportedMediaType,
				"send Content-Type: application/json, also with an empty body")
		}
		return next(c)
	}
}

// replay takes {"source": "stripe", "type": "invoice.*", ..., "rate": 100, "reason": "...",
// "preview": true, "exact": true, "dry_run": true, "publish": true}. With preview it returns only
// the size of the replay, with dry_run the differences that it would make.
func (h *handler) replay(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: send the parameters of a replay in the body, not in the URL", events.ErrInvalid)
	}
	values, err := parseBody(c.Request().Body)
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
	params, err := ParseReplay(ctx, h.Pool, values)
	if err != nil {
		return nil, err
	}
	params.Publish = publish
	if dry {
		return h.dryRunReplay(ctx, params)
	}
	expected, err := PreviewReplay(ctx, h.Pool, params, exact)
	if err != nil || preview {
		return expected, err
	}
	return Replay(ctx, h.Pool, params, requesterOf(c), values, expected.Events)
}

// flag removes a boolean member from the parameters and returns it.
func flag(values url.Values, name string) (bool, error) {
	text := values.Get(name)
	values.Del(name)
	if text != "" && text != "true" && text != "false" {
		return false, fmt.Errorf("%w: %s: give true or false", events.ErrInvalid, name)
	}
	return text == "true", nil
}

// parseBody reads a JSON object as parameters. An empty object has no parameters, which selects
// everything. Only the parameters in objects may be JSON objects themselves; they are kept as JSON.
func parseBody(body io.Reader, objects ...string) (url.Values, error) {
	var fields map[string]any
	d := json.NewDecoder(io.LimitReader(body, maxBodyBytes))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil || fields == nil {
		return nil, fmt.Errorf("%w: the body is not a JSON object; send {} for no parameters", events.ErrInvalid)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: the body continues after its JSON object: send one object", events.ErrInvalid)
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
			if err != nil || !slices.Contains(objects, name) {
				return nil, fmt.Errorf("%w: %s: give a text, a number, true or false", events.ErrInvalid, name)
			}
			values.Set(name, string(b))
		default:
			return nil, fmt.Errorf("%w: %s: give a text, a number, true or false", events.ErrInvalid, name)
		}
	}
	return values, nil
}
