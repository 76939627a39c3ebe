package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/idempotency"
)

// replayedHeader marks a response that was stored for an earlier request.
const replayedHeader = "Idempotency-Replayed"

// releaseTimeout limits the release of a key, which also happens after the client disconnected.
const releaseTimeout = 5 * time.Second

const claimKey = "postern claim"

// unstoredStatuses are those of client errors after which the same request may succeed later, or at
// another process.
var unstoredStatuses = []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusMisdirectedRequest}

// claimOf returns the claim of a request with an idempotency key; nil for one without.
func claimOf(c echo.Context) *adminauth.KeyClaim {
	claim, _ := c.Get(claimKey).(*adminauth.KeyClaim)
	return claim
}

// withIdempotencyKey executes a request with an idempotency key once. The transaction of a change
// stores the response (change). executeOnce stores an error response, except one with status 400,
// 421, 429 or 5xx. A request without a stored response, such as a preview, is executed again.
func (h *handler) withIdempotencyKey(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		key, err := idempotency.Key(c.Request().Header.Values(idempotency.Header))
		if err != nil || key == "" {
			if err != nil {
				return err
			}
			return next(c)
		}
		r, err := idempotencyRequest(c, key)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Request().Context(), queryTimeout)
		defer cancel()
		claim, stored, err := adminauth.BeginRequest(ctx, h.Pool, r)
		if err != nil {
			return err
		}
		if stored != nil {
			c.Response().Header().Set(replayedHeader, "true")
			return c.Blob(stored.Status, stored.ContentType, stored.Body)
		}
		c.Set(claimKey, claim)
		return h.executeOnce(c, claim, next)
	}
}

// idempotencyRequest returns the scope of the key (caller and route) and a fingerprint of the
// complete request.
func idempotencyRequest(c echo.Context, key string) (adminauth.KeyedRequest, error) {
	body, err := io.ReadAll(io.LimitReader(c.Request().Body, maxBodyBytes+1))
	if err != nil {
		return adminauth.KeyedRequest{}, echo.NewHTTPError(http.StatusBadRequest,
			"the connection broke while the body was read")
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(body))
	callerName := callerOf(c).name
	if callerName == "" {
		callerName = "(loopback)" // no token has this name
	}
	u := c.Request().URL
	return adminauth.KeyedRequest{Scope: callerName + " " + c.Request().Method + " " + c.Path(), Key: key,
		Fingerprint: adminauth.Fingerprint([]byte(u.EscapedPath()), []byte(u.RawQuery), body)}, nil
}

// executeOnce executes the request. It stores an error response as withIdempotencyKey describes, or
// releases the key.
func (h *handler) executeOnce(c echo.Context, claim *adminauth.KeyClaim, next echo.HandlerFunc) error {
	open, release := true, claim.Release
	defer func() { // also after a panic
		if !open {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), releaseTimeout)
		defer cancel()
		if err := release(ctx, h.Pool); err != nil {
			h.Logger.Warn("idempotency key not released; it is free when its lease ends", "error", err)
		}
	}()
	err := next(c)
	if err == nil {
		open = !claim.HasResponse()
		return nil
	}
	p := Describe(err)
	if p.Status == http.StatusBadRequest {
		release = claim.Discard // nothing was executed, so a corrected request may have the key
	}
	if p.Status >= 500 || slices.Contains(unstoredStatuses, p.Status) || errors.Is(err, adminauth.ErrInProgress) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), releaseTimeout)
	defer cancel()
	if storeErr := claim.StoreResponse(ctx, h.Pool, adminauth.StoredResponse{Status: p.Status,
		ContentType: problemMediaType, Body: p.body()}); storeErr != nil {
		return storeErr
	}
	open = false
	return err
}

// encodeJSON encodes a response.
func encodeJSON(found any) ([]byte, error) {
	body, err := json.Marshal(found)
	return append(body, '\n'), err
}
