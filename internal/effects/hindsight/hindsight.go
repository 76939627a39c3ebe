// Package hindsight says which changes of the past would have had which effects under a rule, beside what the ledger has. It writes nothing.
package hindsight

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// entered says of an outcome that its event may have met the mirror as it arrived.
	entered = `o.run = 0 AND o.object <> 0 AND o.status NOT IN ('failed', 'ignored')`
	// whole says of one that entered that its own state did, and not only the look that it owes.
	whole = `(o.status <> 'dead' OR o.version IS NOT NULL)`

	// objectsSQL finds objects that events from an id on were applied to, each at the first of these.
	objectsSQL = `
SELECT o.event_id, o.account, o.object_id FROM outcomes o
WHERE o.event_id > $1 AND o.source = $2 AND o.object_type = $3 AND ` + entered + `
  AND NOT EXISTS (SELECT FROM outcomes e WHERE e.object = o.object AND e.object <> 0 AND e.event_id >= $4 AND e.event_id < o.event_id AND e.run = 0 AND e.status NOT IN ('failed', 'ignored'))
ORDER BY o.event_id LIMIT $5`

	// metSQL reads what objects have met, some events of each behind the last.
	metSQL = `
SELECT d.object, o.event_id, o.whole FROM unnest($1::bigint[], $2::bigint[]) AS d(object, after) CROSS JOIN LATERAL (
  SELECT o.event_id, ` + whole + ` AS whole FROM outcomes o WHERE o.object = d.object AND o.event_id > d.after AND ` + entered + ` ORDER BY o.event_id LIMIT $3) o
ORDER BY 2`

	// knownSQL looks for keys in the ledger: the effect of this version of the rule, or the newest of another. What was forced under a version is not what the rule has under it: it would be planned beside it.
	knownSQL = `
SELECT DISTINCT ON (e.key) e.key, e.effect, e.rule_version, e.state FROM effects e WHERE e.key = ANY($1::text[]) AND e.forced = 0 ORDER BY e.key, e.rule_version = $2 DESC, e.rule_version DESC`
)

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string { return []string{objectsSQL, metSQL, knownSQL, plannedSQL, goneSQL} }

// Options say what is looked at.
type Options struct {
	// Pool is connected as postern_operator.
	Pool *pgxpool.Pool
	// Known are the sources that the log has events of, Sources those that are configured, by name.
	Known   events.Sources
	Sources map[string]processor.Source
	Rule    *rules.Rule
	// Since is from when on changes count; what came before is read of the objects that have changed since.
	Since time.Time
	// Objects is how many objects are folded together, and Events how many events of each, or effects, are read at once; 0: the shipped numbers.
	Objects, Events int
}

// The shipped numbers.
const (
	objectsAtOnce = 200
	eventsAtOnce  = 500
)

// Ledger is what the ledger has of a key.
type Ledger string

// What the ledger has.
const (
	New   Ledger = "new"   // nothing: the effect would be planned
	Had   Ledger = "known" // the effect, under this version of the rule
	Older Ledger = "older" // one under another version, so that it would be planned again
	Twice Ledger = "twice" // nothing, but a change before this one has the key
	Gone  Ledger = "gone"  // an effect of the rule, under whatever version, whose key no change would have had
)

// Change is one that the rule would have wanted an effect of, or that has one (Gone) which the rule would not have wanted.
type Change struct {
	Event      int64  `json:"event,string"`
	EventKey   string `json:"event_key"`
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Key is the effect's, RuleVersion the rule's as it is configured here. Where there is Trouble, the rule could not say what it wants.
	Key         string `json:"key"`
	RuleVersion int    `json:"rule_version"`
	Trouble     string `json:"trouble"`
	// Ledger is what the ledger has: Effect, of HasVersion, in State; 0 and "" where it has nothing.
	Ledger     Ledger        `json:"ledger"`
	Effect     int64         `json:"effect"`
	HasVersion int           `json:"has_version"`
	State      effects.State `json:"state"`
}

// Counts are what was found, by what the ledger has, and how many events could not be read as they were then.
type Counts struct {
	Changes map[Ledger]int64
	Odd     int64
}

// Plan gives visit the changes of which the rule would have wanted an effect, those of an object in the order of their events. They are found by folding the history of each object in the order of ids, from
// its kept base or its beginning: live, events that came at once may have been applied in another order. A key that several objects share may be new for each. At last come the effects that
// the ledger has of changes since then, and that the rule would have wanted of none. Errors: events.ErrInvalid.
func Plan(ctx context.Context, o Options, visit func([]Change) error) (*Counts, error) {
	n := &Counts{Changes: map[Ledger]int64{}}
	if o.Rule.On == rules.OnSchedule {
		return nil, fmt.Errorf("%w: rule %s is on a schedule: what its windows would have had cannot be told, since they see objects as these are then, and not as they change; postern effects list --rule %s tells what they had", events.ErrInvalid, o.Rule.Name, o.Rule.Name)
	}
	o.Objects, o.Events = cmp.Or(o.Objects, objectsAtOnce), cmp.Or(o.Events, eventsAtOnce)
	refold, err := processor.NewRefold(o.Sources, o.Known)
	if err != nil {
		return nil, err
	}
	source, known := o.Known.Number[o.Rule.Source]
	switch {
	case !known:
		return n, nil // it has sent nothing yet
	case !refold.Reads(source):
		return nil, fmt.Errorf("%w: source %s is not configured here as it must be for its events to be read", events.ErrInvalid, o.Rule.Source)
	}
	from := int64(1)
	if o.Since.After(time.Unix(0, 0)) {
		from = events.FirstID(o.Since)
	}
	w := &walk{Options: o, refold: refold, source: source, from: from, rules: effects.NewRules([]*rules.Rule{o.Rule}), n: n, odd: map[int64]bool{}}
	if err := w.planned(ctx); err != nil {
		return nil, err
	}
	for after := w.from - 1; ; {
		keys, last, err := w.page(ctx, after)
		if err != nil {
			return nil, err
		}
		if len(keys) == 0 {
			return n, w.gone(ctx, visit)
		}
		if err := w.objects(ctx, keys, visit); err != nil {
			return nil, err
		}
		after = last
	}
}

// walk is one look back.
type walk struct {
	Options
	refold *processor.Refold
	source int32
	from   int64
	rules  *effects.Rules
	n      *Counts
	// left are the effects that the ledger has, by the digests of their keys, without those that the rule wants too. odd are events that cannot be read as they were.
	left map[[16]byte]int64
	odd  map[int64]bool
}

// page is the next objects, behind an event.
func (w *walk) page(ctx context.Context, after int64) (keys []versioning.Key, last int64, err error) {
	rows, err := w.Pool.Query(ctx, objectsSQL, after, w.source, w.Rule.Type, w.from, w.Objects)
	if err != nil {
		return nil, 0, fmt.Errorf("find objects that changed: %w", err)
	}
	k := versioning.Key{Source: w.source, Type: w.Rule.Type}
	_, err = pgx.ForEachRow(rows, []any{&last, &k.Account, &k.ID}, func() error {
		keys = append(keys, k)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("find objects that changed: %w", err)
	}
	return keys, last, nil
}

// objects folds some objects, and visits what their changes would have had.
func (w *walk) objects(ctx context.Context, keys []versioning.Key, visit func([]Change) error) error {
	objs, err := w.bases(ctx, keys)
	if err != nil {
		return err
	}
	h, said := w.refold.Hindsight(w.rules, objs, w.from), map[string]bool{}
	open := make([]int64, 0, len(objs))
	for object := range objs {
		open = append(open, object)
	}
	after := make([]int64, len(open))
	for len(open) > 0 {
		var met map[processor.Met]bool
		var ids []int64
		if met, ids, open, after, err = w.met(ctx, open, after); err != nil {
			return err
		}
		odd, err := h.Follow(ctx, w.Pool, met, ids, func(wanted []effects.Intent) error {
			changes, err := w.compare(ctx, wanted, said)
			if err != nil {
				return err
			}
			return visit(changes)
		})
		if err != nil {
			return err
		}
		w.n.Odd += int64(len(odd))
		for i := range odd {
			w.odd[odd[i].Event] = true
		}
	}
	return nil
}

// bases are objects as they were before the first event that the log still has of them, by the hashes of their keys.
func (w *walk) bases(ctx context.Context, keys []versioning.Key) (objs map[int64]*versioning.Object, err error) {
	wanted := make([]versioning.Wanted, len(keys))
	for i, k := range keys {
		wanted[i] = versioning.Wanted{Key: k, Lo: math.MinInt64, Hi: math.MaxInt64}
	}
	objs = map[int64]*versioning.Object{}
	err = pgx.BeginTxFunc(ctx, w.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		all, err := versioning.Load(ctx, tx, versioning.Bases, wanted)
		for _, o := range all {
			objs[o.Key.Hash()] = o
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read bases: %w", err)
	}
	return objs, nil
}

// met reads further events of objects, and says of which objects there may be more, behind which event.
func (w *walk) met(ctx context.Context, open, after []int64) (met map[processor.Met]bool, ids, stillOpen, stillAfter []int64, err error) {
	rows, err := w.Pool.Query(ctx, metSQL, open, after, w.Events)
	if err != nil {
		return nil, nil, nil, nil, fmt.Errorf("read what %d objects have met: %w", len(open), err)
	}
	met = map[processor.Met]bool{}
	counts, last := map[int64]int{}, map[int64]int64{}
	var m processor.Met
	var whole bool
	_, err = pgx.ForEachRow(rows, []any{&m.Object, &m.Event, &whole}, func() error {
		met[m] = whole
		if len(ids) == 0 || ids[len(ids)-1] != m.Event {
			ids = append(ids, m.Event)
		}
		counts[m.Object]++
		last[m.Object] = m.Event
		return nil
	})
	if err != nil {
		return nil, nil, nil, nil, fmt.Errorf("read what %d objects have met: %w", len(open), err)
	}
	for object, n := range counts {
		if n == w.Events {
			stillOpen, stillAfter = append(stillOpen, object), append(stillAfter, last[object])
		}
	}
	return met, ids, stillOpen, stillAfter, nil
}

// compare says what the ledger has of what the rule wants. said are the keys of the same objects that came before.
func (w *walk) compare(ctx context.Context, wanted []effects.Intent, said map[string]bool) ([]Change, error) {
	keys := make([]string, len(wanted))
	for i := range wanted {
		keys[i] = wanted[i].Key
	}
	rows, err := w.Pool.Query(ctx, knownSQL, keys, w.Rule.Version)
	if err != nil {
		return nil, fmt.Errorf("look for %d keys in the ledger: %w", len(keys), err)
	}
	had := map[string]Change{}
	var key string
	var c Change
	_, err = pgx.ForEachRow(rows, []any{&key, &c.Effect, &c.HasVersion, &c.State}, func() error {
		had[key] = c
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for %d keys in the ledger: %w", len(keys), err)
	}
	all := make([]Change, len(wanted))
	for i := range wanted {
		in, t := &wanted[i], wanted[i].Of()
		c, there := had[in.Key]
		c.Event, c.EventKey, c.Source, c.Account, c.ObjectType, c.ObjectID = t.Event.ID, t.Event.Key, t.Source, t.Account, t.Type, t.ID
		c.Key, c.RuleVersion, c.Trouble = in.Key, w.Rule.Version, in.Trouble
		switch {
		case there && c.HasVersion == w.Rule.Version:
			c.Ledger = Had
		case said[in.Key]:
			c.Ledger = Twice
		case there:
			c.Ledger = Older
		default:
			c.Ledger = New
		}
		said[in.Key] = true
		delete(w.left, events.KeyDigest(in.Key))
		w.n.Changes[c.Ledger]++
		all[i] = c
	}
	return all, nil
}
