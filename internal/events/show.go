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

	"github.com/postern-gateway/postern/internal/postgres"
)

// EventDetail is an event with its content, its conflicts and all outcomes.
type EventDetail struct {
	Item
	// DroppedAt is when retention dropped the event. Then only its id, source and outcomes remain.
	DroppedAt *Instant `json:"dropped_at,omitempty"`
	// RedactedAt is when body and headers were cleared. Redaction is the run that cleared them; its
	// row in table redactions has the details.
	RedactedAt   *Instant        `json:"redacted_at,omitempty"`
	Redaction    int64           `json:"redaction,omitempty"`
	Headers      json.RawMessage `json:"headers"`
	Verification json.RawMessage `json:"verification"`
	Content
	Conflicts []Conflict `json:"conflicts"`
	Outcomes  []Outcome  `json:"outcomes"`
	// The other events of the same delivery, at most 100.
	Delivery []DeliveryMember `json:"delivery,omitempty"`
	// PreviousEvent is the event of the same object before this one in the log, NextEvent the one
	// after it. They are left out if there is none, and before the event is processed.
	PreviousEvent int64 `json:"previous_event,string,omitempty"`
	NextEvent     int64 `json:"next_event,string,omitempty"`
}

// Content is a body for JSON: text if it is valid UTF-8, else base64.
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

// AmbiguousKeyError means that events of several sources have the key.
type AmbiguousKeyError struct {
	Key string
	// IDs are Postern's event ids, by source name.
	IDs map[string]int64
}

func (e *AmbiguousKeyError) Error() string {
	var candidates []string
	for _, source := range slices.Sorted(maps.Keys(e.IDs)) {
		candidates = append(candidates, fmt.Sprintf("%d (source %s)", e.IDs[source], source))
	}
	return fmt.Sprintf("%d events have the key %s: use one of the ids %s", len(e.IDs), e.Key,
		strings.Join(candidates, ", "))
}

const (
	eventSQL = itemColumns + `e.id = $1`

	contentSQL = `SELECT e.headers, e.verification, coalesce(e.body, (SELECT d.body FROM events d
		WHERE d.id = e.delivery_id)) FROM events e WHERE e.id = $1`

	idsByKeySQL = `SELECT s.name, k.id FROM sources s
CROSS JOIN LATERAL (SELECT k.id FROM event_keys k WHERE k.source = s.number AND k.key = $1 LIMIT 1) k
	WHERE $2::int IS NULL OR s.number = $2`

	outcomesOfEventSQL = `SELECT ` + OutcomeColumns + ` FROM outcomes c JOIN sources s ON s.number = c.source
		WHERE c.event_id = $1 ORDER BY c.run`
)

// Find returns the event id for an argument. A number is a Postern event id, anything else the
// provider's key. source restricts the search for a key to one source; 0 searches all. Errors:
// ErrNotFound, *AmbiguousKeyError.
func Find(ctx context.Context, pool *pgxpool.Pool, arg string, source int32) (int64, error) {
	if id, ok := ParseID(arg); ok {
		return id, nil
	}
	ids, err := idsByKey(ctx, pool, arg, source)
	switch {
	case err != nil:
		return 0, err
	case len(ids) == 0:
		return 0, fmt.Errorf("event %s: %w: no source has stored it; `postern rejections list` shows the rejected "+
			"deliveries", arg, ErrNotFound)
	case len(ids) > 1:
		return 0, &AmbiguousKeyError{Key: arg, IDs: ids}
	}
	return slices.Collect(maps.Values(ids))[0], nil
}

// idsByKey returns the ids of the events with a key, by the name of the source.
func idsByKey(ctx context.Context, pool *pgxpool.Pool, key string, source int32) (map[string]int64, error) {
	digest := KeyDigest(key)
	ids := map[string]int64{}
	var name string
	var id int64
	err := postgres.ForEach(ctx, pool, idsByKeySQL, []any{digest[:], NilIfZero(source)}, []any{&name, &id},
		func() error { ids[name] = id; return nil })
	if err != nil {
		return nil, fmt.Errorf("find event %s: %w", key, err)
	}
	return ids, nil
}

// FindAll returns the events that have a text as Postern's id or as the provider's key, in every
// source. An event that retention dropped has only its id, source, key and StoredAt.
func FindAll(ctx context.Context, pool *pgxpool.Pool, text string) ([]Item, error) {
	byKey, err := idsByKey(ctx, pool, text, 0)
	if err != nil {
		return nil, err
	}
	ids := slices.Collect(maps.Values(byKey))
	numeric, isNumeric := ParseID(text)
	if isNumeric {
		ids = append(ids, numeric)
	}
	found, err := Items(ctx, pool, ids)
	if err != nil {
		return nil, err
	}
	stored := map[int64]bool{}
	for i := range found {
		stored[found[i].ID] = true
	}
	for source, id := range byKey {
		if !stored[id] {
			found = append(found, Item{ID: id, Source: source, EventID: text, StoredAt: Instant{Time(id)}})
		}
	}
	if isNumeric && !stored[numeric] {
		dropped, err := showDropped(ctx, pool, text, numeric)
		switch {
		case err == nil:
			found = append(found, dropped.Item)
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	return found, nil
}

// Show returns an event with its content, conflicts and outcomes. arg and source are those of Find.
// Errors: ErrNotFound, *AmbiguousKeyError.
func Show(ctx context.Context, pool *pgxpool.Pool, arg string, source int32) (*EventDetail, error) {
	id, err := Find(ctx, pool, arg, source)
	if err != nil {
		return nil, err
	}
	item, err := postgres.CollectOne(ctx, pool, scanItem, eventSQL, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return showDropped(ctx, pool, arg, id)
	}
	if err != nil {
		return nil, fmt.Errorf("show event %s: %w", arg, err)
	}
	detail := &EventDetail{Item: item}
	return detail, detail.loadContent(ctx, pool)
}

func (d *EventDetail) loadContent(ctx context.Context, pool *pgxpool.Pool) error {
	var body []byte
	if err := pool.QueryRow(ctx, contentSQL, d.ID).Scan(&d.Headers, &d.Verification, &body); err != nil {
		return fmt.Errorf("show event %d: %w", d.ID, err)
	}
	d.Content = MakeContent(body)
	if err := d.loadDelivery(ctx, pool); err != nil {
		return err
	}
	return d.loadRelated(ctx, pool)
}

// loadRelated reads outcomes, conflicts and redaction. They are stored separately from the event
// and may outlive it.
func (d *EventDetail) loadRelated(ctx context.Context, pool *pgxpool.Pool) error {
	var err error
	if d.Outcomes, err = postgres.Collect(ctx, pool, ScanOutcome, outcomesOfEventSQL, d.ID); err != nil {
		return fmt.Errorf("show outcomes of event %d: %w", d.ID, err)
	}
	if err := d.loadDecidedBy(ctx, pool); err != nil {
		return err
	}
	if d.Conflicts, err = listConflictsOf(ctx, pool, d.ID); err != nil {
		return err
	}
	var at Instant
	switch err := pool.QueryRow(ctx, redactedSQL, d.ID).Scan(&at.Time, &d.Redaction); {
	case err == nil:
		d.Redacted, d.RedactedAt = true, &at
	case !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("show event %d: %w", d.ID, err)
	}
	return nil
}

const redactedSQL = `SELECT at, run FROM redacted_events WHERE event = $1`

const droppedSQL = `SELECT r.dropped_at FROM dropped_partitions r WHERE r.id_from <= $1 AND r.id_to > $1
	AND r.dropped_at IS NOT NULL`

// showDropped returns the remains of an event whose partition retention has dropped: its conflicts
// and outcomes. An id without outcomes is not found, because it may never have been used.
func showDropped(ctx context.Context, pool *pgxpool.Pool, arg string, id int64) (*EventDetail, error) {
	detail := &EventDetail{Item: Item{ID: id, StoredAt: Instant{Time(id)}}, DroppedAt: &Instant{},
		Headers: json.RawMessage("null"), Verification: json.RawMessage("null")}
	err := pool.QueryRow(ctx, droppedSQL, id).Scan(&detail.DroppedAt.Time)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("event %s: %w: no event has this id", arg, ErrNotFound)
	}
	if err == nil {
		err = detail.loadRelated(ctx, pool)
	}
	if err != nil {
		return nil, fmt.Errorf("show event %s: %w", arg, err)
	}
	_, numeric := ParseID(arg)
	if numeric && len(detail.Outcomes) == 0 {
		return nil, fmt.Errorf("event %s: %w: retention dropped that day of the log at %s and kept nothing of an "+
			"event with this id", arg, ErrNotFound, detail.DroppedAt)
	}
	if !numeric {
		detail.EventID = arg // it was found by its key
	}
	for _, o := range detail.Outcomes {
		if detail.Source = o.Source; o.Run == LiveRun {
			detail.Status, detail.Account, detail.ObjectType, detail.ObjectID = o.Status, o.Account, o.ObjectType,
				o.ObjectID
		}
	}
	return detail, nil
}
