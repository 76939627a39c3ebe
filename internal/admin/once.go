package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/idempotency/header"
)

// replayedHeader says that an answer is an earlier one.
const replayedHeader = "Idempotency-Replayed"

// dropWithin bounds the letting go of a key, which happens also where whoever asked is gone.
const dropWithin = 5 * time.Second

const claimKey = "postern claim"

// claimOf is the claim of a request with a key; nil for one without.
func claimOf(c echo.Context) *idempotency.Claim {
	claim, _ := c.Get(claimKey).(*idempotency.Claim) // none: it has no key
	return claim
}

// once has a request that carries a key carried out once. The answer to what was done is kept by its own transaction (change), a refusal here; what failed for our sake is kept nowhere, and what
// changed nothing is answered anew.
func (h *handler) once(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		key, err := header.Key(c.Request().Header.Values(header.Name))
		if err != nil || key == "" {
			if err != nil {
				return err
			}
			return next(c)
		}
		r, err := keyed(c, key)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Request().Context(), queryTimeout)
		defer cancel()
		claim, answer, err := idempotency.Begin(ctx, h.Pool, r)
		if err != nil {
			return err
		}
		if answer != nil {
			c.Response().Header().Set(replayedHeader, "true")
			return c.Blob(answer.Status, answer.ContentType, answer.Body)
		}
		c.Set(claimKey, claim)
		return h.end(c, claim, next)
	}
}

// keyed is what a request is told by: whose the key is and for which route, and all that it asks for.
func keyed(c echo.Context, key string) (idempotency.Request, error) {
	body, err := io.ReadAll(io.LimitReader(c.Request().Body, maxAsked+1))
	if err != nil {
		return idempotency.Request{}, echo.NewHTTPError(http.StatusBadRequest, "the body broke off")
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(body))
	who := callerOf(c).name
	if who == "" {
		who = "(loopback)" // the name of no token
	}
	u := c.Request().URL
	return idempotency.Request{Scope: who + " " + c.Request().Method + " " + c.Path(), Key: key,
		Fingerprint: idempotency.Fingerprint([]byte(u.EscapedPath()), []byte(u.RawQuery), body)}, nil
}

// end carries a request out and keeps what is to be kept of a refusal.
func (h *handler) end(c echo.Context, claim *idempotency.Claim, next echo.HandlerFunc) error {
	open := true
	defer func() { // also where it panics
		if !open {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), dropWithin)
		defer cancel()
		if err := claim.Drop(ctx, h.Pool); err != nil {
			h.Logger.Warn("idempotency key not let go; it is free when its lease ends", "error", err)
		}
	}()
	err := next(c)
	if err == nil {
		open = !claim.Kept()
		return nil
	}
	p := problemOf(err)
	if p.Status >= 500 || p.Status == http.StatusTooManyRequests || errors.Is(err, idempotency.ErrInFlight) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), dropWithin)
	defer cancel()
	if kept := claim.Keep(ctx, h.Pool, idempotency.Answer{Status: p.Status, ContentType: problemType, Body: p.body()}); kept != nil {
		return kept
	}
	open = false
	return err
}

// answered is an answer of the interface as bytes.
func answered(found any) ([]byte, error) {
	body, err := json.Marshal(found)
	return append(body, '\n'), err
}
