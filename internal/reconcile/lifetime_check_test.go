package reconcile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/versioning"
)

// plain is a state as it is compared: without the fields that one side alone tells. Nil: gone.
func (l *lifetime) plain(body []byte, deleted bool) (object map[string]any) {
	if deleted || len(body) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // ids are too large for a float
	l.must(d.Decode(&object))
	for _, field := range l.apart() {
		delete(object, field)
	}
	return object
}

// behind is how many objects webhooks alone leave other than they are.
func (l *lifetime) behind() (n int) {
	for _, b := range l.beings() {
		row := l.rows[versioning.Key{Type: b.Type, ID: b.ID}]
		switch {
		case row == nil && b.Body == nil:
		case row == nil, !cmp.Equal(l.plain(row.State.JSON, row.State.Deleted), l.plain(b.Body, false)):
			n++
		}
	}
	return n
}

// kept is an object as the mirror has it.
type kept struct {
	state                     []byte
	deleted, ambiguous, doubt bool
	// hinted: it is to be looked at.
	hinted bool
}

const keptSQL = `SELECT state::text, deleted, ambiguous, look_after <> 0,
  EXISTS (SELECT FROM hints h WHERE h.source = o.source AND h.account = o.account AND h.object_type = o.object_type AND h.object_id = o.object_id)
  FROM objects o WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`

// mirrored is what the mirror has of an object; false where it has nothing.
func (l *lifetime) mirrored(k versioning.Key) (o kept, ok bool) {
	var state *string
	err := l.db.Pool.QueryRow(context.Background(), keptSQL, k.Source, k.Account, k.Type, k.ID).Scan(&state, &o.deleted, &o.ambiguous, &o.doubt, &o.hinted)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, false
	}
	l.must(err)
	if state != nil {
		o.state = []byte(*state)
	}
	return o, true
}

// same says whether the mirror has an object as it is.
func (l *lifetime) same(o kept, b being) bool {
	return cmp.Equal(l.plain(o.state, o.deleted), l.plain(b.Body, false))
}

// compare notes where the mirror is not what the ward has.
func (l *lifetime) compare(when string) {
	all := l.beings()
	for _, b := range all {
		o, ok := l.mirrored(l.key(b))
		switch {
		case !ok && b.Body == nil: // gone before anybody heard of it
		case !ok:
			l.wrong("%s: %s %s is not in the mirror, and is\n%s", when, b.Type, b.ID, b.Body)
		case o.ambiguous || o.doubt || !l.same(o, b):
			l.wrong("%s: %s %s is (deleted %t, ambiguous %t, owes a look %t)\n%s\nand must be, since %s,\n%s\n%s", when, b.Type, b.ID, o.deleted, o.ambiguous, o.doubt, o.state, b.Changed, b.Body, l.history(b))
		}
	}
	var n int
	l.must(l.db.Pool.QueryRow(context.Background(), `SELECT count(*) FROM objects WHERE NOT deleted`).Scan(&n))
	for _, b := range all {
		if b.Body != nil {
			n--
		}
	}
	if n > 0 {
		l.wrong("%s: the mirror has %d objects that never were", when, n)
	}
}

// history is what the log has of an object, in the order in which it came.
func (l *lifetime) history(b being) string {
	rows, err := l.db.Pool.Query(context.Background(), `SELECT format('%s %s %s at %s: %s %s', o.event_id, e.origin, e.event_type, e.received_at, o.status, o.reason)
		FROM outcomes o JOIN events e ON e.id = o.event_id WHERE o.run = 0 AND o.object_type = $1 AND o.object_id = $2 ORDER BY o.event_id`, b.Type, b.ID)
	l.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	rows, err = l.db.Pool.Query(context.Background(), `SELECT format('run %s %s %s: %s %s', r.run, r.status, r.asked - 'words' - 'source', r.counts, r.detail) FROM runs r ORDER BY r.run DESC LIMIT 6`)
	l.must(err)
	last, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	return strings.Join(append(all, last...), "\n")
}

// buried checks that nothing is shown to be gone that always was there, however late or wrong an answer was.
func (l *lifetime) buried() {
	rows, err := l.db.Pool.Query(context.Background(), `SELECT object_type || ' ' || object_id FROM objects WHERE deleted AND NOT ambiguous AND look_after = 0`)
	l.must(err)
	gone, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	for _, b := range l.beings() {
		if name := b.Type + " " + b.ID; b.lasts && !l.hid[b.Type+b.ID] && slices.Contains(gone, name) {
			l.wrong("%s is shown to be gone, and always was there:\n%s", name, l.history(b))
		}
	}
}

// swept checks that a sweep claims only what is true: what has not changed since its watermark is as the ward has it. What changed alone tells of no delete.
func (l *lifetime) swept(run int64, o *reconcile.Order) {
	if o.What != reconcile.Objects {
		return
	}
	for _, objectType := range l.types {
		if o.Type != "" && o.Type != objectType {
			continue
		}
		l.counts["swept"]++
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
func (l *lifetime) holds(run int64, what string, until time.Time, b being) {
	o, ok := l.mirrored(l.key(b))
	if l.hid[b.Type+b.ID] || !ok && b.Body == nil || o.doubt || o.hinted {
		return
	}
	if !ok || !l.same(o, b) {
		l.wrong("run %d: %s%s is proven until %s, and %s is (there %t, deleted %t)\n%s\nand must be, since %s,\n%s\n%s", run, what, b.Type, until, b.ID, ok, o.deleted, o.state, b.Changed, b.Body, l.history(b))
	}
}

// proven checks that a watermark of events claims only what is true: all that the ward has told until then is in the log and has its outcome.
func (l *lifetime) proven() {
	since, until, err := reconcile.Watermark(context.Background(), l.db.Pool, l.reads.Number, "", reconcile.Events)
	l.must(err)
	if until.IsZero() {
		return
	}
	l.counts["proven"]++
	done := l.done()
	for key, at := range l.told() {
		if digest := events.KeyDigest(key); !at.Before(since) && at.Before(until) && !done[[16]byte(digest[:])] {
			l.wrong("proven from %s until %s, and event %s of %s has no outcome", since, until, key, at)
		}
	}
}

// done are the digests of the keys of events that have their outcome.
func (l *lifetime) done() map[[16]byte]bool {
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

// ends lets life stop and time pass, and reconciles for the last time: the events, then what is owed a look, then all objects.
func (l *lifetime) ends() {
	before := *l.trials
	l.over, l.deaths, l.wrongKey = true, 0, 0
	l.counts[behind] += l.behind()
	defer func() {
		l.over, *l.trials = false, before
		clear(l.hid)
		l.tally()
	}()
	for range 3 { // longer than any list is late; and what was not sent yet is listed nowhere
		l.wait(2 * time.Minute)
		l.deliver()
	}
	l.audit()
	l.wait(time.Minute)
	var steps [][]reconcile.Order
	if len(l.told()) > 0 {
		steps = append(steps, []reconcile.Order{{What: reconcile.Events}})
	}
	var all []reconcile.Order
	for _, objectType := range l.types {
		all = append(all, reconcile.Order{What: reconcile.Objects, Account: l.account, Type: objectType, Full: true})
	}
	steps = append(steps, all) // a hint that a person has wished for, and that no look can be made for, stays
	if l.hides > 0 {           // what is hidden is deleted here by a sweep, and must come back
		for len(l.hidden) == 0 && l.hideOne() {
		}
		steps = append([][]reconcile.Order{all}, steps...)
	}
	for i, orders := range steps {
		if i > 0 || l.hides == 0 {
			l.showAll()
			l.wait(2 * time.Minute) // as above: that it is back a list may not know before
		}
		if !l.settles(orders) {
			l.wrong("the last reconciliation comes to no end: %v", l.left())
			return
		}
	}
}

// settles carries out some orders, and looks, until nothing is left to do.
func (l *lifetime) settles(orders []reconcile.Order) bool {
	var last []int64
	for _, o := range orders {
		last = append(last, l.ask(o))
	}
	for n := range 200 {
		l.wait(time.Duration(max(1, n-50)) * time.Minute) // a hint may wait for an hour
		for l.carry() {
		}
		for n := 0; l.pass() > 0; n++ {
			if n == 1000 {
				return false
			}
		}
		var left int
		l.must(l.db.Pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM objects WHERE look_after <> 0) + (SELECT count(*) FROM hints WHERE due < 'infinity' OR wanted_by = '') +
			(SELECT count(*) FROM runs WHERE ended_at IS NULL) + (SELECT count(*) FROM runs WHERE run = ANY($1) AND status <> 'done')`, last).Scan(&left))
		if left == 0 {
			return true
		}
	}
	return false
}

// left is what is still to do.
func (l *lifetime) left() []string {
	rows, err := l.db.Pool.Query(context.Background(), `SELECT format('hint of %s %s, tried %s times, due at %s: %s', object_type, object_id, attempts, due, error) FROM hints
		UNION ALL SELECT format('run %s is %s: %s', run, status, detail) FROM runs WHERE ended_at IS NULL OR status = 'failed'
		UNION ALL SELECT format('%s %s owes a look after %s', object_type, object_id, look_after) FROM objects WHERE look_after <> 0`)
	l.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	return all
}

// tally counts the looks since the last time, but of objects that somebody has had looked at without need.
func (l *lifetime) tally() {
	for read, n := range l.phone.looked {
		if !l.wished[read] {
			l.counts[looked]++
			l.counts[looks] += n
		}
	}
	clear(l.phone.looked)
	clear(l.wished)
}

// check notes what is wrong after all webhooks that come later still, and the looks that those owe which tell of a time before what is proven.
func (l *lifetime) check() {
	for range 10 {
		l.wait(time.Hour)
		l.deliver()
		l.audit()
	}
	if l.over, l.deaths, l.wrongKey = true, 0, 0; !l.settles(nil) {
		l.wrong("the looks after late webhooks come to no end: %v", l.left())
	}
	l.compare("after late webhooks")
	var dead, conflicts int
	l.must(l.db.Pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM outcomes WHERE status = 'dead'), (SELECT count(*) FROM event_conflicts)`).Scan(&dead, &conflicts))
	if dead+conflicts > 0 {
		rows := l.db.Pool.QueryRow(context.Background(), `SELECT coalesce(min(reason), '') FROM outcomes WHERE status = 'dead'`)
		var reason string
		l.must(rows.Scan(&reason))
		l.wrong("%d events are dead and %d conflict: %s", dead, conflicts, reason)
	}
}

func (l *lifetime) String() string { return fmt.Sprint(l.counts) }
