package adminauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// maxSessionAge and maxSessionIdle end a session of the console.
	maxSessionAge  = 12 * time.Hour
	maxSessionIdle = time.Hour
)

// Session is a session of the console. It has the rights of its token, and ends with it.
type Session struct {
	// Token is the name of the token.
	Token string
	Role  Role
}

const (
	deleteSessionsSQL = `DELETE FROM console_sessions WHERE created_at <= clock_now() - $1::interval
	OR used_at <= clock_now() - $2::interval`

	createSessionSQL = `INSERT INTO console_sessions (digest, token, created_at, used_at, address, user_agent)
	VALUES ($1, $2, clock_now(), clock_now(), $3, $4)`
)

// CreateSession begins a session with the rights of a token, and returns its secret for the
// browser. The audit records it. Expired sessions are deleted.
func CreateSession(ctx context.Context, db postgres.DB, token, address, userAgent string) (secret string, err error) {
	secret = rand.Text() + rand.Text()
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, deleteSessionsSQL, maxSessionAge, maxSessionIdle); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, createSessionSQL, sessionDigest(secret), token, address,
			truncate(userAgent)); err != nil {
			return err
		}
		return WriteAudit(ctx, tx, Actor{Name: token, Via: ViaConsole, Address: address},
			AuditEntry{Action: "console login"})
	})
	if err != nil {
		return "", fmt.Errorf("create a session of the console: %w", err)
	}
	return secret, nil
}

const (
	findSessionSQL = `SELECT t.name, t.role, s.used_at <= clock_now() - interval '1 minute'
FROM console_sessions s JOIN tokens t ON t.name = s.token
WHERE s.digest = $1 AND s.created_at > clock_now() - $2::interval AND s.used_at > clock_now() - $3::interval
	AND ` + inForceSQL

	useSessionSQL = `UPDATE console_sessions SET used_at = clock_now() WHERE digest = $1`
)

// FindSession returns the session of a secret. used: the operator sent the request, which a page
// that refreshes itself did not. Errors: ErrUnknownToken where there is none, and
// where its token is revoked or has expired.
func FindSession(ctx context.Context, db postgres.DB, secret string, used bool) (s Session, err error) {
	var unused bool
	err = db.QueryRow(ctx, findSessionSQL, sessionDigest(secret), maxSessionAge, maxSessionIdle).
		Scan(&s.Token, &s.Role, &unused)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, ErrUnknownToken
	}
	if err == nil && unused && used {
		_, err = db.Exec(ctx, useSessionSQL, sessionDigest(secret))
	}
	if err != nil {
		return s, fmt.Errorf("find a session of the console: %w", err)
	}
	return s, nil
}

const deleteSessionSQL = `DELETE FROM console_sessions WHERE digest = $1`

// DeleteSession ends a session.
func DeleteSession(ctx context.Context, db postgres.DB, secret string) error {
	if _, err := db.Exec(ctx, deleteSessionSQL, sessionDigest(secret)); err != nil {
		return fmt.Errorf("delete a session of the console: %w", err)
	}
	return nil
}

func sessionDigest(secret string) []byte {
	sum := sha256.Sum256([]byte(events.SanitizeText(secret)))
	return sum[:]
}
