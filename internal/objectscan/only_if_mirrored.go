package objectscan

import (
	"context"
	"fmt"
)

// PhaseSkipped is the phase of a type that a scan of all types skips: its list is read only if the
// mirror has an object of it (provider.List.OnlyIfMirrored). Its watermarks do not advance.
const PhaseSkipped = "skipped"

// skipUnmirroredTypesSQL records the types, of those in $4, of which the mirror has no object. It
// does not change a type whose scan has started. A skipped type stays skipped in each attempt of
// the run.
const skipUnmirroredTypesSQL = `
INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at)
SELECT $1, $2, $3, t.object_type, 'skipped', to_timestamp(0), clock_now() FROM unnest($4::text[]) AS t(object_type)
WHERE (SELECT true FROM objects o WHERE o.source = $2 AND o.account = $3 AND o.object_type = t.object_type
	LIMIT 1) IS NULL
ON CONFLICT DO NOTHING`

// skipUnmirroredTypes makes a scan of all types skip those that are read only if mirrored, and of
// which the mirror has no object.
func (r *Run) skipUnmirroredTypes(ctx context.Context) error {
	var onlyIfMirrored []string
	for _, t := range r.types {
		if r.lists[t].OnlyIfMirrored {
			onlyIfMirrored = append(onlyIfMirrored, t)
		}
	}
	if r.Params.Type != "" || len(onlyIfMirrored) == 0 {
		return nil
	}
	if _, err := r.Pool.Exec(ctx, skipUnmirroredTypesSQL, r.Lease.Run.ID, r.Source.Number, r.Params.Account,
		onlyIfMirrored); err != nil {
		return fmt.Errorf("find the types that the mirror has objects of: %w", err)
	}
	return nil
}
