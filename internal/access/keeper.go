package access

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
	// Freshness is how old a Keeper's tokens may be: a token that was revoked is refused after this time at the latest.
	Freshness = 5 * time.Second
	// readWithin bounds a look at the tokens.
	readWithin = 2 * time.Second
)

// Keeper knows the tokens in force. A guess costs no query, however many come.
type Keeper struct {
	// DB is connected as postern_operator.
	DB postgres.DB
	// Logger is told where the day of the last use cannot be kept; nil: nobody is.
	Logger *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	mu     sync.Mutex
	tokens []kept
	read   time.Time
	failed error
}

// kept is a token as a Keeper has it.
type kept struct {
	name    string
	role    Role
	digest  []byte
	expires time.Time
	usedOn  string
}

// Check finds the token that a caller sent. Errors: ErrUnknown; any other says that the tokens could not be read, which refuses everybody: what was known before may be revoked.
func (k *Keeper) Check(ctx context.Context, secret string) (name string, role Role, err error) {
	if !shaped(secret) {
		return "", "", ErrUnknown
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refresh(ctx); err != nil {
		return "", "", err
	}
	found := k.find(digest(secret))
	if found == nil || expired(found.expires, k.now()) {
		return "", "", ErrUnknown
	}
	k.used(ctx, found)
	return found.name, found.role, nil
}

func (k *Keeper) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}

// find compares with every token, so that the time it takes tells nothing of which one was near.
func (k *Keeper) find(digest []byte) (found *kept) {
	for i := range k.tokens {
		if subtle.ConstantTimeCompare(k.tokens[i].digest, digest) == 1 {
			found = &k.tokens[i]
		}
	}
	return found
}

const readSQL = `SELECT t.name, t.role, t.digest, t.expires_at, coalesce(t.used_on::text, '') FROM tokens t WHERE ` + inForceSQL

// refresh reads the tokens again where they are too old. A failure is kept for a second: those who wait do not each wait for one of their own.
func (k *Keeper) refresh(ctx context.Context) error {
	age := k.now().Sub(k.read)
	if k.failed != nil && age < time.Second {
		return k.failed
	}
	if k.failed == nil && age < Freshness {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin) // others wait for it as well
	defer cancel()
	k.read = k.now() // before it is read: what is revoked meanwhile is at most this old
	if k.tokens, k.failed = readTokens(ctx, k.DB); k.failed != nil {
		k.read = k.now() // it may have taken as long as it can
	}
	return k.failed
}

func readTokens(ctx context.Context, db postgres.DB) ([]kept, error) {
	rows, err := db.Query(ctx, readSQL)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t kept, err error) {
		var expires *time.Time
		if err = row.Scan(&t.name, &t.role, &t.digest, &expires, &t.usedOn); err == nil && expires != nil {
			t.expires = *expires
		}
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	return all, nil
}

const usedSQL = `UPDATE tokens SET used_on = $2::text::date WHERE name = $1 AND (used_on IS NULL OR used_on < $2::text::date)`

// used keeps the day of the last use: one write for a token and day, whatever the number of requests.
func (k *Keeper) used(ctx context.Context, t *kept) {
	today := k.now().UTC().Format(time.DateOnly)
	if t.usedOn >= today {
		return
	}
	t.usedOn = today
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin)
	defer cancel()
	if _, err := k.DB.Exec(ctx, usedSQL, t.name, today); err != nil && k.Logger != nil {
		k.Logger.Warn("day of a token's last use not kept", "token", t.name, "error", err)
	}
}
