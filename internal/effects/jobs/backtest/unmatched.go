package backtest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// plannedSQL reads the effects that the ledger has of a rule and its objects, for events from
	// an id on. Each key comes under its newest version. Effects of schedules have no event.
	plannedSQL = `
SELECT e.effect, e.event_id, e.key FROM effects e
WHERE (e.event_id, e.effect) > ($1, $2) AND e.rule = $3 AND e.source = $4 AND e.object_type = $5 AND e.forced = 0
  AND NOT EXISTS (SELECT FROM effects n WHERE n.key = e.key AND n.rule = e.rule AND n.forced = 0
  	AND n.rule_version > e.rule_version)
ORDER BY e.event_id, e.effect LIMIT $6`

	// unmatchedSQL reads unmatched effects whose live events the backtest has evaluated. If a
	// replay applied the event, or it is redacted or dropped from the log, the backtest cannot know
	// what the rule would have wanted.
	unmatchedSQL = `
SELECT e.effect, e.event_id, v.event_id, e.account, e.object_id, e.key, e.rule_version, e.state FROM effects e
	JOIN events v ON v.id = e.event_id
WHERE e.effect = ANY($1::bigint[]) AND NOT EXISTS (SELECT FROM redacted_events r WHERE r.event = e.event_id)
  AND EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.event_id AND ` + mayBeAppliedSQL + ` AND ` +
		wholeStateSQL + `)
ORDER BY e.event_id, e.effect`
)

// loadLedger loads the effects of the ledger. It runs before any object is read. Otherwise an
// effect planned meanwhile, for a change that the backtest does not see, would count as unmatched.
func (w *backtest) loadLedger(ctx context.Context) error {
	w.unmatched = map[[16]byte]int64{}
	var effect, event int64
	var key string
	for event = w.from; ; {
		n := 0
		err := postgres.ForEach(ctx, w.Pool, plannedSQL, []any{event, effect, w.Rule.Name, w.source, w.Rule.Type,
			w.EventsPerRead}, []any{&effect, &event, &key}, func() error {
			n++
			if !effects.IsCollisionKey(key, w.Rule.Name, event) {
				w.unmatched[events.KeyDigest(key)] = effect
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read planned effects: %w", err)
		}
		if n < w.EventsPerRead {
			return nil
		}
	}
}

// visitUnmatched visits the effects of the ledger that the rule wants for no change.
func (w *backtest) visitUnmatched(ctx context.Context, visit func([]Change) error) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Values(w.unmatched)), w.EventsPerRead) {
		c := Change{Source: w.Rule.Source, ObjectType: w.Rule.Type, RuleVersion: w.Rule.Version, Ledger: Gone}
		var batch []Change
		err := postgres.ForEach(ctx, w.Pool, unmatchedSQL, []any{ids}, []any{&c.Effect, &c.Event, &c.EventKey,
			&c.Account, &c.ObjectID, &c.Key,
			&c.LedgerVersion, &c.State}, func() error {
			if !w.anomalies[c.Event] {
				batch = append(batch, c)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read unmatched effects: %w", err)
		}
		if len(batch) == 0 {
			continue
		}
		w.counts.Changes[Gone] += int64(len(batch))
		if err := visit(batch); err != nil {
			return err
		}
	}
	return nil
}
