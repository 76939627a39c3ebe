package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// maxBodyBytes limits the body of a request.
const maxBodyBytes = 1 << 20

// decode reads the parameters of a request into the struct that p points to. Errors:
// events.ErrInvalid, events.ErrNotFound for a path that names no number.
func decode(c echo.Context, p any) error {
	if err := decodePath(c, p); err != nil {
		return err
	}
	if c.Request().Method == http.MethodPost || c.Request().Method == http.MethodPut {
		return decodeBody(c, p)
	}
	texts := map[string]string{}
	for name, given := range c.QueryParams() {
		if len(given) > 1 {
			return fmt.Errorf("%w: parameter %q is given %d times", events.ErrInvalid, name, len(given))
		}
		texts[name] = given[0]
	}
	return operations.Parse(p, texts, c.ParamNames()...)
}

// decodePath reads the parts of the path.
func decodePath(c echo.Context, p any) error {
	for _, name := range c.ParamNames() {
		text := param(c, name)
		if err := operations.CheckStorable(name, text); err != nil {
			return err
		}
		if err := operations.Parse(p, map[string]string{name: text}); err != nil {
			return fmt.Errorf("%s %q: %w", name, text, events.ErrNotFound)
		}
	}
	return nil
}

// param returns a part of the path. echo does not decode it where the path was escaped.
func param(c echo.Context, name string) string {
	text := c.Param(name)
	if c.Request().URL.RawPath != "" {
		if plain, err := url.PathUnescape(text); err == nil {
			return plain
		}
	}
	return text
}

// decodeBody reads the members of a JSON object. An empty object has no parameters, which selects
// everything. The body may be empty where a reason is the only parameter.
func decodeBody(c echo.Context, p any) error {
	if c.Request().URL.RawQuery != "" {
		return fmt.Errorf("%w: send the parameters in the body, not in the URL", events.ErrInvalid)
	}
	known := operations.Params(p, c.ParamNames()...)
	if c.Request().ContentLength == 0 && len(known) == 1 && known[0].Name == "reason" {
		return nil
	}
	texts, err := parseBody(c.Request().Body, known)
	if err != nil {
		return err
	}
	return operations.Parse(p, texts, c.ParamNames()...)
}

// parseBody reads a JSON object as texts. Only the parameters whose type is JSON may be JSON
// objects themselves.
func parseBody(body io.Reader, known []operations.Param) (map[string]string, error) {
	var fields map[string]any
	d := json.NewDecoder(io.LimitReader(body, maxBodyBytes))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil || fields == nil {
		return nil, fmt.Errorf("%w: the body is not a JSON object; send {} for no parameters", events.ErrInvalid)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: the body continues after its JSON object: send one object", events.ErrInvalid)
	}
	texts := map[string]string{}
	for name, v := range fields {
		switch v := v.(type) {
		case string, json.Number, bool:
			texts[name] = fmt.Sprint(v)
			continue
		case map[string]any:
			if slices.ContainsFunc(known, func(p operations.Param) bool {
				return p.Name == name && p.Type == reflect.TypeFor[json.RawMessage]()
			}) {
				b, err := json.Marshal(v)
				if err != nil {
					return nil, err
				}
				texts[name] = string(b)
				continue
			}
		}
		return nil, fmt.Errorf("%w: %s: give a text, a number, true or false", events.ErrInvalid, name)
	}
	return texts, nil
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

// requesterOf returns the actor of a request. The response of a change is stored under the
// request's idempotency key, if it has one.
func (h *handler) requesterOf(c echo.Context) operations.Requester {
	sender, claim := callerOf(c), claimOf(c)
	by := operations.Requester{Role: sender.role, Separate: h.SeparateApprovals, Actor: adminauth.Actor{
		Name: sender.name, Via: adminauth.ViaLoopback, Address: c.Request().RemoteAddr}}
	switch {
	case sender.name != "" && sender.console:
		by.Via = adminauth.ViaConsole
	case sender.name != "":
		by.Via = adminauth.ViaToken
	}
	if claim != nil {
		by.StoreResult = func(ctx context.Context, tx pgx.Tx, result any) error {
			body, err := encodeJSON(result)
			if err != nil {
				return err
			}
			return claim.StoreResponse(ctx, tx, adminauth.StoredResponse{Status: http.StatusOK,
				ContentType: echo.MIMEApplicationJSON, Body: body})
		}
	}
	return by
}
