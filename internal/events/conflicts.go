package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// findConflicts finds events with a stored key and another fingerprint. If the provider signs the
// API version of an event, the same event in another version is a duplicate. Two endpoints pinned
// to different versions, or a list and an endpoint, send such events. If the version is not signed,
// anybody can write it, so a different event is a conflict.
func findConflicts(ctx context.Context, db postgres.Querier, batch []Delivery, rows []batchRow) error {
	stored := map[int64][]*batchRow{} // by the id of the stored event
	for i := range rows {
		r := &rows[i]
		e := &batch[r.delivery].Events[r.index]
		r.receipt.Conflict = !bytes.Equal(r.fingerprint, e.Fingerprint[:])
		switch {
		case !r.receipt.Conflict || !e.VersionSigned:
		case r.receipt.ID != 0:
			stored[r.receipt.ID] = append(stored[r.receipt.ID], r)
		default:
			r.receipt.Conflict = !renderingOf(e).isOtherVersionOf(r.rendering)
		}
	}
	if len(stored) == 0 {
		return nil
	}
	var id int64
	var e provider.Event
	ids := slices.Collect(maps.Keys(stored))
	return postgres.ForEach(ctx, db, renderingsSQL, []any{ids}, []any{&id, &e.Type, &e.Account, &e.ObjectType,
		&e.ObjectID, &e.APIVersion,
		&e.OccurredAt}, func() error {
		original := renderingOf(&e)
		for _, r := range stored[id] {
			r.receipt.Conflict = !renderingOf(&batch[r.delivery].Events[r.index]).isOtherVersionOf(original)
		}
		return nil
	})
}

// Conflict is a delivery with a stored key and different content. The event keeps the first
// content.
type Conflict struct {
	ID         int64   `json:"id"`
	Event      int64   `json:"event,string"`
	Source     string  `json:"source"`
	EventID    string  `json:"event_id"`
	EventType  string  `json:"event_type"`
	Account    string  `json:"account"`
	ReceivedAt Instant `json:"received_at"`
	Bytes      int64   `json:"bytes"`
}

// ConflictDetail is a conflict with headers, verification and body.
type ConflictDetail struct {
	Conflict
	Headers      json.RawMessage `json:"headers"`
	Verification json.RawMessage `json:"verification"`
	Content
}

// ConflictFilter selects conflicts; a zero field selects all. Since (inclusive) and Until
// (exclusive) bound the time of receipt.
type ConflictFilter struct {
	Source       int32
	Account      *string
	Type         string
	Key          string
	Since, Until time.Time
}

const conflictColumns = `
SELECT c.id, c.event, s.name, c.event_id, c.event_type, c.account, c.received_at, octet_length(c.body)
FROM event_conflicts c JOIN sources s ON s.number = c.source WHERE `

const (
	conflictPageStartSQL = `SELECT id FROM event_conflicts WHERE id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1`

	conflictsSQL = conflictColumns + `c.id < $1 AND c.id >= $2
  AND ($3::int IS NULL OR c.source = $3) AND ($4::text IS NULL OR c.account = $4) AND ($5::text IS NULL
  	OR c.event_type LIKE $5)
  AND ($6::text IS NULL OR c.event_id = $6) AND ($7::timestamptz IS NULL OR c.received_at >= $7)
  AND ($8::timestamptz IS NULL OR c.received_at < $8)
ORDER BY c.id DESC LIMIT $9`

	conflictByIDSQL = conflictColumns + `c.id = $1`

	conflictContentSQL = `SELECT headers, verification, body FROM event_conflicts WHERE id = $1`

	conflictsOfEventSQL = conflictColumns + `c.event = $1 ORDER BY c.id`
)

// ListConflicts returns a page of conflicts, the newest first. Errors: ErrInvalid.
func ListConflicts(ctx context.Context, pool *pgxpool.Pool, f ConflictFilter, cursor string, limit int) (Page[Conflict],
	error) {
	var first int64
	page, err := ReadPage("list conflicts", cursor, limit, int64(math.MaxInt64),
		func(c *Conflict) int64 { return c.ID },
		func(below int64, limit int) ([]Conflict, error) {
			err := pool.QueryRow(ctx, conflictPageStartSQL, below, maxScannedRows-1).Scan(&first)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return nil, err
			}
			return postgres.Collect(ctx, pool, scanConflict, conflictsSQL, below, first, NilIfZero(f.Source), f.Account,
				Like(f.Type), NilIfZero(f.Key), NilIfZero(f.Since), NilIfZero(f.Until), limit)
		})
	if err == nil && page.Next == "" && first > 0 {
		page.Next = MakeCursor(first)
	}
	return page, err
}

// ShowConflict returns one conflict with headers, verification and body. Errors: ErrNotFound.
func ShowConflict(ctx context.Context, pool *pgxpool.Pool, id int64) (*ConflictDetail, error) {
	found, err := postgres.CollectOne(ctx, pool, scanConflict, conflictByIDSQL, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("conflict %d: %w", id, ErrNotFound)
	}
	c := &ConflictDetail{Conflict: found}
	var body []byte
	if err == nil {
		err = pool.QueryRow(ctx, conflictContentSQL, id).Scan(&c.Headers, &c.Verification, &body)
	}
	if err != nil {
		return nil, fmt.Errorf("show conflict %d: %w", id, err)
	}
	c.Content = MakeContent(body)
	return c, nil
}

func listConflictsOf(ctx context.Context, pool *pgxpool.Pool, event int64) ([]Conflict, error) {
	found, err := postgres.Collect(ctx, pool, scanConflict, conflictsOfEventSQL, event)
	if err != nil {
		return nil, fmt.Errorf("list conflicts of event %d: %w", event, err)
	}
	return found, nil
}

func scanConflict(row pgx.CollectableRow) (Conflict, error) {
	var c Conflict
	err := row.Scan(&c.ID, &c.Event, &c.Source, &c.EventID, &c.EventType, &c.Account, &c.ReceivedAt.Time, &c.Bytes)
	return c, err
}
