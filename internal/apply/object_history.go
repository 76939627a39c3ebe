package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// The history of an object is its live outcomes in the order of arrival, which is the order of the
// index by object. An object may have outcomes of many runs, so each statement reads a bounded
// number of them.

const (
	// historyScan is how many outcomes of an object one call reads. historyChunk is how many of
	// them a statement reads that may end early.
	historyScan, historyChunk = 10_000, 200
	// deciderScan is how many outcomes are searched for the events that decided others.
	deciderScan = 1_000
)

// objectRange are the outcomes of object $1 from event $2 on and below event $3.
const objectRange = ` FROM outcomes c WHERE c.object = $1 AND c.object <> 0 AND c.event_id >= $2 AND c.event_id < $3
  AND c.run = 0 `

const outcomesOf = `SELECT ` + events.OutcomeColumns + ` FROM sources s CROSS JOIN LATERAL (SELECT c.*` + objectRange

const (
	historyEndSQL = `SELECT c.event_id FROM outcomes c WHERE c.object = $1 AND c.object <> 0 AND c.event_id < $2
  ORDER BY c.event_id DESC OFFSET $3 LIMIT 1`

	historyRestSQL = `SELECT c.event_id FROM outcomes c WHERE c.object = $1 AND c.object <> 0 AND c.event_id >= $2
  ORDER BY c.event_id OFFSET $3 LIMIT 1`

	objectOutcomesSQL = outcomesOf + `AND ($5::text IS NULL OR c.status = $5) ORDER BY c.event_id DESC LIMIT $6) c
WHERE s.number = $4 ORDER BY c.event_id DESC`

	appliedBeforeSQL = outcomesOf + `AND c.status = 'applied' AND (c.at, c.event_id) < ($5, $6)
  ORDER BY c.at DESC, c.event_id DESC LIMIT $7) c WHERE s.number = $4 ORDER BY c.at DESC, c.event_id DESC`

	ambiguousBetweenSQL = `SELECT EXISTS (SELECT` + objectRange +
		`AND c.status = 'ambiguous' AND c.at >= $4 AND c.at <= $5)`

	decidersSQL = `SELECT c.event_id, c.status, c.version, c.at` + objectRange + `
  AND c.status IN ('applied', 'unchanged', 'ambiguous') AND c.version = ANY($4::jsonb[]) ORDER BY c.event_id DESC`

	// occurredSQL reads the first $6 outcomes, and returns those with a version of events that
	// occurred until $5.
	occurredSQL = outcomesOf + `ORDER BY c.event_id LIMIT $6) c JOIN events e ON e.id = c.event_id
WHERE s.number = $4 AND e.id >= $2 AND coalesce(e.occurred_at, e.received_at) <= $5 AND c.version IS NOT NULL
  AND c.status IN ('applied', 'unchanged', 'stale', 'ambiguous') ORDER BY c.event_id`

	objectOutcomeSQL = `SELECT ` + events.OutcomeColumns + ` FROM outcomes c JOIN sources s ON s.number = c.source
WHERE c.event_id = $1 AND c.run = 0 AND c.object = $2`
)

// historyEnd returns the lowest event id that a statement about outcomes of an object below an id
// reads, so that it reads about n. more is false if it reads all.
func historyEnd(ctx context.Context, db postgres.DB, object, below int64, n int) (end int64, more bool, err error) {
	err = db.QueryRow(ctx, historyEndSQL, object, below, n-1).Scan(&end)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("find the outcomes of an object: %w", err)
	}
	return end, true, nil
}

// ObjectOutcomes returns the live outcomes of an object of events below an id, those of the newest
// events first, all or the applied ones. next is the id below which there may be more; 0: there are
// none.
func ObjectOutcomes(ctx context.Context, db postgres.DB, key versioning.Key, below int64, applied bool,
	limit int) (all []events.Outcome, next int64, err error) {
	var status *versioning.Status
	if applied {
		status = new(versioning.Applied)
	}
	for read := 0; read < historyScan; read += historyChunk {
		end, more, err := historyEnd(ctx, db, key.Hash(), below, historyChunk)
		if err != nil {
			return nil, 0, err
		}
		found, err := postgres.Collect(ctx, db, events.ScanOutcome, objectOutcomesSQL, key.Hash(), end, below,
			key.Source, status, limit-len(all))
		if err != nil {
			return nil, 0, fmt.Errorf("list outcomes of an object: %w", err)
		}
		switch all = append(all, found...); {
		case len(all) == limit:
			return all, all[limit-1].EventID, nil
		case !more:
			return all, 0, nil
		}
		below = end
	}
	return all, below, nil
}

// ObjectOutcome returns the live outcome of an event for an object. Errors: events.ErrNotFound.
func ObjectOutcome(ctx context.Context, db postgres.DB, key versioning.Key, event int64) (events.Outcome, error) {
	o, err := postgres.CollectOne(ctx, db, events.ScanOutcome, objectOutcomeSQL, event, key.Hash())
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return o, events.ErrNotFound
	case err != nil:
		return o, fmt.Errorf("read the outcome of event %d: %w", event, err)
	}
	return o, nil
}

// AppliedBefore returns at most limit applied outcomes of an object before a time and, at that
// time, of events below an id. The last one that was applied is first.
func AppliedBefore(ctx context.Context, db postgres.DB, key versioning.Key, at time.Time, below int64,
	limit int) ([]events.Outcome, error) {
	end, _, err := historyEnd(ctx, db, key.Hash(), firstIDAfter(at), historyScan)
	if err != nil {
		return nil, err
	}
	all, err := postgres.Collect(ctx, db, events.ScanOutcome, appliedBeforeSQL, key.Hash(), end, firstIDAfter(at),
		key.Source, at, below, limit)
	if err != nil {
		return nil, fmt.Errorf("find the applied events of an object: %w", err)
	}
	return all, nil
}

// OccurredBefore returns the outcomes of events of an object that occurred until a time and arrived
// after it, in the order of arrival. It searches the first thousand events that arrived after it;
// complete is false if there are more.
func OccurredBefore(ctx context.Context, db postgres.DB, key versioning.Key, at time.Time) (late []events.Outcome,
	complete bool, err error) {
	from := firstIDAfter(at)
	var last int64
	err = db.QueryRow(ctx, historyRestSQL, key.Hash(), from, deciderScan).Scan(&last)
	if complete = errors.Is(err, pgx.ErrNoRows); complete {
		last, err = math.MaxInt64, nil
	}
	if err == nil {
		late, err = postgres.Collect(ctx, db, events.ScanOutcome, occurredSQL, key.Hash(), from, last, key.Source, at,
			deciderScan)
	}
	if err != nil {
		return nil, false, fmt.Errorf("find the late events of an object: %w", err)
	}
	return late, complete, nil
}

// AmbiguousBetween reports whether an object has an ambiguous outcome in a time range.
func AmbiguousBetween(ctx context.Context, db postgres.DB, key versioning.Key, from, to time.Time) (found bool,
	err error) {
	end, _, err := historyEnd(ctx, db, key.Hash(), firstIDAfter(to), historyScan)
	if err != nil {
		return false, err
	}
	err = db.QueryRow(ctx, ambiguousBetweenSQL, key.Hash(), end, firstIDAfter(to), from, to).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("find the ambiguous events of an object: %w", err)
	}
	return found, nil
}

// firstIDAfter returns an id above those of all events that can have an outcome at a time.
func firstIDAfter(at time.Time) int64 {
	if !at.Before(EndOfTime) {
		return math.MaxInt64
	}
	return events.FirstID(at.Add(time.Millisecond))
}

// EndOfTime is after all events. Ids have no room for much later times.
var EndOfTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// FindDeciders returns, by the event's id, the event that decided each stale, unchanged or
// ambiguous outcome of a page: the newest event with the version in DecidedBy that was applied
// before. An event that only confirmed the state counts if none was applied. The search ends after
// a bounded number of outcomes, so that an old event may not be found.
func FindDeciders(ctx context.Context, db postgres.DB, key versioning.Key, page []events.Outcome) (map[int64]int64,
	error) {
	deciders, wanted := map[int64]int64{}, []json.RawMessage{}
	for i := range page {
		if needsDecider(&page[i]) {
			wanted = append(wanted, page[i].DecidedBy)
		}
	}
	if len(wanted) == 0 {
		return deciders, nil
	}
	type candidate struct {
		id     int64
		status versioning.Status
		at     time.Time
	}
	var c candidate
	var version string
	byVersion, below := map[string][]candidate{}, page[0].EventID+1
	end, _, err := historyEnd(ctx, db, key.Hash(), below, deciderScan+len(page))
	if err != nil {
		return nil, err
	}
	err = postgres.ForEach(ctx, db, decidersSQL, []any{key.Hash(), end, below, wanted},
		[]any{&c.id, &c.status, &version, &c.at},
		func() error { byVersion[version] = append(byVersion[version], c); return nil })
	if err != nil {
		return nil, fmt.Errorf("find the events that decided %d others: %w", len(wanted), err)
	}
	for i := range page {
		o, applied := &page[i], false
		if !needsDecider(o) {
			continue
		}
		for _, c := range byVersion[string(o.DecidedBy)] { // the newest first
			isApplied := c.status == versioning.Applied
			if c.id == o.EventID || c.at.After(o.At.Time) || deciders[o.EventID] != 0 && (applied || !isApplied) {
				continue
			}
			deciders[o.EventID], applied = c.id, isApplied
		}
	}
	return deciders, nil
}

func needsDecider(o *events.Outcome) bool {
	switch versioning.Status(o.Status) {
	case versioning.Stale, versioning.Unchanged, versioning.Ambiguous:
		return len(o.DecidedBy) > 0
	case versioning.Applied, versioning.Ignored, versioning.Failed, versioning.Dead:
	}
	return false
}

// StateOmission says why an event has no state that can be shown.
type StateOmission string

// The omissions.
const (
	StateDropped       StateOmission = "dropped"
	StateRedacted      StateOmission = "redacted"
	StateNotConfigured StateOmission = "not_configured"
	StateUnreadable    StateOmission = "unreadable"
	StatePartial       StateOmission = "partial"
)

// EventState is an object's state in an event, as the event's source reads it now.
type EventState struct {
	Version versioning.Version
	State   versioning.State
	// Omitted is set if the event has no whole state of the object now. Reason says why.
	Omitted StateOmission
	Reason  string
}

// ReadState reads an object's state from a record of the log that has its body.
func (r *Reducer) ReadState(key versioning.Key, rec *events.Record) EventState {
	ev := r.a.sourceEvent(rec)
	e := r.a.read(&ev)
	s := EventState{Version: e.input.Version, State: e.input.State}
	switch {
	case ev.Redacted:
		s.Omitted, s.Reason = StateRedacted, "the event was redacted"
	case e.configFailure:
		s.Omitted, s.Reason = StateNotConfigured, e.outcome.reason
	case e.outcome != nil:
		s.Omitted, s.Reason = StateUnreadable, "as it is read now, the event is "+string(e.outcome.status)+": "+
			e.outcome.reason
	case e.key != key:
		s.Omitted, s.Reason = StateUnreadable, "as it is read now, the event is about another object: "+e.key.Type+" "+
			e.key.ID
	case e.input.Partial != "":
		s.Omitted, s.Reason = StatePartial, e.input.Partial
	}
	if s.Omitted != "" {
		s.State = versioning.State{}
	}
	return s
}
