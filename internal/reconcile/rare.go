package reconcile

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/provider"
)

// InRare is the phase of a type that a sweep over all types has passed over, since its list is rare (provider.List) and the mirror has no object of it. Nothing is proven of it.
const InRare = "rare"

// passRareSQL notes those of some types that the mirror has no object of. A type that the run has begun with is none of them, and what was passed over once is so in each try of the run.
const passRareSQL = `
INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at)
SELECT $1, $2, $3, t.object_type, 'rare', to_timestamp(0), clock_now() FROM unnest($4::text[]) AS t(object_type)
WHERE (SELECT true FROM objects o WHERE o.source = $2 AND o.account = $3 AND o.object_type = t.object_type LIMIT 1) IS NULL
ON CONFLICT DO NOTHING`

// passRare has a sweep over all types pass over those that are rare and that the mirror has nothing of.
func (w *work) passRare(ctx context.Context, types []string, lists map[string]provider.List) error {
	var rare []string
	for _, t := range types {
		if lists[t].Rare {
			rare = append(rare, t)
		}
	}
	if w.order.Type != "" || len(rare) == 0 {
		return nil
	}
	if _, err := w.Pool.Exec(ctx, passRareSQL, w.hold.Run.Run, w.order.Source, w.order.Account, rare); err != nil {
		return fmt.Errorf("look which types the mirror has objects of: %w", err)
	}
	return nil
}
