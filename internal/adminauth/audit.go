package adminauth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Via says how the actor was identified.
type Via string

// ViaToken: by a token. ViaConsole: by a session of the console, which a token began. Loopback: not
// identified, because no token was required. Command: the command reported the account and machine.
const (
	ViaToken    Via = "token"
	ViaConsole  Via = "console"
	ViaLoopback Via = "loopback"
	ViaCommand  Via = "command"
)

// Actor is the person or program that makes a change, as far as known.
type Actor struct {
	// Name is the token's name, or the account and machine that a command reports; "" on loopback.
	Name string
	Via  Via
	// Address is the address of the request; "" for a command.
	Address string
}

// Verified reports whether the name is that of a token, and not one that the caller chose.
func (p Actor) Verified() bool { return p.Name != "" && (p.Via == ViaToken || p.Via == ViaConsole) }

// String describes the actor in one text.
func (p Actor) String() string {
	switch p.Via {
	case ViaToken, ViaConsole:
		return tokenText(p.Name) + p.Address
	case ViaLoopback:
		return "admin API, from " + p.Address
	}
	return p.Name
}

// tokenText begins the description of an actor with a token.
func tokenText(name string) string { return "token " + name + ", from " }

// AuditEntry is one entry of the audit.
type AuditEntry struct {
	ID int64          `json:"id,string"`
	At events.Instant `json:"at"`
	// Actor is the token's name, or the account and machine that the command reported. Via is how
	// the actor was identified. DatabaseUser is the PostgreSQL login.
	Actor        string `json:"actor"`
	Via          Via    `json:"via"`
	Address      string `json:"address"`
	DatabaseUser string `json:"database_user"`
	// Action is the command for the change ("runs pause"), also for a change over HTTP. Target is
	// the changed thing.
	Action string `json:"action"`
	Target string `json:"target"`
	Reason string `json:"reason"`
	// Run is the run that was started or changed, 0 for none.
	Run int64 `json:"run,omitzero"`
}

// LoginDenied is the Action of the entry for a failed login to the console. Its actor is unknown.
const LoginDenied = "console login denied"

const writeAuditSQL = `INSERT INTO audit (actor, via, address, action, target, reason, run)
	VALUES ($1, $2, $3, $4, $5, $6, nullif($7::bigint, 0))`

// maxText limits the stored bytes of a target or reason.
const maxText = 2000

// WriteAudit adds an entry for a change. It uses the entry's Action, Target, Reason and Run. Pass
// the transaction of the change, so that both are committed or neither.
func WriteAudit(ctx context.Context, db postgres.DB, actor Actor, e AuditEntry) error {
	name := actor.Name
	if actor.Via == ViaLoopback {
		name = string(ViaLoopback)
	}
	if _, err := db.Exec(ctx, writeAuditSQL, events.SanitizeText(name), actor.Via, actor.Address, e.Action,
		truncate(e.Target), truncate(e.Reason), e.Run); err != nil {
		return fmt.Errorf("write the audit of %s: %w", e.Action, err)
	}
	return nil
}

const requestedSQL = `SELECT a.run FROM audit a WHERE a.run = ANY($1::bigint[]) AND a.actor = $2
	AND a.via IN ('token', 'console') AND a.action = ANY($3::text[]) ORDER BY a.run LIMIT 1`

// requestActions are the actions that request a run.
var requestActions = []string{"replay", "retry", "rebuild", "reconcile", "objects overwrite", "schedules run",
	"retention run"}

// RequestedRun returns the first of the runs that an actor requested; 0 for none. Only actors with
// a token are compared.
func RequestedRun(ctx context.Context, db postgres.DB, actor Actor, runs ...int64) (run int64, err error) {
	if !actor.Verified() || len(runs) == 0 {
		return 0, nil
	}
	err = db.QueryRow(ctx, requestedSQL, runs, actor.Name, requestActions).Scan(&run)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("find the requests of %s: %w", actor.Name, err)
	}
	return run, nil
}

// requestedEventsSQL reads who requested the refetch or the reprocessing that stored events, and
// the runs that stored them. An imported event names actors and runs of another instance.
const requestedEventsSQL = `
SELECT e.id, starts_with(coalesce(e.verification ->> 'requested_by', e.verification ->> 'reprocessed_by', ''), $2),
  CASE WHEN jsonb_typeof(e.verification -> 'run') = 'number' THEN (e.verification -> 'run')::bigint ELSE 0 END
FROM events e WHERE e.id = ANY($1::bigint[]) AND e.origin <> 'import'`

// RequestedEvent returns one of the events that was stored because an actor requested it, 0 for
// none, and the runs that stored the others. Only actors with a token are compared.
func RequestedEvent(ctx context.Context, db postgres.DB, actor Actor, ids []int64) (event int64, runs []int64,
	err error) {
	if !actor.Verified() || len(ids) == 0 {
		return 0, nil, nil
	}
	var id, run int64
	var requested bool
	err = postgres.ForEach(ctx, db, requestedEventsSQL, []any{ids, tokenText(actor.Name)}, []any{&id, &requested,
		&run}, func() error {
		if runs = append(runs, run); requested {
			event = id
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("find who requested events: %w", err)
	}
	return event, runs, nil
}

// truncate shortens a long text, such as a list of ids.
func truncate(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	return events.SanitizeText(text)
}

const listAuditSQL = `
SELECT a.id, a.at, a.actor, a.via, a.address, a.database_user, a.action, a.target, a.reason, coalesce(a.run, 0)
	FROM audit a
WHERE a.id < $1 AND ($2::timestamptz IS NULL OR a.at >= $2) AND ($3::timestamptz IS NULL OR a.at < $3)
	AND ($4::text IS NULL OR a.actor = $4 OR a.database_user = $4)
  AND ($5::text IS NULL OR a.action = $5 OR starts_with(a.action, $5 || ' ')) AND ($6::bigint IS NULL OR a.run = $6)
  AND ($7::text IS NULL OR position($7 IN a.target) > 0)
ORDER BY a.id DESC LIMIT $8`

// AuditFilter selects entries; a zero field selects all.
type AuditFilter struct {
	Since, Until time.Time
	// Actor is an entry's Actor or DatabaseUser.
	Actor string
	// Action is an action, or its first words.
	Action string
	// Target is a part of the target, such as an id.
	Target string
	Run    int64
}

// ListAudit returns a page of the audit, newest first. Errors: events.ErrInvalid.
func ListAudit(ctx context.Context, db postgres.DB, f AuditFilter, cursor string, limit int) (events.Page[AuditEntry],
	error) {
	return events.ReadPage("list the audit", cursor, limit, int64(1)<<62, func(e *AuditEntry) int64 { return e.ID },
		func(below int64, limit int) ([]AuditEntry, error) {
			return postgres.Collect(ctx, db, pgx.RowToStructByPos[AuditEntry], listAuditSQL, below,
				events.NilIfZero(f.Since), events.NilIfZero(f.Until), events.NilIfZero(f.Actor),
				events.NilIfZero(f.Action), events.NilIfZero(f.Run), events.NilIfZero(f.Target), limit)
		})
}
