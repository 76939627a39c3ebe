package reconcile

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/provider"
)

// PhaseSkipped is the phase of a type that a scan of all types skips, because its list is rare
// (provider.List) and the mirror has no object of it. Its watermarks do not advance.
const PhaseSkipped = "rare"

// skipRareTypesSQL records those of some types of which the mirror has no object. It does not
// affect types that the run has started with. A skipped type stays skipped in each attempt of the
// run.
const skipRareTypesSQL = `
INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at)
SELECT $1, $2, $3, t.object_type, 'rare', to_timestamp(0), clock_now() FROM unnest($4::text[]) AS t(object_type)
WHERE (SELECT true FROM objects o WHERE o.source = $2 AND o.account = $3 AND o.object_type = t.object_type
	LIMIT 1) IS NULL
ON CONFLICT DO NOTHING`

// skipRareTypes makes a scan of all types skip the rare types of which the mirror has no object.
func (w *execution) skipRareTypes(ctx context.Context, types []string, lists map[string]provider.List) error {
	var rare []string
	for _, t := range types {
		if lists[t].OnlyIfMirrored {
			rare = append(rare, t)
		}
	}
	if w.params.Type != "" || len(rare) == 0 {
		return nil
	}
	if _, err := w.Pool.Exec(ctx, skipRareTypesSQL, w.lease.Run.ID, w.params.Source, w.params.Account,
		rare); err != nil {
		return fmt.Errorf("find the types that the mirror has objects of: %w", err)
	}
	return nil
}
