package operations

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// history reads the states of an object in its events.
type history struct {
	pool   *pgxpool.Pool
	source string
	key    versioning.Key
	// reducer reads events; nil if the source is not in this process's configuration. notConfigured
	// is the reason then.
	reducer       *apply.Reducer
	notConfigured string
	// row is the object in the mirror. It is read after the outcomes, by load.
	row *versioning.Object
	// records are the loaded events by id, without large bodies. states are those that were read.
	records map[int64]*events.Record
	states  map[int64]apply.EventState
	// lastBody is the last large body that was read, of delivery lastDelivery. Events of one
	// delivery share it. bodyBytes counts large bodies.
	lastBody     []byte
	lastDelivery int64
	bodyBytes    int
}

// maxInlineBody is the largest body that is read together with the others of a page. A larger one
// is read when it is needed.
const maxInlineBody = 16 << 10

// openHistory finds an object and prepares to read its events. The object need not be in the
// mirror. Errors: events.ErrNotFound for the source, *SeveralObjectsError.
func openHistory(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	p *ObjectName) (*history, error) {
	key, err := p.key(ctx, pool)
	if err != nil {
		return nil, err
	}
	h := &history{pool: pool, source: p.Source, key: key, records: map[int64]*events.Record{},
		states: map[int64]apply.EventState{}}
	known, err := sources(ctx, pool)
	if err != nil {
		return nil, err
	}
	switch configured := ConfiguredSources(endpoints, known); {
	case endpoints == nil:
		h.notConfigured = "this process has no configuration of sources, so it cannot read states; ask a gateway, a " +
			"processor, postern serve or postern dev"
	case configured[p.Source].Provider == nil:
		h.notConfigured = fmt.Sprintf("source %s is not in the configuration of this process, so its states cannot be "+
			"read; add the source to the configuration", p.Source)
	default:
		if h.reducer, err = apply.NewReducer(configured, known); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// noEvents is the error for an object without events.
func (h *history) noEvents(ctx context.Context) error {
	if err := h.loadRow(ctx); err != nil || h.row.Exists {
		return err
	}
	return fmt.Errorf("object %s %s of source %s: %w: no event was applied to it", h.key.Type, h.key.ID, h.source,
		events.ErrNotFound)
}

// load reads events and the object's row. The caller has read the outcomes before, so that the row
// contains them.
func (h *history) load(ctx context.Context, outcomes []events.Outcome) error {
	var ids []int64
	for i := range outcomes {
		if _, ok := h.records[outcomes[i].EventID]; !ok {
			ids = append(ids, outcomes[i].EventID)
		}
	}
	if len(ids) > 0 {
		recs, err := events.Read(ctx, h.pool, ids, maxInlineBody)
		if err != nil {
			return err
		}
		for _, id := range ids {
			h.records[id] = nil // it was dropped
		}
		for i := range recs {
			h.records[recs[i].ID] = &recs[i]
		}
	}
	if h.row != nil {
		return nil
	}
	return h.loadRow(ctx)
}

func (h *history) loadRow(ctx context.Context) error {
	wanted := []versioning.LoadRequest{{Key: h.key, MinAt: math.MinInt64, MaxAt: math.MaxInt64}}
	err := pgx.BeginTxFunc(ctx, h.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		objs, err := versioning.Load(ctx, tx, versioning.Mirror, wanted)
		if err == nil {
			h.row = objs[0]
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read object %s %s: %w", h.key.Type, h.key.ID, err)
	}
	return nil
}

// read returns an event that was loaded, and the object's state in it.
func (h *history) read(ctx context.Context, o *events.Outcome) (HistoryEvent, versioning.State, error) {
	rec := h.records[o.EventID]
	e := HistoryEvent{ID: o.EventID, StoredAt: events.Instant{Time: events.Time(o.EventID)}, AppliedAt: o.At,
		Status: o.Status, Reason: o.Reason, Version: orNull(o.Version), DecidedBy: orNull(o.DecidedBy),
		Attempts: o.Attempts, RuleVersion: o.RuleVersion, Outdated: o.RuleVersion < versioning.RuleVersion}
	if rec != nil {
		e.EventID, e.EventType, e.Origin = rec.Key, rec.Type, rec.Origin
		e.OccurredAt.Time, e.ReceivedAt.Time = rec.OccurredAt, rec.ReceivedAt
		if !rec.OccurredAt.IsZero() {
			late := rec.ReceivedAt.Sub(rec.OccurredAt).Milliseconds()
			e.LateMS = &late
		}
	}
	s, err := h.state(ctx, o.EventID, rec)
	if err != nil {
		return e, s.State, err
	}
	if e.StateOmitted, e.StateOmittedReason = s.Omitted, s.Reason; s.Omitted == "" {
		e.Deleted = &s.State.Deleted
	}
	e.Differs = h.differs(o, rec, &s)
	return e, s.State, nil
}

var droppedState = apply.EventState{Omitted: apply.StateDropped,
	Reason: "retention dropped this day of the log; the outcome is kept"}

// state returns the object's state in an event.
func (h *history) state(ctx context.Context, id int64, rec *events.Record) (apply.EventState, error) {
	switch {
	case rec == nil:
		return droppedState, nil
	case rec.Redacted:
		return apply.EventState{Omitted: apply.StateRedacted, Reason: "the event was redacted"}, nil
	case h.reducer == nil:
		return apply.EventState{Omitted: apply.StateNotConfigured, Reason: h.notConfigured}, nil
	}
	if s, ok := h.states[id]; ok {
		return s, nil
	}
	whole, isLarge := *rec, rec.BodyOmitted
	if isLarge {
		if ok, err := h.fetchBody(ctx, &whole); err != nil || !ok {
			return droppedState, err
		}
	}
	s := h.reducer.ReadState(h.key, &whole)
	if isLarge {
		s.State.JSON = bytes.Clone(s.State.JSON) // it refers to the body
	}
	h.states[id] = s
	return s, nil
}

// fetchBody reads the large body of an event, unless the last event had the same. ok is false if
// the event was dropped since.
func (h *history) fetchBody(ctx context.Context, rec *events.Record) (ok bool, err error) {
	if h.lastDelivery == rec.DeliveryID {
		rec.Body, rec.BodyOmitted = h.lastBody, false
		return true, nil
	}
	recs, err := events.Read(ctx, h.pool, []int64{rec.ID}, events.UnlimitedBody)
	if err != nil || len(recs) == 0 {
		return false, err
	}
	*rec = recs[0]
	h.lastBody, h.lastDelivery = rec.Body, rec.DeliveryID
	h.bodyBytes += len(rec.Body)
	return true, nil
}

// differs returns in what an event as it is read now differs from what was stored of it, "" if in
// nothing that is known. The outcome has its version. The row has the states of its version.
func (h *history) differs(o *events.Outcome, rec *events.Record, now *apply.EventState) string {
	switch versioning.Status(o.Status) {
	case versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous:
	case versioning.Ignored, versioning.Failed, versioning.Dead:
		return ""
	}
	switch {
	case now.Omitted == apply.StateUnreadable:
		return "state"
	case now.Omitted != "" && now.Omitted != apply.StatePartial:
		return ""
	}
	if stored := storedVersion(o.Version); stored != now.Version {
		return "version"
	}
	isPresent := now.Omitted == "" && now.Version == h.row.Version && o.Status != string(versioning.Stale) &&
		!h.row.Overflow && len(h.row.TiedStates) > 0 && rec.ReceivedAt.UnixMicro() >= h.row.OverwrittenAt
	if isPresent && !slices.ContainsFunc(h.row.TiedStates,
		func(t versioning.TiedState) bool { return t.State.Hash == now.State.Hash }) {
		return "state"
	}
	return ""
}

// storedVersion returns the version of an outcome.
func storedVersion(text json.RawMessage) versioning.Version {
	v := versioning.NoVersion
	if len(text) == 0 || json.Unmarshal(text, &v) != nil {
		return versioning.NoVersion
	}
	return v
}
