package admin

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

var (
	// RedactParams choose what is redacted, in one of three ways: an event, an object, or a value at a path of a source's bodies.
	RedactParams = []Param{sourceParam, accountParam,
		{"event", "our id of the event, or the provider's key; it goes with all of its delivery"},
		{"object_type", "type of the object"},
		{"object", "the provider's id of the object; it goes with all events about it"},
		{"path", "where the value lies in bodies: $.customer.email, $.orders[*].email"},
		{"value", "the value at the path, without regard to case; - reads it from standard input, so that no history has it"},
		{"from_event", "our id of an event by which the sender asks for it (Shopify's customers/redact, shop/redact, customers/data_request)"},
		{"answers", "our id of such an event that this is the answer to"},
		{"reason", "why; kept in the audit"}}

	// RedactionParams choose a page of the audit.
	RedactionParams = []Param{limitParam, cursorParam}
)

// PlanRedaction reads RedactParams; the request is that of from_event, else nil. Errors: events.ErrInvalid, events.ErrNotFound, *events.SeveralError.
func PlanRedaction(ctx context.Context, pool *pgxpool.Pool, values url.Values) (*redaction.Order, *redaction.Request, error) {
	q := newQuery(ctx, pool, values, RedactParams)
	o := &redaction.Order{Source: q.source(), Account: q.text("account"), RequestedBy: q.event("answers"), Words: map[string]string{}}
	for _, word := range []string{"source", "account", "event", "object_type", "path", "from_event", "answers"} {
		if values.Has(word) {
			o.Words[word] = values.Get(word)
		}
	}
	event, object, path := values.Has("event"), values.Has("object"), values.Has("path")
	switch {
	case q.err != nil:
		return nil, nil, q.err
	case values.Has("from_event"):
		if event || object || path {
			q.fail("from_event says what to redact: leave out event, object and path")
			return nil, nil, q.err
		}
		id := q.event("from_event")
		if q.err != nil {
			return nil, nil, q.err
		}
		return redaction.FromRequest(ctx, pool, id)
	case event && !object && !path:
		id, err := events.Find(ctx, pool, q.text("event"), o.Source)
		o.Events, o.Source = []int64{id}, 0
		return o, nil, err
	case object && !event && !path:
		err := q.oneObject(o)
		return o, nil, err
	case path && !event && !object:
		if o.Source == 0 {
			q.fail("name the source whose log is looked through")
			return nil, nil, q.err
		}
		f, err := redaction.NewFind(q.text("path"), values.Get("value"))
		o.Finds = []redaction.Find{f}
		return o, nil, err
	}
	q.fail("say what: an event, an object with its object_type and source, or a path with its value and source")
	return nil, nil, q.err
}

// event reads one of our ids.
func (q *query) event(name string) int64 {
	text := q.text(name)
	if text == "" {
		return 0
	}
	id, ok := events.ParseID(text)
	if !ok {
		q.fail("%s: %q is none of our ids", name, text)
	}
	return id
}

// oneObject puts the object that is named into an order.
func (q *query) oneObject(o *redaction.Order) error {
	one := redaction.Object{Source: o.Source, Account: o.Account, Type: q.text("object_type"), ID: q.text("object")}
	if one.Source == 0 || one.Type == "" || one.ID == "" {
		q.fail("an object needs its source and object_type")
		return q.err
	}
	found, err := versioning.FindObjects(q.ctx, q.pool, one.Source, q.given("account"), one.Type, one.ID)
	switch {
	case err != nil:
		return err
	case len(found) > 1:
		return &SeveralObjectsError{Matches: found}
	case len(found) == 1:
		one.Account = found[0].Account
	}
	o.Objects, o.Source, o.Account = []redaction.Object{one}, 0, ""
	return nil
}

// Redact enters a redaction into the ledger; a running processor carries it out. A reason must be given. It returns the run's number. Errors: events.ErrInvalid.
func Redact(ctx context.Context, pool *pgxpool.Pool, o *redaction.Order, who, reason string, expected int64) (run int64, err error) {
	if reason == "" {
		return 0, fmt.Errorf("%w: say why with a reason: it is all that will be left", events.ErrInvalid)
	}
	return runs.Ask(ctx, pool, runs.Order{Job: redaction.Job, Asked: o, Who: who, Reason: reason, Expected: expected})
}

// Redactions lists the audit by RedactionParams. Errors: events.ErrInvalid.
func Redactions(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[redaction.Done], error) {
	q := newQuery(ctx, pool, values, RedactionParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[redaction.Done]{}, q.err
	}
	return redaction.List(ctx, pool, q.text("cursor"), limit)
}

// Told is an order that marks a request as answered and clears it, and nothing else: it names the person, and what else redacts that person leaves it as long as it is not answered.
func Told(request int64) *redaction.Order {
	return &redaction.Order{RequestedBy: request, Events: []int64{request}, Words: map[string]string{"answered": strconv.FormatInt(request, 10)}}
}
