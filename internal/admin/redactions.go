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

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

var (
	// RedactParams choose what is redacted, in one way: an event, an object, all that mentions a person, a value at a path of a
	// source's bodies, or what a sender asks for.
	RedactParams = []Param{sourceParam, accountParam,
		{"event", "our id of the event, or the provider's key; it goes with all of its delivery"},
		{"object_type", "type of the object"},
		{"object", "the provider's id of the object; it goes with all events about it"},
		{"mentions", "ids and e-mail addresses of a person, separated by commas: all that mentions one of them goes, of all sources " +
			"unless one is named; - reads them from standard input, so that no history has them"},
		{"include", "with mentions: types of objects, separated by commas, that go although they name another person too"},
		{"path", "where the value lies in bodies: $.customer.email, $.orders[*].email"},
		{"value", "the value at the path, without regard to case; - reads it from standard input, so that no history has it"},
		{"from_event", "our id of an event by which the sender asks for it (Shopify's customers/redact, shop/redact, customers/data_request)"},
		{"answers", "our id of such an event that this is the answer to"},
		{"reason", "why; kept in the audit"}}

	// RedactionParams choose a page of the audit.
	RedactionParams = []Param{limitParam, cursorParam}
)

// redactWays are the ways to choose, and what says something beside each; a reason always does.
var redactWays = map[string][]string{
	"event":      {"source", "answers"},
	"object":     {"source", "account", "object_type", "answers"},
	"mentions":   {"source", "account", "include", "answers"},
	"path":       {"source", "account", "value", "answers"},
	"from_event": {},
}

// redactWay is the one way that is given. What would say nothing beside it is refused, since whoever gave it took it for a limit.
func (q *query) redactWay() (way string) {
	for name := range redactWays {
		switch {
		case !q.values.Has(name):
		case way != "":
			q.fail("say what in one way, not by %s and by %s", min(way, name), max(way, name))
		default:
			way = name
		}
	}
	if way == "" {
		q.fail("say what: an event, an object with its object_type and source, mentions of a person, a path with its value and source, or from_event")
		return ""
	}
	for _, p := range RedactParams {
		if q.values.Has(p.Name) && p.Name != way && p.Name != "reason" && !slices.Contains(redactWays[way], p.Name) {
			q.fail("%s says nothing beside %s: leave it out", p.Name, way)
		}
	}
	return way
}

// PlanRedaction reads RedactParams; the request is that of from_event, else nil. Errors: events.ErrInvalid, events.ErrNotFound, *events.SeveralError, *SeveralObjectsError.
func PlanRedaction(ctx context.Context, pool *pgxpool.Pool, values url.Values) (*redaction.Order, *redaction.Request, error) {
	q := newQuery(ctx, pool, values, RedactParams)
	way := q.redactWay()
	o := &redaction.Order{RequestedBy: q.event("answers"), Words: map[string]string{}}
	for _, word := range []string{"source", "account", "event", "object_type", "include", "path", "answers"} {
		if values.Has(word) {
			o.Words[word] = values.Get(word)
		}
	}
	source, request := q.source(), q.event("from_event")
	if q.err != nil {
		return nil, nil, q.err
	}
	var err error
	switch way {
	case "from_event":
		return redaction.FromRequest(ctx, pool, request)
	case "event":
		o.Events = make([]int64, 1)
		o.Events[0], err = events.Find(ctx, pool, q.text("event"), source)
	case "object":
		o.Objects = make([]redaction.Object, 1)
		o.Objects[0], err = q.oneObject(source)
		o.Words["object"] = redaction.NameOf(o.Objects[0].ID)
	case "mentions":
		o.Source, o.Account, o.Include = source, q.given("account"), split(q.text("include"))
		err = q.mentions(o)
	case "path":
		o.Source, o.Account = source, q.given("account")
		o.Finds = make([]redaction.Find, 1)
		o.Finds[0], err = q.oneFind(source)
	}
	return o, nil, err
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

// oneObject is the object that is named. One that no row has may have events all the same; which they are depends on the account, so that is not guessed.
func (q *query) oneObject(source int32) (redaction.Object, error) {
	one := redaction.Object{Source: source, Account: q.text("account"), Type: q.text("object_type"), ID: q.text("object")}
	if one.Source == 0 || one.Type == "" || one.ID == "" {
		q.fail("an object needs its source and object_type")
		return one, q.err
	}
	found, err := versioning.FindObjects(q.ctx, q.pool, one.Source, q.given("account"), one.Type, one.ID)
	switch {
	case err != nil:
		return one, err
	case len(found) > 1:
		return one, &SeveralObjectsError{Matches: found}
	case len(found) == 1:
		one.Account = found[0].Account
	case !q.values.Has("account"):
		q.fail("no object %s %s of this source in the mirror, so its account is not known: name it as account, empty where the source has none", one.Type, one.ID)
	}
	return one, q.err
}

// split returns the parts of a list that commas or lines separate.
func split(list string) (parts []string) {
	for part := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == '\n' }) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// mentions makes an order of the values that are looked for. Its words name them by id or digest.
func (q *query) mentions(o *redaction.Order) error {
	var err error
	if o.Finds, err = q.mentionFinds(); err != nil {
		return err
	}
	values := split(q.text("mentions"))
	sources, err := redaction.Sources(q.ctx, q.pool)
	if o.Source != 0 {
		sources = []int32{o.Source}
	}
	if err == nil {
		o.People, err = redaction.PeopleOf(q.ctx, q.pool, sources, values)
	}
	if err != nil {
		return err
	}
	var names []string
	for i, value := range values {
		name := o.People.NameOf(value)
		if name != value && o.Finds[i].StandsIn(q.values.Get("reason")) {
			return errReason
		}
		names = append(names, name)
	}
	o.Words["mentions"] = strings.Join(names, ",")
	return nil
}

// errReason: an id may stand in the reason, as it does in the audit.
var errReason = fmt.Errorf("%w: the reason names what is to be forgotten, and is kept for good: name a ticket instead", events.ErrInvalid)

// mentionFinds are the finds of the values of mentions.
func (q *query) mentionFinds() (finds []redaction.Find, err error) {
	values := split(q.text("mentions"))
	if len(values) == 0 || len(values) > redaction.MaxMentions {
		q.fail("mentions: give 1 to %d values", redaction.MaxMentions)
		return nil, q.err
	}
	for _, value := range values {
		f, err := redaction.NewMention(value)
		if err != nil {
			return nil, err
		}
		finds = append(finds, f)
	}
	return finds, nil
}

// oneFind is the value that is looked for.
func (q *query) oneFind(source int32) (redaction.Find, error) {
	if source == 0 {
		q.fail("name the source whose log is looked through")
		return redaction.Find{}, q.err
	}
	f, err := redaction.NewFind(q.text("path"), q.values.Get("value"))
	if err == nil && redaction.NameOf(q.values.Get("value")) != q.values.Get("value") && f.StandsIn(q.values.Get("reason")) {
		err = errReason
	}
	return f, err
}

// Redact enters a redaction into the ledger; a running processor carries it out. by must have a reason. It returns the run's number. Errors: events.ErrInvalid.
func Redact(ctx context.Context, pool *pgxpool.Pool, o *redaction.Order, by By, expected int64) (run int64, err error) {
	if by.Reason == "" {
		return 0, fmt.Errorf("%w: say why with a reason: it is all that will be left", events.ErrInvalid)
	}
	return change(ctx, pool, by, "redact", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (int64, error) {
		words := url.Values{} // which name a person by an id or a digest
		for name, word := range o.Words {
			words.Set(name, word)
		}
		e.Target = words.Encode()
		e.Run, err = runs.AskIn(ctx, tx, runs.Order{Job: redaction.Job, Asked: o, Who: by.String(), Reason: by.Reason, Expected: expected})
		return e.Run, err
	})
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
