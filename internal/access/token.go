// Package access manages the bearer tokens of the admin API and their roles. The admin API checks
// tokens with it, and the postern command creates and revokes them. It stores only digests, never a
// token's secret.
package access

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

// Prefix begins every token, so that scanners find tokens in files and logs. A token is postern_
// and 52 characters of A-Z and 2-7.
const Prefix = "postern_"

// Role is what a token allows.
type Role string

// The roles: a reader may read everything except profiles; an operator may also make changes.
const (
	Reader   Role = "reader"
	Operator Role = "operator"
)

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
	ErrUnknown = errors.New("the token does not exist, is revoked, or has expired")
	ErrRole    = errors.New("the token's role does not allow this")
)

// newSecret creates a token of 260 random bits. It cannot be guessed, so a fast digest protects it
// as well as a slow one.
func newSecret() string { return Prefix + rand.Text() + rand.Text() }

func digest(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// secretLength is the length of every token, in bytes.
var secretLength = len(Prefix) + 2*len(rand.Text())

// hasTokenShape reports whether a text has the form of a token.
func hasTokenShape(secret string) bool {
	return len(secret) == secretLength && strings.HasPrefix(secret, Prefix)
}

// isExpired reports whether a time of expiry is in the past. The zero time never expires.
func isExpired(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
