// Package access says who may ask the admin interface, and for what: bearer tokens and their roles.
package access

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

// Prefix begins every token, so that programs that look for secrets in files and logs find it: postern_ and 52 of A-Z and 2-7.
const Prefix = "postern_"

// Role is what a token allows.
type Role string

// The roles: a reader may ask for everything but profiles, an operator may change things too.
const (
	Reader   Role = "reader"
	Operator Role = "operator"
)

// Token is one as it is listed; the secret itself is kept nowhere.
type Token struct {
	Name   string         `json:"name"`
	Role   Role           `json:"role"`
	MadeAt events.Instant `json:"made_at"`
	MadeBy string         `json:"made_by"`
	// ExpiresAt is zero where it never does; RevokedAt, where it is not.
	ExpiresAt events.Instant `json:"expires_at"`
	RevokedAt events.Instant `json:"revoked_at"`
	// UsedOn is the last day (UTC) on which it was used, as 2026-11-22; "" where it never was.
	UsedOn string `json:"used_on"`
	// InForce: it is taken now.
	InForce bool `json:"in_force"`
}

// The reasons to refuse a caller.
var (
	ErrUnknown = errors.New("the token is not known, is revoked, or has expired")
	ErrRole    = errors.New("the token's role may not do this")
)

// newSecret makes a token of 260 random bits. Nobody can guess one of those, so a digest that is quick to make protects it as well as a slow one.
func newSecret() string { return Prefix + rand.Text() + rand.Text() }

func digest(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// secretLength is that of every token, in bytes.
var secretLength = len(Prefix) + 2*len(rand.Text())

// shaped tells whether a text can be a token at all.
func shaped(secret string) bool {
	return len(secret) == secretLength && strings.HasPrefix(secret, Prefix)
}

// expired tells whether a time of expiry, zero for none, is past.
func expired(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
