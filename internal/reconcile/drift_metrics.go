package reconcile

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// driftStats is the result of the newest scans of a type, summed over the accounts of a source
// without the excluded ones.
type driftStats struct {
	Source, Type                                               string
	Missing, MirrorOlder, MirrorNewer, ContentDiffers, Orphans float64
	Checked, NotListed, Repaired, Unrepaired                   float64
}

const newestScanHelp = " The value covers the newest finished scan of the type in each account, without dry runs. It " +
	"is the sum over all accounts except the excluded ones (postern_accounts_excluded)." + databaseHelp

var (
	driftDesc = prometheus.NewDesc("postern_drift_objects", "Objects that differ between the mirror and the provider, "+
		"by kind: missing, mirror_older, mirror_newer (needs no repair), content_differs or orphan."+newestScanHelp,
		[]string{"source", "type", "kind"}, nil)
	checkedDesc = prometheus.NewDesc("postern_drift_checked_objects", "Objects that were compared with the provider. "+
		"An object was equal if it does not count as missing, mirror_older, mirror_newer or "+
		"content_differs."+newestScanHelp, []string{"source", "type"}, nil)
	notListedDesc = prometheus.NewDesc("postern_drift_not_listed_objects",
		"Mirrored objects that the provider's lists do not show although they exist. A refetch of each object, "+
			"with one call, found that it exists."+newestScanHelp, []string{"source", "type"}, nil)
	repairedDesc = prometheus.NewDesc("postern_drift_repaired_objects", "Objects that differed and were repaired."+
		newestScanHelp, []string{"source", "type"}, nil)
	unrepairedDesc = prometheus.NewDesc("postern_drift_unrepaired_objects", "Objects that differed and could not be "+
		"repaired. postern drift report RUN lists them."+newestScanHelp, []string{"source", "type"}, nil)
)

// driftStatsSQL steps over accounts and types by their index.
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

// collect sends the metrics.
func (d *driftStats) collect(out chan<- prometheus.Metric) {
	for _, k := range []struct {
		kind kind
		n    float64
	}{{missing, d.Missing}, {mirrorOlder, d.MirrorOlder}, {mirrorNewer, d.MirrorNewer},
		{contentDiffers, d.ContentDiffers},
		{orphan, d.Orphans}} {
		out <- prometheus.MustNewConstMetric(driftDesc, prometheus.GaugeValue, k.n, d.Source, d.Type, string(k.kind))
	}
	out <- prometheus.MustNewConstMetric(checkedDesc, prometheus.GaugeValue, d.Checked, d.Source, d.Type)
	out <- prometheus.MustNewConstMetric(notListedDesc, prometheus.GaugeValue, d.NotListed, d.Source, d.Type)
	out <- prometheus.MustNewConstMetric(repairedDesc, prometheus.GaugeValue, d.Repaired, d.Source, d.Type)
	out <- prometheus.MustNewConstMetric(unrepairedDesc, prometheus.GaugeValue, d.Unrepaired, d.Source, d.Type)
}

// invalidate sets the numbers to NaN, because they could not be read again.
func (d *driftStats) invalidate() {
	for _, n := range []*float64{&d.Missing, &d.MirrorOlder, &d.MirrorNewer, &d.ContentDiffers, &d.Orphans, &d.Checked,
		&d.NotListed, &d.Repaired, &d.Unrepaired} {
		*n = math.NaN()
	}
}
