package idempotency

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// Kept is how long a key and its answer are kept.
	Kept = 24 * time.Hour
	// Lease is how long a request may take that carries a key. Should its process end, the key is free again after that.
	Lease = time.Minute
)

// Request is one that carries a key.
type Request struct {
	// Scope is whose the key is, and for which route: the same key elsewhere is another.
	Scope, Key string
	// Fingerprint is of all that makes the request.
	Fingerprint []byte
}

// Answer is what a request was answered.
type Answer struct {
	Status      int
	ContentType string
	Body        []byte
}

// Claim is the right to carry a request out. A nil one is that of a request without a key: nothing is kept of it.
type Claim struct {
	Request
	owner string
	kept  bool
}

// claimSQL takes a key that is new, or too old to count, or whose request ended without an answer.
const claimSQL = `
INSERT INTO idempotency_keys AS k (scope, key, fingerprint, made_at, owner, leased_until) VALUES ($1, $2, $3, clock_now(), $4, clock_now() + $5::interval)
ON CONFLICT (scope, key) DO UPDATE SET fingerprint = excluded.fingerprint, made_at = excluded.made_at, owner = excluded.owner, leased_until = excluded.leased_until,
  status = NULL, content_type = '', body = NULL
WHERE k.made_at <= clock_now() - $6::interval OR k.status IS NULL AND k.leased_until <= clock_now() AND k.fingerprint = excluded.fingerprint
RETURNING true`

const lookSQL = `SELECT fingerprint, coalesce(status, 0), content_type, body FROM idempotency_keys WHERE scope = $1 AND key = $2`

// Begin claims a request's key, or finds what its request was answered. Errors: ErrInFlight, ErrOther.
func Begin(ctx context.Context, db postgres.DB, r Request) (*Claim, *Answer, error) {
	c := &Claim{Request: r, owner: rand.Text()}
	for {
		var taken bool
		err := db.QueryRow(ctx, claimSQL, r.Scope, r.Key, r.Fingerprint, c.owner, Lease, Kept).Scan(&taken)
		if err == nil {
			return c, nil, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, nil, fmt.Errorf("claim idempotency key: %w", err)
		}
		answer, err := find(ctx, db, r)
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, answer, err
		} // it was swept in between
	}
}

func find(ctx context.Context, db postgres.DB, r Request) (*Answer, error) {
	var a Answer
	var fingerprint []byte
	err := db.QueryRow(ctx, lookSQL, r.Scope, r.Key).Scan(&fingerprint, &a.Status, &a.ContentType, &a.Body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for idempotency key: %w", err)
	case !bytes.Equal(fingerprint, r.Fingerprint):
		return nil, ErrOther
	case a.Status == 0:
		return nil, ErrInFlight
	}
	return &a, nil
}

const keepSQL = `
UPDATE idempotency_keys SET status = $4, content_type = $5, body = $6 WHERE scope = $1 AND key = $2 AND owner = $3 AND status IS NULL RETURNING true`

// Keep keeps the answer. Give it the transaction of what the request does: then there is never the one without the other, and a request whose lease has run out, and whose key another has, does nothing.
// Errors: ErrInFlight, if it is another's.
func (c *Claim) Keep(ctx context.Context, db postgres.DB, a Answer) error {
	if c == nil {
		return nil
	}
	var kept bool
	err := db.QueryRow(ctx, keepSQL, c.Scope, c.Key, c.owner, a.Status, a.ContentType, a.Body).Scan(&kept)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrInFlight
	}
	if err != nil {
		return fmt.Errorf("keep the answer of an idempotency key: %w", err)
	}
	c.kept = true
	return nil
}

// Kept says that Keep has kept an answer; where its transaction failed, it did not.
func (c *Claim) Kept() bool { return c != nil && c.kept }

const dropSQL = `UPDATE idempotency_keys SET leased_until = clock_now() WHERE scope = $1 AND key = $2 AND owner = $3 AND status IS NULL`

// Drop lets go of a key without an answer: the same request may be made again, and another is still refused. It leaves an answer that was kept.
func (c *Claim) Drop(ctx context.Context, db postgres.DB) error {
	if c == nil {
		return nil
	}
	if _, err := db.Exec(ctx, dropSQL, c.Scope, c.Key, c.owner); err != nil {
		return fmt.Errorf("drop idempotency key: %w", err)
	}
	return nil
}

const sweepSQL = `DELETE FROM idempotency_keys WHERE made_at <= clock_now() - $1::interval`

// Sweep deletes keys that are too old to count, and returns how many.
func Sweep(ctx context.Context, db postgres.DB) (int64, error) {
	done, err := db.Exec(ctx, sweepSQL, Kept)
	if err != nil {
		return 0, fmt.Errorf("sweep idempotency keys: %w", err)
	}
	return done.RowsAffected(), nil
}

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string { return []string{claimSQL, lookSQL, keepSQL, dropSQL, sweepSQL} }
