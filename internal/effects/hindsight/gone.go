package hindsight

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
)

const (
	// plannedSQL reads what the ledger has of a rule and its objects, of events from one on, each key under its newest version. Effects of schedules have no event.
	plannedSQL = `
SELECT e.effect, e.event_id, e.key FROM effects e
WHERE (e.event_id, e.effect) > ($1, $2) AND e.rule = $3 AND e.source = $4 AND e.object_type = $5 AND e.forced = 0
  AND NOT EXISTS (SELECT FROM effects n WHERE n.key = e.key AND n.rule = e.rule AND n.forced = 0 AND n.rule_version > e.rule_version)
ORDER BY e.event_id, e.effect LIMIT $6`

	// goneSQL reads effects whose events the walk has folded as they arrived: of what a replay applied, or what is redacted or not in the log any more, nobody can say here what the rule would have wanted.
	goneSQL = `
SELECT e.effect, e.event_id, v.event_id, e.account, e.object_id, e.key, e.rule_version, e.state FROM effects e JOIN events v ON v.id = e.event_id
WHERE e.effect = ANY($1::bigint[]) AND NOT EXISTS (SELECT FROM redacted r WHERE r.event = e.event_id)
  AND EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.event_id AND ` + entered + ` AND ` + whole + `)
ORDER BY e.event_id, e.effect`
)

// planned finds what the ledger has. It is read before any object, so that what is planned meanwhile, of a change that the walk does not see, is not taken for gone.
func (w *walk) planned(ctx context.Context) error {
	w.left = map[[16]byte]int64{}
	var effect, event int64
	var key string
	for event = w.from; ; {
		rows, err := w.Pool.Query(ctx, plannedSQL, event, effect, w.Rule.Name, w.source, w.Rule.Type, w.Events)
		if err != nil {
			return fmt.Errorf("read what was planned: %w", err)
		}
		n, err := pgx.ForEachRow(rows, []any{&effect, &event, &key}, func() error {
			if !effects.Collision(key, w.Rule.Name, event) {
				w.left[events.KeyDigest(key)] = effect
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read what was planned: %w", err)
		}
		if n.RowsAffected() < int64(w.Events) {
			return nil
		}
	}
}

// gone visits what the ledger has and no change had under the rule.
func (w *walk) gone(ctx context.Context, visit func([]Change) error) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Values(w.left)), w.Events) {
		rows, err := w.Pool.Query(ctx, goneSQL, ids)
		if err != nil {
			return fmt.Errorf("read what is gone: %w", err)
		}
		c := Change{Source: w.Rule.Source, ObjectType: w.Rule.Type, RuleVersion: w.Rule.Version, Ledger: Gone}
		var some []Change
		_, err = pgx.ForEachRow(rows, []any{&c.Effect, &c.Event, &c.EventKey, &c.Account, &c.ObjectID, &c.Key, &c.HasVersion, &c.State}, func() error {
			if !w.odd[c.Event] {
				some = append(some, c)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read what is gone: %w", err)
		}
		if len(some) == 0 {
			continue
		}
		w.n.Changes[Gone] += int64(len(some))
		if err := visit(some); err != nil {
			return err
		}
	}
	return nil
}
