package verify

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// objectRows is how many objects are looked at together, and metRows how many outcomes of each are read at once.
	objectRows = 200
	metRows    = 1000

	objectsSQL = `
SELECT o.source, o.account, o.object_type, o.object_id FROM objects o WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4)
  AND ($6::bigint = 1 OR (hashtextextended(o.object_id, $5) & 9223372036854775807) % $6 = 0)
ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $7`

	// entered says of an outcome that its event may have met the mirror: a rebuild's have where it was swapped.
	entered = `o.object <> 0 AND o.status NOT IN ('failed', 'ignored')
    AND (o.run = 0 OR NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run AND r.job = 'rebuild' AND r.status <> 'done'))`

	// metSQL reads what objects have met, some events of each behind the last. What is dead has entered where the rule said so, else it owes a look at most. The rule is the
	// oldest that has decided an event, but for what was decided before a rebuild, which has made all of it anew.
	metSQL = `
SELECT d.object, o.event_id, bool_or(o.status <> 'dead' OR o.version IS NOT NULL), coalesce(max(o.rule_version) FILTER (WHERE o.rebuilt), min(o.rule_version)), count(*)
FROM unnest($1::bigint[], $2::bigint[]) AS d(object, after) CROSS JOIN LATERAL (
  SELECT o.event_id, o.status, o.version, o.rule_version, o.run <> 0 AND EXISTS (SELECT FROM runs r WHERE r.run = o.run AND r.job = 'rebuild') AS rebuilt FROM outcomes o WHERE o.object = d.object AND o.event_id > d.after AND ` + entered + `
  ORDER BY o.event_id FETCH FIRST $3 ROWS WITH TIES) o
GROUP BY 1, 2 ORDER BY 2`

	// missingSQL finds objects that events were applied to, or that have a base, and that are not in the mirror, where their rows stay for good.
	missingSQL = `
SELECT k.source, k.account, k.object_type, k.object_id, min(k.event) FROM (
  SELECT o.source, o.account, o.object_type, o.object_id, o.event_id AS event FROM outcomes o WHERE o.status <> 'dead' AND ` + entered + `
  UNION ALL SELECT b.source, b.account, b.object_type, b.object_id, b.last_event_id FROM bases b) k
WHERE NOT EXISTS (SELECT FROM objects m WHERE m.source = k.source AND m.account = k.account AND m.object_type = k.object_type AND m.object_id = k.object_id)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4`

	redactingSQL = `SELECT EXISTS (SELECT FROM runs r WHERE r.job = 'redact' AND r.ended_at IS NULL AND r.started_at IS NOT NULL)`
)

// share is that of which one of every so many is looked at; 1: all are.
func (w *work) share(what string) int64 {
	if w.Sample <= 0 {
		return 1
	}
	return max(1, w.all[what]/w.Sample)
}

// eachObjects gives the keys of the objects, or of a sample of them, some at a time.
func (w *work) eachObjects(ctx context.Context, do func([]versioning.Key) error) error {
	k := versioning.Key{Source: math.MinInt32}
	for {
		keys, err := page(ctx, w.view.txs[0], func(row pgx.CollectableRow) (k versioning.Key, err error) {
			return k, row.Scan(&k.Source, &k.Account, &k.Type, &k.ID)
		}, "objects", objectsSQL, k.Source, k.Account, k.Type, k.ID, w.seed, w.share("objects"), objectRows)
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := do(keys); err != nil {
			return err
		}
		k = keys[len(keys)-1]
	}
}

// missing looks for objects that are not in the mirror.
func (w *work) missing(ctx context.Context) error {
	rows, err := w.view.txs[0].Query(ctx, missingSQL)
	if err != nil {
		return fmt.Errorf("look for missing objects: %w", err)
	}
	var k versioning.Key
	var event int64
	_, err = pgx.ForEachRow(rows, []any{&k.Source, &k.Account, &k.Type, &k.ID, &event}, func() error {
		item := w.object(k, fmt.Sprintf("event %d was applied to it", event))
		item.Event = event
		w.tally.add(ObjectMissing, item)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for missing objects: %w", err)
	}
	return nil
}

// pair is an object as the mirror has it and as its base and its events make it.
type pair struct {
	have, made *versioning.Object
	// outdated: an older rule may have made a part of it.
	outdated bool
	// least is what today's rule alone has made of it, where it differs and an older one may have had a part in it; nil: that is not known. It is not behind that.
	least *versioning.Object
	// odd is the first event that says nothing of it any more though it has met it.
	odd processor.Odd
}

// objects compares some objects with what their events make.
func (w *work) objects(ctx context.Context, tx pgx.Tx, keys []versioning.Key) error {
	keys = slices.DeleteFunc(slices.Clone(keys), func(k versioning.Key) bool {
		if w.refold.Reads(k.Source) {
			return false
		}
		w.tally.note("%d objects of source "+w.source(k.Source)+" were not compared with their events: it is not in the configuration used here", 1)
		return true
	})
	pairs, err := load(ctx, tx, keys)
	if err != nil {
		return err
	}
	settled, all := []int64{}, []int64{}
	for object, p := range pairs {
		all = append(all, object)
		if p.have.Settled > p.made.Settled {
			settled = append(settled, object)
		}
	}
	if err := w.meet(ctx, tx, pairs, settled, meeting{settling: true}); err != nil {
		return err
	}
	if err := w.meet(ctx, tx, pairs, all, meeting{}); err != nil {
		return err
	}
	if err := w.least(ctx, tx, pairs); err != nil {
		return err
	}
	for _, p := range pairs {
		w.compare(p)
	}
	w.tell("objects", w.tally.look("objects", int64(len(keys))))
	return nil
}

// load reads objects with their bases, by the hashes of their keys.
func load(ctx context.Context, tx pgx.Tx, keys []versioning.Key) (map[int64]*pair, error) {
	wanted := make([]versioning.Wanted, len(keys))
	for i, k := range keys {
		wanted[i] = versioning.Wanted{Key: k, Lo: math.MinInt64, Hi: math.MaxInt64}
	}
	have, err := versioning.Load(ctx, tx, versioning.Mirror, wanted)
	if err != nil {
		return nil, err
	}
	made, err := versioning.Load(ctx, tx, versioning.Bases, wanted)
	if err != nil {
		return nil, err
	}
	pairs := make(map[int64]*pair, len(keys))
	for i := range keys {
		pairs[keys[i].Hash()] = &pair{have: have[i], made: made[i], outdated: have[i].Outdated() || made[i].Outdated()}
	}
	return pairs, nil
}

// least joins into the objects that differ, and that an older rule may have had a part in, only what today's rule has decided. A person's word and an older base leave that open.
func (w *work) least(ctx context.Context, tx pgx.Tx, pairs map[int64]*pair) error {
	var keys []versioning.Key
	for _, p := range pairs {
		if p.outdated && p.odd.Reason == "" && p.have.Settled == 0 && len(differences(&p.have.Row, &p.made.Row)) > 0 {
			keys = append(keys, p.have.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	again, err := load(ctx, tx, keys)
	if err != nil {
		return err
	}
	open := []int64{}
	for object, p := range again {
		if p.made.Outdated() {
			delete(again, object)
			continue
		}
		open = append(open, object)
	}
	if err := w.meet(ctx, tx, again, open, meeting{today: true}); err != nil {
		return err
	}
	for object, p := range again {
		pairs[object].least = p.made
	}
	return nil
}

// meeting says what of the events counts.
type meeting struct {
	// settling: only looks that settle; today: only what today's rule has decided.
	settling, today bool
}

// meet joins what some objects have met into them, a part of each at a time.
func (w *work) meet(ctx context.Context, tx pgx.Tx, pairs map[int64]*pair, open []int64, how meeting) error {
	objs := make(map[int64]*versioning.Object, len(pairs))
	for object, p := range pairs {
		objs[object] = p.made
	}
	after := make([]int64, len(open))
	for len(open) > 0 {
		m, err := readMet(ctx, tx, pairs, open, after, how.today)
		if err != nil {
			return err
		}
		odd, err := w.refold.Fold(ctx, tx, objs, m.met, m.ids, how.settling)
		if err != nil {
			return err
		}
		for _, o := range odd {
			if p := pairs[o.Object]; p.odd.Reason == "" || o.Unreadable && !p.odd.Unreadable {
				p.odd = o
			}
		}
		open, after = m.open, m.after
	}
	return nil
}

// some are outcomes of some objects, and those of which there may be more, behind which event.
type some struct {
	met         map[processor.Met]bool
	ids         []int64
	open, after []int64
}

func readMet(ctx context.Context, tx pgx.Tx, pairs map[int64]*pair, open, after []int64, today bool) (*some, error) {
	rows, err := tx.Query(ctx, metSQL, open, after, metRows)
	if err != nil {
		return nil, fmt.Errorf("read what %d objects have met: %w", len(open), err)
	}
	s := &some{met: map[processor.Met]bool{}}
	counts, last := map[int64]int64{}, map[int64]int64{}
	var m processor.Met
	var whole bool
	var rule int32
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&m.Object, &m.Event, &whole, &rule, &n}, func() error {
		if !today || rule == versioning.RuleVersion {
			s.met[m] = whole
			s.ids = append(s.ids, m.Event)
		}
		pairs[m.Object].outdated = pairs[m.Object].outdated || rule != versioning.RuleVersion
		counts[m.Object] += n
		last[m.Object] = m.Event
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read what %d objects have met: %w", len(open), err)
	}
	s.ids = slices.Compact(s.ids)
	for object, n := range counts {
		if n >= metRows {
			s.open, s.after = append(s.open, object), append(s.after, last[object])
		}
	}
	return s, nil
}

// compare tells how an object differs from what its events make. When a look is owed may depend on the order in which they came.
func (w *work) compare(p *pair) {
	if p.have.Outdated() {
		w.tally.note("%d objects were made by an older rule: postern rebuild makes them anew", 1)
	}
	what := differences(&p.have.Row, &p.made.Row)
	switch {
	case len(what) == 0:
	case p.odd.Unreadable:
		w.tally.note("%d objects were not compared, since events of theirs cannot be read here: "+p.odd.Reason, 1)
	case p.least != nil && !w.redacting && behind(&p.have.Row, &p.least.Row):
		least := *p
		least.made = p.least
		w.tally.add(kindOf(&least), w.object(p.have.Key, detail(&least, what)))
	case p.outdated && p.odd.Reason == "":
		w.tally.note("%d objects differ from what today's rule makes of their events, some of which an older rule decided: postern rebuild makes them anew", 1)
	case w.redacting:
		w.tally.note("%d objects differ from what their events make, while a redaction is under way: verify again when it has ended", 1)
	default:
		w.tally.add(kindOf(p), w.object(p.have.Key, detail(p, what)))
	}
}

// behind says that a row lacks what today's rule has decided, whatever an older rule has made of the rest: a version never falls.
func behind(have, least *versioning.Row) bool { return have.Version.Compare(least.Version) < 0 }

// kindOf is the kind of violation that a difference is.
func kindOf(p *pair) Kind {
	switch have, made := &p.have.Row, &p.made.Row; {
	case made.Version.Final && made.State.Deleted && !have.State.Deleted:
		return TombstoneRevived
	case have.Settled == made.Settled && have.Version.Compare(made.Version) < 0:
		return ObjectBehind
	}
	return ObjectDiffers
}

func detail(p *pair, what []string) string {
	text := "not as its events make it: " + strings.Join(what, ", ")
	if have, made := p.have.Version, p.made.Version; have != made {
		text += fmt.Sprintf("; the mirror has %s, the events make %s", have, made)
	}
	if p.odd.Reason != "" {
		text += fmt.Sprintf("; event %d %s", p.odd.Event, p.odd.Reason)
	}
	return text
}

func (w *work) object(k versioning.Key, detail string) Item {
	source := w.source(k.Source)
	return Item{Source: source, Account: k.Account, ObjectType: k.Type, ObjectID: k.ID, Detail: detail, Mend: "postern rebuild --source " + source + " --type " + k.Type}
}
