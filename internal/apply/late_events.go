package apply

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// An object that an object scan found equal keeps its version. A late event from before the scan
// may therefore win over a state that was checked, and newer changes may be lost. The object then
// needs a refetch.

// stateChange is the change of an object's state by a batch.
type stateChange struct {
	key     versioning.Key
	from    versioning.Hash
	version versioning.Version
	// happenedUntil is the latest time at which the winning state may have occurred, in
	// microseconds of the provider's time.
	happenedUntil int64
}

// stateChanges returns the objects whose state a batch has changed by events, not by refetches. It
// includes objects that end ambiguous: a later event may end the ambiguity without showing that the
// state was checked.
func stateChanges(before map[versioning.Key]rowState, dirty []*versioning.Object) (all []*stateChange) {
	for _, o := range dirty {
		was, deleted := before[o.Key], o.State.Deleted
		switch {
		case o.Version == versioning.NoVersion, o.Version.Final, o.HasRefetch():
		case was.absent && deleted, was.absent == deleted && was.state == o.State.Hash:
		default:
			all = append(all, &stateChange{key: o.Key, from: was.state, version: o.Version, happenedUntil: o.TimeTo})
		}
	}
	return all
}

// setObjectVersionEnds sets happenedUntil of changes whose winning version is a version of the
// object itself. If the version is a time, this time is the end, also if the provider may not
// advance it with each change: a change without an advance then counts as late. If the version is
// a counter, the end is the event's time, or else its receipt. batch has all events of the batch.
func setObjectVersionEnds(all []*stateChange, batch []*event) {
	byKey := make(map[versioning.Key]*stateChange, len(all))
	for _, s := range all {
		byKey[s.key] = s
	}
	found := map[versioning.Key]bool{}
	for _, e := range batch {
		s := byKey[e.key]
		if s == nil || !e.input.OwnVersion || e.input.Version != s.version {
			continue
		}
		if end := e.happenedUntil(); !found[e.key] || end < s.happenedUntil {
			found[e.key], s.happenedUntil = true, end
		}
	}
}

// happenedUntil returns the latest time at which the change of an event with an object version
// occurred.
func (e *event) happenedUntil() int64 {
	switch {
	case e.input.Version.IsTime():
		return e.input.Version.At
	case !e.ev.OccurredAt.IsZero():
		return e.ev.OccurredAt.UnixMicro()
	}
	return e.input.Received
}

// completeTypesSQL returns for object types the time until which their objects were checked. An
// object scan that is still running counts with the time of its start.
const completeTypesSQL = `
SELECT d.n, p.until FROM unnest($1::int[], $2::text[], $3::text[]) WITH ORDINALITY AS d(source, account, object_type, n)
	CROSS JOIN LATERAL (SELECT greatest(
  (SELECT max(m.until) FROM watermarks m WHERE m.source = d.source AND m.account = d.account
  	AND m.subject IN ('type ' || d.object_type, 'versions ' || d.object_type, 'changes ' || d.object_type)),
  (SELECT max(s.started_at) FROM runs r JOIN object_scans s ON s.run = r.run AND s.object_type = d.object_type
   WHERE r.job = 'reconcile' AND r.ended_at IS NULL AND s.source = d.source AND s.account = d.account
   	AND s.phase <> 'done')) AS until) p
WHERE p.until IS NOT NULL`

// eventTimeResolution is the resolution of most providers' event times. The complete-until time may
// be inside such a second.
const eventTimeResolution = time.Second

// lateChanges returns the changes that occurred before the complete-until time of their type, if
// the source's API can read the object. batch has all events of the batch.
func (a *Applier) lateChanges(ctx context.Context, tx pgx.Tx, all []*stateChange, batch []*event) (late []*stateChange,
	err error) {
	var sources []int32
	var accounts, types []string
	position := map[versioning.Key]int{} // counts from 1; 0 means that the source has no API
	for _, s := range all {
		k := s.typeKey()
		if _, ok := position[k]; ok {
			continue
		}
		position[k] = 0
		if src, _ := a.sources.source(a.sources.name(k.Source)); src.ReadsByID != nil || src.Locates != nil {
			sources, accounts, types = append(sources, k.Source), append(accounts, k.Account), append(types, k.Type)
			position[k] = len(sources)
		}
	}
	if len(sources) == 0 {
		return nil, nil
	}
	completeUntil := map[int]int64{}
	var n int
	var until time.Time
	if err := postgres.ForEach(ctx, tx, completeTypesSQL, []any{sources, accounts, types}, []any{&n, &until},
		func() error {
			completeUntil[n] = until.Add(eventTimeResolution).UnixMicro()
			return nil
		}); err != nil {
		return nil, fmt.Errorf("read the complete-until times of %d types: %w", len(sources), err)
	}
	if len(completeUntil) == 0 {
		return nil, nil
	}
	setObjectVersionEnds(all, batch)
	for _, s := range all {
		if until, ok := completeUntil[position[s.typeKey()]]; ok && s.happenedUntil < until &&
			(a.canReadByID(s.key) || a.canLocate(s.key)) {
			late = append(late, s)
		}
	}
	return late, nil
}

// typeKey identifies the object's type in its account.
func (s *stateChange) typeKey() versioning.Key {
	return versioning.Key{Source: s.key.Source, Account: s.key.Account, Type: s.key.Type}
}

// canLocate reports whether the source's API can find objects of a type by their stored state.
func (a *Applier) canLocate(k versioning.Key) bool {
	src, _ := a.sources.source(a.sources.name(k.Source))
	return src.Locates != nil && src.Locates(k.Account, k.Type)
}

// canReadByID reports whether the source's API can read an object by its id.
func (a *Applier) canReadByID(k versioning.Key) bool {
	src, _ := a.sources.source(a.sources.name(k.Source))
	return src.ReadsByID != nil && src.ReadsByID(k.Account, k.Type, k.ID)
}
