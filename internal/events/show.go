package events

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Life is an event's whole life: what arrived, what came later under its key, and every outcome.
type Life struct {
	Item
	// DroppedAt is when retention dropped the event: what is left of it then are its id, its source and its outcomes.
	DroppedAt *Instant `json:"dropped_at,omitempty"`
	// RedactedAt is when body and headers were cleared, by the run Redaction: see its row in table redactions.
	RedactedAt   *Instant        `json:"redacted_at,omitempty"`
	Redaction    int64           `json:"redaction,omitempty"`
	Headers      json.RawMessage `json:"headers"`
	Verification json.RawMessage `json:"verification"`
	Content
	Conflicts []Conflict `json:"conflicts"`
	Outcomes  []Outcome  `json:"outcomes"`
}

// Content is a body for JSON: as text where it is valid UTF-8, else base64.
type Content struct {
	Body []byte `json:"-"`
	// Text is the body in the given encoding, "utf-8" or "base64".
	Text     string `json:"body"`
	Encoding string `json:"body_encoding"`
}

// MakeContent chooses the encoding for a body.
func MakeContent(body []byte) Content {
	if utf8.Valid(body) {
		return Content{Body: body, Text: string(body), Encoding: "utf-8"}
	}
	return Content{Body: body, Text: base64.StdEncoding.EncodeToString(body), Encoding: "base64"}
}

// SeveralError: a key names events of several sources.
type SeveralError struct {
	Key string
	// IDs are ours, by source name.
	IDs map[string]int64
}

func (e *SeveralError) Error() string {
	var each []string
	for _, source := range slices.Sorted(maps.Keys(e.IDs)) {
		each = append(each, fmt.Sprintf("%d (source %s)", e.IDs[source], source))
	}
	return fmt.Sprintf("%d events have the key %s: name one of %s", len(e.IDs), e.Key, strings.Join(each, ", "))
}

const (
	eventSQL = itemColumns + `e.id = $1`

	restSQL = `SELECT e.headers, e.verification, coalesce(e.body, (SELECT d.body FROM events d WHERE d.id = e.delivery_id)) FROM events e WHERE e.id = $1`

	bySourceKeySQL = `SELECT s.name, k.id FROM sources s
CROSS JOIN LATERAL (SELECT k.id FROM event_keys k WHERE k.source = s.number AND k.key = $1 LIMIT 1) k WHERE $2::int IS NULL OR s.number = $2`

	outcomesOfSQL = `SELECT ` + OutcomeColumns + ` FROM outcomes c JOIN sources s ON s.number = c.source WHERE c.event_id = $1 ORDER BY c.run`
)

// Find turns an argument into an event's id: it is one of ours if numeric, else the provider's key. A source's number
// narrows the search for a key; 0 asks all. Errors: ErrNotFound, *SeveralError.
func Find(ctx context.Context, pool *pgxpool.Pool, arg string, source int32) (int64, error) {
	if id, ok := ParseID(arg); ok {
		return id, nil
	}
	digest := KeyDigest(arg)
	rows, err := pool.Query(ctx, bySourceKeySQL, digest[:], Optional(source))
	if err != nil {
		return 0, fmt.Errorf("find event %s: %w", arg, err)
	}
	ids := map[string]int64{}
	var name string
	var id int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &id}, func() error { ids[name] = id; return nil }); err != nil {
		return 0, fmt.Errorf("find event %s: %w", arg, err)
	}
	switch len(ids) {
	case 0:
		return 0, fmt.Errorf("event %s: %w: no source has stored it; see `postern rejections list` for what was refused", arg, ErrNotFound)
	case 1:
		return id, nil
	}
	return 0, &SeveralError{Key: arg, IDs: ids}
}

// Show returns an event's whole life. arg and source are those of Find. Errors: ErrNotFound, *SeveralError.
func Show(ctx context.Context, pool *pgxpool.Pool, arg string, source int32) (*Life, error) {
	id, err := Find(ctx, pool, arg, source)
	if err != nil {
		return nil, err
	}
	life := &Life{}
	rows, err := pool.Query(ctx, eventSQL, id)
	if err == nil {
		life.Item, err = pgx.CollectExactlyOneRow(rows, scanItem)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return showDropped(ctx, pool, arg, id)
	}
	if err != nil {
		return nil, fmt.Errorf("show event %s: %w", arg, err)
	}
	return life, life.fill(ctx, pool)
}

func (l *Life) fill(ctx context.Context, pool *pgxpool.Pool) error {
	var body []byte
	if err := pool.QueryRow(ctx, restSQL, l.ID).Scan(&l.Headers, &l.Verification, &body); err != nil {
		return fmt.Errorf("show event %d: %w", l.ID, err)
	}
	l.Content = MakeContent(body)
	return l.fillRest(ctx, pool)
}

// fillRest reads what is kept apart from the event and may outlive it.
func (l *Life) fillRest(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, outcomesOfSQL, l.ID)
	if err == nil {
		l.Outcomes, err = pgx.CollectRows(rows, ScanOutcome)
	}
	if err != nil {
		return fmt.Errorf("show outcomes of event %d: %w", l.ID, err)
	}
	if l.Conflicts, err = conflictsOf(ctx, pool, l.ID); err != nil {
		return err
	}
	var at Instant
	switch err := pool.QueryRow(ctx, redactedSQL, l.ID).Scan(&at.Time, &l.Redaction); {
	case err == nil:
		l.Redacted, l.RedactedAt = true, &at
	case !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("show event %d: %w", l.ID, err)
	}
	return nil
}

const redactedSQL = `SELECT at, run FROM redacted WHERE event = $1`

const droppedSQL = `SELECT r.dropped_at FROM retired r WHERE r.lo <= $1 AND r.hi > $1 AND r.dropped_at IS NOT NULL`

// showDropped is what is left of an event whose partition retention has dropped. Without a trace of it nobody can tell it from one that never was.
func showDropped(ctx context.Context, pool *pgxpool.Pool, arg string, id int64) (*Life, error) {
	life := &Life{Item: Item{ID: id, StoredAt: Instant{Time(id)}}, DroppedAt: &Instant{}, Headers: json.RawMessage("null"), Verification: json.RawMessage("null")}
	err := pool.QueryRow(ctx, droppedSQL, id).Scan(&life.DroppedAt.Time)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("event %s: %w: no event has this id", arg, ErrNotFound)
	}
	if err == nil {
		err = life.fillRest(ctx, pool)
	}
	if err != nil {
		return nil, fmt.Errorf("show event %s: %w", arg, err)
	}
	_, numeric := ParseID(arg)
	if numeric && len(life.Outcomes) == 0 {
		return nil, fmt.Errorf("event %s: %w: retention dropped that day of the log at %s and has kept nothing of an event with this id", arg, ErrNotFound, life.DroppedAt)
	}
	if !numeric {
		life.EventID = arg // its key is what it was found by
	}
	for _, o := range life.Outcomes {
		if life.Source = o.Source; o.Run == LiveRun {
			life.Status, life.Account, life.ObjectType, life.ObjectID = o.Status, o.Account, o.ObjectType, o.ObjectID
		}
	}
	return life, nil
}
