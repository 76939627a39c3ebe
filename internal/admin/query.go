package admin

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/versioning"
)

// statuses are the statuses of outcomes.
var statuses = []string{string(versioning.Applied), string(versioning.Unchanged), string(versioning.Stale),
	string(versioning.Ambiguous),
	string(versioning.Ignored), string(versioning.Failed), string(versioning.Dead)}

var reasons = []string{string(provider.MissingSignature), string(provider.MalformedSignature),
	string(provider.WrongSignature),
	string(provider.StaleTimestamp), string(provider.FutureTimestamp), string(provider.MissingHeader),
	string(provider.ForbiddenAccount)}

// The parameters of each list.
var (
	// EventParams select events.
	EventParams = []Param{sourceParam, accountParam,
		{"type", "event type; * stands for any text: invoice.* (not the type of the object)"},
		{"object_type", "type of the object: invoice"},
		{"object_id", "id of the object; if the object type is given too: the events that were applied to it"},
		{"key", "the provider's id of the event"},
		{"status", "status of the live outcome: pending, " + strings.Join(statuses, ", ")},
		{"origin", "origin of the event: webhook, reconcile, import"},
		sinceParam, untilParam,
		{"occurred_since", "from this time of the provider on"},
		{"occurred_until", "before this time of the provider"},
		limitParam, cursorParam}
	// EventListParams select events of a list.
	EventListParams = append(slices.Clone(EventParams),
		Param{"mentions", "an id or e-mail address that the body or headers contain " +
			"as a whole word, in upper or lower case; separate several by commas"})
	// ObjectParams select objects.
	ObjectParams = []Param{sourceParam, accountParam,
		{"type", "object type: invoice"},
		{"id", "the provider's id of the object"},
		{"object_type", "the same as type, named as in the other lists"},
		{"object_id", "the same as id, named as in the other lists"},
		{"deleted", "true or false"},
		{"ambiguous", "true or false"},
		{"refetch_pending", "true or false"},
		{"outdated", "true or false"},
		sinceParam, untilParam, limitParam, cursorParam}
	// OutcomeParams select outcomes.
	OutcomeParams = []Param{sourceParam, accountParam,
		{"object_type", "type of the object"},
		{"object_id", "id of the object"},
		{"event", "Postern's id of the event, or the provider's key"},
		{"status", strings.Join(statuses, ", ")},
		{"run", "number of the run, or " + events.LiveRunName + ": events that are applied as they arrive"},
		sinceParam, untilParam, limitParam, cursorParam}
	// RejectionParams select rejected deliveries.
	RejectionParams = []Param{sourceParam,
		{"reason", strings.Join(reasons, ", ")},
		sinceParam, untilParam, limitParam, cursorParam}
	// ConflictParams select conflicts.
	ConflictParams = []Param{sourceParam, accountParam,
		{"type", "event type; * stands for any text"},
		{"key", "the provider's id of the event"},
		sinceParam, untilParam, limitParam, cursorParam}
)

// Events lists events by EventListParams. Errors: events.ErrInvalid.
func Events(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[events.Item], error) {
	q := newQuery(ctx, pool, values, EventListParams)
	f := q.eventFilter()
	limit := q.limit()
	var matchers []redaction.ValueMatcher
	if q.values.Has("mentions") && q.err == nil {
		matchers, q.err = q.mentionMatchers()
	}
	if q.err != nil {
		return events.Page[events.Item]{}, q.err
	}
	if len(matchers) == 0 {
		return events.List(ctx, pool, f, q.text("cursor"), limit)
	}
	return searchMentions(ctx, pool, f, matchers, q.text("cursor"), limit, mentionTimeout)
}

// Limits of one page of a search for mentions. Bodies may be long, so the search checks the time
// after each small batch.
const (
	maxMentionEvents = 20_000
	mentionTimeout   = 2 * time.Second
	mentionPageSize  = 500
	mentionBatchSize = 25
)

// searchMentions returns a page of the selected events that mention a value, newest first. A page
// may end before its limit, with SearchedTo and a cursor to continue, if the search took too long
// or read too many events.
func searchMentions(ctx context.Context, pool *pgxpool.Pool, f events.Filter, matchers []redaction.ValueMatcher,
	cursor string, limit int, within time.Duration) (events.Page[events.Item], error) {
	var page events.Page[events.Item]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	began := time.Now()
	for examined := 0; ; {
		part, err := events.List(ctx, pool, f, cursor, mentionPageSize)
		if err != nil {
			return page, err
		}
		for some := range slices.Chunk(part.Items, mentionBatchSize) {
			found, err := filterMentioning(ctx, pool, matchers, some)
			if err != nil {
				return page, err
			}
			last := some[len(some)-1]
			if remaining := limit - len(page.Items); len(found) >= remaining {
				found = found[:remaining]
				last = found[remaining-1]
			}
			if page.Items = append(page.Items, found...); len(page.Items) == limit || time.Since(began) > within {
				page.Next, page.SearchedTo = events.MakeCursor(last.ID), last.StoredAt
				return page, nil
			}
		}
		if examined += len(part.Items); part.Next == "" {
			return page, nil
		}
		if cursor = part.Next; examined >= maxMentionEvents || time.Since(began) > within {
			var below int64
			if err := events.ReadCursor(cursor, &below); err != nil {
				return page, err
			}
			page.Next, page.SearchedTo.Time = cursor, events.Time(below)
			return page, nil
		}
	}
}

// filterMentioning returns the events that mention a value, in their order.
func filterMentioning(ctx context.Context, pool *pgxpool.Pool, matchers []redaction.ValueMatcher,
	some []events.Item) ([]events.Item, error) {
	ids := make([]int64, len(some))
	for i := range some {
		ids[i] = some[i].ID
	}
	found, err := redaction.Mentioning(ctx, pool, matchers, ids)
	return slices.DeleteFunc(slices.Clone(some), func(e events.Item) bool { return !found[e.ID] }), err
}

// eventFilter returns the filter of EventParams.
func (q *query) eventFilter() events.Filter {
	f := events.Filter{Source: q.source(), Account: q.optional("account"), Type: q.text("type"),
		ObjectType: q.text("object_type"), ObjectID: q.text("object_id"),
		Key: q.text("key"), Since: q.time("since"), Until: q.time("until"), OccurredSince: q.time("occurred_since"),
		OccurredUntil: q.time("occurred_until"),
		Status:        q.oneOf("status", append([]string{"pending"}, statuses...)...),
		Origin: q.oneOf("origin", events.OriginWebhook, events.OriginReconcile,
			events.OriginImport)}
	if f.Objects = q.objectHashes(f.Source, f.Account, f.ObjectType, f.ObjectID); f.Objects != nil {
		// the hashes identify the object; the values that were read at ingest may differ
		f.ObjectType, f.ObjectID, f.Account = "", "", nil
	}
	return f
}

// objectHashes returns the hashes of the objects with a type and id, in the given source and
// account or in all. It returns nil where type or id is not given.
func (q *query) objectHashes(source int32, account *string, objectType, id string) []int64 {
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
		// An event may have an outcome without an object in the mirror, for example a dead one. If
		// no account is given, the hash for the empty account is added.
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
	f := versioning.ObjectFilter{Source: q.source(), Account: q.optional("account"),
		Type: q.either("type", "object_type"),
		ID:   q.either("id", "object_id"), Deleted: q.flag("deleted"),
		Ambiguous: q.flag("ambiguous"), RefetchPending: q.flag("refetch_pending"), Outdated: q.flag("outdated"),
		Since: q.time("since"), Until: q.time("until")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[versioning.View]{}, q.err
	}
	return versioning.ListObjects(ctx, pool, f, q.text("cursor"), limit)
}

// Outcomes lists outcomes by OutcomeParams. Errors: events.ErrInvalid, events.ErrNotFound and
// *events.AmbiguousKeyError for the event.
func Outcomes(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[events.Outcome], error) {
	q := newQuery(ctx, pool, values, OutcomeParams)
	f := apply.OutcomeFilter{Source: q.source(), Account: q.optional("account"), ObjectType: q.text("object_type"),
		ObjectID: q.text("object_id"),
		Status:   q.oneOf("status", statuses...), Since: q.time("since"), Until: q.time("until")}
	if q.text("run") != "" {
		f.Run = new(q.run())
	}
	limit := q.limit()
	if event := q.text("event"); event != "" && q.err == nil {
		f.Event, q.err = events.Find(ctx, pool, event, f.Source)
	}
	f.Objects = q.objectHashes(f.Source, f.Account, f.ObjectType, f.ObjectID)
	if q.err != nil {
		return events.Page[events.Outcome]{}, q.err
	}
	return apply.ListOutcomes(ctx, pool, f, q.text("cursor"), limit)
}

// Rejections lists rejected deliveries by RejectionParams. Errors: events.ErrInvalid.
func Rejections(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[ingest.Rejection], error) {
	q := newQuery(ctx, pool, values, RejectionParams)
	f := ingest.RejectionFilter{Source: q.source(), Reason: q.oneOf("reason", reasons...), Since: q.time("since"),
		Until: q.time("until")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[ingest.Rejection]{}, q.err
	}
	return ingest.ListRejections(ctx, pool, f, q.text("cursor"), limit)
}

// Conflicts lists conflicts by ConflictParams. Errors: events.ErrInvalid.
func Conflicts(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[events.Conflict], error) {
	q := newQuery(ctx, pool, values, ConflictParams)
	f := events.ConflictFilter{Source: q.source(), Account: q.optional("account"), Type: q.text("type"),
		Key:   q.text("key"),
		Since: q.time("since"), Until: q.time("until")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[events.Conflict]{}, q.err
	}
	return events.ListConflicts(ctx, pool, f, q.text("cursor"), limit)
}

// Event returns one event by Postern's id or the provider's key. A source's name limits the search
// for a key. Errors: events.ErrNotFound, *events.AmbiguousKeyError, events.ErrInvalid.
func Event(ctx context.Context, pool *pgxpool.Pool, arg string, values url.Values) (*events.EventDetail, error) {
	q := newQuery(ctx, pool, values, []Param{sourceParam})
	source := q.source()
	if q.err != nil {
		return nil, q.err
	}
	return events.Show(ctx, pool, arg, source)
}

// SeveralObjectsError is the error where several accounts have the named object.
type SeveralObjectsError struct{ Matches []versioning.View }

func (e *SeveralObjectsError) Error() string {
	var accounts []string
	for i := range e.Matches {
		accounts = append(accounts, fmt.Sprintf("%q", e.Matches[i].Account))
	}
	return fmt.Sprintf("%d accounts have this object: choose one account: %s", len(e.Matches),
		strings.Join(accounts, ", "))
}

// Object returns one object. The parameter account selects the tenant where several have it.
// Errors: events.ErrNotFound, *SeveralObjectsError, events.ErrInvalid.
func Object(ctx context.Context, pool *pgxpool.Pool, source, objectType, id string,
	values url.Values) (*versioning.View, error) {
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
		return nil, fmt.Errorf("source %s: %w: the known sources are %s", source, events.ErrNotFound,
			sourceNames(known))
	}
	found, err := versioning.FindObjects(ctx, pool, number, q.optional("account"), objectType, id)
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
