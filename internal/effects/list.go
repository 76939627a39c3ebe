package effects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Effect is an entry of the ledger, as lists show it.
type Effect struct {
	ID int64 `json:"effect"`
	// Key identifies what the rule wants. RuleVersion is the version of the rule that planned the
	// effect. Key, RuleVersion and Forced together are unique.
	Key         string `json:"key"`
	RuleVersion int    `json:"rule_version"`
	// Forced is the run that repeated the effect on purpose, a replay with mode force; 0 otherwise.
	Forced     int    `json:"forced"`
	Rule       string `json:"rule"`
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Event is the event that made the change. Run is the run that planned the effect, 0 for live
	// events.
	Event int64 `json:"event,string"`
	Run   int64 `json:"run"`
	State State `json:"state"`
	// Reason explains the state; empty if the state needs no explanation.
	Reason string `json:"reason"`
	// Compensating reports that the effect is being compensated, or was.
	Compensating bool `json:"compensating"`
	// Destination is where the next step goes. Attempts counts the attempts of the next step. Due
	// is when the next step is tried, zero if it is not.
	Destination string         `json:"destination"`
	Attempts    int            `json:"attempts"`
	Due         events.Instant `json:"due"`
	// LeaseOwner is the process that executes the next step, until LeaseUntil; empty if there is no
	// lease.
	LeaseOwner string         `json:"lease_owner"`
	LeaseUntil events.Instant `json:"lease_until"`
	// ExpiresAt is the end of the time for its approval; zero if there is no limit or no approval
	// is needed.
	ExpiresAt events.Instant `json:"expires_at"`
	PlannedAt events.Instant `json:"planned_at"`
	UpdatedAt events.Instant `json:"updated_at"`
}

// View is an effect with its steps.
type View struct {
	Effect
	// EventKey, EventType and Origin describe the event that made the change; empty if it was
	// redacted.
	EventKey  string `json:"event_key"`
	EventType string `json:"event_type"`
	Origin    string `json:"origin"`
	// WindowStart and WindowEnd are the window of a rule on a schedule, in RFC 3339. They are empty
	// for an effect of an event, and after a redaction.
	WindowStart string `json:"window_start"`
	WindowEnd   string `json:"window_end"`
	// PayloadSHA256 is the hash of the template data, in hex; empty after a redaction.
	PayloadSHA256 string `json:"payload_sha256"`
	// Steps are the steps that have started or were skipped, in the order of the rule, each before
	// its compensation.
	Steps []Step `json:"steps" db:"-"`
	// NotUndoable are the names of the steps that Postern executed, or may have executed, and that
	// cannot be undone: they changed something, and their rule has no compensation for them.
	NotUndoable []string `json:"not_undoable" db:"-"`
	// AllowedActions says in a sentence which actions are allowed next.
	AllowedActions string `json:"next" db:"-"`
	// ApprovalExpired reports that the effect awaits approval and can no longer be approved.
	ApprovalExpired bool `json:"-"`
	// OnEachEvent reports that its rule is evaluated for each event.
	OnEachEvent bool `json:"-"`
}

// Step is a step that has started or was skipped.
type Step struct {
	Step string `json:"step"`
	// Undo marks the compensation of the step of this name.
	Undo        bool      `json:"undo"`
	State       StepState `json:"state"`
	Destination string    `json:"destination"`
	// Request is method and path. It is empty after a redaction, and if the next attempt renders
	// the request again.
	Request string `json:"request"`
	// Fingerprint is the SHA-256 of the last request, in hex.
	Fingerprint string         `json:"fingerprint"`
	Attempts    int            `json:"attempts"`
	ReservedAt  events.Instant `json:"reserved_at"`
	EndedAt     events.Instant `json:"ended_at"`
	// Status is the status of the last response; 0 if there was none.
	Status int `json:"status"`
	// Captured are the values of the response that later steps and operators need, such as external
	// ids, by name.
	Captured json.RawMessage `json:"captured"`
	// Captures are the names of all values that its rule captures from the response.
	Captures []string `json:"captures"`
	Error    string   `json:"error"`
	// Reason explains why the step was skipped, or is done although its request was never sent;
	// empty otherwise.
	Reason string `json:"reason"`
	// Recovery is the way to clear up a lost response. Undoable reports that its rule has a
	// compensation for it.
	Recovery Recovery `json:"resolved_by"`
	Undoable bool     `json:"undoable"`
}

// Filter selects effects; a zero field selects all.
type Filter struct {
	Source                     int32
	Account                    *string
	Type, ID, Rule, State, Key string
	Event                      int64
	// UnknownOutcome selects effects with a step of UnknownStepsSQL.
	UnknownOutcome bool
	// Since and Until bound the time of planning.
	Since, Until time.Time
}

const effectColumns = `
SELECT e.effect, e.key, e.rule_version, e.forced, e.rule, s.name, e.account, e.object_type, e.object_id, e.event_id,
	e.run, e.state, e.reason, e.compensating, e.destination, e.attempts,
  e.due, e.lease_owner, e.lease_until, e.expires_at, e.planned_at, e.updated_at`

// UnknownStepsSQL selects, as s, the steps with an unknown outcome of effects that have not ended,
// also while a step is repeated or checked. It reads a small index and looks up each effect,
// whatever the planner estimates about the size of the tables.
const UnknownStepsSQL = `effect_steps s
CROSS JOIN LATERAL (SELECT FROM effects e WHERE e.effect = s.effect AND e.state NOT IN ('done', 'rejected', 'expired',
	'superseded') OFFSET 0) e
WHERE (s.state = 'unknown' OR s.state = 'reserved' AND s.first_attempt_at < s.reserved_at)`

const (
	listFrom = effectColumns + `
FROM effects e JOIN sources s ON s.number = e.source
WHERE e.effect < $1 AND ($2::int IS NULL OR e.source = $2) AND ($3::text IS NULL OR e.account = $3)
	AND ($4::text IS NULL OR e.object_type = $4) AND ($5::text IS NULL OR e.object_id = $5)
  AND ($6::text IS NULL OR e.rule = $6) AND ($7::text IS NULL OR e.state = $7) AND ($8::text IS NULL OR e.key = $8)
  	AND ($9::bigint IS NULL OR e.event_id = $9)
  AND ($10::timestamptz IS NULL OR e.planned_at >= $10) AND ($11::timestamptz IS NULL OR e.planned_at < $11)
`
	listOrder      = `ORDER BY e.effect DESC LIMIT $12`
	listSQL        = listFrom + listOrder
	unknownListSQL = listFrom + `AND e.effect IN (SELECT s.effect FROM ` + UnknownStepsSQL + `) ` + listOrder
)

// List returns a page of effects, the newest first. Errors: events.ErrInvalid.
func List(ctx context.Context, db postgres.DB, f Filter, cursor string, limit int) (events.Page[Effect], error) {
	return events.ReadPage("list effects", cursor, limit, int64(1)<<62, func(e *Effect) int64 { return e.ID },
		func(below int64, limit int) ([]Effect, error) {
			sql := listSQL
			if f.UnknownOutcome {
				sql = unknownListSQL
			}
			// PostgreSQL plans each combination of filters separately. One generic plan would scan
			// the whole ledger for a key.
			return postgres.Collect(ctx, db, pgx.RowToStructByPos[Effect], sql, pgx.QueryExecModeCacheDescribe,
				below,
				events.NilIfZero(f.Source), f.Account, events.NilIfZero(f.Type), events.NilIfZero(f.ID),
				events.NilIfZero(f.Rule), events.NilIfZero(f.State), events.NilIfZero(f.Key), events.NilIfZero(f.Event),
				events.NilIfZero(f.Since), events.NilIfZero(f.Until), limit)
		})
}

const showSQL = effectColumns + `,
  coalesce(e.template_data #>> '{event,key}', ''), coalesce(e.template_data #>> '{event,type}', ''),
  	coalesce(e.template_data #>> '{event,origin}', ''), coalesce(e.template_data #>> '{window,start}', ''),
  coalesce(e.template_data #>> '{window,end}', ''),
  coalesce(encode(sha256(convert_to(e.template_data::text, 'UTF8')), 'hex'), ''), coalesce(e.state = 'awaiting_approval'
  	AND e.expires_at <= clock_now(), false), coalesce(e.template_data ? 'event' AND NOT e.template_data ? 'old',
  		false)
FROM effects e JOIN sources s ON s.number = e.source WHERE e.effect = ANY($1::bigint[]) ORDER BY e.effect`

const stepsSQL = `
SELECT step, undo, state, destination, coalesce(request->>'method' || ' ' || (request->>'path'), ''),
	encode(fingerprint, 'hex'), attempts, reserved_at, ended_at, coalesce(status, 0), captured, captures,
  error, reason, resolved_by, undoable, effect
FROM effect_steps WHERE effect = ANY($1::bigint[]) ORDER BY effect, position, undo`

// Show returns effects with their steps, in the order of their ids. Errors: events.ErrNotFound if
// one of them does not exist.
func Show(ctx context.Context, db postgres.DB, ids ...int64) ([]View, error) {
	all, err := postgres.Collect(ctx, db, pgx.RowToStructByPos[View], showSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read effects: %w", err)
	}
	byID := map[int64]*View{}
	for i := range all {
		all[i].Steps, byID[all[i].Effect.ID] = []Step{}, &all[i]
	}
	for _, id := range ids {
		if byID[id] == nil {
			return nil, fmt.Errorf("effect %d: %w", id, events.ErrNotFound)
		}
	}
	steps, err := postgres.Collect(ctx, db, pgx.RowToStructByPos[stepOfEffect], stepsSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read steps: %w", err)
	}
	for _, s := range steps {
		byID[s.ID].Steps = append(byID[s.ID].Steps, s.Step)
	}
	for i := range all {
		all[i].NotUndoable = all[i].notUndoableSteps()
		all[i].AllowedActions = all[i].describeAllowedActions()
	}
	return all, nil
}

// TemplateData is what the condition and the templates of an effect's rule get.
type TemplateData struct {
	ID int64 `json:"effect"`
	// The event, and the object's state before and after the change. Null after a
	// redaction, and after retention has cleared it.
	Data json.RawMessage `json:"template_data"`
}

const dataSQL = `SELECT effect, template_data FROM effects WHERE effect = $1`

// ShowData returns the template data of an effect. Errors: events.ErrNotFound.
func ShowData(ctx context.Context, db postgres.DB, id int64) (*TemplateData, error) {
	found, err := postgres.CollectOne(ctx, db, pgx.RowToStructByPos[TemplateData], dataSQL, id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("effect %d: %w", id, events.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("read the template data of effect %d: %w", id, err)
	}
	return &found, nil
}

// stepOfEffect is a step with the id of its effect.
type stepOfEffect struct {
	Step
	ID int64
}
