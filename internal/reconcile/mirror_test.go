package reconcile_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/versioning"
)

// byWebhook tells the mirror of webhooks alone, by the pure rule.
func (l *life) byWebhook(d *events.Delivery) {
	e := d.Events[0]
	obs, err := l.reads.Provider.Observe(l.reads.Config, &provider.Stored{Key: e.Key, Type: e.Type, Account: e.Account,
		APIVersion: e.APIVersion, Origin: d.Origin, ReceivedAt: d.ReceivedAt, Body: d.Body})
	l.must(err)
	if obs.Ignored != "" {
		return
	}
	in, err := versioning.FromObservation(obs, d.ReceivedAt)
	l.must(err)
	k := versioning.Key{Source: l.reads.Number, Account: cmp.Or(obs.Account, l.reads.Config.Account), Type: obs.ObjectType,
		ID: obs.ObjectID}
	if l.alone[k] == nil {
		row := versioning.NewRow()
		l.alone[k] = &row
	}
	versioning.Apply(l.alone[k], in)
}

// key is how an object is kept.
func (l *life) key(b being) versioning.Key {
	return versioning.Key{Source: l.reads.Number, Account: b.Account, Type: b.Type, ID: b.ID}
}

// hash is that of the state of an account's object.
func (l *life) hash(objectType string, body []byte) versioning.Hash {
	if h, ok := l.hashes[string(body)]; ok {
		return h
	}
	v, err := canonical.Parse(body)
	l.must(err)
	var volatile []string
	switch objectType {
	case "invoice":
		volatile = []string{"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf"}
	case "charge":
		volatile = []string{"receipt_url"}
	}
	l.hashes[string(body)] = versioning.NewState(v, false, volatile).Hash
	return l.hashes[string(body)]
}

// plain is a state as it is compared: without the fields that one side alone tells.
func (l *life) plain(body []byte) (object map[string]any) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // ids are too large for a float
	l.must(d.Decode(&object))
	for _, field := range l.apart() {
		delete(object, field)
	}
	return object
}

// same says whether a state, as it is kept, is what the object is.
func (l *life) same(b being, deleted bool, hash versioning.Hash, state []byte) bool {
	switch {
	case deleted || b.Body == nil:
		return deleted && b.Body == nil
	case l.fake != nil:
		return hash == l.hash(b.Type, b.Body)
	}
	return len(state) > 0 && gocmp.Equal(l.plain(state), l.plain(b.Body))
}

// What is counted: objects that webhooks alone have left other than they are, objects that were looked at, and looks.
const (
	behind = "behind"
	looked = "looked at"
	looks  = "looks"
)

// behind is how many objects webhooks alone leave other than they are.
func (l *life) behind() (n int) {
	for _, b := range l.beings() {
		row := l.alone[l.key(b)]
		switch {
		case row == nil && b.Body == nil && l.fake == nil:
		case row == nil, !l.same(b, row.State.Deleted, row.State.Hash, row.State.JSON):
			n++
		}
	}
	return n
}

const mirrorSQL = `SELECT account, object_type, object_id, state_hash, deleted, ambiguous, look_after, coalesce(state::text, '')
	FROM objects WHERE source = $1 ORDER BY 1, 2, 3`

// compare notes where the mirror is not what the provider has.
func (l *life) compare(when string) {
	truth := map[versioning.Key]being{}
	for _, b := range l.beings() {
		truth[l.key(b)] = b
	}
	rows, err := l.db.Pool.Query(context.Background(), mirrorSQL, l.reads.Number)
	l.must(err)
	k := versioning.Key{Source: l.reads.Number}
	var hash []byte
	var deleted, ambiguous bool
	var after int64
	var state string
	var differ []func()
	_, err = pgx.ForEachRow(rows, []any{&k.Account, &k.Type, &k.ID, &hash, &deleted, &ambiguous, &after, &state}, func() error {
		b := truth[k]
		delete(truth, k)
		if ambiguous || after != 0 || !l.same(b, deleted, versioning.Hash(hash), []byte(state)) {
			is := fmt.Sprintf("is (deleted %t, ambiguous %t, owes a look after %d)\n%s", deleted, ambiguous, after, state)
			of := k
			differ = append(differ, func() {
				l.wrong("%s: %s %s of account %q %s\nand must be, since %s,\n%s\n%s", when, of.Type, of.ID, of.Account, is,
					b.Changed, b.Body, l.storyOf(of))
			})
		}
		return nil
	})
	l.must(err)
	for _, tell := range differ {
		tell()
	}
	for k, b := range truth {
		if b.Body == nil && (l.fake == nil || l.sweeps > 0) { // gone before anybody heard of it
			continue
		}
		l.wrong("%s: %s %s of account %q is not in the mirror", when, k.Type, k.ID, k.Account)
	}
}

// ends lets life stop and time pass, and reconciles for the last time: the events, then what is owed a look, then the
// objects, where they are swept.
func (l *life) ends() {
	before := *l.conditions
	l.over, l.deaths, l.wrongKey, l.unready = true, 0, 0, 0
	l.counts[behind] += l.behind()
	l.turn(good, 0)
	defer func() {
		l.over, *l.conditions = false, before
		l.turn(good, 0)
		l.tally()
		l.settledAt = l.Now()
	}()
	l.passed()
	if l.hides > 0 { // what is hidden once more is deleted here, and must come back
		for range 3 {
			l.hideOne()
		}
		l.mends(l.everything()...)
		l.findAll()
		l.passed()
	}
	l.mends(l.everything()...)
}

// passed lets a ward's lists become new, which are longer late than an account's; what was not sent yet is listed nowhere.
func (l *life) passed() {
	for n := 0; n < 3 && l.fake == nil; n++ {
		l.wait(2 * time.Minute)
		l.deliver()
	}
}

// everything is what is reconciled in the end, one after the other.
func (l *life) everything() (steps [][]reconcile.Order) {
	var over []reconcile.Order
	for _, account := range l.accounts() {
		if l.fake != nil || len(l.told(account)) > 0 {
			over = append(over, reconcile.Order{What: reconcile.Events, Account: account})
		}
	}
	if len(over) > 0 {
		steps = append(steps, over)
	}
	if l.sweeps > 0 {
		steps = append(steps, l.lists())
	}
	return steps
}

// mends carries out orders, and looks, until nothing is left to do.
func (l *life) mends(steps ...[]reconcile.Order) {
	l.wait(2 * l.runner.Settings.Settle)
	l.audit()
	var last []int64
	next := func() {
		last = nil
		for _, o := range steps[0] {
			last = append(last, l.ask(o))
		}
		steps = steps[1:]
	}
	if len(steps) > 0 {
		next()
	}
	for n := range 200 {
		l.wait(time.Duration(max(1, n-50)) * time.Minute) // a hint may wait for an hour
		for l.carry() {
		}
		for n := 0; l.pass() > 0; n++ {
			if n == 1000 {
				l.wrong("looks come to no end")
				return
			}
		}
		l.audit()
		switch {
		case l.failed(last):
			return
		case !l.settled(last):
		case len(steps) > 0:
			next()
		default:
			l.looksAreTrue()
			return
		}
	}
	l.wrong("the last reconciliation comes to no end: %v", l.left())
}

// left is what is still to do.
func (l *life) left() []string {
	rows, err := l.db.Pool.Query(context.Background(), `SELECT format('hint of %s %s, tried %s times, due in %s: %s', object_type, object_id, attempts, due - clock_now(), error) FROM hints
		UNION ALL SELECT format('run %s is %s, put off: %s', run, status, detail) FROM runs WHERE ended_at IS NULL
		UNION ALL SELECT format('%s %s owes a look after %s', object_type, object_id, look_after) FROM objects WHERE look_after <> 0`)
	l.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	return all
}

// tally counts the looks since the last time, but of objects that somebody has had looked at without need.
func (l *life) tally() {
	for key, n := range l.caller.looked {
		if !l.wished[key] {
			l.counts[looked]++
			l.counts[looks] += n
		}
	}
	clear(l.caller.looked)
	clear(l.wished)
}

// settledSQL counts what is left to do. A hint that a person has wished for, and that no look can be made for, stays.
const settledSQL = `SELECT (SELECT count(*) FROM objects WHERE look_after <> 0) +
	(SELECT count(*) FROM hints WHERE $2 OR due < 'infinity' OR wanted_by = '') +
	(SELECT count(*) FROM runs WHERE ended_at IS NULL) + (SELECT count(*) FROM runs WHERE run = ANY($1) AND status <> 'done')`

// settled says whether nothing is left to do.
func (l *life) settled(last []int64) bool {
	var left int
	l.must(l.db.Pool.QueryRow(context.Background(), settledSQL, last, l.fake != nil).Scan(&left))
	return left == 0
}

// failed says, and notes why, whether one of the last runs has failed.
func (l *life) failed(last []int64) bool {
	rows, err := l.db.Pool.Query(context.Background(), `SELECT format('run %s over %s has failed: %s', run, asked, detail) FROM runs WHERE run = ANY($1) AND status = 'failed'`, last)
	l.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	for _, why := range all {
		l.wrong("%s", why)
	}
	return len(all) > 0
}

// check notes what is wrong after the last reconciliation, and after all webhooks that come later still.
func (l *life) check() {
	before := l.log()
	l.Advance(time.Hour)
	for range 20 {
		l.down = 0
		l.deliver()
		l.audit()
		l.Advance(time.Hour)
	}
	if l.fake == nil { // late webhooks owe looks which tell of a time before what is proven
		l.over, l.deaths, l.wrongKey = true, 0, 0
		l.mends()
		before = l.log()
	}
	l.compare("after late webhooks")
	if after := l.log(); after != before {
		l.wrong("late webhooks made %s of %s", after, before)
	}
	if l.fake != nil { // where there are sweeps, some were too old to be listed
		if want, got := len(l.fake.Events()), before.events; got != want && !(l.sweeps > 0 && got < want) {
			l.wrong("the log has %d events, and the account had %d", got, want)
		}
	}
	if before.conflicts+before.dead+before.miscounted > 0 {
		l.wrong("%s: %v", before, l.reasons())
	}
}

// inLog are counts of what the log has.
type inLog struct{ events, looks, conflicts, dead, miscounted int }

func (n inLog) String() string {
	return fmt.Sprintf("%d events and %d looks, %d conflicts, %d dead, %d runs miscounted", n.events, n.looks, n.conflicts, n.dead, n.miscounted)
}

func (l *life) log() (n inLog) {
	err := l.db.Pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM events WHERE event_type <> 'postern.look'), (SELECT count(*) FROM events WHERE event_type = 'postern.look'),
		(SELECT count(*) FROM event_conflicts), (SELECT count(*) FROM outcomes WHERE status = 'dead'),
		(SELECT count(*) FROM runs r WHERE r.status = 'done' AND r.asked ->> 'what' = 'events' AND r.asked ->> 'dry_run' IS NULL AND (r.counts ->> 'missing')::bigint <> (SELECT count(*) FROM events e WHERE e.verification ->> 'run' = r.run::text))`).
		Scan(&n.events, &n.looks, &n.conflicts, &n.dead, &n.miscounted)
	l.must(err)
	return n
}

func (l *life) reasons() []string {
	rows, err := l.db.Pool.Query(context.Background(), `SELECT DISTINCT reason FROM outcomes WHERE status = 'dead' LIMIT 3`)
	l.must(err)
	reasons, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.must(err)
	return slices.Sorted(slices.Values(reasons))
}
