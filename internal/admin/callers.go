package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
)

// Checker finds the token that a caller sent; adminauth.TokenCache implements it. Errors:
// adminauth.ErrUnknownToken for a wrong token. After any other error the handler rejects every
// caller.
type Checker interface {
	Check(ctx context.Context, secret string) (name string, role adminauth.Role, err error)
}

// caller is the sender of a request. The zero caller has no token.
type caller struct {
	name string
	role adminauth.Role
	// console: the caller uses the console.
	console bool
}

type consoleCallerKey struct{}

// WithConsoleCaller returns the context of a request that the console of this process sends for an
// operator, who has no name where no token is required. No request from outside has such a context.
func WithConsoleCaller(ctx context.Context, name string, role adminauth.Role) context.Context {
	return context.WithValue(ctx, consoleCallerKey{}, caller{name, role, true})
}

const callerKey = "postern caller"

// callerOf returns the authorized caller.
func callerOf(c echo.Context) caller {
	sender, _ := c.Get(callerKey).(caller) // the zero caller for a path that is open to all
	return sender
}

// decisions are the changes that an approver may make too. A star stands for one part of the path.
var decisions = []string{"/api/v1/runs/*/approve", "/api/v1/rebuilds/*/swap", "/api/v1/effects/approve",
	"/api/v1/effects/reject", "/api/v1/effects/*/approve", "/api/v1/effects/*/reject", "/api/v1/effects/*/resolve",
	"/api/v1/effects/*/compensate"}

// LeastRole returns the least role that a request needs: reader for reading and for a PUT, with
// which a reader reports its own progress, approver for decisions, and operator for anything else.
// address is a path or the pattern of a route.
func LeastRole(method, address string) adminauth.Role {
	matches := func(pattern string) bool {
		is, _ := path.Match(pattern, address) // the patterns are valid
		return is
	}
	switch {
	case method == http.MethodGet || method == http.MethodHead || method == http.MethodPut:
		return adminauth.Reader
	case slices.ContainsFunc(decisions, matches):
		return adminauth.Approver
	}
	return adminauth.Operator
}

// authorize accepts callers with sufficient rights. least is the required role; "" means that of
// LeastRole.
func (h *handler) authorize(least adminauth.Role) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := h.authenticate(c, least); err != nil {
				h.DeniedRequests.Add(err)
				return err
			}
			return next(c)
		}
	}
}

// authenticate identifies the caller, stores it in the context and returns an error if its role is
// not sufficient.
func (h *handler) authenticate(c echo.Context, least adminauth.Role) error {
	sender, err := h.caller(c.Request())
	if err != nil {
		return err
	}
	c.Set(callerKey, sender)
	if !sender.role.Includes(cmp.Or(least, LeastRole(c.Request().Method, c.Path()))) {
		return adminauth.ErrRole
	}
	return nil
}

// authorizeScrape accepts scrapers, which may not need a token.
func (h *handler) authorizeScrape(next echo.HandlerFunc) echo.HandlerFunc {
	admit := h.authorize("")(next)
	return func(c echo.Context) error {
		if h.RequireTokens && h.OpenMetrics {
			return next(c)
		}
		return admit(c)
	}
}

// caller identifies the sender of a request. If a token is sent, it counts even where none is
// required, so that the audit records changes under its name. Where no token is required, a caller
// without one may do everything.
func (h *handler) caller(r *http.Request) (caller, error) {
	if sender, ok := r.Context().Value(consoleCallerKey{}).(caller); ok {
		return sender, nil
	}
	header := r.Header.Values("Authorization")
	if len(header) == 0 && !h.RequireTokens {
		if !isLoopbackHost(r.Host) {
			return caller{}, errForeignHost
		}
		return caller{role: adminauth.Operator}, nil
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
	case errors.Is(err, adminauth.ErrUnknownToken):
		return caller{}, fmt.Errorf("%w (%w)", errNoToken, err)
	case err != nil:
		return caller{}, fmt.Errorf("%w: %w", errTokensUnavailable, err)
	}
	return caller{name: name, role: role}, nil
}

var errTokensUnavailable = errors.New("the caller cannot be identified")

// isLoopbackHost reports whether a request's Host is a loopback name.
func isLoopbackHost(host string) bool {
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
