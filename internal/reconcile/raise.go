package reconcile

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/versioning"
)

// seenSQL are the versions of those of some objects whose row a look has made, by their place in $4.
const seenSQL = `
SELECT d.n, o.version_at, o.version_seen, o.version_rank FROM unnest($4::text[]) WITH ORDINALITY AS d(id, n)
CROSS JOIN LATERAL (SELECT o.version_final, o.version_at, o.version_seen, o.version_rank FROM objects o
  WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = d.id LIMIT 1) o
WHERE o.version_seen > 0 AND NOT o.version_final`

// raiseLooks marks the looks at objects of a type that are to be ordered by when they began, as the rows are now. Where another process moves a row before the look is there, the
// version rule decides between the two as ever: nothing newer is lost, and a look that is stale for want of it leaves another one owed.
func (f *fetcher) raiseLooks(ctx context.Context, of versioning.Key, items []*item) error {
	own := choose(items, func(it *item) bool { return it.bad == "" && it.in.Own })
	if len(own) == 0 {
		return nil
	}
	ids := make([]string, len(own))
	for i, it := range own {
		ids[i] = it.id
	}
	rows, err := f.Pool.Query(ctx, seenSQL, f.source.Number, of.Account, of.Type, ids)
	if err == nil {
		var n int
		var row versioning.Row
		_, err = pgx.ForEachRow(rows, []any{&n, &row.Version.At, &row.Version.Seen, &row.Version.Rank}, func() error {
			it := own[n-1]
			it.look.Raised = row.Raises(&it.in)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("see how %d objects of type %s were seen last: %w", len(own), of.Type, err)
	}
	return nil
}
