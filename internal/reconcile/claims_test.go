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
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// What reconciles makes claims while the account lives: that all is known until a time, that an object looked so at one, that a hint is not needed any more, that so many differed. Each is
// held against the account's history at the moment when it is made.

// eventsProven checks that a watermark claims only what is true: all that the provider has told until then is in the log
// and has its outcome.
func (l *life) eventsProven() {
	for _, account := range l.accounts() {
		told := l.told(account)
		since, until, err := reconcile.Watermark(context.Background(), l.db.Pool, l.reads.Number, account, reconcile.Events)
		l.must(err)
		if until.IsZero() || len(told) == 0 {
			continue
		}
		l.counts["proven"]++
		done := l.done()
		for key, at := range told {
			if digest := events.KeyDigest(key); !at.Before(since) && at.Before(until) && !done[[16]byte(digest[:])] {
				l.wrong("proven from %s until %s of account %q, and event %s of %s has no outcome", since, until, account, key, at)
			}
		}
	}
}

// doneSQL are the digests of the keys of events that have their outcome. IS TRUE makes it one pass over each table: of tables that nobody has analyzed, a join would be a nested loop.
const doneSQL = `SELECT k.key FROM event_keys k WHERE k.source = $1 AND (k.id IN (SELECT o.event_id FROM outcomes o WHERE o.run = 0 AND o.status <> 'failed')) IS TRUE`

// done are the digests of the keys of events that have their outcome.
func (l *life) done() map[[16]byte]bool {
	rows, err := l.db.Pool.Query(context.Background(), doneSQL, l.reads.Number)
	l.must(err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	l.must(err)
	all := map[[16]byte]bool{}
	for _, k := range keys {
		all[[16]byte(k)] = true
	}
	return all
}

// typeProven checks what a type's watermark is about to be raised to: the row of each object that there was until then shows what it was at that time, or what it became later, unless a look
// is owed for it. The arguments are those of the statement.
func (l *life) typeProven(args []any) {
	if l.fake == nil {
		return
	}
	account, objectType, since, until := args[1].(string), args[3].(string), args[4].(time.Time), args[5].(time.Time)
	l.counts["type proven"]++
	if since.After(time.Unix(0, 0)) {
		l.wrong("type %s of account %q is proven from %s on, though its list tells of everything", objectType, account, since)
	}
	for _, o := range l.fake.Truth() {
		k := l.key(accountBeing(o))
		if k.Account != account || k.Type != objectType || !l.found(k, until) {
			continue
		}
		may, gone := l.since(o, until)
		var hash []byte
		var deleted, doubt bool
		err := l.db.Pool.QueryRow(context.Background(), `SELECT o.state_hash, o.deleted, o.look_after <> 0 OR EXISTS (SELECT FROM hints h
			WHERE h.source = o.source AND h.account = o.account AND h.object_type = o.object_type AND h.object_id = o.object_id)
			FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4`, l.reads.Number, k.Account, k.Type, k.ID).Scan(&hash, &deleted, &doubt)
		switch {
		case errors.Is(err, pgx.ErrNoRows) && gone, doubt: // nobody has told us that it was ever there
		case errors.Is(err, pgx.ErrNoRows):
			l.wrong("type %s of account %q is about to be proven until %s, and %s is not in the mirror", objectType, account, until, o.ID)
		case err != nil:
			l.must(err)
		case deleted && !gone, !deleted && !may[versioning.Hash(hash)]:
			l.wrong("type %s of account %q is about to be proven by run %d until %s, and %s (deleted %t) is as it was before that\n%s", objectType, account, args[6], until, o.ID, deleted, l.storyOf(k))
		}
	}
}

// since are the states that an object has had at a time and after it, and whether it has not been there at one of them.
func (l *life) since(o stripefake.Object, at time.Time) (states map[versioning.Hash]bool, gone bool) {
	states, gone = map[versioning.Hash]bool{}, true
	for _, one := range l.fake.History(o.Account, o.ID) {
		if one.Changed.Before(at) {
			clear(states)
			gone = false
		}
		if one.Deleted() {
			gone = true
		} else {
			states[l.hash(one.Type, one.Body)] = true
		}
	}
	return states, gone
}

// newLooksSQL are the looks in the log behind one.
const newLooksSQL = `SELECT e.id, e.body, coalesce(e.verification ->> 'reason', '') FROM events e WHERE e.event_type = 'postern.look' AND e.id > $1 ORDER BY e.id`

// looksAreTrue checks that each look in the log tells what the object was at a time that it may tell of: no older than the lag that it names, and of no other account.
func (l *life) looksAreTrue() {
	if l.fake == nil {
		return
	}
	rows, err := l.db.Pool.Query(context.Background(), newLooksSQL, l.seen)
	l.must(err)
	var body []byte
	var reason string
	_, err = pgx.ForEachRow(rows, []any{&l.seen, &body, &reason}, func() error {
		l.counts["looks checked"]++
		l.granted[reason] = true
		look, err := provider.DecodeLook(body)
		if err == nil && !l.was(look) {
			l.wrong("look %d says that %s %s of account %q was so at %s, which it was not within %s before\n%s", l.seen, look.ObjectType, look.ObjectID, look.Account, look.Date, look.Lag, look.Body)
		}
		return err
	})
	l.must(err)
	l.wishesGranted()
}

// was says whether an object was once, in the time that a look may tell of, what the look says.
func (l *life) was(look *provider.Look) bool {
	all := l.fake.Truth()
	i := slices.IndexFunc(all, func(o stripefake.Object) bool {
		k := l.key(accountBeing(o))
		return k.Account == look.Account && k.Type == look.ObjectType && k.ID == look.ObjectID
	})
	if i < 0 {
		return look.Missing
	}
	from, until := look.Date.Add(-look.Elapsed-look.Lag).Truncate(time.Second), look.Date.Add(time.Second)
	if l.clocks {
		// How far a clock is ahead that stamps events is known only once one of them arrived at once. Until then a window may end too
		// early, which matters only where the webhook of an object's last change is lost.
		until = until.Add(max(0, -l.ahead))
	}
	if look.Missing && l.unfound(l.key(accountBeing(all[i])), from, until) {
		return true
	}
	missing := look.Missing || strings.Contains(string(look.Body), `"deleted":true`)
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
		return one.Deleted() == missing && (missing || l.hash(one.Type, one.Body) == l.hash(one.Type, look.Body))
	})
}

// needlessSQL says whether a hint is needed still: its object owes a look, the last look that was made of it has no outcome, although no
// pass has died since ($6), or it was wished for, as $5 made it, and the log has no look that says so.
const needlessSQL = `
SELECT EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4 AND o.look_after <> 0),
  EXISTS (SELECT FROM (SELECT max(e.id) AS id FROM events e WHERE e.event_type = 'postern.look' AND e.account = $2 AND e.object_type = $3 AND e.object_id = $4 AND NOT e.verification ? 'run') e
    WHERE e.id > $6 AND NOT EXISTS (SELECT FROM outcomes u WHERE u.event_id = e.id AND u.run = 0 AND u.status <> 'failed')),
  EXISTS (SELECT FROM hints h WHERE h.source = $1 AND h.account = $2 AND h.object_type = $3 AND h.object_id = $4 AND h.made_at = $5 AND h.wanted_by <> ''
    AND NOT EXISTS (SELECT FROM events e WHERE e.event_type = 'postern.look' AND e.verification ->> 'reason' = h.reason)),
  EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4)`

// needless checks that a hint which is about to be dropped has done what it was for. The arguments are those of the statement.
func (l *life) needless(args []any) {
	var owes, pending, wished, known bool
	l.must(l.db.Pool.QueryRow(context.Background(), needlessSQL, args[0], args[1], args[2], args[3], args[5], l.diedAt).Scan(&owes, &pending, &wished, &known))
	l.counts["dropped"]++
	if wished && !known { // nothing is appended of what nobody has ever had
		delete(l.wishes, versioning.Key{Source: args[0].(int32), Account: args[1].(string), Type: args[2].(string), ID: args[3].(string)})
		wished = false
	}
	if owes || pending || wished {
		l.wrong("the hint of %s %s of account %q is about to be dropped: the object owes a look %t, its look has no outcome %t, who wished for it has got none %t", args[2], args[3], args[1], owes, pending, wished)
	}
}

// wishesGranted checks, where nothing is left to do, that each last wish for a look has its look in the log.
func (l *life) wishesGranted() {
	for k, reason := range l.wishes {
		if !l.granted[reason] {
			l.wrong("somebody wished for a look at %s %s of account %q (%s), and nobody has made it", k.Type, k.ID, k.Account, reason)
		}
	}
	clear(l.wishes)
}

// addsUp checks the counts of a run that is done.
func (l *life) addsUp(run int64, o *reconcile.Order, n map[string]int64) {
	switch o.What {
	case reconcile.Events:
		if n[reconcile.Seen] != n[reconcile.Present]+n[reconcile.Missing]+n[reconcile.Conflicting] {
			l.wrong("run %d over events counts %v", run, n)
		}
	case reconcile.Objects:
		l.counts["swept"]++
		if l.fake == nil {
			return
		}
		odd := n[reconcile.Missing] + n[reconcile.Behind] + n[reconcile.Different] + n[reconcile.Ghosts]
		ended := n[reconcile.Mended] + n[reconcile.Left]
		told := l.caller.forget(run)
		switch {
		case n[reconcile.Seen] != n[reconcile.Equal]+n[reconcile.Ahead]+odd || n[reconcile.Equal] < 0:
			l.wrong("sweep %d counts %v: not all that was seen is equal, ahead, or wrong", run, n)
		case o.DryRun && ended != 0, !o.DryRun && (ended < odd || n[reconcile.Mended] > odd || n[reconcile.Left] == 0 && ended != odd):
			l.wrong("sweep %d counts %v: what was wrong is not what was mended or left", run, n)
		case n[reconcile.Seen] > int64(told):
			l.wrong("sweep %d counts %v, and the API told it of %d objects", run, n, told)
		}
	}
}

const storySQL = `
	SELECT format('here   at %s, seen %s, window %s to %s, deleted %s: %s', provider_time(version_at), version_seen,
		provider_time(window_lo), provider_time(window_hi), deleted, state)
	FROM objects WHERE account = $1 AND object_type = $2 AND object_id = $3
	UNION ALL SELECT * FROM (SELECT format('log    %s %s of %s, received %s, run %s: %s %s', e.origin, e.event_type,
		e.occurred_at, e.received_at, e.verification ->> 'run', u.status, u.reason)
	FROM events e LEFT JOIN outcomes u ON u.event_id = e.id AND u.run = 0
	WHERE e.account = $1 AND e.object_type = $2 AND e.object_id = $3 ORDER BY e.id) e
	UNION ALL SELECT format('drift  run %s %s %s %s', run, kind, result, reason) FROM drifts
	WHERE account = $1 AND object_type = $2 AND object_id = $3
	UNION ALL SELECT format('sweep  run %s from %s, began %s, restarts %s, left %s', run, since, began, restarts, remaining)
	FROM sweeps WHERE account = $1 AND object_type = $2`

// storyOf tells what an object ever was, and what the mirror and the log know of it.
func (l *life) storyOf(k versioning.Key) string {
	var story []string
	for _, b := range l.beings() {
		if l.key(b) != k || l.fake == nil {
			continue
		}
		account, id, _ := strings.Cut(b.read, " ")
		for _, one := range l.fake.History(account, id) {
			story = append(story, fmt.Sprintf("there  %s (deleted %t) %s", one.Changed.Format(time.StampMicro), one.Deleted(), one.Body))
		}
	}
	rows, err := l.db.Pool.Query(context.Background(), storySQL, k.Account, k.Type, k.ID)
	l.must(err)
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	return strings.Join(append(story, known...), "\n")
}

// kept is an object as the mirror has it.
type kept struct {
	hash, state    []byte
	deleted, doubt bool
}

const keptSQL = `SELECT state_hash, coalesce(state::text, ''), deleted, look_after <> 0 OR EXISTS (SELECT FROM hints h
	WHERE h.source = o.source AND h.account = o.account AND h.object_type = o.object_type AND h.object_id = o.object_id)
	FROM objects o WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`

// mirrored is what the mirror has of an object; false where it has nothing.
func (l *life) mirrored(k versioning.Key) (o kept, ok bool) {
	var state string
	err := l.db.Pool.QueryRow(context.Background(), keptSQL, k.Source, k.Account, k.Type, k.ID).
		Scan(&o.hash, &state, &o.deleted, &o.doubt)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, false
	}
	l.must(err)
	o.state = []byte(state)
	return o, true
}

const buriedSQL = `SELECT account, object_type, object_id FROM objects
	WHERE source = $1 AND deleted AND NOT ambiguous AND look_after = 0`

// buried checks that nothing is shown to be gone that always was there, however late or wrong an answer was.
func (l *life) buried() {
	if l.fake != nil {
		return
	}
	rows, err := l.db.Pool.Query(context.Background(), buriedSQL, l.reads.Number)
	l.must(err)
	gone := map[versioning.Key]bool{}
	k := versioning.Key{Source: l.reads.Number}
	_, err = pgx.ForEachRow(rows, []any{&k.Account, &k.Type, &k.ID}, func() error { gone[k] = true; return nil })
	l.must(err)
	for _, b := range l.beings() {
		if k := l.key(b); b.lasts && gone[k] && !l.hiddenLately(k) {
			l.wrong("%s %s is shown to be gone, and always was there:\n%s", b.Type, b.ID, l.storyOf(k))
		}
	}
}

// hiddenLately says whether the API did not find an object at some time since the last reconciliation that was waited for.
func (l *life) hiddenLately(k versioning.Key) bool {
	return l.unfound(k, l.settledAt, l.Now().Add(time.Microsecond))
}

// sweptTruly checks that a sweep claims only what is true: what has not changed since its watermark is as the ward has
// it. What changed alone tells of no delete.
func (l *life) sweptTruly(run int64, o *reconcile.Order) {
	if l.fake != nil || o.What != reconcile.Objects {
		return
	}
	for _, objectType := range l.types {
		if o.Type != "" && o.Type != objectType {
			continue
		}
		for _, what := range []string{"type ", "versions ", "changes "} { // each change of a ward moves a version
			_, until, err := reconcile.Watermark(context.Background(), l.db.Pool, l.reads.Number, o.Account, what+objectType)
			l.must(err)
			for _, b := range l.beings() {
				if b.Type == objectType && b.Changed.Before(until) && (b.Body != nil || what != "changes ") {
					l.holds(run, what, until, b)
				}
			}
		}
	}
}

// holds checks one object that is proven to be as it is.
func (l *life) holds(run int64, what string, until time.Time, b being) {
	k := l.key(b)
	o, ok := l.mirrored(k)
	if l.hiddenLately(k) || !ok && b.Body == nil || o.doubt {
		return
	}
	if !ok || !l.same(b, o.deleted, versioning.Hash(o.hash), o.state) {
		l.wrong("run %d: %s%s is proven until %s, and %s is (there %t, deleted %t)\n%s\nand must be, since %s,\n%s\n%s", run,
			what, b.Type, until, b.ID, ok, o.deleted, o.state, b.Changed, b.Body, l.storyOf(k))
	}
}
