package reconcile

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/versioning"
)

// seenVersionsSQL returns the versions of those objects whose rows a refetch has made, by their
// position in $4.
const seenVersionsSQL = `
SELECT d.n, o.version_at, o.version_seen, o.version_rank FROM unnest($4::text[]) WITH ORDINALITY AS d(id, n)
CROSS JOIN LATERAL (SELECT o.version_final, o.version_at, o.version_seen, o.version_rank FROM objects o
  WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = d.id LIMIT 1) o
WHERE o.version_seen > 0 AND NOT o.version_final`

// reversionRefetches marks the refetches that must be re-versioned, by the rows as they are now. If
// another process changes a row before the refetch is applied, the version rule decides as always.
// No newer state is lost, and a refetch that becomes stale leaves another one pending.
func (f *fetcher) reversionRefetches(ctx context.Context, typeKey versioning.Key, items []*item) error {
	versioned := filter(items, func(it *item) bool { return it.problem == "" && it.input.OwnVersion })
	if len(versioned) == 0 {
		return nil
	}
	ids := make([]string, len(versioned))
	for i, it := range versioned {
		ids[i] = it.id
	}
	rows, err := f.Pool.Query(ctx, seenVersionsSQL, f.source.Number, typeKey.Account, typeKey.Type, ids)
	if err == nil {
		var n int
		var row versioning.Row
		_, err = pgx.ForEachRow(rows, []any{&n, &row.Version.At, &row.Version.Seen, &row.Version.Rank}, func() error {
			it := versioned[n-1]
			it.refetch.Reversioned = row.NeedsReversion(&it.input)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("read the versions of %d objects of type %s: %w", len(versioned), typeKey.Type, err)
	}
	return nil
}
