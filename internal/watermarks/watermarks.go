// Package watermarks stores until when the log and the mirror are known to be complete, by account
// and subject. Reconciliations raise the watermarks; operators list them.
package watermarks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/provider"
)

// Events is the subject of the events of an account.
const Events = "events"

// OfType returns the name of the watermark of all objects of a type. A full list raises it,
// so it covers deletions.
func OfType(objectType string) string { return "type " + objectType }

// OfVersions returns the name of the watermark of all objects of a type whose list has
// versions only. A version may not advance with every change, so some changes may be missing.
func OfVersions(objectType string) string { return "versions " + objectType }

// OfChanges returns the name of the watermark of a type's changes, without deletions.
func OfChanges(objectType string) string { return "changes " + objectType }

// Epoch is the start of the interval that a full list makes complete.
var Epoch = time.Unix(0, 0).UTC()

// Interval is an interval in which a subject is complete for an account, on the provider's clock.
type Interval struct {
	Source           int32
	Account, Subject string
	// Scope is the digest of what was read (Scope).
	Scope        string
	Since, Until time.Time
	// Run is the run that read it.
	Run int64
}

// Scope returns the digest of texts that say what is read. With another scope, data from before a
// watermark may be listed for the first time.
func Scope(texts []string) string {
	h := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// CallParts returns the parts of a call that select data.
func CallParts(c provider.Call) []string {
	return []string{c.Method, c.Path, c.Query.Encode(), string(c.Body)}
}

const watermarkSQL = `SELECT since, until FROM watermarks WHERE source = $1 AND account = $2 AND subject = $3`

// Get returns the interval in which a subject (see Completeness) is complete for an account,
// on the provider's clock; zero for none.
func Get(ctx context.Context, pool *pgxpool.Pool, source int32, account, subject string) (since, until time.Time,
	err error) {
	err = pool.QueryRow(ctx, watermarkSQL, source, account, subject).Scan(&since, &until)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("read watermark: %w", err)
	}
	return since.UTC(), until.UTC(), nil
}

// inScopeSQL returns the watermark of a list with the same scope.
const inScopeSQL = `SELECT m.since, m.until FROM watermarks m WHERE m.source = $1 AND m.account = $2
	AND m.subject = $3
	AND m.scope = $4`

// InScope returns the interval in which a subject is complete for a scope; zero for none.
func InScope(ctx context.Context, pool *pgxpool.Pool, source int32, account, subject, scope string) (since,
	until time.Time, err error) {
	err = pool.QueryRow(ctx, inScopeSQL, source, account, subject, scope).Scan(&since, &until)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("read the watermark of %s: %w", subject, err)
	}
	return since.UTC(), until.UTC(), nil
}
