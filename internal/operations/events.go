package operations

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/versioning"
)

// EventSelection selects events by what is stored with them.
type EventSelection struct {
	Source        string  `json:"source,omitzero"`
	Account       *string `json:"account,omitzero"`
	Type          string  `json:"type,omitzero"`
	ObjectType    string  `json:"object_type,omitzero"`
	ObjectID      string  `json:"object_id,omitzero"`
	Key           string  `json:"key,omitzero"`
	Origin        string  `json:"origin,omitzero" validate:"omitempty,origin"`
	Since         Time    `json:"since,omitzero"`
	Until         Time    `json:"until,omitzero"`
	OccurredSince Time    `json:"occurred_since,omitzero"`
	OccurredUntil Time    `json:"occurred_until,omitzero"`
}

// EventFilter selects events also by their live outcome.
type EventFilter struct {
	EventSelection
	Status string `json:"status,omitzero" validate:"omitempty,event_status"`
}

// StoredEventParams select stored events, by a filter or by their ids.
type StoredEventParams struct {
	EventFilter
	IDs IDs `json:"ids,omitzero"`
}

// EventParams select events of a list.
type EventParams struct {
	EventFilter
	Mentions *string `json:"mentions,omitzero"`
	Body     *string `json:"body,omitzero"`
	Page
}

// Events lists events. Errors: events.ErrInvalid.
func Events(ctx context.Context, pool *pgxpool.Pool, p EventParams) (page events.Page[events.Item], err error) {
	if err := check(p); err != nil {
		return page, err
	}
	f, err := p.EventFilter.filter(ctx, pool)
	if err != nil {
		return page, err
	}
	var groups [][]redaction.ValueMatcher
	if p.Mentions != nil {
		matchers, err := mentionMatchers(*p.Mentions)
		if err != nil {
			return page, err
		}
		groups = append(groups, matchers)
	}
	if p.Body != nil {
		matcher, err := bodyMatcher(*p.Body)
		if err != nil {
			return page, err
		}
		groups = append(groups, []redaction.ValueMatcher{matcher})
	}
	if groups == nil {
		return events.List(ctx, pool, f, p.Cursor, p.limit())
	}
	return searchBodies(ctx, pool, f, groups, p.Cursor, p.limit(), searchTimeout)
}

// filter returns the filter for the log. Errors: events.ErrInvalid for an unknown source.
func (p *EventFilter) filter(ctx context.Context, pool *pgxpool.Pool) (events.Filter, error) {
	f, err := p.EventSelection.filter(ctx, pool)
	f.Status = p.Status
	if f.Objects != nil {
		// the hashes identify the object; the values that were read at ingest may differ
		f.ObjectType, f.ObjectID, f.Account = "", "", nil
	}
	return f, err
}

// filter returns the filter for the log. It has both the object's type and id and its hashes.
// Errors: events.ErrInvalid for an unknown source.
func (p *EventSelection) filter(ctx context.Context, pool *pgxpool.Pool) (f events.Filter, err error) {
	f = events.Filter{Account: p.Account, Type: p.Type, ObjectType: p.ObjectType, ObjectID: p.ObjectID, Key: p.Key,
		Origin: p.Origin, Since: p.Since.at, Until: p.Until.at, OccurredSince: p.OccurredSince.at,
		OccurredUntil: p.OccurredUntil.at}
	if f.Source, err = sourceNumber(ctx, pool, p.Source); err != nil {
		return f, err
	}
	f.Objects, err = objectHashes(ctx, pool, f.Source, f.Account, f.ObjectType, f.ObjectID)
	return f, err
}

// Filter returns the filter for the log. Without a pool the parameters are only checked. Errors:
// events.ErrInvalid.
func (p *StoredEventParams) Filter(ctx context.Context, pool *pgxpool.Pool) (f events.Filter, err error) {
	if err := check(p); err != nil {
		return f, err
	}
	if f, err = p.EventFilter.filter(ctx, pool); err != nil || p.IDs == nil {
		return f, err
	}
	if f.Objects != nil {
		return f, invalid("ids cannot be combined with an object: give one of them")
	}
	f.IDs = p.IDs
	return f, nil
}

// objectHashes returns the hashes of the objects with a type and id, in the given source and
// account or in all. It returns nil where type or id is not given, and without a pool.
func objectHashes(ctx context.Context, pool *pgxpool.Pool, source int32, account *string, objectType,
	id string) ([]int64, error) {
	if objectType == "" || id == "" || pool == nil {
		return nil, nil
	}
	known, err := sources(ctx, pool)
	if err != nil {
		return nil, err
	}
	found, err := versioning.FindKeys(ctx, pool, source, account, objectType, id)
	if err != nil {
		return nil, err
	}
	hashes := make([]int64, 0, len(found)+len(known.Name))
	for _, key := range found {
		hashes = append(hashes, key.Hash())
	}
	// An event may have an outcome without an object in the mirror, for example a dead one. If no
	// account is given, the hash for the empty account is added.
	var guess string
	if account != nil {
		guess = *account
	}
	for number := range known.Name {
		if source == 0 || source == number {
			hashes = append(hashes, versioning.ObjectKey(number, guess, objectType, id))
		}
	}
	slices.Sort(hashes)
	return slices.Compact(hashes), nil
}

// EventName names one event.
type EventName struct {
	// ID is Postern's id of the event, or the provider's key.
	ID string `json:"id"`
	// Source limits the search for a key.
	Source string `json:"source,omitzero"`
}

// Event returns one event. Errors: events.ErrNotFound, *events.AmbiguousKeyError,
// events.ErrInvalid.
func Event(ctx context.Context, pool *pgxpool.Pool, p EventName) (*events.EventDetail, error) {
	source, err := sourceNumber(ctx, pool, p.Source)
	if err != nil {
		return nil, err
	}
	return events.Show(ctx, pool, p.ID, source)
}

// ConflictParams select conflicts.
type ConflictParams struct {
	Source  string  `json:"source,omitzero"`
	Account *string `json:"account,omitzero"`
	Type    string  `json:"type,omitzero"`
	Key     string  `json:"key,omitzero"`
	Since   Time    `json:"since,omitzero"`
	Until   Time    `json:"until,omitzero"`
	Page
}

// Conflicts lists conflicts. Errors: events.ErrInvalid.
func Conflicts(ctx context.Context, pool *pgxpool.Pool, p ConflictParams) (page events.Page[events.Conflict],
	err error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	if err != nil {
		return page, err
	}
	return events.ListConflicts(ctx, pool, events.ConflictFilter{Source: source, Account: p.Account, Type: p.Type,
		Key: p.Key, Since: p.Since.at, Until: p.Until.at}, p.Cursor, p.limit())
}
