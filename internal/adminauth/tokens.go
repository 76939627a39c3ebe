// Package adminauth decides who may use the admin API and records what they changed: bearer tokens
// with roles, idempotency keys, and the audit trail. The admin API calls it for each request, and
// the postern command for each change. It stores digests of tokens, never their secrets.
package adminauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// TokenPrefix begins every token, so that scanners find tokens in files and logs. A token is
// postern_ and 52 characters of A-Z and 2-7.
const TokenPrefix = "postern_"

// Role is what a token allows.
type Role string

// The roles: a reader may read everything except profiles. An approver may also decide about
// effects and about runs that await approval. An operator may make every change.
const (
	Reader           Role = "reader"
	Approver         Role = "approver"
	Operator         Role = "operator"
	OperatorApprover Role = "operator,approver"
)

// ranks orders the roles: each one includes those below it. An unknown role includes none.
var ranks = map[Role]int{Reader: 1, Approver: 2, Operator: 3, OperatorApprover: 3}

// Includes reports whether the role may do everything that the role least may.
func (r Role) Includes(least Role) bool { return ranks[r] > 0 && ranks[r] >= ranks[least] }

// Token is a token without its secret, which is not stored.
type Token struct {
	Name      string         `json:"name"`
	Role      Role           `json:"role"`
	CreatedAt events.Instant `json:"created_at"`
	CreatedBy string         `json:"created_by"`
	// ExpiresAt is zero for a token that never expires, RevokedAt for one that is not revoked.
	ExpiresAt events.Instant `json:"expires_at"`
	RevokedAt events.Instant `json:"revoked_at"`
	// UsedOn is the last day (UTC) on which it was used, e.g. 2026-11-22; "" if it was never used.
	UsedOn string `json:"used_on"`
	// InForce: it is valid now.
	InForce bool `json:"in_force"`
}

// The reasons to reject a caller.
var (
	ErrUnknownToken = errors.New("the token does not exist, is revoked, or has expired")
	ErrRole         = errors.New("the token's role does not allow this")
	// ErrOwnRequest: the actor requested the thing that he wants to approve.
	ErrOwnRequest = errors.New("another person must decide")
)

// newSecret creates a token of 260 random bits. It cannot be guessed, so a fast digest protects it
// as well as a slow one.
func newSecret() string { return TokenPrefix + rand.Text() + rand.Text() }

func tokenDigest(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// secretLength is the length of every token, in bytes.
var secretLength = len(TokenPrefix) + 2*len(rand.Text())

// hasTokenShape reports whether a text has the form of a token.
func hasTokenShape(secret string) bool {
	return len(secret) == secretLength && strings.HasPrefix(secret, TokenPrefix)
}

// isExpired reports whether a time of expiry is in the past. The zero time never expires.
func isExpired(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// maxInForce limits the number of valid tokens, because every process keeps their digests in
// memory.
const maxInForce = 1000

// inForceSQL is the condition for a valid token t.
const inForceSQL = `t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_now())`

const createTokenSQL = `
INSERT INTO tokens (name, role, digest, created_by, expires_at)
SELECT $1, $2, $3, $4, $5::timestamptz WHERE (SELECT count(*) FROM tokens t WHERE ` + inForceSQL + `) < $6
ON CONFLICT (name) DO NOTHING RETURNING created_at`

const tokenExistsSQL = `SELECT EXISTS (SELECT FROM tokens WHERE name = $1)`

var tokenName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// CreateToken creates a token and returns its secret, which cannot be read again. A zero expires
// means that it never expires. Errors: events.ErrInvalid.
func CreateToken(ctx context.Context, db postgres.DB, name string, role Role, by string,
	expires time.Time) (secret string, t *Token, err error) {
	switch {
	case !tokenName.MatchString(name):
		return "", nil, fmt.Errorf("%w: token name %q: write lower case, digits, - _ and ., at most 63 characters",
			events.ErrInvalid, name)
	case ranks[role] == 0:
		return "", nil, fmt.Errorf("%w: role %q: write reader, approver, operator or operator,approver",
			events.ErrInvalid, role)
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
	err = db.QueryRow(ctx, createTokenSQL, name, role, tokenDigest(secret), t.CreatedBy, at, maxInForce).
		Scan(&t.CreatedAt.Time)
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

const revokeTokenSQL = `UPDATE tokens SET revoked_at = clock_now() WHERE name = $1 AND revoked_at IS NULL`

// RevokeToken revokes a token permanently. Every process rejects it within MaxStaleness. A token
// that is already revoked stays unchanged. Errors: events.ErrNotFound.
func RevokeToken(ctx context.Context, db postgres.DB, name string) (*Token, error) {
	if _, err := db.Exec(ctx, revokeTokenSQL, name); err != nil {
		return nil, fmt.Errorf("revoke token %s: %w", name, err)
	}
	all, err := postgres.Collect(ctx, db, pgx.RowToStructByPos[Token], showTokenSQL, name)
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
	listTokensSQL = `SELECT ` + tokenColumns + ` FROM tokens t WHERE t.name > $1 ORDER BY t.name LIMIT $2`
	showTokenSQL  = `SELECT ` + tokenColumns + ` FROM tokens t WHERE t.name = $1`
)

// ListTokens returns a page of tokens by name, including those that are no longer valid. Errors:
// events.ErrInvalid.
func ListTokens(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[Token], error) {
	return events.ReadPage("list tokens", cursor, limit, "", func(t *Token) string { return t.Name },
		func(after string, limit int) ([]Token, error) {
			return postgres.Collect(ctx, db, pgx.RowToStructByPos[Token], listTokensSQL, after, limit)
		})
}

const countTokensSQL = `SELECT count(*) FROM tokens t WHERE ` + inForceSQL

// CountValidTokens returns the number of valid tokens.
func CountValidTokens(ctx context.Context, db postgres.DB) (n int, err error) {
	if err := db.QueryRow(ctx, countTokensSQL).Scan(&n); err != nil {
		return 0, fmt.Errorf("count tokens: %w", err)
	}
	return n, nil
}
