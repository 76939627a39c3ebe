package adminauth

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

// The reasons to reject a request.
var (
	// ErrInProgress: the key's request is in progress. Respond with status 409.
	ErrInProgress = errors.New("a request with this key is in progress")
	// ErrKeyReused: the key was used for a different request. Respond with status 422.
	ErrKeyReused = errors.New("the key was used for a different request")
)

// Fingerprint returns a digest of a request's parts and their lengths, to compare two requests with
// the same key.
func Fingerprint(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p)))) // a hash never returns an error
		_, _ = h.Write(p)
	}
	return h.Sum(nil)
}

const (
	// keyRetention is how long a key and its response are stored.
	keyRetention = 24 * time.Hour
	// keyLease is the maximum duration of a request with a key. If its process ends, the key is
	// free again after this time.
	keyLease = time.Minute
)

// KeyedRequest is a request with a key.
type KeyedRequest struct {
	// Scope is the caller and the route. The same key in another scope is a different key.
	Scope, Key string
	// Fingerprint is a digest of the complete request.
	Fingerprint []byte
}

// StoredResponse is the stored response of a request.
type StoredResponse struct {
	Status      int
	ContentType string
	Body        []byte
}

// KeyClaim is the right to execute a request. A nil claim belongs to a request without a key, whose
// response is not stored.
type KeyClaim struct {
	KeyedRequest
	owner  string
	stored bool
}

// claimSQL claims a key that is new, expired, or whose request ended without a response.
const claimSQL = `
INSERT INTO idempotency_keys AS k (scope, key, fingerprint, created_at, lease_owner, lease_until)
	VALUES ($1, $2, $3, clock_now(), $4, clock_now() + $5::interval)
ON CONFLICT (scope, key) DO UPDATE SET fingerprint = excluded.fingerprint, created_at = excluded.created_at,
	lease_owner = excluded.lease_owner, lease_until = excluded.lease_until,
  status = NULL, content_type = '', body = NULL
WHERE k.created_at <= clock_now() - $6::interval OR k.status IS NULL AND k.lease_until <= clock_now()
	AND k.fingerprint = excluded.fingerprint
RETURNING true`

const findSQL = `SELECT fingerprint, coalesce(status, 0), content_type, body FROM idempotency_keys WHERE scope = $1
	AND key = $2`

// BeginRequest claims a request's key, or returns the stored response. Errors: ErrInProgress,
// ErrKeyReused.
func BeginRequest(ctx context.Context, db postgres.DB, r KeyedRequest) (*KeyClaim, *StoredResponse, error) {
	c := &KeyClaim{KeyedRequest: r, owner: rand.Text()}
	for {
		var taken bool
		err := db.QueryRow(ctx, claimSQL, r.Scope, r.Key, r.Fingerprint, c.owner, keyLease, keyRetention).Scan(&taken)
		if err == nil {
			return c, nil, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, nil, fmt.Errorf("claim idempotency key: %w", err)
		}
		response, err := find(ctx, db, r)
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, response, err
		} // the key expired and was deleted meanwhile
	}
}

func find(ctx context.Context, db postgres.DB, r KeyedRequest) (*StoredResponse, error) {
	var a StoredResponse
	var fingerprint []byte
	err := db.QueryRow(ctx, findSQL, r.Scope, r.Key).Scan(&fingerprint, &a.Status, &a.ContentType, &a.Body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("find idempotency key: %w", err)
	case !bytes.Equal(fingerprint, r.Fingerprint):
		return nil, ErrKeyReused
	case a.Status == 0:
		return nil, ErrInProgress
	}
	return &a, nil
}

const storeResponseSQL = `
UPDATE idempotency_keys SET status = $4, content_type = $5, body = $6 WHERE scope = $1 AND key = $2 AND lease_owner = $3
	AND status IS NULL RETURNING true`

// StoreResponse stores the response. Pass the transaction of the change, so that both are committed
// or neither. If the lease has expired and another request has the key, the transaction must fail.
// Errors: ErrInProgress, if another request has the key.
func (c *KeyClaim) StoreResponse(ctx context.Context, db postgres.DB, a StoredResponse) error {
	if c == nil {
		return nil
	}
	var kept bool
	err := db.QueryRow(ctx, storeResponseSQL, c.Scope, c.Key, c.owner, a.Status, a.ContentType, a.Body).Scan(&kept)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrInProgress
	}
	if err != nil {
		return fmt.Errorf("store the response of an idempotency key: %w", err)
	}
	c.stored = true
	return nil
}

// HasResponse reports whether StoreResponse was successful. Its transaction may still fail.
func (c *KeyClaim) HasResponse() bool { return c != nil && c.stored }

const deleteKeySQL = `DELETE FROM idempotency_keys WHERE scope = $1 AND key = $2 AND lease_owner = $3
	AND status IS NULL`

// Discard deletes a key without a response. Any request may use it again.
func (c *KeyClaim) Discard(ctx context.Context, db postgres.DB) error {
	if _, err := db.Exec(ctx, deleteKeySQL, c.Scope, c.Key, c.owner); err != nil {
		return fmt.Errorf("discard idempotency key: %w", err)
	}
	return nil
}

const releaseSQL = `UPDATE idempotency_keys SET lease_until = clock_now() WHERE scope = $1 AND key = $2
	AND lease_owner = $3 AND status IS NULL`

// Release releases a key without a response. The same request may be sent again; a different one is
// still rejected. A stored response stays.
func (c *KeyClaim) Release(ctx context.Context, db postgres.DB) error {
	if c == nil {
		return nil
	}
	if _, err := db.Exec(ctx, releaseSQL, c.Scope, c.Key, c.owner); err != nil {
		return fmt.Errorf("release idempotency key: %w", err)
	}
	return nil
}

const deleteExpiredSQL = `DELETE FROM idempotency_keys WHERE created_at <= clock_now() - $1::interval`

// DeleteExpiredKeys deletes expired keys and returns their number.
func DeleteExpiredKeys(ctx context.Context, db postgres.DB) (int64, error) {
	done, err := db.Exec(ctx, deleteExpiredSQL, keyRetention)
	if err != nil {
		return 0, fmt.Errorf("delete expired idempotency keys: %w", err)
	}
	return done.RowsAffected(), nil
}
