package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// alone is the mirror that webhooks alone make, by the pure rule.
type alone struct {
	rows map[versioning.Key]*versioning.Row
}

func (a *alone) event(l *life, d *events.Delivery) {
	obs, err := stripe.Stripe{}.Observe(l.source.Config, &provider.Stored{Body: d.Body})
	l.must(err)
	in, err := versioning.FromObservation(obs, d.ReceivedAt)
	l.must(err)
	if a.rows == nil {
		a.rows = map[versioning.Key]*versioning.Row{}
	}
	k := versioning.Key{Account: obs.Account, Type: obs.ObjectType, ID: obs.ObjectID}
	if a.rows[k] == nil {
		row := versioning.NewRow()
		a.rows[k] = &row
	}
	versioning.Apply(a.rows[k], in)
}

// truth is what the mirror must be: the account's objects as they are kept, each with the hash of its state; that of the deleted is zero.
func (l *life) truth() map[versioning.Key]versioning.Hash {
	all := map[versioning.Key]versioning.Hash{}
	for _, o := range l.fake.Truth() {
		var hash versioning.Hash
		if !o.Deleted() {
			hash = l.hash(o)
		}
		all[l.key(o)] = hash
	}
	return all
}

// key is how an object is kept.
func (l *life) key(o stripefake.Object) versioning.Key {
	k := versioning.Key{Account: o.Account, Type: o.Type, ID: o.ID}
	if o.Type == "product" || o.Type == "price" { // their ids are the same in both modes
		k.Account = map[bool]string{true: o.Account + "/test", false: "test"}[o.Account != ""]
	}
	return k
}

// hash is that of an object's state.
func (l *life) hash(o stripefake.Object) versioning.Hash {
	if h, ok := l.hashes[string(o.Body)]; ok {
		return h
	}
	v, err := canonical.Parse(o.Body)
	l.must(err)
	var volatile []string
	switch o.Type {
	case "invoice":
		volatile = []string{"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf"}
	case "charge":
		volatile = []string{"receipt_url"}
	}
	l.hashes[string(o.Body)] = versioning.NewState(v, false, volatile).Hash
	return l.hashes[string(o.Body)]
}

// What is counted: objects that webhooks alone have left other than they are, objects that were looked at, and looks.
const (
	behind = "behind"
	looked = "looked at"
	looks  = "looks"
)

// behind is how many objects webhooks alone leave other than they are.
func (l *life) behind() (n int) {
	for k, want := range l.truth() {
		row := l.alone.rows[k]
		if row == nil || row.State.Deleted != (want == versioning.Hash{}) || !row.State.Deleted && row.State.Hash != want {
			n++
		}
	}
	return n
}

// compare notes where the mirror is not what the account has.
func (l *life) compare(when string) {
	truth := l.truth()
	rows, err := l.db.Pool.Query(context.Background(), `SELECT account, object_type, object_id, state_hash, deleted, ambiguous, look_after, coalesce(state::text, '') FROM objects WHERE source = $1
		ORDER BY 1, 2, 3`, l.source.Number)
	l.must(err)
	var k versioning.Key
	var hash []byte
	var deleted, ambiguous bool
	var after int64
	var state string
	_, err = pgx.ForEachRow(rows, []any{&k.Account, &k.Type, &k.ID, &hash, &deleted, &ambiguous, &after, &state}, func() error {
		want, known := truth[k]
		delete(truth, k)
		gone := want == versioning.Hash{}
		if !known && !deleted || deleted != gone || ambiguous || after != 0 || !deleted && versioning.Hash(hash) != want {
			l.wrong("%s: %s %s of account %q is (deleted %t, ambiguous %t, owes a look after %d)\n%s\nand must be (deleted %t)\n%s", when, k.Type, k.ID, k.Account, deleted, ambiguous, after, state,
				gone, l.bodyOf(k))
		}
		return nil
	})
	l.must(err)
	for k, want := range truth {
		if l.sweeps > 0 && want == (versioning.Hash{}) { // gone before anybody heard of it
			continue
		}
		l.wrong("%s: %s %s of account %q is not in the mirror", when, k.Type, k.ID, k.Account)
	}
}

func (l *life) bodyOf(k versioning.Key) string {
	for _, o := range l.fake.Truth() {
		if o.Type == k.Type && o.ID == k.ID {
			return fmt.Sprintf("%s (%d changes, the last at %s)", o.Body, o.Changes, o.Changed)
		}
	}
	return "nothing"
}

// ends lets life stop and time pass, and reconciles for the last time: the events, then what is owed a look, then the objects, where they are swept.
func (l *life) ends() {
	before := *l.conditions
	l.over, l.deaths, l.wrongKey, l.unready = true, 0, 0, 0
	l.counts[behind] += l.behind()
	l.turn(good, 0)
	defer func() {
		l.over, *l.conditions = false, before
		l.turn(good, 0)
		l.tally()
	}()
	if l.hides { // what is hidden once more is deleted here, and must come back
		for range 3 {
			l.hideOne()
		}
		l.mends()
		l.findAll()
	}
	l.mends()
}

// mends reconciles until nothing is left to do.
func (l *life) mends() {
	l.wait(2 * l.runner.Settings.Settle)
	l.audit()
	var last []int64
	for _, account := range l.accounts() {
		last = append(last, l.ask(reconcile.Order{What: reconcile.Events, Account: account}))
	}
	swept := l.sweeps == 0
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
		case swept:
			l.looksAreTrue()
			l.wishesGranted()
			return
		default:
			swept, last = true, nil
			for _, o := range l.lists() {
				last = append(last, l.ask(o))
			}
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

// settled says whether nothing is left to do.
func (l *life) settled(last []int64) bool {
	var left int
	err := l.db.Pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM objects WHERE look_after <> 0) + (SELECT count(*) FROM hints) +
		(SELECT count(*) FROM runs WHERE ended_at IS NULL) + (SELECT count(*) FROM runs WHERE run = ANY($1) AND status <> 'done')`, last).Scan(&left)
	l.must(err)
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
	l.fake.Advance(time.Hour)
	for range 20 {
		l.down = 0
		l.deliver()
		l.audit()
		l.fake.Advance(time.Hour)
	}
	l.compare("after late webhooks")
	if after := l.log(); after != before {
		l.wrong("late webhooks made %s of %s", after, before)
	}
	if want, got := len(l.fake.Events()), before.events; got != want && !(l.sweeps > 0 && got < want) { // some were too old to be listed
		l.wrong("the log has %d events, and the account had %d", got, want)
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
