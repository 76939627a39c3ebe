package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Requester is the actor of a change, and the reason where the change has no reason of its own.
type Requester struct {
	adminauth.Actor
	Reason string
	// claim is the claim of a request with an idempotency key; nil for others.
	claim *adminauth.KeyClaim
}

// changeTimeout limits the transaction of a change.
const changeTimeout = 20 * time.Second

// change executes a change in one transaction with its audit entry and with the response stored
// under its idempotency key. Either all are committed or none. do sets the entry's target. If do
// clears the entry's Action, nothing was changed and no entry is written.
func change[T any](ctx context.Context, pool *pgxpool.Pool, by Requester, action string,
	do func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (T, error)) (out T, err error) {
	if err := checkStorable("reason", by.Reason); err != nil {
		return out, err
	}
	var doErr error
	err = postgres.InTx(ctx, pool, action, changeTimeout, func(ctx context.Context, tx pgx.Tx) error {
		e := adminauth.AuditEntry{Action: action, Reason: by.Reason}
		if out, doErr = do(ctx, tx, &e); doErr != nil {
			return doErr
		}
		if e.Action != "" {
			if err := adminauth.WriteAudit(ctx, tx, by.Actor, e); err != nil {
				return err
			}
		}
		return storeResponse(ctx, tx, by.claim, out)
	})
	if doErr != nil && ctx.Err() == nil {
		err = doErr // the error already names what failed
	}
	return out, err
}

// storeResponse stores the response of a request with an idempotency key.
func storeResponse(ctx context.Context, tx pgx.Tx, claim *adminauth.KeyClaim, out any) error {
	if claim == nil {
		return nil
	}
	body, err := encodeJSON(out)
	if err != nil {
		return err
	}
	return claim.StoreResponse(ctx, tx, adminauth.StoredResponse{Status: http.StatusOK,
		ContentType: echo.MIMEApplicationJSON,
		Body:        body})
}

// requesterOf returns the actor of a request.
func requesterOf(c echo.Context) Requester {
	sender := callerOf(c)
	b := Requester{claim: claimOf(c), Actor: adminauth.Actor{Name: sender.name, Via: adminauth.ViaLoopback,
		Address: c.Request().RemoteAddr}}
	if sender.name != "" {
		b.Via = adminauth.ViaToken
	}
	return b
}

// requesterWithReason is requesterOf for a change without a reason of its own. The body may contain
// one, as {"reason": "..."}, or be empty.
func requesterWithReason(c echo.Context) (Requester, error) {
	b := requesterOf(c)
	if c.Request().ContentLength == 0 {
		return b, nil
	}
	values, err := parseBody(c.Request().Body)
	if err != nil {
		return b, err
	}
	q := newQuery(c.Request().Context(), nil, values, []Param{reasonParam})
	b.Reason = q.text("reason")
	return b, q.err
}

var reasonParam = Param{"reason", "reason; stored in the audit"}

// AuditParams select audit entries.
var AuditParams = []Param{
	{"since", "from this time on: " + timeHelp},
	{"until", "before this time: " + timeHelp},
	{"actor", "token, account@machine, loopback, or PostgreSQL login"},
	{"action", "action, or its first words: runs pause, runs, token"},
	{"run", "number of the run"},
	limitParam, cursorParam}

// Audit lists audit entries by AuditParams. Errors: events.ErrInvalid.
func Audit(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[adminauth.AuditEntry], error) {
	q := newQuery(ctx, pool, values, AuditParams)
	f := adminauth.AuditFilter{Since: q.time("since"), Until: q.time("until"), Actor: q.text("actor"),
		Action: q.text("action"), Run: q.number("run")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[adminauth.AuditEntry]{}, q.err
	}
	return adminauth.ListAudit(ctx, pool, f, q.text("cursor"), limit)
}

// RecordAction writes the audit entry of a change that is not a single transaction, before the
// change begins. Every such change has an entry, but an entry may belong to a change that was
// interrupted.
func RecordAction(ctx context.Context, pool *pgxpool.Pool, by Requester, action, target string) error {
	return adminauth.WriteAudit(ctx, pool, by.Actor, adminauth.AuditEntry{Action: action, Target: target,
		Reason: by.Reason})
}
