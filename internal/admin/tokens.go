package admin

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/access"
	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
)

var (
	// TokenParams choose a page of tokens.
	TokenParams = []Param{limitParam, cursorParam}

	// NewTokenParams say what a token is.
	NewTokenParams = []Param{
		{"name", "name of the token, by which the audit knows its holder: lower case, digits, - _ and .; it is never given again"},
		{"role", "reader (may ask) or operator (may change things too)"},
		{"expires", "when it ends: an RFC 3339 time, a date, or how long from now (12h, 90d); left out: never"},
		reasonParam,
	}
)

// Tokens lists tokens by TokenParams, without their secrets. Errors: events.ErrInvalid.
func Tokens(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[access.Token], error) {
	q := newQuery(ctx, pool, values, TokenParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[access.Token]{}, q.err
	}
	return access.List(ctx, pool, q.text("cursor"), limit)
}

// NewToken is one with its secret, which is shown this once.
type NewToken struct {
	*access.Token
	Secret string `json:"token"`
}

// CreateToken makes a token by NewTokenParams. No route does that: who can read tokens off the network, or has one, makes no others. Errors: events.ErrInvalid.
func CreateToken(ctx context.Context, pool *pgxpool.Pool, values url.Values, by By) (*NewToken, error) {
	q := newQuery(ctx, pool, values, NewTokenParams)
	expires := q.until("expires")
	if q.err != nil {
		return nil, q.err
	}
	by.Reason = q.text("reason")
	return change(ctx, pool, by, "token create", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*NewToken, error) {
		secret, t, err := access.Create(ctx, tx, q.text("name"), access.Role(q.text("role")), by.String(), expires)
		if err != nil {
			return nil, err
		}
		e.Target = fmt.Sprintf("token %s, %s", t.Name, t.Role)
		return &NewToken{t, secret}, nil
	})
}

// RevokeToken takes a token back for good. Errors: events.ErrNotFound.
func RevokeToken(ctx context.Context, pool *pgxpool.Pool, name string, by By) (*access.Token, error) {
	return change(ctx, pool, by, "token revoke", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*access.Token, error) {
		e.Target = "token " + name
		return access.Revoke(ctx, tx, name)
	})
}

// until is a time to come; zero where the parameter is absent.
func (q *query) until(name string) time.Time {
	text := strings.TrimSpace(q.text(name))
	if !q.values.Has(name) {
		return time.Time{}
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at
		}
	}
	in, err := duration(text)
	if err != nil || in <= 0 {
		q.fail("%s %q: write an RFC 3339 time, a date, or how long from now (12h, 90d)", name, text)
	}
	return q.now.Add(in)
}
