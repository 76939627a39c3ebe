// Package audit keeps who changed what, when and why. Nothing in it is ever changed or deleted; the database refuses it.
package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Via is how it is known who a person is.
type Via string

// The ways: a token proves it, nobody was asked on loopback, a command has told it.
const (
	Token    Via = "token"
	Loopback Via = "loopback"
	Command  Via = "command"
)

// Person is who makes a change, as far as is known.
type Person struct {
	// Name is the token's, or the account and machine that a command tells; "" on loopback.
	Name string
	Via  Via
	// Address is where a request came from; "" for a command.
	Address string
}

// String names the person in ledgers that have one text for it.
func (p Person) String() string {
	switch p.Via {
	case Token:
		return "token " + p.Name + ", from " + p.Address
	case Loopback:
		return "admin API, from " + p.Address
	}
	return p.Name
}

// Entry is a row of the audit.
type Entry struct {
	ID int64          `json:"id,string"`
	At events.Instant `json:"at"`
	// Who is the token's name, or the account and machine that the command told; Via says which. DatabaseUser is the login at PostgreSQL.
	Who          string `json:"who"`
	Via          Via    `json:"via"`
	Address      string `json:"address"`
	DatabaseUser string `json:"database_user"`
	// Action is the command that does it ("runs pause"), also where it came over HTTP. Target is what it was done to.
	Action string `json:"action"`
	Target string `json:"target"`
	Reason string `json:"reason"`
	// Run is the run that was made or changed, 0 for none.
	Run int64 `json:"run,omitzero"`
}

const writeSQL = `INSERT INTO audit (who, via, address, action, target, reason, run) VALUES ($1, $2, $3, $4, $5, $6, nullif($7::bigint, 0))`

// maxText bounds what is kept of a target or reason, in bytes.
const maxText = 2000

// Write adds a row for a change by a person; of the entry Action, Target, Reason and Run count. Give it the transaction of the change, so that the one is never without the other.
func Write(ctx context.Context, db postgres.DB, by Person, e Entry) error {
	who := by.Name
	if by.Via == Loopback {
		who = string(Loopback)
	}
	if _, err := db.Exec(ctx, writeSQL, events.Text(who), by.Via, by.Address, e.Action, cut(e.Target), cut(e.Reason), e.Run); err != nil {
		return fmt.Errorf("write the audit of %s: %w", e.Action, err)
	}
	return nil
}

// cut keeps the beginning of what is too long; a list of ids may be.
func cut(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	return events.Text(text)
}

const listSQL = `
SELECT a.id, a.at, a.who, a.via, a.address, a.database_user, a.action, a.target, a.reason, coalesce(a.run, 0) FROM audit a
WHERE a.id < $1 AND ($2::timestamptz IS NULL OR a.at >= $2) AND ($3::timestamptz IS NULL OR a.at < $3) AND ($4::text IS NULL OR a.who = $4 OR a.database_user = $4)
  AND ($5::text IS NULL OR a.action = $5 OR starts_with(a.action, $5 || ' ')) AND ($6::bigint IS NULL OR a.run = $6)
ORDER BY a.id DESC LIMIT $7`

// Filter chooses rows; what is zero chooses all.
type Filter struct {
	Since, Until time.Time
	// Who is a row's Who or DatabaseUser.
	Who string
	// What is an action, or its first words.
	What string
	Run  int64
}

// List returns a page of the audit, the newest first. Errors: events.ErrInvalid.
func List(ctx context.Context, db postgres.DB, f Filter, cursor string, limit int) (events.Page[Entry], error) {
	var page events.Page[Entry]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	below := int64(1) << 62
	if err := events.ReadCursor(cursor, &below); err != nil {
		return page, err
	}
	rows, err := db.Query(ctx, listSQL, below, events.Optional(f.Since), events.Optional(f.Until), events.Optional(f.Who), events.Optional(f.What), events.Optional(f.Run), limit)
	if err != nil {
		return page, fmt.Errorf("list the audit: %w", err)
	}
	page.Items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
		return e, row.Scan(&e.ID, &e.At.Time, &e.Who, &e.Via, &e.Address, &e.DatabaseUser, &e.Action, &e.Target, &e.Reason, &e.Run)
	})
	if err != nil {
		return page, fmt.Errorf("list the audit: %w", err)
	}
	if len(page.Items) == limit {
		page.Next = events.MakeCursor(page.Items[limit-1].ID)
	}
	return page, nil
}

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string { return []string{writeSQL, listSQL} }
