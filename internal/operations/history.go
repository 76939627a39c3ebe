package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// HistoryParams select a page of the history of an object.
type HistoryParams struct {
	ObjectName
	Page
}

// HistoryEvent is an event of an object with its live outcome.
type HistoryEvent struct {
	// ID is Postern's id of the event. Its order is the order of arrival.
	ID int64 `json:"id,string"`
	// EventID is the provider's key. EventID, EventType, Origin, OccurredAt and ReceivedAt are
	// empty if retention dropped the event.
	EventID    string         `json:"event_id"`
	EventType  string         `json:"event_type"`
	Origin     string         `json:"origin"`
	OccurredAt events.Instant `json:"occurred_at"`
	ReceivedAt events.Instant `json:"received_at"`
	StoredAt   events.Instant `json:"stored_at"`
	// AppliedAt is the time of the outcome. Its order is the order of application; events of one
	// transaction have the same time and were applied in the order of their ids.
	AppliedAt events.Instant `json:"applied_at"`
	// LateMS is the time from OccurredAt to ReceivedAt in milliseconds; null if one is not known.
	LateMS *int64 `json:"late_ms"`
	Status string `json:"status"`
	// Reason explains the status.
	Reason string `json:"reason"`
	// Version is the event's own version, DecidedBy the version that the object had at the
	// decision; null if there is none.
	Version   json.RawMessage `json:"version"`
	DecidedBy json.RawMessage `json:"decided_by"`
	Attempts  int             `json:"attempts"`
	// RuleVersion is the version of the rule that decided. Outdated means that this version is
	// older than the current rule.
	RuleVersion int  `json:"rule_version"`
	Outdated    bool `json:"outdated"`
	// Deleted means that the state is that of a deleted object; null without a state.
	Deleted *bool `json:"deleted"`
	// StateOmitted says why there is no state: dropped (with its day of the log), redacted,
	// not_configured (this process does not have the configuration of the source), unreadable, or
	// partial (the event contains no whole state). It is empty if there is a state.
	// StateOmittedReason says the same in a sentence.
	StateOmitted       apply.StateOmission `json:"state_omitted"`
	StateOmittedReason string              `json:"state_omitted_reason"`
	// Differs is version or state if the event, as it is read now, has a different one than was
	// stored when it was applied. It is empty if it has the same, or if the stored one is not
	// known: states are known only for the object's present version.
	Differs string `json:"differs"`
}

// HistoryItem is a HistoryEvent with the state in it and how it changed the object.
type HistoryItem struct {
	HistoryEvent
	// DecidedByEvent is the event that made the version in decided_by, for a stale, unchanged or
	// ambiguous outcome; null if it was not found among the thousand events before.
	DecidedByEvent *int64 `json:"decided_by_event,string"`
	// Revision is the revision of the object after the transaction that applied the event. It is
	// known only as long as the object was not written again, so usually for the last applied event
	// only; else null.
	Revision *int64 `json:"revision"`
	// PreviousEvent is the event that was applied before, with which Change compares the state. It
	// is null if there is none. Change is null if one of the two states is omitted or too large,
	// and for events that did not change the object.
	PreviousEvent *int64                 `json:"previous_event,string"`
	Change        *versioning.ChangeSize `json:"change"`
	// State is the state in the event, as the source reads it now.
	State json.RawMessage `json:"state"`
}

// Limits of a page of a history. A page that reaches one ends early and has a cursor.
const (
	maxHistoryStates = 8 << 20
	maxHistoryBodies = 32 << 20
	historyTimeout   = 2 * time.Second
)

// ObjectHistory lists the events of an object, the newest first, with their outcomes and states.
// It reads the states as the sources of these endpoints define, which are nil in a process without
// sources. Errors: events.ErrNotFound, *SeveralObjectsError, events.ErrInvalid.
func ObjectHistory(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	p HistoryParams) (page events.Page[HistoryItem], err error) {
	limit, below := 0, int64(math.MaxInt64)
	if err := check(p); err != nil {
		return page, err
	}
	if limit, err = events.PageSize(p.limit()); err != nil {
		return page, err
	}
	if err := events.ReadCursor(p.Cursor, &below); err != nil {
		return page, err
	}
	h, err := openHistory(ctx, pool, endpoints, &p.ObjectName)
	if err != nil {
		return page, err
	}
	outcomes, next, err := apply.ObjectOutcomes(ctx, pool, h.key, below, false, limit)
	if err != nil {
		return page, err
	}
	if len(outcomes) == 0 && next == 0 && p.Cursor == "" {
		return page, h.noEvents(ctx)
	}
	shown, err := h.page(ctx, outcomes)
	if err != nil {
		return page, err
	}
	page.Items = shown
	if len(shown) < len(outcomes) {
		next = shown[len(shown)-1].ID
	}
	if next != 0 {
		page.Next = events.MakeCursor(next)
	}
	return page, nil
}

// page returns as many of the outcomes, with their states, as fit into a page.
func (h *history) page(ctx context.Context, outcomes []events.Outcome) (items []HistoryItem, err error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	began := time.Now()
	if err := h.load(ctx, outcomes); err != nil {
		return nil, err
	}
	deciders, err := apply.FindDeciders(ctx, h.pool, h.key, outcomes)
	if err != nil {
		return nil, err
	}
	for i, size := 0, 0; i < len(outcomes); i++ {
		if i > 0 && (h.bodyBytes > maxHistoryBodies || time.Since(began) > historyTimeout) {
			break
		}
		o := &outcomes[i]
		event, state, err := h.read(ctx, o)
		if err != nil {
			return nil, err
		}
		if size += len(state.JSON); i > 0 && size > maxHistoryStates {
			break
		}
		item := HistoryItem{HistoryEvent: event, State: orNull(state.JSON)}
		if id, ok := deciders[o.EventID]; ok {
			item.DecidedByEvent = &id
		}
		if o.Status == string(versioning.Applied) && h.row.Exists && !h.row.UpdatedAt().After(o.At.Time) {
			item.Revision = &h.row.Revision
		}
		items = append(items, item)
	}
	return items, h.compare(ctx, outcomes, items)
}

// compare sets how the events of a page changed the object.
func (h *history) compare(ctx context.Context, outcomes []events.Outcome, items []HistoryItem) error {
	applied := slices.DeleteFunc(slices.Clone(outcomes),
		func(o events.Outcome) bool { return o.Status != string(versioning.Applied) })
	before, _, err := apply.ObjectOutcomes(ctx, h.pool, h.key, outcomes[len(outcomes)-1].EventID, true, 1)
	if err != nil {
		return err
	}
	applied = append(applied, before...)
	slices.SortFunc(applied, compareApplied)
	for i := range items {
		status := versioning.Status(items[i].Status)
		if status != versioning.Applied && status != versioning.Ambiguous {
			continue
		}
		n, _ := slices.BinarySearchFunc(applied, outcomes[i], compareApplied)
		if n == 0 {
			continue
		}
		previous := &applied[n-1]
		items[i].PreviousEvent = &previous.EventID
		if items[i].StateOmitted != "" {
			continue
		}
		if err := h.load(ctx, []events.Outcome{*previous}); err != nil {
			return err
		}
		was, old, err := h.read(ctx, previous)
		if err != nil {
			return err
		}
		if was.StateOmitted != "" {
			continue
		}
		is := versioning.State{JSON: items[i].State}
		if size, err := versioning.CountStateChanges(&old, &is); err == nil { // else one is too large
			items[i].Change = &size
		}
	}
	return nil
}

// compareApplied compares outcomes by the order of application.
func compareApplied(a, b events.Outcome) int {
	return cmp.Or(a.At.Compare(b.At.Time), cmp.Compare(a.EventID, b.EventID))
}

func orNull(state []byte) json.RawMessage {
	if state == nil {
		return json.RawMessage("null")
	}
	return state
}
