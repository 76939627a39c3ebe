package reconcile_test

import (
	"context"
	"errors"
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

func (l *life) hash(o stripefake.Object) versioning.Hash {
	v, err := canonical.Parse(o.Body)
	l.must(err)
	var volatile []string
	switch o.Type {
	case "invoice":
		volatile = []string{"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf"}
	case "charge":
		volatile = []string{"receipt_url"}
	}
	return versioning.NewState(v, false, volatile).Hash
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
		if l.sweeps && want == (versioning.Hash{}) { // gone before anybody heard of it
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

// proven checks that a watermark claims only what is true: all that the account has told until then is in the log and has its outcome.
func (l *life) proven() {
	if !l.punctual() {
		return
	}
	for _, account := range l.accounts() {
		since, until, err := reconcile.Watermark(context.Background(), l.db.Pool, l.source.Number, account, reconcile.Events)
		l.must(err)
		if until.IsZero() {
			continue
		}
		l.counts["proven"]++
		applied := l.applied()
		for _, e := range l.fake.Events() {
			if e.Account == account && !e.At.Before(since) && e.At.Before(until) && !applied[e.ID] {
				l.wrong("proven from %s until %s of account %q, and event %s of %s has no outcome", since, until, account, e.ID, e.At)
			}
		}
	}
}

// swept checks that a sweep claims only what is true: what has not changed since its watermark is as the account has it.
func (l *life) swept(run int64, o *reconcile.Order) {
	if o.What != reconcile.Objects {
		return
	}
	_, until, err := reconcile.Watermark(context.Background(), l.db.Pool, l.source.Number, o.Account, "type "+o.Type)
	l.must(err)
	l.counts["swept"]++
	for _, one := range l.fake.Truth() {
		if k := l.key(one); k.Account != o.Account || k.Type != o.Type || !one.Changed.Before(until) {
			continue
		}
		var hash []byte
		var deleted, doubt bool
		err := l.db.Pool.QueryRow(context.Background(), `SELECT state_hash, deleted, look_after <> 0 FROM objects WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`,
			l.source.Number, o.Account, o.Type, one.ID).Scan(&hash, &deleted, &doubt)
		switch {
		case errors.Is(err, pgx.ErrNoRows) && one.Deleted(): // nobody has told us that it was ever there
		case err != nil:
			l.wrong("proven until %s, and %s: %v", until, one.ID, err)
		case !doubt && (deleted != one.Deleted() || !deleted && versioning.Hash(hash) != l.hash(one)):
			l.wrong("run %d: type %s of account %q is proven until %s, and %s is not as it is since %s", run, o.Type, o.Account, until, one.ID, one.Changed)
		}
	}
}

// punctual says whether events come into the lists before a run may reach them.
func (l *life) punctual() bool {
	f := l.account.Faults
	return f.Late+f.Lag+f.Skew <= l.runner.Settings.Settle
}

// applied are the ids of events that have their outcome.
func (l *life) applied() map[string]bool {
	byDigest := map[[16]byte]bool{}
	rows, err := l.db.Pool.Query(context.Background(), `SELECT k.key FROM event_keys k JOIN outcomes o ON o.event_id = k.id AND o.run = 0 WHERE k.source = $1 AND o.status <> 'failed'`, l.source.Number)
	l.must(err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	l.must(err)
	for _, k := range keys {
		byDigest[[16]byte(k)] = true
	}
	all := map[string]bool{}
	for _, e := range l.fake.Events() {
		digest := events.KeyDigest(e.ID)
		all[e.ID] = byDigest[[16]byte(digest[:])]
	}
	return all
}

// ends lets life stop and time pass, and reconciles for the last time: the events, then what is owed a look, then the objects, where they are swept.
func (l *life) ends() {
	before := *l.conditions
	l.over, l.deaths, l.wrongKey = true, 0, 0
	l.counts[behind] += l.behind()
	defer func() {
		l.over, *l.conditions = false, before
		l.tally()
	}()
	l.wait(2 * l.runner.Settings.Settle)
	l.audit()
	var last []int64
	for _, account := range l.accounts() {
		last = append(last, l.ask(reconcile.Order{What: reconcile.Events, Account: account}))
	}
	swept := !l.sweeps
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
		switch {
		case !l.settled(last):
		case swept:
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
	if want, got := len(l.fake.Events()), before.events; got != want && !(l.sweeps && got < want) { // some were too old to be listed
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
