package access

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// maxInForce limits the number of valid tokens, because every process keeps their digests in
// memory.
const maxInForce = 1000

// inForceSQL is the condition for a valid token t.
const inForceSQL = `t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_now())`

const createSQL = `
INSERT INTO tokens (name, role, digest, created_by, expires_at)
SELECT $1, $2, $3, $4, $5::timestamptz WHERE (SELECT count(*) FROM tokens t WHERE ` + inForceSQL + `) < $6
ON CONFLICT (name) DO NOTHING RETURNING created_at`

const tokenExistsSQL = `SELECT EXISTS (SELECT FROM tokens WHERE name = $1)`

var tokenName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// Create creates a token and returns its secret, which cannot be read again. A zero expires means
// that it never expires. Errors: events.ErrInvalid.
func Create(ctx context.Context, db postgres.DB, name string, role Role, by string, expires time.Time) (secret string,
	t *Token, err error) {
	switch {
	case !tokenName.MatchString(name):
		return "", nil, fmt.Errorf("%w: token name %q: write lower case, digits, - _ and ., at most 63 characters",
			events.ErrInvalid, name)
	case role != Reader && role != Operator:
		return "", nil, fmt.Errorf("%w: role %q: write reader or operator", events.ErrInvalid, role)
	case isExpired(expires, time.Now()):
		return "", nil, fmt.Errorf("%w: token %s would expire at %s, which is in the past", events.ErrInvalid, name,
			events.Instant{Time: expires})
	}
	secret = newSecret()
	var at *time.Time
	if !expires.IsZero() {
		at = &expires
	}
	t = &Token{Name: name, Role: role, CreatedBy: events.SanitizeText(by), ExpiresAt: events.Instant{Time: expires},
		InForce: true}
	err = db.QueryRow(ctx, createSQL, name, role, digest(secret), t.CreatedBy, at, maxInForce).Scan(&t.CreatedAt.Time)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil, createError(ctx, db, name)
	}
	if err != nil {
		return "", nil, fmt.Errorf("create token %s: %w", name, err)
	}
	return secret, t, nil
}

// createError returns the reason why a token was not created.
func createError(ctx context.Context, db postgres.DB, name string) error {
	var exists bool
	if err := db.QueryRow(ctx, tokenExistsSQL, name).Scan(&exists); err != nil {
		return fmt.Errorf("create token %s: %w", name, err)
	}
	if exists {
		return fmt.Errorf("%w: a token %s exists or existed: choose another name, so that the audit stays unambiguous",
			events.ErrInvalid, name)
	}
	return fmt.Errorf("%w: %d tokens are valid already: revoke some first", events.ErrInvalid, maxInForce)
}

const revokeSQL = `UPDATE tokens SET revoked_at = clock_now() WHERE name = $1 AND revoked_at IS NULL`

// Revoke revokes a token permanently. Every process rejects it within MaxStaleness. A token that is
// already revoked stays unchanged. Errors: events.ErrNotFound.
func Revoke(ctx context.Context, db postgres.DB, name string) (*Token, error) {
	if _, err := db.Exec(ctx, revokeSQL, name); err != nil {
		return nil, fmt.Errorf("revoke token %s: %w", name, err)
	}
	all, err := query(ctx, db, showSQL, name)
	if err != nil {
		return nil, fmt.Errorf("show token %s: %w", name, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("token %s: %w", name, events.ErrNotFound)
	}
	return &all[0], nil
}

const tokenColumns = `t.name, t.role, t.created_at, t.created_by, t.expires_at, t.revoked_at, ` +
	`coalesce(t.used_on::text, ''), ` + inForceSQL

const (
	listSQL = `SELECT ` + tokenColumns + ` FROM tokens t WHERE t.name > $1 ORDER BY t.name LIMIT $2`
	showSQL = `SELECT ` + tokenColumns + ` FROM tokens t WHERE t.name = $1`
)

// List returns a page of tokens by name, including those that are no longer valid. Errors:
// events.ErrInvalid.
func List(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[Token], error) {
	var page events.Page[Token]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	after := ""
	if err := events.ReadCursor(cursor, &after); err != nil {
		return page, err
	}
	if page.Items, err = query(ctx, db, listSQL, after, limit); err != nil {
		return page, fmt.Errorf("list tokens: %w", err)
	}
	if len(page.Items) == limit {
		page.Next = events.MakeCursor(page.Items[limit-1].Name)
	}
	return page, nil
}

func query(ctx context.Context, db postgres.DB, sql string, args ...any) ([]Token, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Token, err error) {
		var expires, revoked *time.Time
		err = row.Scan(&t.Name, &t.Role, &t.CreatedAt.Time, &t.CreatedBy, &expires, &revoked, &t.UsedOn, &t.InForce)
		t.ExpiresAt, t.RevokedAt = events.OptionalInstant(expires), events.OptionalInstant(revoked)
		return t, err
	})
}

const countSQL = `SELECT count(*) FROM tokens t WHERE ` + inForceSQL

// InForce returns the number of valid tokens.
func InForce(ctx context.Context, db postgres.DB) (n int, err error) {
	if err := db.QueryRow(ctx, countSQL).Scan(&n); err != nil {
		return 0, fmt.Errorf("count tokens: %w", err)
	}
	return n, nil
}

// Statements returns all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{createSQL, tokenExistsSQL, revokeSQL, listSQL, showSQL, countSQL, readSQL, recordUseSQL}
}
