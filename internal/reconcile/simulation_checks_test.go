package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// The reconciler makes statements while the account changes: that the log is complete until a time,
// that an object had a state at a time, that a refetch request is done, that a number of objects
// differed. Each statement is compared with the account's history when it is made.

// checkEventsComplete checks the watermark of events: every event of the provider until then is in
// the log and has an outcome.
func (l *simulation) checkEventsComplete() {
	for _, account := range l.accounts() {
		reported := l.requiredEvents(account)
		since, until, err := watermarks.Get(context.Background(), l.db.Pool, l.reconcileSource.Number, account,
			reconcile.Events)
		l.must(err)
		if until.IsZero() || len(reported) == 0 {
			continue
		}
		l.counts["events complete"]++
		done := l.appliedKeys()
		for key, at := range reported {
			if digest := events.KeyDigest(key); !at.Before(since) && at.Before(until) && !done[[16]byte(digest[:])] {
				l.fail("complete from %s until %s of account %q, and event %s of %s has no outcome", since, until,
					account, key, at)
			}
		}
	}
}

// appliedKeysSQL selects the key digests of events with an outcome. IS TRUE makes it one pass over
// each table; a join of tables without statistics would be a nested loop.
const appliedKeysSQL = `SELECT k.key FROM event_keys k WHERE k.source = $1
	AND (k.id IN (SELECT o.event_id FROM outcomes o
	WHERE o.run = 0 AND o.status <> 'failed')) IS TRUE`

// appliedKeys returns the key digests of events with an outcome.
func (l *simulation) appliedKeys() map[[16]byte]bool {
	all := map[[16]byte]bool{}
	for _, k := range queryAll[[]byte](l, appliedKeysSQL, l.reconcileSource.Number) {
		all[[16]byte(k)] = true
	}
	return all
}

// checkTypeComplete checks the new watermark of a type: the row of each object that existed before
// has its state at that time or a later one, unless a refetch is pending. The arguments are those
// of the statement.
func (l *simulation) checkTypeComplete(args []any) {
	if l.fake == nil {
		return
	}
	account, since, until := args[1].(string), args[4].(time.Time), args[5].(time.Time)
	_, objectType, _ := strings.Cut(args[2].([]string)[0], " ")
	l.counts["type complete"]++
	if since.After(time.Unix(0, 0)) {
		l.fail("type %s of account %q is complete from %s on, though its list contains all objects", objectType,
			account, since)
	}
	for _, o := range l.fake.CurrentObjects() {
		k := l.keyOf(stripeObject(o))
		if k.Account != account || k.Type != objectType || !l.visibleSince(k, until) {
			continue
		}
		may, gone := l.statesSince(o, until)
		row, known := l.mirrored(k)
		switch {
		case !known && gone, row.pending: // no webhook has reported the object
		case !known:
			l.fail("type %s of account %q becomes complete until %s, and %s is not in the mirror", objectType,
				account, until, o.ID)
		case row.deleted && !gone, !row.deleted && !may[versioning.Hash(row.hash)]:
			l.fail("type %s of account %q becomes complete by run %d until %s, and %s (deleted %t) has an "+
				"older state\n%s", objectType, account, args[6], until, o.ID, row.deleted, l.objectHistory(k))
		}
	}
}

// statesSince returns the states of an object at a time and after it, and whether it did not exist
// at one of these times.
func (l *simulation) statesSince(o stripefake.Object, at time.Time) (states map[versioning.Hash]bool, gone bool) {
	states, gone = map[versioning.Hash]bool{}, true
	for _, one := range l.fake.History(o.Account, o.ID) {
		if one.Changed.Before(at) {
			clear(states)
			gone = false
		}
		if one.Deleted() {
			gone = true
		} else {
			states[l.stateHash(one.Type, one.Body)] = true
		}
	}
	return states, gone
}

// newRefetchesSQL selects the refetches in the log after an event.
const newRefetchesSQL = `SELECT e.id, e.body, coalesce(e.verification ->> 'reason', '') FROM events e
	WHERE e.event_type = 'postern.refetch' AND e.id > $1 ORDER BY e.id`

// checkRefetches checks that each refetch in the log has a state of the object that is no older
// than its lag, and of the right account.
func (l *simulation) checkRefetches() {
	if l.fake == nil {
		return
	}
	rows, err := l.db.Pool.Query(context.Background(), newRefetchesSQL, l.lastChecked)
	l.must(err)
	var body []byte
	var reason string
	_, err = pgx.ForEachRow(rows, []any{&l.lastChecked, &body, &reason}, func() error {
		l.counts["refetches checked"]++
		l.loggedReasons[reason] = true
		refetch, err := provider.DecodeRefetch(body)
		if err == nil && !l.wasInState(refetch) {
			l.fail("refetch %d says that %s %s of account %q had this state at %s, which it did not have within %s "+
				"before\n%s", l.lastChecked,
				refetch.ObjectType, refetch.ObjectID, refetch.Account, refetch.Date, refetch.Lag, refetch.Body)
		}
		return err
	})
	l.must(err)
	l.checkManualRefetches()
}

// wasInState reports whether an object had the state of a refetch within its time range.
func (l *simulation) wasInState(refetch *provider.Refetch) bool {
	all := l.fake.CurrentObjects()
	i := slices.IndexFunc(all, func(o stripefake.Object) bool {
		k := l.keyOf(stripeObject(o))
		return k.Account == refetch.Account && k.Type == refetch.ObjectType && k.ID == refetch.ObjectID
	})
	if i < 0 {
		return refetch.Missing
	}
	from, until := refetch.Date.Add(-refetch.Elapsed-refetch.Lag).Truncate(time.Second), refetch.Date.Add(time.Second)
	if l.learnsClocks {
		// The offset of the clock that stamps events is known only after an event arrived without
		// delay. Before that a time range may end too early, which matters only if the webhook of
		// an object's last change is lost.
		until = until.Add(max(0, -l.clockAhead))
	}
	if refetch.Missing && l.hiddenWithin(l.keyOf(stripeObject(all[i])), from, until) {
		return true
	}
	missing := refetch.Missing || strings.Contains(string(refetch.Body), `"deleted":true`)
	var states []stripefake.Object
	born := false
	for _, one := range l.fake.History(all[i].Account, all[i].ID) {
		if !one.Changed.Before(until) {
			break
		}
		if one.Changed.Before(from) {
			states, born = nil, true
		}
		states = append(states, one)
	}
	return missing && !born || slices.ContainsFunc(states, func(one stripefake.Object) bool {
		return one.Deleted() == missing &&
			(missing || l.stateHash(one.Type, one.Body) == l.stateHash(one.Type, refetch.Body))
	})
}

// stillNeededSQL reports whether a refetch request is still needed: a refetch of its object is
// pending, its last refetch has no outcome although no pass was killed since ($6), or its manual
// request ($5) has no refetch in the log.
const stillNeededSQL = `
SELECT EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4
	AND o.refetch_after <> 0),
  EXISTS (SELECT FROM (SELECT max(e.id) AS id FROM events e WHERE e.event_type = 'postern.refetch' AND e.account = $2
  	AND e.object_type = $3 AND e.object_id = $4 AND NOT e.verification ? 'run') e
    WHERE e.id > $6 AND NOT EXISTS (SELECT FROM outcomes u WHERE u.event_id = e.id AND u.run = 0
    	AND u.status <> 'failed')),
  EXISTS (SELECT FROM refetch_requests h WHERE h.source = $1 AND h.account = $2 AND h.object_type = $3
  	AND h.object_id = $4
  	AND h.requested_at = $5 AND h.requested_by <> ''
    AND NOT EXISTS (SELECT FROM events e WHERE e.event_type = 'postern.refetch'
    	AND e.verification ->> 'reason' = h.reason)),
  EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4)`

// checkRequestDone checks that a request which is deleted is done. The arguments are those of the
// statement.
func (l *simulation) checkRequestDone(args []any) {
	var refetchPending, pending, manual, known bool
	l.must(l.db.Pool.QueryRow(context.Background(), stillNeededSQL, args[0], args[1], args[2], args[3], args[5],
		l.newestAtKill).Scan(&refetchPending, &pending, &manual, &known))
	l.counts["requests done"]++
	if manual && !known { // a refetch of an unknown object appends nothing
		delete(l.manualRefetches, versioning.Key{Source: args[0].(int32), Account: args[1].(string),
			Type: args[2].(string), ID: args[3].(string)})
		manual = false
	}
	if refetchPending || pending || manual {
		l.fail("the refetch request of %s %s of account %q is deleted: refetch pending %t, its refetch has no "+
			"outcome %t, its manual request has no refetch %t", args[2], args[3], args[1], refetchPending, pending,
			manual)
	}
}

// checkManualRefetches checks at the end that the last manual refetch of each object is in the log.
func (l *simulation) checkManualRefetches() {
	for k, reason := range l.manualRefetches {
		if !l.loggedReasons[reason] {
			l.fail("the manual refetch of %s %s of account %q (%s) is not in the log", k.Type, k.ID, k.Account, reason)
		}
	}
	clear(l.manualRefetches)
}

// checkCounts checks the counts of a run that is done.
func (l *simulation) checkCounts(run int64, o *reconcile.Params, n map[string]int64) {
	switch o.Scope {
	case reconcile.Events:
		if n[reconcile.Processed] != n[reconcile.Present]+n[reconcile.Missing]+n[reconcile.Conflicting] {
			l.fail("run %d over events counts %v", run, n)
		}
	case reconcile.Objects:
		l.counts["scanned"]++
		if l.fake == nil {
			return
		}
		differing := n[reconcile.Missing] + n[objectscan.MirrorOlder] + n[objectscan.ContentDiffers] +
			n[objectscan.Orphans]
		ended := n[objectscan.Repaired] + n[objectscan.Unrepaired]
		reported := l.caller.takeSeenCount(run)
		switch {
		case n[reconcile.Processed] != n[objectscan.Equal]+n[objectscan.MirrorNewer]+differing ||
			n[objectscan.Equal] < 0:
			l.fail("object scan %d counts %v: the seen objects are not the sum of equal, newer and different ones", run,
				n)
		case o.DryRun && ended != 0, !o.DryRun && (ended < differing || n[objectscan.Repaired] > differing ||
			n[objectscan.Unrepaired] == 0 && ended != differing):
			l.fail("object scan %d counts %v: the different objects are not the sum of repaired and unrepaired ones",
				run, n)
		case n[reconcile.Processed] > int64(reported):
			l.fail("object scan %d counts %v, and the API returned %d objects", run, n, reported)
		}
	}
}

const objectHistorySQL = `
	SELECT format('here   at %s, seen %s, window %s to %s, deleted %s: %s', provider_time(version_at), version_seen,
		provider_time(time_from), provider_time(time_to), deleted, state)
	FROM objects WHERE account = $1 AND object_type = $2 AND object_id = $3
	UNION ALL SELECT * FROM (SELECT format('log    %s %s of %s, received %s, run %s: %s %s', e.origin, e.event_type,
		e.occurred_at, e.received_at, e.verification ->> 'run', u.status, u.reason)
	FROM events e LEFT JOIN outcomes u ON u.event_id = e.id AND u.run = 0
	WHERE e.account = $1 AND e.object_type = $2 AND e.object_id = $3 ORDER BY e.id) e
	UNION ALL SELECT format('drift  run %s %s %s %s', run, kind, result, reason) FROM drifts
	WHERE account = $1 AND object_type = $2 AND object_id = $3
	UNION ALL SELECT format('scan   run %s from %s, started %s, restarts %s, unrepaired %s', run, since, started_at,
		restarts,
		unrepaired)
	FROM object_scans WHERE account = $1 AND object_type = $2`

// objectHistory describes the states of an object at the provider, and its rows in the mirror and
// the log.
func (l *simulation) objectHistory(k versioning.Key) string {
	var story []string
	for _, b := range l.objects() {
		if l.keyOf(b) != k || l.fake == nil {
			continue
		}
		account, id, _ := strings.Cut(b.readKey, " ")
		for _, one := range l.fake.History(account, id) {
			story = append(story, fmt.Sprintf("there  %s (deleted %t) %s", one.Changed.Format(time.StampMicro),
				one.Deleted(), one.Body))
		}
	}
	known := queryAll[string](l, objectHistorySQL, k.Account, k.Type, k.ID)
	return strings.Join(append(story, known...), "\n")
}

// mirrorObject is an object of the mirror.
type mirrorObject struct {
	hash, state      []byte
	deleted, pending bool
}

const mirrorObjectSQL = `SELECT state_hash, coalesce(state::text, ''), deleted, refetch_after <> 0
	OR EXISTS (SELECT FROM refetch_requests h
	WHERE h.source = o.source AND h.account = o.account AND h.object_type = o.object_type AND h.object_id = o.object_id)
	FROM objects o WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`

// mirrored returns an object of the mirror, or false.
func (l *simulation) mirrored(k versioning.Key) (o mirrorObject, ok bool) {
	var state string
	err := l.db.Pool.QueryRow(context.Background(), mirrorObjectSQL, k.Source, k.Account, k.Type, k.ID).
		Scan(&o.hash, &state, &o.deleted, &o.pending)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, false
	}
	l.must(err)
	o.state = []byte(state)
	return o, true
}

const unambiguousDeletedSQL = `SELECT account, object_type, object_id FROM objects
	WHERE source = $1 AND deleted AND NOT ambiguous AND refetch_after = 0`

// checkDeleted checks that no object that always existed is deleted in the mirror.
func (l *simulation) checkDeleted() {
	if l.fake != nil {
		return
	}
	rows, err := l.db.Pool.Query(context.Background(), unambiguousDeletedSQL, l.reconcileSource.Number)
	l.must(err)
	gone := map[versioning.Key]bool{}
	k := versioning.Key{Source: l.reconcileSource.Number}
	_, err = pgx.ForEachRow(rows, []any{&k.Account, &k.Type, &k.ID}, func() error { gone[k] = true; return nil })
	l.must(err)
	for _, b := range l.objects() {
		if k := l.keyOf(b); b.neverDeleted && gone[k] && !l.hiddenRecently(k) {
			l.fail("%s %s is deleted in the mirror and always existed:\n%s", b.Type, b.ID, l.objectHistory(k))
		}
	}
}

// hiddenRecently reports whether the API did not find an object at some time since the last
// complete reconciliation.
func (l *simulation) hiddenRecently(k versioning.Key) bool {
	return l.hiddenWithin(k, l.eraEndedAt, l.Now().Add(time.Microsecond))
}

// checkScan checks the watermarks of an object scan: objects that did not change since are equal. A
// scan of changes only does not report deletes.
func (l *simulation) checkScan(run int64, o *reconcile.Params) {
	if l.fake != nil || o.Scope != reconcile.Objects {
		return
	}
	for _, objectType := range l.types {
		if o.Type != "" && o.Type != objectType {
			continue
		}
		// each change of these providers advances a version
		for _, what := range []string{"type ", "versions ", "changes "} {
			_, until, err := watermarks.Get(context.Background(), l.db.Pool, l.reconcileSource.Number, o.Account,
				what+objectType)
			l.must(err)
			for _, b := range l.objects() {
				if b.Type == objectType && b.Changed.Before(until) && (b.Body != nil || what != "changes ") {
					l.checkCompleteObject(run, what, until, b)
				}
			}
		}
	}
}

// checkCompleteObject checks one object before a watermark.
func (l *simulation) checkCompleteObject(run int64, what string, until time.Time, b liveObject) {
	k := l.keyOf(b)
	o, ok := l.mirrored(k)
	if l.hiddenRecently(k) || !ok && b.Body == nil || o.pending {
		return
	}
	if !ok || !l.sameState(b, o.deleted, versioning.Hash(o.hash), o.state) {
		l.fail("run %d: %s%s is complete until %s, and %s is (exists %t, deleted %t)\n%s\nand must be, since "+
			"%s,\n%s\n%s", run,
			what, b.Type, until, b.ID, ok, o.deleted, o.state, b.Changed, b.Body, l.objectHistory(k))
	}
}
