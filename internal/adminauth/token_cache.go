package adminauth

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// MaxStaleness is the maximum age of the tokens in a TokenCache: a revoked token is rejected
	// after this time at the latest.
	MaxStaleness = 5 * time.Second
	// newTokenAge is the age from which the tokens are read again for a token that is not among
	// them: it may be new.
	newTokenAge = 200 * time.Millisecond
	// readTimeout limits a read of the tokens.
	readTimeout = 2 * time.Second
)

// TokenCache holds the valid tokens in memory, so that attempts with wrong tokens cost a few
// queries per second at most, whatever their number.
type TokenCache struct {
	// DB is connected as postern_operator.
	DB postgres.DB
	// Logger logs a failed update of the day of last use; nil: nothing is logged.
	Logger *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	mu      sync.Mutex
	tokens  []cachedToken
	readAt  time.Time
	readErr error
}

// cachedToken is a token in a TokenCache.
type cachedToken struct {
	name    string
	role    Role
	digest  []byte
	expires time.Time
	usedOn  string
}

// Check returns name and role of the token that a caller sent. Errors: ErrUnknown for a token that
// is not valid. Any other error means that the tokens could not be read. Callers are then rejected,
// because a cached token may have been revoked.
func (k *TokenCache) Check(ctx context.Context, secret string) (name string, role Role, err error) {
	if !hasTokenShape(secret) {
		return "", "", ErrUnknownToken
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refresh(ctx, MaxStaleness); err != nil {
		return "", "", err
	}
	digest := tokenDigest(secret)
	found := k.findToken(digest)
	if found == nil {
		if err := k.refresh(ctx, newTokenAge); err != nil {
			return "", "", err
		}
		found = k.findToken(digest)
	}
	if found == nil || isExpired(found.expires, k.now()) {
		return "", "", ErrUnknownToken
	}
	k.recordUse(ctx, found)
	return found.name, found.role, nil
}

func (k *TokenCache) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}

// findToken compares with every token, so that its duration reveals nothing about the stored
// tokens.
func (k *TokenCache) findToken(digest []byte) (found *cachedToken) {
	for i := range k.tokens {
		if subtle.ConstantTimeCompare(k.tokens[i].digest, digest) == 1 {
			found = &k.tokens[i]
		}
	}
	return found
}

const readTokensSQL = `SELECT t.name, t.role, t.digest, t.expires_at, coalesce(t.used_on::text, '') ` +
	`FROM tokens t WHERE ` + inForceSQL

// refresh reads the tokens again when they are older than maxAge. It returns a failure for one
// second, so that waiting callers do not each wait for a query of their own.
func (k *TokenCache) refresh(ctx context.Context, maxAge time.Duration) error {
	age := k.now().Sub(k.readAt)
	if k.readErr != nil && age < time.Second {
		return k.readErr
	}
	if k.readErr == nil && age < maxAge {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout) // other callers wait for the result too
	defer cancel()
	k.readAt = k.now() // before the read, because a token may be revoked while it runs
	if k.tokens, k.readErr = readTokens(ctx, k.DB); k.readErr != nil {
		k.readAt = k.now() // again, because the failed read may have taken the whole timeout
	}
	return k.readErr
}

func readTokens(ctx context.Context, db postgres.DB) ([]cachedToken, error) {
	all, err := postgres.Collect(ctx, db, func(row pgx.CollectableRow) (t cachedToken, err error) {
		var expires *time.Time
		if err = row.Scan(&t.name, &t.role, &t.digest, &expires, &t.usedOn); err == nil && expires != nil {
			t.expires = *expires
		}
		return t, err
	}, readTokensSQL)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	return all, nil
}

const recordUseSQL = `UPDATE tokens SET used_on = $2::text::date WHERE name = $1 AND (used_on IS NULL
	OR used_on < $2::text::date)`

// recordUse stores the day of the last use: one write per token and day, whatever the number of
// requests.
func (k *TokenCache) recordUse(ctx context.Context, t *cachedToken) {
	today := k.now().UTC().Format(time.DateOnly)
	if t.usedOn >= today {
		return
	}
	t.usedOn = today
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	if _, err := k.DB.Exec(ctx, recordUseSQL, t.name, today); err != nil && k.Logger != nil {
		k.Logger.Warn("day of a token's last use not stored", "token", t.name, "error", err)
	}
}
