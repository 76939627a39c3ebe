package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/postgres"
)

// By is who wants a change, and why where the change has no reason of its own.
type By struct {
	audit.Person
	Reason string
	// claim is that of a request with a key.
	claim *idempotency.Claim
}

// changeWithin bounds the transaction of a change.
const changeWithin = 20 * time.Second

// change does something that a person wants, in one transaction with its row in the audit and with the answer of its key: there is none of them without the others. do says in the entry what it was done to; one without an Action is
// of something that changed nothing.
func change[T any](ctx context.Context, pool *pgxpool.Pool, by By, action string, do func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (T, error)) (out T, err error) {
	if err := storable("reason", by.Reason); err != nil {
		return out, err
	}
	var refused error
	err = postgres.InTx(ctx, pool, action, changeWithin, func(ctx context.Context, tx pgx.Tx) error {
		e := audit.Entry{Action: action, Reason: by.Reason}
		if out, refused = do(ctx, tx, &e); refused != nil {
			return refused
		}
		if e.Action != "" {
			if err := audit.Write(ctx, tx, by.Person, e); err != nil {
				return err
			}
		}
		return keep(ctx, tx, by.claim, out)
	})
	if refused != nil && ctx.Err() == nil {
		err = refused // which says itself what was tried
	}
	return out, err
}

// keep keeps the answer of a request with a key.
func keep(ctx context.Context, tx pgx.Tx, claim *idempotency.Claim, out any) error {
	if claim == nil {
		return nil
	}
	body, err := answered(out)
	if err != nil {
		return err
	}
	return claim.Keep(ctx, tx, idempotency.Answer{Status: http.StatusOK, ContentType: echo.MIMEApplicationJSON, Body: body})
}

// by is who asks.
func by(c echo.Context) By {
	who := callerOf(c)
	b := By{claim: claimOf(c), Person: audit.Person{Name: who.name, Via: audit.Loopback, Address: c.Request().RemoteAddr}}
	if who.name != "" {
		b.Via = audit.Token
	}
	return b
}

// why is by for a change that has no reason of its own: it may be said in the body, as {"reason": "..."}, which may also be empty.
func why(c echo.Context) (By, error) {
	b := by(c)
	if c.Request().ContentLength == 0 {
		return b, nil
	}
	values, err := asked(c.Request().Body)
	if err != nil {
		return b, err
	}
	q := newQuery(c.Request().Context(), nil, values, []Param{reasonParam})
	b.Reason = q.text("reason")
	return b, q.err
}

var reasonParam = Param{"reason", "why; kept in the audit"}

// AuditParams choose rows of the audit.
var AuditParams = []Param{
	{"since", "from this time on: " + timeHelp},
	{"until", "before this time: " + timeHelp},
	{"who", "token, account@machine, loopback, or login at PostgreSQL"},
	{"what", "action, or its first words: runs pause, runs, token"},
	{"run", "number of the run"},
	limitParam, cursorParam}

// Audit lists who changed what, by AuditParams. Errors: events.ErrInvalid.
func Audit(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[audit.Entry], error) {
	q := newQuery(ctx, pool, values, AuditParams)
	f := audit.Filter{Since: q.time("since"), Until: q.time("until"), Who: q.text("who"), What: q.text("what"), Run: q.number("run")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[audit.Entry]{}, q.err
	}
	return audit.List(ctx, pool, f, q.text("cursor"), limit)
}

// Note writes the audit of a change that has no one transaction of its own, before it begins: what is done is never without its row, though a row may be of something that was cut short.
func Note(ctx context.Context, pool *pgxpool.Pool, by By, action, target string) error {
	return audit.Write(ctx, pool, by.Person, audit.Entry{Action: action, Target: target, Reason: by.Reason})
}
