package operations

import (
	"context"
	"fmt"
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

// RedactParams select what is redacted, by exactly one selector: an event, an object, everything
// that mentions a person, a value at a path in a source's bodies, or a sender's deletion request. A
// selector that is given but empty selects nothing.
type RedactParams struct {
	Source     string  `json:"source,omitzero"`
	Account    *string `json:"account,omitzero"`
	Event      *string `json:"event,omitzero"`
	ObjectType string  `json:"object_type,omitzero"`
	Object     *string `json:"object,omitzero"`
	Mentions   *string `json:"mentions,omitzero"`
	Include    string  `json:"include,omitzero"`
	Path       *string `json:"path,omitzero"`
	Value      *string `json:"value,omitzero"`
	FromEvent  *string `json:"from_event,omitzero"`
	Answers    string  `json:"answers,omitzero"`
	Reason     string  `json:"reason,omitzero"`
}

// redactSelectors are the selectors, with the parameters that each allows. A reason is always
// allowed.
var redactSelectors = map[string][]string{
	"event":      {"source", "answers"},
	"object":     {"source", "account", "object_type", "answers"},
	"mentions":   {"source", "account", "include", "answers"},
	"path":       {"source", "account", "value", "answers"},
	"from_event": {},
}

// selector returns the selector among the given parameters. It rejects parameters without an
// effect, because the operator probably meant them as a limit.
func (p *RedactParams) selector(given map[string]string) (selector string, err error) {
	for name := range redactSelectors {
		switch _, has := given[name]; {
		case !has:
		case selector != "":
			return "", invalid("use one selector, not both %s and %s", min(selector, name), max(selector, name))
		default:
			selector = name
		}
	}
	if selector == "" {
		return "", invalid("select what to redact: an event, an object with its object_type and source, mentions of " +
			"a person, a path with its value and source, or from_event")
	}
	for _, param := range Params(p) {
		if _, has := given[param.Name]; has && param.Name != selector && param.Name != "reason" &&
			!slices.Contains(redactSelectors[selector], param.Name) {
			return "", invalid("%s has no effect together with %s: leave it out", param.Name, selector)
		}
	}
	return selector, nil
}

// Redaction returns the parameters of the job. It also returns the deletion request that from_event
// names, else nil. Errors: events.ErrInvalid, events.ErrNotFound, *events.AmbiguousKeyError,
// *SeveralObjectsError.
func (p *RedactParams) Redaction(ctx context.Context, pool *pgxpool.Pool) (*redaction.Params, *redaction.Request,
	error) {
	given := Texts(p)
	selector, err := p.selector(given)
	if err != nil {
		return nil, nil, err
	}
	o := &redaction.Params{Description: map[string]string{}}
	for _, name := range []string{"source", "account", "event", "object_type", "include", "path", "answers"} {
		if text, ok := given[name]; ok {
			o.Description[name] = text
		}
	}
	if o.RequestedBy, err = eventID("answers", p.Answers); err != nil {
		return nil, nil, err
	}
	source, err := sourceNumber(ctx, pool, p.Source)
	if err != nil {
		return nil, nil, err
	}
	switch selector {
	case "from_event":
		request, err := eventID("from_event", *p.FromEvent)
		if err != nil {
			return nil, nil, err
		}
		return redaction.ParamsOfRequest(ctx, pool, request)
	case "event":
		o.Events = make([]int64, 1)
		o.Events[0], err = events.Find(ctx, pool, *p.Event, source)
	case "object":
		o.Objects = make([]redaction.Object, 1)
		o.Objects[0], err = p.object(ctx, pool, source)
		o.Description["object"] = redaction.AuditName(o.Objects[0].ID)
	case "mentions":
		o.Source, o.Account, o.Include = source, p.Account, split(p.Include)
		err = p.readMentions(ctx, pool, o)
	case "path":
		o.Source, o.Account = source, p.Account
		o.Matchers = make([]redaction.ValueMatcher, 1)
		o.Matchers[0], err = p.pathMatcher(source)
	}
	return o, nil, err
}

// eventID reads one of Postern's event ids; 0 where none is given.
func eventID(name, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	id, ok := events.ParseID(text)
	if !ok {
		return 0, invalid("%s: %q is not an event id of Postern", name, text)
	}
	return id, nil
}

// object returns the named object. An object that is not in the mirror may still have events. Its
// account must be given, because the events depend on it.
func (p *RedactParams) object(ctx context.Context, pool *pgxpool.Pool, source int32) (redaction.Object, error) {
	one := redaction.Object{Source: source, Type: p.ObjectType, ID: *p.Object}
	if p.Account != nil {
		one.Account = *p.Account
	}
	if one.Source == 0 || one.Type == "" || one.ID == "" {
		return one, invalid("an object needs source and object_type: add both")
	}
	found, err := versioning.FindObjects(ctx, pool, one.Source, p.Account, one.Type, one.ID)
	switch {
	case err != nil:
		return one, err
	case len(found) > 1:
		return one, &SeveralObjectsError{Matches: found}
	case len(found) == 1:
		one.Account = found[0].Account
	case p.Account == nil:
		return one, invalid("object %s %s of this source is not in the mirror: check type and id. If the log has its "+
			"events, add its account (--account; empty if the events have none)", one.Type, one.ID)
	}
	return one, nil
}

// readMentions adds the values to search for to the parameters of a redaction. The stored
// parameters name them by id or digest.
func (p *RedactParams) readMentions(ctx context.Context, pool *pgxpool.Pool, o *redaction.Params) error {
	var err error
	if o.Matchers, err = mentionMatchers(*p.Mentions); err != nil {
		return err
	}
	values := split(*p.Mentions)
	sources, err := redaction.Sources(ctx, pool)
	if o.Source != 0 {
		sources = []int32{o.Source}
	}
	if err == nil {
		o.Persons, err = redaction.PersonIdentifiersOf(ctx, pool, sources, values)
	}
	if err != nil {
		return err
	}
	var names []string
	for i, value := range values {
		name := o.Persons.AuditName(value)
		if name != value && o.Matchers[i].OccursIn(p.Reason) {
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

// pathMatcher returns the matcher for the value at a path.
func (p *RedactParams) pathMatcher(source int32) (redaction.ValueMatcher, error) {
	if source == 0 {
		return redaction.ValueMatcher{}, invalid("name the source whose log is searched")
	}
	var value string
	if p.Value != nil {
		value = *p.Value
	}
	f, err := redaction.NewValueMatcher(*p.Path, value)
	if err == nil && redaction.AuditName(value) != value && f.OccursIn(p.Reason) {
		err = errReasonNamesPerson
	}
	return f, err
}

// Redact queues a redaction. A running processor executes it. A reason is required. It returns the
// run's number. Errors: events.ErrInvalid.
func Redact(ctx context.Context, pool *pgxpool.Pool, o *redaction.Params, reason string, expected int64,
	by Requester) (run int64, err error) {
	if reason == "" {
		return 0, invalid("give a reason: only the reason is kept after the redaction")
	}
	return change(ctx, pool, by, "redact", reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (int64, error) {
		e.Target = encode(o.Description) // it names a person by an id or a digest only
		e.Run, err = runs.CreateInTx(ctx, tx, runs.Request{Job: redaction.Job, Params: o, Actor: by.String(),
			Reason: reason, Expected: expected})
		return e.Run, err
	})
}

// MarkAnswered returns the parameters of a redaction that marks a deletion request as answered, and
// redacts only that request. The request names the person. Other redactions of that person keep it
// until it is answered.
func MarkAnswered(request int64) *redaction.Params {
	return &redaction.Params{RequestedBy: request, Events: []int64{request},
		Description: map[string]string{"answered": strconv.FormatInt(request, 10)}}
}
