package objectscan

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// Stats are the results of the newest finished scans of a type, summed over the accounts of a
// source.
type Stats struct {
	Source, ObjectType string
	// Drift are the differing objects by kind.
	Drift                                    map[string]float64
	Checked, NotListed, Repaired, Unrepaired float64
}

// driftStatsSQL returns the results of the newest scans of each type, summed over the accounts of a
// source without the excluded ones. It steps over accounts and types by their index.
const driftStatsSQL = `
WITH RECURSIVE named AS MATERIALIZED (
  SELECT n.number, n.name FROM sources n WHERE n.name = ANY($1::text[])
), hop AS (
  SELECT f.* FROM named n CROSS JOIN LATERAL (
    SELECT s.source, s.account, s.object_type FROM object_scans s WHERE s.phase = 'done' AND s.source = n.number
    	ORDER BY s.account, s.object_type LIMIT 1) f
  UNION ALL
  SELECT f.* FROM hop h CROSS JOIN LATERAL (
    SELECT s.source, s.account, s.object_type FROM object_scans s WHERE s.phase = 'done' AND s.source = h.source
    	AND (s.account, s.object_type) > (h.account, h.object_type)
    ORDER BY s.account, s.object_type LIMIT 1) f
)
SELECT n.name, h.object_type, sum(w.missing)::float8, sum(w.mirror_older)::float8, sum(w.mirror_newer)::float8,
	sum(w.content_differs)::float8, sum(w.orphans)::float8, sum(w.checked)::float8, sum(w.not_listed)::float8,
	sum(w.repaired)::float8,
  sum(w.unrepaired)::float8
FROM hop h JOIN named n ON n.number = h.source CROSS JOIN LATERAL (
  SELECT s.checked, s.missing, s.mirror_older, s.mirror_newer, s.content_differs, s.orphans, s.not_listed, s.repaired,
  	s.unrepaired FROM object_scans s
  	JOIN runs r ON r.run = s.run AND r.params -> 'dry_run' IS DISTINCT FROM 'true'
  WHERE s.phase = 'done' AND s.source = h.source AND s.account = h.account AND s.object_type = h.object_type
  	ORDER BY s.run DESC LIMIT 1) w
WHERE NOT EXISTS (SELECT FROM unnest($2::int[], $3::text[]) AS l(source, account) WHERE l.source = h.source
	AND l.account = h.account)
GROUP BY n.name, h.object_type ORDER BY n.name, h.object_type`

// ReadStats calls use for each type of some sources (by name). It does not count the excluded
// accounts, which are in two columns: the numbers of the sources, and the accounts. Dry runs do not
// count.
func ReadStats(ctx context.Context, pool *pgxpool.Pool, names []string, sources []int32, accounts []string,
	use func(*Stats)) error {
	var s Stats
	var absent, older, newer, differs, orphans float64
	return postgres.ForEach(ctx, pool, driftStatsSQL, []any{names, sources, accounts}, []any{&s.Source, &s.ObjectType,
		&absent, &older, &newer, &differs, &orphans, &s.Checked, &s.NotListed, &s.Repaired, &s.Unrepaired},
		func() error {
			s.Drift = map[string]float64{string(missing): absent, string(mirrorOlder): older,
				string(mirrorNewer): newer, string(contentDiffers): differs, string(orphan): orphans}
			use(&s)
			return nil
		})
}
