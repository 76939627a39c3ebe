package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A change-set that does not fit the stored row shows that an event is late or lost. A refetch
// request, written with the outcome, makes sure that the object is read again unless the event
// arrives.

const readMissedChangesSQL = `
SELECT d.n, h.missed_changes FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(source,
	account,
	object_type, object_id, n)
JOIN refetch_requests h ON h.source = d.source AND h.account = d.account AND h.object_type = d.object_type
	AND h.object_id = d.object_id AND h.missed_changes IS NOT NULL`

// insertRefetchesSQL inserts in key order, as every other writer of this table does, so that two
// transactions cannot deadlock. A request that is in progress or suspended becomes due again after
// the wait.
const insertRefetchesSQL = `
INSERT INTO refetch_requests AS h (source, account, object_type, object_id, reason, requested_at, due, start_after,
	missed_changes)
SELECT d.source, d.account, d.object_type, d.object_id, d.reason, n.at, n.at + d.wait, 0, d.missed_changes
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::interval[], $7::text[]) AS d(source,
	account, object_type, object_id, missed_changes, wait, reason),
  (SELECT clock_now() AS at) n
ORDER BY d.source, d.account, d.object_type, d.object_id
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET missed_changes = excluded.missed_changes,
  reason = CASE WHEN excluded.missed_changes IS NOT NULL AND h.requested_by = ''
  	AND h.start_after = 0 THEN excluded.reason
  	ELSE h.reason END,
  requested_at = CASE WHEN excluded.missed_changes IS NULL THEN h.requested_at
  	ELSE greatest(excluded.requested_at, h.requested_at + interval '1 microsecond') END,
  due = CASE WHEN h.lease_owner <> '' OR h.due = 'infinity' AND excluded.missed_changes IS NOT NULL THEN excluded.due
  	ELSE h.due END`

// deleteClosedSQL deletes requests without a reason to refetch. insertRefetchesSQL has locked them
// before. The job that executes a request deletes it itself.
const deleteClosedSQL = `
DELETE FROM refetch_requests h USING unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS d(source, account,
	object_type,
	object_id)
WHERE h.source = d.source AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id
  AND h.missed_changes IS NULL AND h.requested_by = '' AND h.start_after = 0 AND h.lease_owner = ''`

// missedChanges are the missed changes of an object, with the reports of a batch about them.
type missedChanges struct {
	key  versioning.Key
	fits []versioning.ChangeFit
	wait time.Duration
	// lateChange is the change that a late event made to the object, nil if none did.
	lateChange *stateChange
	// stored is the value that the refetch request has, updated the value to write.
	stored, updated versioning.MissedChanges
}

// reason returns why the object needs a refetch.
func (g *missedChanges) reason() string {
	if g.updated.HasLateEvent() {
		return "an event came late"
	}
	return "a change does not fit"
}

// recordMissedChanges updates the refetch requests. reporting are the events of a batch that report
// missed changes, in the order in which they were decided. It also records late events.
func (a *Applier) recordMissedChanges(ctx context.Context, tx pgx.Tx, reporting []*event, changes []*stateChange,
	all []*event) error {
	late, err := a.lateChanges(ctx, tx, changes, all)
	if err != nil {
		return err
	}
	if missed := a.collectMissedChanges(reporting, late); len(missed) > 0 {
		return updateMissedChanges(ctx, tx, missed)
	}
	return nil
}

// updateMissedChanges updates refetch requests by the reports of a batch about their objects.
func updateMissedChanges(ctx context.Context, tx pgx.Tx, all []*missedChanges) error {
	if err := readMissedChanges(ctx, tx, all); err != nil {
		return fmt.Errorf("read missed changes of %d objects: %w", len(all), err)
	}
	all = slices.DeleteFunc(all, func(g *missedChanges) bool {
		g.updated = g.stored
		for i := range g.fits {
			g.updated = g.updated.Update(&g.fits[i])
		}
		if g.lateChange != nil {
			g.updated = g.updated.WithLateEvent(g.lateChange.from)
		}
		return slices.Equal(g.updated, g.stored)
	})
	if len(all) == 0 {
		return nil
	}
	if err := writeMissedChanges(ctx, tx, all); err != nil {
		return fmt.Errorf("record missed changes of %d objects: %w", len(all), err)
	}
	return nil
}

// collectMissedChanges returns, in key order, the objects for which events report something
// relevant or that a late event has changed. It skips objects that the source's API cannot read.
// Nearly all change-sets fit and are newer, so no refetch request is read for them.
func (a *Applier) collectMissedChanges(batch []*event, late []*stateChange) []*missedChanges {
	byKey := map[versioning.Key]*missedChanges{}
	entry := func(k versioning.Key) *missedChanges {
		if byKey[k] == nil {
			byKey[k] = &missedChanges{key: k}
		}
		return byKey[k]
	}
	for _, e := range batch {
		if e.reportsFit {
			g := entry(e.key)
			g.fits = append(g.fits, e.fit)
		}
	}
	for _, c := range late {
		entry(c.key).lateChange = c
	}
	all := slices.Collect(maps.Values(byKey))
	all = slices.DeleteFunc(all, func(g *missedChanges) bool {
		src, _ := a.sources.source(a.sources.name(g.key.Source))
		g.wait = src.LateEventGrace
		return g.lateChange == nil &&
			(!slices.ContainsFunc(g.fits, func(f versioning.ChangeFit) bool { return f.MayChangeMissed() }) ||
				g.wait == 0 || !a.isRelevant(g))
	})
	slices.SortFunc(all, func(a, b *missedChanges) int { return a.key.Compare(b.key) })
	return all
}

// isRelevant reports whether a batch's report about an object is recorded. An object that the API
// can only locate gets requests only for late events, and only a refetch closes those.
func (a *Applier) isRelevant(g *missedChanges) bool {
	return a.canReadByID(g.key) || a.canLocate(g.key) &&
		slices.ContainsFunc(g.fits, func(f versioning.ChangeFit) bool { return f.IsRefetch() })
}

// missedKeyArgs returns the parts of objects' keys as columns.
func missedKeyArgs(all []*missedChanges) []any {
	return versioning.KeyArgs(all, func(g *missedChanges) versioning.Key { return g.key })
}

func readMissedChanges(ctx context.Context, tx pgx.Tx, all []*missedChanges) error {
	var n int
	var text []byte
	return postgres.ForEach(ctx, tx, readMissedChangesSQL, missedKeyArgs(all), []any{&n, &text}, func() (err error) {
		all[n-1].stored, err = versioning.DecodeMissedChanges(text)
		return err
	})
}

func writeMissedChanges(ctx context.Context, tx pgx.Tx, all []*missedChanges) error {
	texts, waits, reasons := make([][]byte, len(all)), make([]time.Duration, len(all)), make([]string, len(all))
	for i, g := range all {
		var err error
		if texts[i], err = g.updated.Encode(); err != nil {
			return err
		}
		waits[i], reasons[i] = g.wait, g.reason()
	}
	if _, err := tx.Exec(ctx, insertRefetchesSQL, append(missedKeyArgs(all), texts, waits, reasons)...); err != nil {
		return err
	}
	if all = slices.DeleteFunc(all, func(g *missedChanges) bool { return g.updated != nil }); len(all) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, deleteClosedSQL, missedKeyArgs(all)...)
	return err
}
