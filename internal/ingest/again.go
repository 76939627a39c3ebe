package ingest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// Checked is a refused delivery that was verified again, with the secrets of now and as of its own time of receipt.
type Checked struct {
	Rejected
	// Proven: the door would take it now.
	Proven bool `json:"proven"`
	// Now says in words by which secret it is proven, or why it is not.
	Now string `json:"now"`
	// Events are what it carries, where it is proven.
	Events []CheckedEvent `json:"events"`

	delivery events.Delivery
	verified provider.Verification
}

// CheckedEvent is an event of a proven delivery.
type CheckedEvent struct {
	EventID    string `json:"event_id"`
	EventType  string `json:"event_type"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
}

// Check verifies a kept rejection as the door does, and names its events. Of the request only what was kept is known: the headers that the provider had
// asked for then, and the query where it is signed. Nothing is written.
func Check(ep Endpoint, r *RejectedDetail) (c Checked) {
	c = Checked{Rejected: r.Rejected, Events: []CheckedEvent{}}
	defer func() {
		if fault := recover(); fault != nil {
			c.Proven, c.Now = false, fmt.Sprintf("a fault of ours while it was read: %v", fault)
		}
	}()
	if r.Cut {
		c.Now = fmt.Sprintf("only %d of %d bytes of the body were kept (rejections.max_body), so nothing can prove it", len(r.Body), r.Bytes)
		return c
	}
	d, err := events.Delivered(r.Headers, r.Body, r.ReceivedAt.Time)
	if err != nil {
		c.Now = err.Error()
		return c
	}
	a, evs, err := c.prove(ep, d)
	var refused *provider.Rejection
	switch {
	case errors.As(err, &refused):
		c.Now = "still refused: " + string(refused.Reason) + ": " + events.Text(refused.Detail)
	case err != nil:
		c.Now = err.Error()
	default:
		c.Proven, c.Now = true, fmt.Sprintf("proven by secret %q (%s)", c.verified.Secret, c.verified.Scheme)
		ep.headers = ep.Provider.Headers()
		c.delivery = toAppend(ep, a.Delivery, c.verified, evs, a.Bodies)
	}
	return c
}

var errGreeting = errors.New("proven, but it is a greeting and no event: there is nothing to release")

// prove goes the way of Server.prove. It returns the delivery as it is stored.
func (c *Checked) prove(ep Endpoint, d *provider.Delivery) (a provider.Accepted, evs []provider.Event, err error) {
	if c.verified, err = ep.Provider.Verify(ep.Config, d); err != nil {
		return a, nil, err
	}
	if g, ok := ep.Provider.(provider.Greeter); ok && g.Greet(ep.Config, d) != nil {
		return a, nil, errGreeting
	}
	if a, err = provider.Accept(ep.Provider, ep.Config, d); err != nil {
		return a, nil, err
	}
	if evs, err = ep.Provider.Identify(ep.Config, a.Delivery); err != nil {
		return a, nil, err
	}
	for _, e := range evs {
		c.Events = append(c.Events, CheckedEvent{EventID: e.Key, EventType: e.Type, Account: e.Account, ObjectType: e.ObjectType, ObjectID: e.ObjectID})
	}
	return a, evs, nil
}

const releasedSQL = `DELETE FROM rejections WHERE id = $1`

// releaseWithin bounds one release.
const releaseWithin = 30 * time.Second

// Release appends a proven rejection to the log as the door would have: under its own time of receipt, with who released it and why beside what proved it; and
// forgets the rejection. It returns the receipts. Whoever looks for the rejection meanwhile, as a redaction does, waits, and then finds it or the log has it. Ended in between, and called
// again, it finds the events stored (Duplicate) and forgets the rejection, which the audit tells then. Whoever appends publishes; here the auditor does. The pool is connected as postern_gateway, and has two connections
// free. Errors: events.ErrNotFound where the rejection is not kept any more.
func Release(ctx context.Context, pool *pgxpool.Pool, c *Checked, by audit.Person, reason string) (receipts []events.Receipt, err error) {
	if !c.Proven {
		return nil, fmt.Errorf("release rejection %d: %w: %s", c.ID, events.ErrInvalid, c.Now)
	}
	d := c.delivery
	d.Exact = false // its sender was answered long ago: what conflicts is kept
	proof := appendVerification(nil, c.verified)
	proof = appendMember(append(proof[:len(proof)-1], ','), "released_by", events.Text(by.String()))
	proof = appendMember(append(proof, ','), "released_because", events.Text(reason))
	proof = appendMember(append(proof, ','), "rejection", strconv.FormatInt(c.ID, 10))
	d.Verification = append(proof, '}')
	err = postgres.InTx(ctx, pool, fmt.Sprintf("release rejection %d", c.ID), releaseWithin, func(ctx context.Context, tx pgx.Tx) error {
		gone, err := tx.Exec(ctx, releasedSQL, c.ID)
		if err == nil && gone.RowsAffected() == 0 {
			err = fmt.Errorf("%w: it was redacted, released or dropped meanwhile", events.ErrNotFound)
		}
		if err != nil {
			return err
		}
		e := audit.Entry{Action: "rejections release", Target: fmt.Sprintf("rejection %d of source %s", c.ID, c.Source), Reason: reason}
		if err := audit.Write(ctx, tx, by, e); err != nil {
			return err
		}
		stored, err := events.Append(ctx, pool, []events.Delivery{d}) // with a commit of its own: what it does is tried again
		if err == nil {
			receipts = stored[0]
		}
		return err
	})
	if err != nil && receipts != nil {
		return receipts, fmt.Errorf("it is in the log now, and the rejection is still kept (release it again): %w", err)
	}
	return receipts, err
}
