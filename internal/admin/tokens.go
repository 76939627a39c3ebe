package admin

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
)

var (
	// TokenParams select a page of tokens.
	TokenParams = []Param{limitParam, cursorParam}

	// NewTokenParams describe a new token.
	NewTokenParams = []Param{
		{"name",
			"name of the token, which the audit records: lower case, digits, - _ and .; a name is never used again"},
		{"role", "reader (may read) or operator (may also make changes)"},
		{"expires", "time of expiry: an RFC 3339 time, a date, or how long from now (12h, " +
			"90d); if absent, the token never expires"},
		reasonParam,
	}
)

// Tokens lists tokens by TokenParams, without their secrets. Errors: events.ErrInvalid.
func Tokens(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[adminauth.Token], error) {
	q := newQuery(ctx, pool, values, TokenParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[adminauth.Token]{}, q.err
	}
	return adminauth.ListTokens(ctx, pool, q.text("cursor"), limit)
}

// NewToken is a token with its secret, which is shown only once.
type NewToken struct {
	*adminauth.Token
	Secret string `json:"token"`
}

// CreateToken creates a token by NewTokenParams. No HTTP route does this, so that a stolen token
// cannot create others. Errors: events.ErrInvalid.
func CreateToken(ctx context.Context, pool *pgxpool.Pool, values url.Values, by Requester) (*NewToken, error) {
	q := newQuery(ctx, pool, values, NewTokenParams)
	expires := q.futureTime("expires")
	if q.err != nil {
		return nil, q.err
	}
	by.Reason = q.text("reason")
	return change(ctx, pool, by, "token create", func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*NewToken, error) {
		secret, t, err := adminauth.CreateToken(ctx, tx, q.text("name"), adminauth.Role(q.text("role")), by.String(),
			expires)
		if err != nil {
			return nil, err
		}
		e.Target = fmt.Sprintf("token %s, %s", t.Name, t.Role)
		return &NewToken{t, secret}, nil
	})
}

// RevokeToken revokes a token permanently. Errors: events.ErrNotFound.
func RevokeToken(ctx context.Context, pool *pgxpool.Pool, name string, by Requester) (*adminauth.Token, error) {
	return change(ctx, pool, by, "token revoke", func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*adminauth.Token, error) {
		e.Target = "token " + name
		return adminauth.RevokeToken(ctx, tx, name)
	})
}

// futureTime returns a time in the future; zero where the parameter is absent.
func (q *query) futureTime(name string) time.Time {
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
