package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/access"
)

// Checker finds the token that a caller sent; access.Keeper is one. Errors: access.ErrUnknown; any other says that nobody can be let in now.
type Checker interface {
	Check(ctx context.Context, secret string) (name string, role access.Role, err error)
}

// caller is who makes a request. The zero caller has no token.
type caller struct {
	name string
	role access.Role
}

const callerKey = "postern caller"

// callerOf is the caller that was admitted.
func callerOf(c echo.Context) caller {
	who, _ := c.Get(callerKey).(caller) // none: a path that is open to all
	return who
}

// admit lets in who may ask. least is the role that is needed; "" means a reader's for reading, an operator's for anything else.
func (h *handler) admit(least access.Role) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := h.letIn(c, least); err != nil {
				h.Refusals.add(err)
				return err
			}
			return next(c)
		}
	}
}

// letIn notes who asks, and says why that is not enough.
func (h *handler) letIn(c echo.Context, least access.Role) error {
	who, err := h.caller(c.Request())
	if err != nil {
		return err
	}
	c.Set(callerKey, who)
	reads := c.Request().Method == http.MethodGet || c.Request().Method == http.MethodHead
	if who.role != access.Operator && (least == access.Operator || !reads) {
		return access.ErrRole
	}
	return nil
}

// admitScrape lets in scrapers, for whom a token may not be needed.
func (h *handler) admitScrape(next echo.HandlerFunc) echo.HandlerFunc {
	admit := h.admit("")(next)
	return func(c echo.Context) error {
		if h.RequireTokens && h.OpenMetrics {
			return next(c)
		}
		return admit(c)
	}
}

// caller finds who makes a request. A token that is sent counts also where none is needed, so that what is done under it is in the audit under its name; who is asked for none may do everything.
func (h *handler) caller(r *http.Request) (caller, error) {
	header := r.Header.Values("Authorization")
	if len(header) == 0 && !h.RequireTokens {
		if !local(r.Host) {
			return caller{}, errForeignHost
		}
		return caller{role: access.Operator}, nil
	}
	if len(header) != 1 || h.Tokens == nil {
		return caller{}, errNoToken
	}
	scheme, secret, _ := strings.Cut(header[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return caller{}, errNoToken
	}
	name, role, err := h.Tokens.Check(r.Context(), strings.TrimSpace(secret))
	switch {
	case errors.Is(err, access.ErrUnknown):
		return caller{}, fmt.Errorf("%w (%w)", errNoToken, err)
	case err != nil:
		return caller{}, fmt.Errorf("%w: %w", errTokensUnread, err)
	}
	return caller{name, role}, nil
}

var errTokensUnread = errors.New("the caller is not known")

// local tells whether a request's Host is a loopback name.
func local(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(trimBrackets(host))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func trimBrackets(host string) string {
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		return host[1 : len(host)-1]
	}
	return host
}
