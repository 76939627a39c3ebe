package admin

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/versioning"
)

// statuses are those of outcomes.
var statuses = []string{string(versioning.Applied), string(versioning.Unchanged), string(versioning.Stale), string(versioning.Ambiguous),
	string(versioning.Ignored), string(versioning.Failed), string(versioning.Dead)}

var reasons = []string{string(provider.MissingSignature), string(provider.MalformedSignature), string(provider.WrongSignature),
	string(provider.StaleTimestamp), string(provider.FutureTimestamp), string(provider.MissingHeader), string(provider.ForbiddenAccount)}

// The parameters of each list.
var (
	// EventParams choose events.
	EventParams = []Param{sourceParam, accountParam,
		{"type", "event type; * stands for any text: invoice.* (the object's type is object_type)"},
		{"object_type", "type of the object: invoice"},
		{"object_id", "id of the object; with object_type the events that were applied to it"},
		{"key", "the provider's id of the event"},
		{"status", "of the live outcome: pending, " + strings.Join(statuses, ", ")},
		{"origin", "where it came from: webhook, reconcile, hint, import"},
		sinceParam, untilParam,
		{"occurred_since", "from this provider's time on"},
		{"occurred_until", "before this provider's time"},
		limitParam, cursorParam}
	// EventListParams choose events of a list.
	EventListParams = append(slices.Clone(EventParams), Param{"mentions", "an id or e-mail address that stands in the body or headers " +
		"as a whole word, without regard to case; several are separated by commas"})
	// ObjectParams choose objects.
	ObjectParams = []Param{sourceParam, accountParam,
		{"type", "object type: invoice"},
		{"id", "the provider's id of the object"},
		{"object_type", "the same as type, named as in the other lists"},
		{"object_id", "the same as id, named as in the other lists"},
		{"deleted", "true or false"},
		{"ambiguous", "true or false"},
		{"look_owed", "true or false"},
		{"outdated", "true or false"},
		sinceParam, untilParam, limitParam, cursorParam}
	// OutcomeParams choose outcomes.
	OutcomeParams = []Param{sourceParam, accountParam,
		{"object_type", "type of the object"},
		{"object_id", "id of the object"},
		{"event", "our id of the event, or the provider's key"},
		{"status", strings.Join(statuses, ", ")},
		{"run", "0: live"},
		sinceParam, untilParam, limitParam, cursorParam}
	// RejectionParams choose refused deliveries.
	RejectionParams = []Param{sourceParam,
		{"reason", strings.Join(reasons, ", ")},
		sinceParam, untilParam, limitParam, cursorParam}
	// ConflictParams choose conflicts.
	ConflictParams = []Param{sourceParam, accountParam,
		{"type", "event type; * stands for any text"},
		{"key", "the provider's id of the event"},
		sinceParam, untilParam, limitParam, cursorParam}
)

// Events lists events by EventListParams. Errors: events.ErrInvalid.
func Events(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[events.Item], error) {
	q := newQuery(ctx, pool, values, EventListParams)
	f := q.events()
	limit := q.limit()
	var finds []redaction.Find
	if q.values.Has("mentions") && q.err == nil {
		finds, q.err = q.mentionFinds()
	}
	if q.err != nil {
		return events.Page[events.Item]{}, q.err
	}
	if len(finds) == 0 {
		return events.List(ctx, pool, f, q.text("cursor"), limit)
	}
	return mentioning(ctx, pool, f, finds, q.text("cursor"), limit, mentionWithin)
}

// The bounds of what one page of a search for mentions looks at. Bodies may be long, so time is looked at after a few of them.
const (
	mentionEvents = 20_000
	mentionWithin = 2 * time.Second
	mentionAtOnce = 500
	mentionBodies = 25
)

// mentioning returns a page of the events that the filter chooses and that mention a value, the newest first. A page may end
// before its limit, with SearchedTo and a cursor to go on: also once it has searched for so long.
func mentioning(ctx context.Context, pool *pgxpool.Pool, f events.Filter, finds []redaction.Find, cursor string, limit int,
	within time.Duration,
) (events.Page[events.Item], error) {
	var page events.Page[events.Item]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	began := time.Now()
	for looked := 0; ; {
		part, err := events.List(ctx, pool, f, cursor, mentionAtOnce)
		if err != nil {
			return page, err
		}
		for some := range slices.Chunk(part.Items, mentionBodies) {
			found, err := mentionedBy(ctx, pool, finds, some)
			if err != nil {
				return page, err
			}
			last := some[len(some)-1]
			if left := limit - len(page.Items); len(found) >= left {
				found = found[:left]
				last = found[left-1]
			}
			if page.Items = append(page.Items, found...); len(page.Items) == limit || time.Since(began) > within {
				page.Next, page.SearchedTo = events.MakeCursor(last.ID), last.StoredAt
				return page, nil
			}
		}
		if looked += len(part.Items); part.Next == "" {
			return page, nil
		}
		if cursor = part.Next; looked >= mentionEvents || time.Since(began) > within {
			var below int64
			if err := events.ReadCursor(cursor, &below); err != nil {
				return page, err
			}
			page.Next, page.SearchedTo.Time = cursor, events.Time(below)
			return page, nil
		}
	}
}

// mentionedBy returns which of some events mention a value, in their order.
func mentionedBy(ctx context.Context, pool *pgxpool.Pool, finds []redaction.Find, some []events.Item) ([]events.Item, error) {
	ids := make([]int64, len(some))
	for i := range some {
		ids[i] = some[i].ID
	}
	found, err := redaction.Mentioning(ctx, pool, finds, ids)
	return slices.DeleteFunc(slices.Clone(some), func(e events.Item) bool { return !found[e.ID] }), err
}

// events is the filter of EventParams.
func (q *query) events() events.Filter {
	f := events.Filter{Source: q.source(), Account: q.given("account"), Type: q.text("type"), ObjectType: q.text("object_type"), ObjectID: q.text("object_id"),
		Key: q.text("key"), Since: q.time("since"), Until: q.time("until"), OccurredSince: q.time("occurred_since"), OccurredUntil: q.time("occurred_until"),
		Status: q.oneOf("status", append([]string{"pending"}, statuses...)...),
		Origin: q.oneOf("origin", events.OriginWebhook, events.OriginReconcile, events.OriginHint, events.OriginImport)}
	if f.Objects = q.objects(f.Source, f.Account, f.ObjectType, f.ObjectID); f.Objects != nil {
		f.ObjectType, f.ObjectID, f.Account = "", "", nil // the hashes say it; what was read at the door may differ
	}
	return f
}

// objects are the hashes of the objects of a type and id, in the given source and account or in all; nil where either is not given.
func (q *query) objects(source int32, account *string, objectType, id string) []int64 {
	if objectType == "" || id == "" || q.err != nil || q.pool == nil {
		return nil
	}
	known, err := sources(q.ctx, q.pool)
	if err != nil {
		q.err = err
		return nil
	}
	hashes := []int64{}
	for number := range known.Name {
		if source != 0 && source != number {
			continue
		}
		found, err := versioning.FindObjects(q.ctx, q.pool, number, account, objectType, id)
		if err != nil {
			q.err = err
			return nil
		}
		for i := range found {
			hashes = append(hashes, found[i].Key().Hash())
		}
		// An event may have an outcome without any object, dead for one; its account is guessed where it is not given.
		var guess string
		if account != nil {
			guess = *account
		}
		hashes = append(hashes, versioning.ObjectKey(number, guess, objectType, id))
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// Objects lists objects by ObjectParams. Errors: events.ErrInvalid.
func Objects(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[versioning.View], error) {
	q := newQuery(ctx, pool, values, ObjectParams)
	f := versioning.ObjectFilter{Source: q.source(), Account: q.given("account"), Type: q.either("type", "object_type"), ID: q.either("id", "object_id"), Deleted: q.flag("deleted"),
		Ambiguous: q.flag("ambiguous"), LookOwed: q.flag("look_owed"), Outdated: q.flag("outdated"), Since: q.time("since"), Until: q.time("until")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[versioning.View]{}, q.err
	}
	return versioning.ListObjects(ctx, pool, f, q.text("cursor"), limit)
}

// Outcomes lists outcomes by OutcomeParams. Errors: events.ErrInvalid, events.ErrNotFound and *events.SeveralError for the event.
func Outcomes(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[events.Outcome], error) {
	q := newQuery(ctx, pool, values, OutcomeParams)
	f := processor.OutcomeFilter{Source: q.source(), Account: q.given("account"), ObjectType: q.text("object_type"), ObjectID: q.text("object_id"),
		Status: q.oneOf("status", statuses...), Since: q.time("since"), Until: q.time("until")}
	if q.text("run") != "" {
		f.Run = new(q.number("run"))
	}
	limit := q.limit()
	if event := q.text("event"); event != "" && q.err == nil {
		f.Event, q.err = events.Find(ctx, pool, event, f.Source)
	}
	f.Objects = q.objects(f.Source, f.Account, f.ObjectType, f.ObjectID)
	if q.err != nil {
		return events.Page[events.Outcome]{}, q.err
	}
	return processor.ListOutcomes(ctx, pool, f, q.text("cursor"), limit)
}

// Rejections lists refused deliveries by RejectionParams. Errors: events.ErrInvalid.
func Rejections(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[ingest.Rejected], error) {
	q := newQuery(ctx, pool, values, RejectionParams)
	f := ingest.RejectionFilter{Source: q.source(), Reason: q.oneOf("reason", reasons...), Since: q.time("since"), Until: q.time("until")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[ingest.Rejected]{}, q.err
	}
	return ingest.ListRejections(ctx, pool, f, q.text("cursor"), limit)
}

// Conflicts lists conflicts by ConflictParams. Errors: events.ErrInvalid.
func Conflicts(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[events.Conflict], error) {
	q := newQuery(ctx, pool, values, ConflictParams)
	f := events.ConflictFilter{Source: q.source(), Account: q.given("account"), Type: q.text("type"), Key: q.text("key"),
		Since: q.time("since"), Until: q.time("until")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[events.Conflict]{}, q.err
	}
	return events.ListConflicts(ctx, pool, f, q.text("cursor"), limit)
}

// Event shows one event by our id or the provider's key; a source's name narrows the search for a key.
// Errors: events.ErrNotFound, *events.SeveralError, events.ErrInvalid.
func Event(ctx context.Context, pool *pgxpool.Pool, arg string, values url.Values) (*events.Life, error) {
	q := newQuery(ctx, pool, values, []Param{sourceParam})
	source := q.source()
	if q.err != nil {
		return nil, q.err
	}
	return events.Show(ctx, pool, arg, source)
}

// SeveralObjectsError: the object is not named fully; several accounts have it.
type SeveralObjectsError struct{ Matches []versioning.View }

func (e *SeveralObjectsError) Error() string {
	var accounts []string
	for i := range e.Matches {
		accounts = append(accounts, fmt.Sprintf("%q", e.Matches[i].Account))
	}
	return fmt.Sprintf("%d accounts have this object: name one of %s as account", len(e.Matches), strings.Join(accounts, ", "))
}

// Object shows one object; the parameter account tells those of several tenants apart.
// Errors: events.ErrNotFound, *SeveralObjectsError, events.ErrInvalid.
func Object(ctx context.Context, pool *pgxpool.Pool, source, objectType, id string, values url.Values) (*versioning.View, error) {
	q := newQuery(ctx, pool, values, []Param{accountParam})
	known, err := sources(ctx, pool)
	if err == nil {
		err = q.err
	}
	if err != nil {
		return nil, err
	}
	number, ok := known.Number[source]
	if !ok {
		return nil, fmt.Errorf("source %s: %w: known are %s", source, events.ErrNotFound, sourceNames(known))
	}
	found, err := versioning.FindObjects(ctx, pool, number, q.given("account"), objectType, id)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, fmt.Errorf("object %s %s of source %s: %w", objectType, id, source, events.ErrNotFound)
	case len(found) > 1:
		return nil, &SeveralObjectsError{Matches: found}
	}
	return &found[0], nil
}
