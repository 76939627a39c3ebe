package admin

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

var (
	// RedactParams select what is redacted, by exactly one selector: an event, an object,
	// everything that mentions a person, a value at a path in a source's bodies, or a sender's
	// deletion request.
	RedactParams = []Param{sourceParam, accountParam,
		{"event", "Postern's id of the event, or the provider's key; all events of its delivery are redacted too"},
		{"object_type", "type of the object"},
		{"object", "the provider's id of the object; all events about it are redacted too"},
		{"mentions", "ids and e-mail addresses of a person, separated by commas: everything that mentions one of " +
			"them is redacted, in all sources unless one is named; - reads them from standard input, so that no " +
			"shell history contains them"},
		{"include", "with mentions: types of objects, separated by commas, that are redacted although they name " +
			"another person too"},
		{"path", "path of the value in bodies: $.customer.email, $.orders[*].email"},
		{"value", "the value at the path, in upper or lower case; - reads it from standard input, so that no shell " +
			"history contains it"},
		{"from_event", "Postern's id of a sender's deletion request (Shopify's customers/redact, shop/redact, " +
			"customers/data_request)"},
		{"answers", "Postern's id of the deletion request that this redaction answers"},
		{"reason", "reason; stored in the audit"}}

	// RedactionParams select a page of past redactions.
	RedactionParams = []Param{limitParam, cursorParam}
)

// redactSelectors are the selectors, with the parameters that each allows. A reason is always
// allowed.
var redactSelectors = map[string][]string{
	"event":      {"source", "answers"},
	"object":     {"source", "account", "object_type", "answers"},
	"mentions":   {"source", "account", "include", "answers"},
	"path":       {"source", "account", "value", "answers"},
	"from_event": {},
}

// redactSelector returns the given selector. It rejects parameters without an effect, because the
// operator probably meant them as a limit.
func (q *query) redactSelector() (selector string) {
	for name := range redactSelectors {
		switch {
		case !q.values.Has(name):
		case selector != "":
			q.fail("use one selector, not both %s and %s", min(selector, name), max(selector, name))
		default:
			selector = name
		}
	}
	if selector == "" {
		q.fail("select what to redact: an event, an object with its object_type and source, mentions of a person, a " +
			"path with its value and source, or from_event")
		return ""
	}
	for _, p := range RedactParams {
		if q.values.Has(p.Name) && p.Name != selector && p.Name != "reason" &&
			!slices.Contains(redactSelectors[selector], p.Name) {
			q.fail("%s has no effect together with %s: leave it out", p.Name, selector)
		}
	}
	return selector
}

// ParseRedaction reads RedactParams. It also returns the deletion request that from_event names,
// else nil. Errors: events.ErrInvalid, events.ErrNotFound, *events.AmbiguousKeyError,
// *SeveralObjectsError.
func ParseRedaction(ctx context.Context, pool *pgxpool.Pool, values url.Values) (*redaction.Params, *redaction.Request,
	error) {
	q := newQuery(ctx, pool, values, RedactParams)
	selector := q.redactSelector()
	o := &redaction.Params{RequestedBy: q.eventID("answers"), Description: map[string]string{}}
	for _, name := range []string{"source", "account", "event", "object_type", "include", "path", "answers"} {
		if values.Has(name) {
			o.Description[name] = values.Get(name)
		}
	}
	source, request := q.source(), q.eventID("from_event")
	if q.err != nil {
		return nil, nil, q.err
	}
	var err error
	switch selector {
	case "from_event":
		return redaction.ParamsOfRequest(ctx, pool, request)
	case "event":
		o.Events = make([]int64, 1)
		o.Events[0], err = events.Find(ctx, pool, q.text("event"), source)
	case "object":
		o.Objects = make([]redaction.Object, 1)
		o.Objects[0], err = q.objectToRedact(source)
		o.Description["object"] = redaction.AuditName(o.Objects[0].ID)
	case "mentions":
		o.Source, o.Account, o.Include = source, q.optional("account"), split(q.text("include"))
		err = q.readMentions(o)
	case "path":
		o.Source, o.Account = source, q.optional("account")
		o.Matchers = make([]redaction.ValueMatcher, 1)
		o.Matchers[0], err = q.pathMatcher(source)
	}
	return o, nil, err
}

// eventID reads one of Postern's event ids.
func (q *query) eventID(name string) int64 {
	text := q.text(name)
	if text == "" {
		return 0
	}
	id, ok := events.ParseID(text)
	if !ok {
		q.fail("%s: %q is not an event id of Postern", name, text)
	}
	return id
}

// objectToRedact returns the named object. An object that is not in the mirror may still have
// events. Its account must be given, because the events depend on it.
func (q *query) objectToRedact(source int32) (redaction.Object, error) {
	one := redaction.Object{Source: source, Account: q.text("account"), Type: q.text("object_type"),
		ID: q.text("object")}
	if one.Source == 0 || one.Type == "" || one.ID == "" {
		q.fail("an object needs source and object_type: add both")
		return one, q.err
	}
	found, err := versioning.FindObjects(q.ctx, q.pool, one.Source, q.optional("account"), one.Type, one.ID)
	switch {
	case err != nil:
		return one, err
	case len(found) > 1:
		return one, &SeveralObjectsError{Matches: found}
	case len(found) == 1:
		one.Account = found[0].Account
	case !q.values.Has("account"):
		q.fail("object %s %s of this source is not in the mirror, so its account is unknown: give account, empty "+
			"where the source has none", one.Type, one.ID)
	}
	return one, q.err
}

// split splits a list at commas and line breaks.
func split(list string) (parts []string) {
	for part := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == '\n' }) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// readMentions adds the values to search for to the parameters of a redaction. The stored
// parameters name them by id or digest.
func (q *query) readMentions(o *redaction.Params) error {
	var err error
	if o.Matchers, err = q.mentionMatchers(); err != nil {
		return err
	}
	values := split(q.text("mentions"))
	sources, err := redaction.Sources(q.ctx, q.pool)
	if o.Source != 0 {
		sources = []int32{o.Source}
	}
	if err == nil {
		o.Persons, err = redaction.PersonIdentifiersOf(q.ctx, q.pool, sources, values)
	}
	if err != nil {
		return err
	}
	var names []string
	for i, value := range values {
		name := o.Persons.AuditName(value)
		if name != value && o.Matchers[i].OccursIn(q.values.Get("reason")) {
			return errReasonNamesPerson
		}
		names = append(names, name)
	}
	o.Description["mentions"] = strings.Join(names, ",")
	return nil
}

// errReasonNamesPerson is the error for a reason that contains a personal value. An id is allowed
// there, as in the audit.
var errReasonNamesPerson = fmt.Errorf("%w: the reason contains the personal data to be redacted, but it is stored "+
	"permanently: name a ticket instead", events.ErrInvalid)

// mentionMatchers returns a matcher for each value of mentions.
func (q *query) mentionMatchers() (matchers []redaction.ValueMatcher, err error) {
	values := split(q.text("mentions"))
	if len(values) == 0 || len(values) > redaction.MaxMentions {
		q.fail("mentions: give 1 to %d values", redaction.MaxMentions)
		return nil, q.err
	}
	for _, value := range values {
		f, err := redaction.NewMentionMatcher(value)
		if err != nil {
			return nil, err
		}
		matchers = append(matchers, f)
	}
	return matchers, nil
}

// pathMatcher returns the matcher for the value at a path.
func (q *query) pathMatcher(source int32) (redaction.ValueMatcher, error) {
	if source == 0 {
		q.fail("name the source whose log is searched")
		return redaction.ValueMatcher{}, q.err
	}
	f, err := redaction.NewValueMatcher(q.text("path"), q.values.Get("value"))
	if err == nil && redaction.AuditName(q.values.Get("value")) != q.values.Get("value") &&
		f.OccursIn(q.values.Get("reason")) {
		err = errReasonNamesPerson
	}
	return f, err
}

// Redact queues a redaction. A running processor executes it. by must have a reason. It returns the
// run's number. Errors: events.ErrInvalid.
func Redact(ctx context.Context, pool *pgxpool.Pool, o *redaction.Params, by Requester, expected int64) (run int64,
	err error) {
	if by.Reason == "" {
		return 0, fmt.Errorf("%w: give a reason: only the reason is kept after the redaction", events.ErrInvalid)
	}
	return change(ctx, pool, by, "redact", func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (int64,
		error) {
		target := url.Values{} // it names a person by an id or a digest only
		for name, value := range o.Description {
			target.Set(name, value)
		}
		e.Target = target.Encode()
		e.Run, err = runs.CreateInTx(ctx, tx, runs.Request{Job: redaction.Job, Params: o, Actor: by.String(),
			Reason:   by.Reason,
			Expected: expected})
		return e.Run, err
	})
}

// Redactions lists past redactions by RedactionParams. Errors: events.ErrInvalid.
func Redactions(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[redaction.AuditEntry], error) {
	q := newQuery(ctx, pool, values, RedactionParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[redaction.AuditEntry]{}, q.err
	}
	return redaction.List(ctx, pool, q.text("cursor"), limit)
}

// MarkAnswered returns the parameters of a redaction that marks a deletion request as answered, and
// redacts only that request. The request names the person. Other redactions of that person keep it
// until it is answered.
func MarkAnswered(request int64) *redaction.Params {
	return &redaction.Params{RequestedBy: request, Events: []int64{request},
		Description: map[string]string{"answered": strconv.FormatInt(request, 10)}}
}
