// Package backtest evaluates a rule against past changes and compares the result with the effects
// in the ledger. The operations package calls it. It writes nothing.
package backtest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// mayBeAppliedSQL selects outcomes whose live event may be part of the mirror.
	mayBeAppliedSQL = `o.run = 0 AND o.object <> 0 AND o.status NOT IN ('failed', 'ignored')`
	// wholeStateSQL selects outcomes whose whole state was applied. A dead outcome without a
	// version may only have requested a refetch.
	wholeStateSQL = `(o.status <> 'dead' OR o.version IS NOT NULL)`

	// objectsSQL finds the objects of events from an id on, each at its first such event.
	objectsSQL = `
SELECT o.event_id, o.account, o.object_id FROM outcomes o
WHERE o.event_id > $1 AND o.source = $2 AND o.object_type = $3 AND ` + mayBeAppliedSQL + `
  AND NOT EXISTS (SELECT FROM outcomes e WHERE e.object = o.object AND e.object <> 0 AND e.event_id >= $4
  	AND e.event_id < o.event_id AND e.run = 0 AND e.status NOT IN ('failed', 'ignored'))
ORDER BY o.event_id LIMIT $5`

	// appliedSQL reads events that were applied to objects, a limited number per object, after the
	// last one read.
	appliedSQL = `
SELECT d.object, o.event_id, o.whole FROM unnest($1::bigint[], $2::bigint[]) AS d(object, after) CROSS JOIN LATERAL (
  SELECT o.event_id, ` + wholeStateSQL + ` AS whole FROM outcomes o WHERE o.object = d.object AND o.event_id > d.after
	AND ` + mayBeAppliedSQL + ` ORDER BY o.event_id LIMIT $3) o
ORDER BY 2`

	// ledgerSQL looks keys up in the ledger. It prefers the effect of this rule version, then the
	// newest of another. It ignores forced effects, because the rule would plan its own effect in
	// addition.
	ledgerSQL = `
SELECT DISTINCT ON (e.key) e.key, e.effect, e.rule_version, e.state FROM effects e WHERE e.key = ANY($1::text[])
	AND e.forced = 0 ORDER BY e.key, e.rule_version = $2 DESC, e.rule_version DESC`
)

// Options configure a backtest.
type Options struct {
	// Pool is connected as postern_operator.
	Pool *pgxpool.Pool
	// RegisteredSources are the sources with events in the log. Sources are the configured ones, by
	// name.
	RegisteredSources events.Sources
	Sources           map[string]apply.Source
	Rule              *rules.Rule
	// Since is the time of the first change to evaluate. Earlier events are read only of objects
	// that have changed since.
	Since time.Time
	// ObjectsPerBatch is how many objects are reduced together. EventsPerRead is how many events of
	// each, or effects, are read at once. Zero means the default.
	ObjectsPerBatch, EventsPerRead int
}

// The defaults of Options.
const (
	defaultObjects = 200
	defaultEvents  = 500
)

// Ledger is the result of the comparison of a key with the ledger.
type Ledger string

// The results of the comparison.
const (
	New          Ledger = "new"   // there is no effect; it would be planned
	Existing     Ledger = "known" // the effect exists under this version of the rule
	OtherVersion Ledger = "older" // the effect exists under another version; it would be planned again
	RepeatedKey  Ledger = "twice" // there is no effect, and an earlier change has the same key
	Gone         Ledger = "gone"  // the effect exists in some version, and the rule wants its key for no change
)

// Change is a change for which the rule wants an effect, or (Gone) one that has an effect
// which the rule does not want.
type Change struct {
	Event      int64  `json:"event,string"`
	EventKey   string `json:"event_key"`
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Key is the effect's key, RuleVersion the configured version of the rule. Failure is set if
	// the rule could not be evaluated.
	Key         string `json:"key"`
	RuleVersion int    `json:"rule_version"`
	Failure     string `json:"failure"`
	// Ledger is the result of the comparison. Effect, LedgerVersion and State are the id, the rule
	// version and the state of the existing effect; 0 and "" if there is none.
	Ledger        Ledger        `json:"ledger"`
	Effect        int64         `json:"effect"`
	LedgerVersion int           `json:"has_version"`
	State         effects.State `json:"state"`
}

// Counts are the numbers of changes by result of the comparison, and of the events that could not
// be read in their original form.
type Counts struct {
	Changes   map[Ledger]int64
	Anomalies int64
}

// Run passes the changes for which the rule wants an effect to visit, those of an object in the
// order of their events. It reduces the history of each object in the order of ids, from its
// retained object or its beginning. Live, concurrent events may have been applied in another order.
// A key that several objects share may be new for each. Finally it visits the effects
// in the ledger, for events since o.Since, that the rule does not want. Errors: events.ErrInvalid.
func Run(ctx context.Context, o Options, visit func([]Change) error) (*Counts, error) {
	n := &Counts{Changes: map[Ledger]int64{}}
	if o.Rule.On == rules.OnSchedule {
		return nil, fmt.Errorf("%w: rule %s is on a schedule. Its past windows cannot be evaluated, because they see "+
			"objects as they were at that time, and not their changes; postern effects list --rule %s lists the "+
			"effects that they planned", events.ErrInvalid, o.Rule.Name, o.Rule.Name)
	}
	o.ObjectsPerBatch, o.EventsPerRead = cmp.Or(o.ObjectsPerBatch, defaultObjects),
		cmp.Or(o.EventsPerRead, defaultEvents)
	reducer, err := apply.NewReducer(o.Sources, o.RegisteredSources)
	if err != nil {
		return nil, err
	}
	source, registered := o.RegisteredSources.Number[o.Rule.Source]
	switch {
	case !registered:
		return n, nil // it has no events yet
	case !reducer.CanRead(source):
		return nil, fmt.Errorf("%w: source %s is not configured here in a way that its events can be read",
			events.ErrInvalid, o.Rule.Source)
	}
	from := int64(1)
	if o.Since.After(time.Unix(0, 0)) {
		from = events.FirstID(o.Since)
	}
	w := &backtest{Options: o, reducer: reducer, source: source, from: from,
		rules: effects.NewRules([]*rules.Rule{o.Rule}), counts: n, anomalies: map[int64]bool{}}
	if err := w.loadLedger(ctx); err != nil {
		return nil, err
	}
	for after := w.from - 1; ; {
		keys, last, err := w.page(ctx, after)
		if err != nil {
			return nil, err
		}
		if len(keys) == 0 {
			return n, w.visitUnmatched(ctx, visit)
		}
		if err := w.reduceObjects(ctx, keys, visit); err != nil {
			return nil, err
		}
		after = last
	}
}

// backtest is one run of a backtest.
type backtest struct {
	Options
	reducer *apply.Reducer
	source  int32
	from    int64
	rules   *effects.Rules
	counts  *Counts
	// unmatched are the effects of the ledger, by the digests of their keys, that the rule has not
	// wanted so far. anomalies are events that cannot be read as they were.
	unmatched map[[16]byte]int64
	anomalies map[int64]bool
}

// page returns the next objects, after an event.
func (w *backtest) page(ctx context.Context, after int64) (keys []versioning.Key, last int64, err error) {
	k := versioning.Key{Source: w.source, Type: w.Rule.Type}
	err = postgres.ForEach(ctx, w.Pool, objectsSQL, []any{after, w.source, w.Rule.Type, w.from, w.ObjectsPerBatch},
		[]any{&last, &k.Account, &k.ID}, func() error {
			keys = append(keys, k)
			return nil
		})
	if err != nil {
		return nil, 0, fmt.Errorf("find objects that changed: %w", err)
	}
	return keys, last, nil
}

// reduceObjects reduces some objects and visits the effects that the rule wants for their changes.
func (w *backtest) reduceObjects(ctx context.Context, keys []versioning.Key, visit func([]Change) error) error {
	objs, err := w.loadRetained(ctx, keys)
	if err != nil {
		return err
	}
	evaluator, earlierKeys := w.reducer.Backtest(w.rules, objs, w.from), map[string]bool{}
	open := make([]int64, 0, len(objs))
	for object := range objs {
		open = append(open, object)
	}
	after := make([]int64, len(open))
	for len(open) > 0 {
		var applied map[apply.AppliedEvent]bool
		var ids []int64
		if applied, ids, open, after, err = w.readApplied(ctx, open, after); err != nil {
			return err
		}
		anomalies, err := evaluator.Evaluate(ctx, w.Pool, applied, ids, func(planned []effects.PlannedEffect) error {
			changes, err := w.compare(ctx, planned, earlierKeys)
			if err != nil {
				return err
			}
			return visit(changes)
		})
		if err != nil {
			return err
		}
		w.counts.Anomalies += int64(len(anomalies))
		for i := range anomalies {
			w.anomalies[anomalies[i].Event] = true
		}
	}
	return nil
}

// loadRetained returns objects as they were before the first event that the log still has of them,
// by the hashes of their keys.
func (w *backtest) loadRetained(ctx context.Context, keys []versioning.Key) (objs map[int64]*versioning.Object,
	err error) {
	requests := make([]versioning.LoadRequest, len(keys))
	for i, k := range keys {
		requests[i] = versioning.LoadRequest{Key: k, MinAt: math.MinInt64, MaxAt: math.MaxInt64}
	}
	objs = map[int64]*versioning.Object{}
	err = pgx.BeginTxFunc(ctx, w.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		all, err := versioning.Load(ctx, tx, versioning.RetainedObjects, requests)
		for _, o := range all {
			objs[o.Key.Hash()] = o
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read retained objects: %w", err)
	}
	return objs, nil
}

// readApplied reads more events of the open objects. It returns the objects that may have more,
// with the last event of each.
func (w *backtest) readApplied(ctx context.Context, open, after []int64) (applied map[apply.AppliedEvent]bool, ids,
	stillOpen, stillAfter []int64, err error) {
	applied = map[apply.AppliedEvent]bool{}
	counts, last := map[int64]int{}, map[int64]int64{}
	var m apply.AppliedEvent
	var wholeState bool
	err = postgres.ForEach(ctx, w.Pool, appliedSQL, []any{open, after, w.EventsPerRead},
		[]any{&m.Object, &m.Event, &wholeState}, func() error {
			applied[m] = wholeState
			if len(ids) == 0 || ids[len(ids)-1] != m.Event {
				ids = append(ids, m.Event)
			}
			counts[m.Object]++
			last[m.Object] = m.Event
			return nil
		})
	if err != nil {
		return nil, nil, nil, nil, fmt.Errorf("read applied events of %d objects: %w", len(open), err)
	}
	for object, n := range counts {
		if n == w.EventsPerRead {
			stillOpen, stillAfter = append(stillOpen, object), append(stillAfter, last[object])
		}
	}
	return applied, ids, stillOpen, stillAfter, nil
}

// compare returns what the ledger has for the effects that the rule wants. earlierKeys are the keys
// of earlier changes of the same objects.
func (w *backtest) compare(ctx context.Context, planned []effects.PlannedEffect, earlierKeys map[string]bool) ([]Change,
	error) {
	keys := make([]string, len(planned))
	for i := range planned {
		keys[i] = planned[i].Key
	}
	existing := map[string]Change{}
	var key string
	var c Change
	err := postgres.ForEach(ctx, w.Pool, ledgerSQL, []any{keys, w.Rule.Version},
		[]any{&key, &c.Effect, &c.LedgerVersion, &c.State}, func() error {
			existing[key] = c
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("look up %d keys in the ledger: %w", len(keys), err)
	}
	all := make([]Change, len(planned))
	for i := range planned {
		effect, t := &planned[i], planned[i].Transition()
		c, exists := existing[effect.Key]
		c.Event, c.EventKey, c.Source, c.Account, c.ObjectType, c.ObjectID = t.Event.ID, t.Event.Key, t.Source,
			t.Account, t.Type, t.ID
		c.Key, c.RuleVersion, c.Failure = effect.Key, w.Rule.Version, effect.Failure
		switch {
		case exists && c.LedgerVersion == w.Rule.Version:
			c.Ledger = Existing
		case earlierKeys[effect.Key]:
			c.Ledger = RepeatedKey
		case exists:
			c.Ledger = OtherVersion
		default:
			c.Ledger = New
		}
		earlierKeys[effect.Key] = true
		delete(w.unmatched, events.KeyDigest(effect.Key))
		w.counts.Changes[c.Ledger]++
		all[i] = c
	}
	return all, nil
}
