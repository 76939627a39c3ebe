package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// HistoryDiffParams select two states of an object.
type HistoryDiffParams struct {
	ObjectName
	From string `json:"from,omitzero"`
	To   string `json:"to,omitzero"`
}

// HistoryDiff lists the values in which two states of an object differ.
type HistoryDiff struct {
	// From is the event with the older state; null if no event was applied before To, so that
	// everything in To is new.
	From *HistoryEvent `json:"from"`
	// To is the event with the newer state; null for the object as it is in the mirror now.
	To      *HistoryEvent            `json:"to"`
	Changes []versioning.StateChange `json:"changes"`
	// Truncated means that there are more changes than a response contains.
	Truncated bool `json:"truncated"`
}

// DiffHistory compares two states of an object. Without To it is the present object, without From
// the event that was applied before To. Errors: those of ObjectHistory, *events.AmbiguousKeyError,
// *TooManyError.
func DiffHistory(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	p HistoryDiffParams) (*HistoryDiff, error) {
	h, err := openHistory(ctx, pool, endpoints, &p.ObjectName)
	if err != nil {
		return nil, err
	}
	d := &HistoryDiff{Changes: []versioning.StateChange{}}
	var from, to *versioning.State
	var previous *events.Outcome
	if d.To, to, previous, err = h.diffTarget(ctx, p.To, p.From == ""); err != nil {
		return nil, err
	}
	if p.From != "" {
		if previous, err = h.findEvent(ctx, p.From); err != nil {
			return nil, err
		}
	}
	if previous != nil {
		if d.From, from, err = h.stateOf(ctx, previous); err != nil {
			return nil, err
		}
	}
	changes, truncated, err := versioning.ListStateChanges(from, to)
	var tooLarge *versioning.StateTooLargeError
	if errors.As(err, &tooLarge) {
		return nil, &TooManyError{err, "Read the two events with postern events show, and compare the bodies."}
	}
	if err != nil {
		return nil, err
	}
	d.Changes, d.Truncated = append(d.Changes, changes...), truncated
	return d, nil
}

// diffTarget returns the newer state of a comparison and, if needsPrevious, the event that was
// applied before.
func (h *history) diffTarget(ctx context.Context, to string, needsPrevious bool) (event *HistoryEvent,
	state *versioning.State, previous *events.Outcome, err error) {
	at, below, n := apply.EndOfTime, int64(math.MaxInt64), 2
	if to != "" {
		o, err := h.findEvent(ctx, to)
		if err != nil {
			return nil, nil, nil, err
		}
		if event, state, err = h.stateOf(ctx, o); err != nil {
			return nil, nil, nil, err
		}
		at, below, n = o.At.Time, o.EventID, 1
	} else if state, err = h.presentState(ctx); err != nil {
		return nil, nil, nil, err
	}
	if !needsPrevious {
		return event, state, nil, nil
	}
	// The last applied event made the present object, so the one before it is the previous one.
	applied, err := apply.AppliedBefore(ctx, h.pool, h.key, at, below, n)
	if err == nil && len(applied) == n {
		previous = &applied[n-1]
	}
	return event, state, previous, err
}

// presentState returns the state of the object in the mirror.
func (h *history) presentState(ctx context.Context) (*versioning.State, error) {
	if err := h.loadRow(ctx); err != nil {
		return nil, err
	}
	switch {
	case !h.row.Exists:
		return nil, fmt.Errorf("object %s %s of source %s: %w in the mirror: name an event in to", h.key.Type, h.key.ID,
			h.source, events.ErrNotFound)
	case h.row.Version != versioning.NoVersion && len(h.row.TiedStates) == 0:
		return nil, invalid("the object's state was redacted: name an event in to")
	}
	return &h.row.State, nil
}

// findEvent returns the live outcome of an event of the object. Errors: events.ErrInvalid.
func (h *history) findEvent(ctx context.Context, name string) (*events.Outcome, error) {
	id, err := events.Find(ctx, h.pool, name, h.key.Source)
	if err != nil {
		return nil, err
	}
	o, err := apply.ObjectOutcome(ctx, h.pool, h.key, id)
	if errors.Is(err, events.ErrNotFound) {
		return nil, invalid("event %s is not one of object %s %s; the history of the object lists its events", name,
			h.key.Type, h.key.ID)
	}
	return &o, err
}

// stateOf returns an event and the object's state in it. Errors: events.ErrInvalid if it has none.
func (h *history) stateOf(ctx context.Context, o *events.Outcome) (*HistoryEvent, *versioning.State, error) {
	if err := h.load(ctx, []events.Outcome{*o}); err != nil {
		return nil, nil, err
	}
	event, state, err := h.read(ctx, o)
	if err == nil && event.StateOmitted != "" {
		err = invalid("event %d has no state of the object (%s): %s; choose another event", o.EventID,
			event.StateOmitted, event.StateOmittedReason)
	}
	return &event, &state, err
}

// ObjectAtParams select the state of an object at a time.
type ObjectAtParams struct {
	ObjectName
	Time  Time   `json:"time,omitzero"`
	Order string `json:"order,omitzero" validate:"omitempty,time_order"`
}

// The orders in which events lead to the state at a time.
const (
	ByApplication = "application"
	ByOccurrence  = "occurrence"
)

// ObjectAt is the state of an object at a time.
type ObjectAt struct {
	Time events.Instant `json:"time"`
	// Order is application for the state that the mirror had then, or occurrence for the state that
	// the provider had, as the events tell that have arrived since.
	Order string `json:"order"`
	// Event is the last event that was applied until then; with the order occurrence the one with
	// the newest version that occurred until then.
	Event HistoryEvent `json:"event"`
	// Late means that the event arrived after the time.
	Late bool `json:"late"`
	// Complete is false if more than a thousand events of the object arrived after the time. Then
	// a newer version may be in those that were not searched.
	Complete bool `json:"complete"`
	// Ambiguous means that an ambiguous event came after it until then, so that the object may have
	// shown the state of that one.
	Ambiguous bool            `json:"ambiguous"`
	State     json.RawMessage `json:"state"`
}

// ShowObjectAt returns the state that the mirror or the provider had of an object at a time.
// Errors: events.ErrInvalid, and those of ObjectHistory.
func ShowObjectAt(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	p ObjectAtParams) (*ObjectAt, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	if p.Time.IsZero() {
		return nil, invalid("give time: %s", timeHelp)
	}
	h, err := openHistory(ctx, pool, endpoints, &p.ObjectName)
	if err != nil {
		return nil, err
	}
	at := p.Time.Time()
	applied, err := apply.AppliedBefore(ctx, pool, h.key, at, math.MaxInt64, 1)
	if err != nil {
		return nil, err
	}
	found := &ObjectAt{Time: events.Instant{Time: at}, Order: cmp.Or(p.Order, ByApplication), Complete: true}
	if p.Order == ByOccurrence {
		var late []events.Outcome
		if late, found.Complete, err = apply.OccurredBefore(ctx, pool, h.key, at); err != nil {
			return nil, err
		}
		if len(late) > 0 {
			last := slices.MaxFunc(late, func(a, b events.Outcome) int {
				return storedVersion(a.Version).Compare(storedVersion(b.Version))
			})
			found.Late = len(applied) == 0 || storedVersion(last.Version).Compare(storedVersion(applied[0].Version)) > 0
			if found.Late {
				applied = []events.Outcome{last}
			}
		}
	}
	if len(applied) == 0 {
		if err := h.noEvents(ctx); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("object %s %s of source %s: %w: no event was applied to it until %s", h.key.Type,
			h.key.ID, h.source, events.ErrNotFound, events.Instant{Time: at})
	}
	if err := h.load(ctx, applied); err != nil {
		return nil, err
	}
	var state versioning.State
	if found.Event, state, err = h.read(ctx, &applied[0]); err != nil {
		return nil, err
	}
	found.State = orNull(state.JSON)
	if !found.Late {
		found.Ambiguous, err = apply.AmbiguousBetween(ctx, pool, h.key, applied[0].At.Time, at)
	}
	return found, err
}
