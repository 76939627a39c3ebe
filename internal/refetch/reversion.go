package refetch

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// seenVersionsSQL returns the versions of those objects whose rows a refetch has made.
const seenVersionsSQL = `
SELECT d.id, o.version_at, o.version_seen, o.version_rank FROM unnest($4::text[]) AS d(id)
CROSS JOIN LATERAL (SELECT o.version_final, o.version_at, o.version_seen, o.version_rank FROM objects o
  WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = d.id LIMIT 1) o
WHERE o.version_seen > 0 AND NOT o.version_final`

// SeenVersions returns the versions of those objects of a type whose rows a refetch has made, by
// their ids. They decide which new refetches must be re-versioned (versioning.Row.NeedsReversion).
// If another process changes a row before the refetch is applied, the version rule decides as
// always. No newer state is lost, and a refetch that becomes stale leaves another one pending.
func (f *Fetcher) SeenVersions(ctx context.Context, typeKey versioning.Key, ids []string) (map[string]*versioning.Row,
	error) {
	seen := map[string]*versioning.Row{}
	var id string
	var v versioning.Version
	if err := postgres.ForEach(ctx, f.Pool, seenVersionsSQL, []any{f.Source.Number, typeKey.Account, typeKey.Type, ids},
		[]any{&id, &v.At, &v.Seen, &v.Rank}, func() error {
			seen[id] = &versioning.Row{Version: v}
			return nil
		}); err != nil {
		return nil, fmt.Errorf("read the versions of %d objects of type %s: %w", len(ids), typeKey.Type, err)
	}
	return seen, nil
}
