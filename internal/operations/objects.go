package operations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// ObjectParams select objects. Type and ID have two names each.
type ObjectParams struct {
	Source         string  `json:"source,omitzero"`
	Account        *string `json:"account,omitzero"`
	Type           string  `json:"type,omitzero"`
	ID             string  `json:"id,omitzero"`
	ObjectType     string  `json:"object_type,omitzero"`
	ObjectID       string  `json:"object_id,omitzero"`
	Deleted        *bool   `json:"deleted,omitzero"`
	Ambiguous      *bool   `json:"ambiguous,omitzero"`
	RefetchPending *bool   `json:"refetch_pending,omitzero"`
	Outdated       *bool   `json:"outdated,omitzero"`
	Since          Time    `json:"since,omitzero"`
	Until          Time    `json:"until,omitzero"`
	Page
}

// Objects lists objects. Errors: events.ErrInvalid.
func Objects(ctx context.Context, pool *pgxpool.Pool, p ObjectParams) (page events.Page[versioning.View], err error) {
	f := versioning.ObjectFilter{Account: p.Account, Deleted: p.Deleted, Ambiguous: p.Ambiguous,
		RefetchPending: p.RefetchPending, Outdated: p.Outdated, Since: p.Since.at, Until: p.Until.at}
	if f.Type, err = either("type", p.Type, "object_type", p.ObjectType); err != nil {
		return page, err
	}
	if f.ID, err = either("id", p.ID, "object_id", p.ObjectID); err != nil {
		return page, err
	}
	if f.Source, err = checkSource(ctx, pool, p, p.Source); err != nil {
		return page, err
	}
	return versioning.ListObjects(ctx, pool, f, p.Cursor, p.limit())
}

// ObjectName names an object of the mirror. The account is necessary where several have it.
type ObjectName struct {
	Source  string  `json:"source"`
	Type    string  `json:"type"`
	ID      string  `json:"id"`
	Account *string `json:"account,omitzero"`
}

// Object returns one object. Errors: events.ErrNotFound, *SeveralObjectsError, events.ErrInvalid.
func Object(ctx context.Context, pool *pgxpool.Pool, p ObjectName) (*versioning.View, error) {
	source, err := existingSource(ctx, pool, p.Source)
	if err != nil {
		return nil, err
	}
	found, err := versioning.FindObjects(ctx, pool, source, p.Account, p.Type, p.ID)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, fmt.Errorf("object %s %s of source %s: %w: `postern find %s` shows objects of other types with "+
			"this id", p.Type, p.ID, p.Source, events.ErrNotFound, p.ID)
	case len(found) > 1:
		return nil, &SeveralObjectsError{Matches: found}
	}
	return &found[0], nil
}

// key returns the key of an object that may be missing in the mirror. Without an account it is the
// one that has the object in the mirror, else "". Errors: events.ErrNotFound for the source,
// *SeveralObjectsError.
func (p *ObjectName) key(ctx context.Context, pool *pgxpool.Pool) (versioning.Key, error) {
	source, err := existingSource(ctx, pool, p.Source)
	if err != nil {
		return versioning.Key{}, err
	}
	k := ObjectKey{Source: p.Source, Account: p.Account, Type: p.Type, ObjectID: p.ID}
	if p.Type == "" || p.ID == "" {
		return versioning.Key{Source: source}, fmt.Errorf("object %q %q: %w", p.Type, p.ID, events.ErrNotFound)
	}
	return k.key(ctx, pool)
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

// ObjectKey names an object that may be missing in the mirror. Type has two names.
type ObjectKey struct {
	Source     string  `json:"source,omitzero"`
	Account    *string `json:"account,omitzero"`
	Type       string  `json:"type,omitzero"`
	ObjectType string  `json:"object_type,omitzero"`
	ObjectID   string  `json:"object_id,omitzero"`
}

// key returns the object's key. Without an account it is the one that has the object in the mirror,
// if any. Errors: events.ErrInvalid, *SeveralObjectsError.
func (p *ObjectKey) key(ctx context.Context, pool *pgxpool.Pool) (k versioning.Key, err error) {
	if k.Type, err = either("type", p.Type, "object_type", p.ObjectType); err != nil {
		return k, err
	}
	if k.Source, err = sourceNumber(ctx, pool, p.Source); err != nil {
		return k, err
	}
	if k.ID = p.ObjectID; k.Source == 0 || k.Type == "" || k.ID == "" {
		return k, invalid("name the object: its source, type and id")
	}
	if p.Account != nil {
		k.Account = *p.Account
		return k, nil
	}
	found, err := versioning.FindObjects(ctx, pool, k.Source, nil, k.Type, k.ID)
	switch {
	case err != nil:
		return k, err
	case len(found) > 1:
		return k, &SeveralObjectsError{Matches: found}
	case len(found) == 1:
		k.Account = found[0].Account
	}
	return k, nil
}

// OutcomeParams select outcomes.
type OutcomeParams struct {
	Source     string     `json:"source,omitzero"`
	Account    *string    `json:"account,omitzero"`
	ObjectType string     `json:"object_type,omitzero"`
	ObjectID   string     `json:"object_id,omitzero"`
	Event      string     `json:"event,omitzero"`
	Status     string     `json:"status,omitzero" validate:"omitempty,outcome_status"`
	Pattern    string     `json:"failure_pattern,omitzero"`
	Run        *RunNumber `json:"run,omitzero"`
	Since      Time       `json:"since,omitzero"`
	Until      Time       `json:"until,omitzero"`
	Page
}

// Outcomes lists outcomes. Errors: events.ErrInvalid, events.ErrNotFound and
// *events.AmbiguousKeyError for the event.
func Outcomes(ctx context.Context, pool *pgxpool.Pool, p OutcomeParams) (page events.Page[events.Outcome], err error) {
	f := apply.OutcomeFilter{Account: p.Account, ObjectType: p.ObjectType, ObjectID: p.ObjectID, Status: p.Status,
		Pattern: p.Pattern, Run: (*int64)(p.Run), Since: p.Since.at, Until: p.Until.at}
	if f.Source, err = checkSource(ctx, pool, p, p.Source); err != nil {
		return page, err
	}
	if p.Event != "" {
		if f.Event, err = events.Find(ctx, pool, p.Event, f.Source); err != nil {
			return page, err
		}
	}
	if f.Objects, err = objectHashes(ctx, pool, f.Source, f.Account, f.ObjectType, f.ObjectID); err != nil {
		return page, err
	}
	return apply.ListOutcomes(ctx, pool, f, p.Cursor, p.limit())
}
