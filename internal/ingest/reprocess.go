package ingest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// Reverification is a rejected delivery that was verified again, with the current secrets and with
// its own time of receipt.
type Reverification struct {
	Rejection
	// Verified is true if the ingest endpoint would accept the delivery now.
	Verified bool `json:"verified"`
	// Result is a message: it names the secret that verified the delivery, or the reason why none
	// did.
	Result string `json:"result"`
	// Secret is the name of the secret that verified the delivery, and Scheme its signature scheme.
	Secret string `json:"secret,omitzero"`
	Scheme string `json:"scheme,omitzero"`
	// ReasonNow is the reason why the delivery stays rejected: a reason of a rejection, or one of
	// truncated (a part of the body is not stored), not_configured (this process has no such
	// source) and not_storable.
	ReasonNow string `json:"reason_now,omitzero"`
	// Events are the delivery's events; empty if it is not verified.
	Events []ReverifiedEvent `json:"events"`

	delivery     events.Delivery
	verification provider.Verification
}

// The reasons why a delivery stays rejected besides those of provider.Reason.
const (
	reasonTruncated     = "truncated"
	reasonNotConfigured = "not_configured"
	reasonNotStorable   = "not_storable"
)

// ReverifiedEvent is an event of a verified delivery.
type ReverifiedEvent struct {
	EventID    string `json:"event_id"`
	EventType  string `json:"event_type"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
}

// Reverify verifies a stored rejection as the ingest endpoint does, and reads its events. It has
// only the stored part of the request: the headers that were allow-listed at that time, and the
// query string where it is signed. An endpoint without a provider stands for a source that is not
// configured. It writes nothing.
func Reverify(ep Endpoint, r *RejectionDetail) (c Reverification) {
	c = Reverification{Rejection: r.Rejection, Events: []ReverifiedEvent{}, ReasonNow: reasonNotStorable}
	defer func() {
		if fault := recover(); fault != nil {
			c.Verified, c.Result = false, fmt.Sprintf("internal error while verifying the delivery: %v", fault)
			c.ReasonNow = reasonNotStorable
		}
	}()
	if ep.Provider == nil {
		c.ReasonNow, c.Result = reasonNotConfigured, fmt.Sprintf("source %s is not in this configuration", r.Source)
		return c
	}
	if r.Truncated {
		c.ReasonNow = reasonTruncated
		c.Result = fmt.Sprintf("only %d of %d bytes of the body were stored (rejections.max_body), so it cannot be "+
			"verified", len(r.Body), r.Bytes)
		return c
	}
	d, err := events.DecodeDelivery(r.Headers, r.Body, r.ReceivedAt.Time)
	if err != nil {
		c.Result = err.Error()
		return c
	}
	a, evs, err := c.verify(ep, d)
	var rejection *provider.Rejection
	switch {
	case errors.As(err, &rejection):
		c.ReasonNow = string(rejection.Reason)
		c.Result = "still rejected: " + string(rejection.Reason) + ": " + events.SanitizeText(rejection.Detail)
	case err != nil:
		c.Result = err.Error()
	default:
		c.Secret, c.Scheme = c.verification.Secret, c.verification.Scheme
		c.Verified, c.ReasonNow, c.Result = true, "", fmt.Sprintf("verified by secret %q (%s)", c.Secret, c.Scheme)
		ep.headers = ep.Provider.Headers()
		c.delivery = toLogDelivery(ep, a.Delivery, c.verification, evs, a.Bodies)
	}
	return c
}

// DropBody releases the memory of the delivery, which Reprocess needs.
func (c *Reverification) DropBody() { c.delivery = events.Delivery{} }

var errHandshake = errors.New("verified, but it is a handshake and has no event: there is nothing to reprocess")

// verify does the same steps as Server.verify. It returns the delivery in the form that is stored.
func (c *Reverification) verify(ep Endpoint, d *provider.Delivery) (a provider.AcceptedDelivery, evs []provider.Event,
	err error) {
	if c.verification, err = ep.Provider.Verify(ep.Config, d); err != nil {
		return a, nil, err
	}
	if g, ok := ep.Provider.(provider.Handshaker); ok && g.Handshake(ep.Config, d) != nil {
		return a, nil, errHandshake
	}
	if a, err = provider.Accept(ep.Provider, ep.Config, d); err != nil {
		return a, nil, err
	}
	if evs, err = ep.Provider.Identify(ep.Config, a.Delivery); err != nil {
		return a, nil, err
	}
	for _, e := range evs {
		c.Events = append(c.Events, ReverifiedEvent{EventID: e.Key, EventType: e.Type, Account: e.Account,
			ObjectType: e.ObjectType, ObjectID: e.ObjectID})
	}
	return a, evs, nil
}

const deleteRejectionSQL = `DELETE FROM rejections WHERE id = $1`

// reprocessTimeout bounds one call of Reprocess.
const reprocessTimeout = 30 * time.Second

// Reprocess appends a verified rejection to the log as the ingest endpoint does, with the original
// time of receipt, and deletes the rejection. The stored verification also names the actor and the
// reason. It returns the receipts.
//
// The rejection's row stays locked until the end. A concurrent redaction waits for it, and then
// finds the event in the log or the rejection in its table. If the process ends between the append
// and the deletion, a second call finds the events (Duplicate), deletes the rejection and writes
// the audit entry. Reprocess does not publish the events; the republisher does. The pool must be
// connected as postern_gateway and have two free connections. Errors: events.ErrNotFound if the
// rejection is no longer stored.
func Reprocess(ctx context.Context, pool *pgxpool.Pool, c *Reverification, actor adminauth.Actor,
	reason string) (receipts []events.Receipt, err error) {
	if !c.Verified {
		return nil, fmt.Errorf("reprocess rejection %d: %w: %s", c.ID, events.ErrInvalid, c.Result)
	}
	d := c.delivery
	d.RejectConflicts = false // the sender has its response already, so a conflicting event is stored as a conflict
	verification := appendVerification(nil, c.verification)
	verification = appendMember(append(verification[:len(verification)-1], ','), "reprocessed_by",
		events.SanitizeText(actor.String()))
	verification = appendMember(append(verification, ','), "reprocessed_reason", events.SanitizeText(reason))
	verification = appendMember(append(verification, ','), "rejection", strconv.FormatInt(c.ID, 10))
	d.Verification = append(verification, '}')
	err = postgres.InTx(ctx, pool, fmt.Sprintf("reprocess rejection %d", c.ID), reprocessTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			deleted, err := tx.Exec(ctx, deleteRejectionSQL, c.ID)
			if err == nil && deleted.RowsAffected() == 0 {
				err = fmt.Errorf("%w: it was redacted, reprocessed or deleted meanwhile", events.ErrNotFound)
			}
			if err != nil {
				return err
			}
			e := adminauth.AuditEntry{Action: "rejections reprocess", Reason: reason,
				Target: fmt.Sprintf("rejection %d of source %s", c.ID, c.Source)}
			if err := adminauth.WriteAudit(ctx, tx, actor, e); err != nil {
				return err
			}
			// Append uses another connection with its own commit; a retry finds its events.
			stored, err := events.Append(ctx, pool, []events.Delivery{d})
			if err == nil {
				receipts = stored[0]
			}
			return err
		})
	if err != nil && receipts != nil {
		return receipts, fmt.Errorf("the delivery is in the log now, but the rejection is not deleted (reprocess it "+
			"again): %w", err)
	}
	return receipts, err
}
