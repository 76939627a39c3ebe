package effects

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Effect is one of the ledger, as a list shows it.
type Effect struct {
	Effect int64 `json:"effect"`
	// Key names the intent; with RuleVersion and Forced it is the effect's alone.
	Key         string `json:"key"`
	RuleVersion int    `json:"rule_version"`
	// Forced is the run that had it happen again on purpose, a replay with mode force; 0 for the first.
	Forced     int    `json:"forced"`
	Rule       string `json:"rule"`
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Event is the one that made the change, Run the run that planned the effect; 0: as the event arrived.
	Event int64 `json:"event,string"`
	Run   int64 `json:"run"`
	State State `json:"state"`
	// Reason is why it is in its state; "" where that goes without saying.
	Reason string `json:"reason"`
	// Undoing: steps that were done are undone, or were.
	Undoing bool `json:"undoing"`
	// Destination is where its next step goes, Attempts how often that was tried, Due when it is tried next; zero: it is not.
	Destination string         `json:"destination"`
	Attempts    int            `json:"attempts"`
	Due         events.Instant `json:"due"`
	// TakenBy is the process that takes its next step, until TakenUntil; "" where it is nobody's.
	TakenBy    string         `json:"taken_by"`
	TakenUntil events.Instant `json:"taken_until"`
	// ExpiresAt is until when it can be approved; zero: for ever, or nobody has to.
	ExpiresAt events.Instant `json:"expires_at"`
	PlannedAt events.Instant `json:"planned_at"`
	UpdatedAt events.Instant `json:"updated_at"`
}

// View is an effect with its steps.
type View struct {
	Effect
	// EventKey, EventType and Origin are of the event that made the change; "" where that was redacted.
	EventKey  string `json:"event_key"`
	EventType string `json:"event_type"`
	Origin    string `json:"origin"`
	// WindowStart and WindowEnd are the window of a rule on a schedule, in RFC 3339; "" for a change, which has an event, and where that was redacted.
	WindowStart string `json:"window_start"`
	WindowEnd   string `json:"window_end"`
	// PayloadSHA256 is of what its templates see, in hex; "" where that was redacted.
	PayloadSHA256 string `json:"payload_sha256"`
	// Steps are those that were begun, in the order of the rule, each before its undoing.
	Steps []Step `json:"steps"`
	// Next is what is safe to do next, in words.
	Next string `json:"next"`
	// late: it waits, and cannot be approved any more.
	late bool
	// each: its rule is asked about each event.
	each bool
}

// Step is one that was begun.
type Step struct {
	Step string `json:"step"`
	// Undo: it takes back what the step of this name has done.
	Undo        bool      `json:"undo"`
	State       StepState `json:"state"`
	Destination string    `json:"destination"`
	// Request is method and path; "" where it was redacted, or is made anew at the next attempt.
	Request string `json:"request"`
	// Fingerprint is the SHA-256 of what was sent last, in hex.
	Fingerprint string         `json:"fingerprint"`
	Attempts    int            `json:"attempts"`
	ReservedAt  events.Instant `json:"reserved_at"`
	EndedAt     events.Instant `json:"ended_at"`
	// Status is the last answer's; 0: there was none.
	Status int `json:"status"`
	// Captured is what the answer said that later steps and people need, by name: external ids.
	Captured json.RawMessage `json:"captured"`
	// Captures are the names of all that its rule wants of the answer.
	Captures []string `json:"captures"`
	Error    string   `json:"error"`
	// Doubt is what clears up a lost answer; Undoable: its rule said how it is undone.
	Doubt    Doubt `json:"doubt"`
	Undoable bool  `json:"undoable"`
}

// Filter chooses effects; what is zero chooses all.
type Filter struct {
	Source                     int32
	Account                    *string
	Type, ID, Rule, State, Key string
	Event                      int64
	// Since and Until bound when they were planned.
	Since, Until time.Time
}

const effectColumns = `
SELECT e.effect, e.key, e.rule_version, e.forced, e.rule, s.name, e.account, e.object_type, e.object_id, e.event_id, e.run, e.state, e.reason, e.undoing, e.destination, e.attempts,
  e.due, e.taken_by, e.taken_until, e.expires_at, e.planned_at, e.updated_at`

const listSQL = effectColumns + `
FROM effects e JOIN sources s ON s.number = e.source
WHERE e.effect < $1 AND ($2::int IS NULL OR e.source = $2) AND ($3::text IS NULL OR e.account = $3) AND ($4::text IS NULL OR e.object_type = $4) AND ($5::text IS NULL OR e.object_id = $5)
  AND ($6::text IS NULL OR e.rule = $6) AND ($7::text IS NULL OR e.state = $7) AND ($8::text IS NULL OR e.key = $8) AND ($9::bigint IS NULL OR e.event_id = $9)
  AND ($10::timestamptz IS NULL OR e.planned_at >= $10) AND ($11::timestamptz IS NULL OR e.planned_at < $11)
ORDER BY e.effect DESC LIMIT $12`

// List returns a page of effects, the newest first. Errors: events.ErrInvalid.
func List(ctx context.Context, db postgres.DB, f Filter, cursor string, limit int) (events.Page[Effect], error) {
	var page events.Page[Effect]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	below := int64(1) << 62
	if err := events.ReadCursor(cursor, &below); err != nil {
		return page, err
	}
	// Each filter has its own plan: one for all of them would walk the whole ledger for a key.
	rows, err := db.Query(ctx, listSQL, pgx.QueryExecModeCacheDescribe, below, events.Optional(f.Source), f.Account, events.Optional(f.Type), events.Optional(f.ID), events.Optional(f.Rule),
		events.Optional(f.State), events.Optional(f.Key), events.Optional(f.Event), events.Optional(f.Since), events.Optional(f.Until), limit)
	if err != nil {
		return page, fmt.Errorf("list effects: %w", err)
	}
	page.Items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Effect, err error) {
		return e, scan(row, &e)
	})
	if err != nil {
		return page, fmt.Errorf("list effects: %w", err)
	}
	if len(page.Items) == limit {
		page.Next = events.MakeCursor(page.Items[limit-1].Effect)
	}
	return page, nil
}

// scan reads effectColumns, and what comes behind them.
func scan(row pgx.CollectableRow, e *Effect, more ...any) error {
	var due, taken, expires *time.Time
	err := row.Scan(append([]any{&e.Effect, &e.Key, &e.RuleVersion, &e.Forced, &e.Rule, &e.Source, &e.Account, &e.ObjectType, &e.ObjectID, &e.Event, &e.Run, &e.State, &e.Reason, &e.Undoing,
		&e.Destination, &e.Attempts, &due, &e.TakenBy, &taken, &expires, &e.PlannedAt.Time, &e.UpdatedAt.Time}, more...)...)
	e.Due, e.TakenUntil, e.ExpiresAt = events.Optionally(due), events.Optionally(taken), events.Optionally(expires)
	return err
}

const showSQL = effectColumns + `,
  coalesce(e.facts #>> '{event,key}', ''), coalesce(e.facts #>> '{event,type}', ''), coalesce(e.facts #>> '{event,origin}', ''), coalesce(encode(sha256(convert_to(e.facts::text, 'UTF8')), 'hex'), ''),
  coalesce(e.facts #>> '{window,start}', ''), coalesce(e.facts #>> '{window,end}', ''), coalesce(e.state = 'waiting' AND e.expires_at <= clock_now(), false), coalesce(e.facts ? 'event' AND NOT e.facts ? 'old', false)
FROM effects e JOIN sources s ON s.number = e.source WHERE e.effect = ANY($1::bigint[]) ORDER BY e.effect`

const stepsSQL = `
SELECT effect, step, undo, state, destination, coalesce(request->>'method' || ' ' || (request->>'path'), ''), encode(fingerprint, 'hex'), attempts, reserved_at, ended_at, coalesce(status, 0), captured, captures,
  error, doubt, undoable
FROM effect_steps WHERE effect = ANY($1::bigint[]) ORDER BY effect, place, undo`

// Show returns effects with their steps, in the order of their ids. Errors: events.ErrNotFound where one of them is not there.
func Show(ctx context.Context, db postgres.DB, ids ...int64) ([]View, error) {
	rows, err := db.Query(ctx, showSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read effects: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v View, err error) {
		v.Steps = []Step{}
		return v, scan(row, &v.Effect, &v.EventKey, &v.EventType, &v.Origin, &v.PayloadSHA256, &v.WindowStart, &v.WindowEnd, &v.late, &v.each)
	})
	if err != nil {
		return nil, fmt.Errorf("read effects: %w", err)
	}
	byID := map[int64]*View{}
	for i := range all {
		byID[all[i].Effect.Effect] = &all[i]
	}
	for _, id := range ids {
		if byID[id] == nil {
			return nil, fmt.Errorf("effect %d: %w", id, events.ErrNotFound)
		}
	}
	if err := readSteps(ctx, db, ids, byID); err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Next = all[i].next()
	}
	return all, nil
}

func readSteps(ctx context.Context, db postgres.DB, ids []int64, byID map[int64]*View) error {
	rows, err := db.Query(ctx, stepsSQL, ids)
	if err != nil {
		return fmt.Errorf("read steps: %w", err)
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Step, err error) {
		var effect int64
		var ended *time.Time
		err = row.Scan(&effect, &s.Step, &s.Undo, &s.State, &s.Destination, &s.Request, &s.Fingerprint, &s.Attempts, &s.ReservedAt.Time, &ended, &s.Status, &s.Captured, &s.Captures, &s.Error, &s.Doubt, &s.Undoable)
		if err != nil {
			return s, err
		}
		s.EndedAt = events.Optionally(ended)
		byID[effect].Steps = append(byID[effect].Steps, s)
		return s, nil
	})
	if err != nil {
		return fmt.Errorf("read steps: %w", err)
	}
	return nil
}
