package reconcile

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// driftNumbers are what the newest sweeps of a type have found, those of all accounts of a source together, but for those that are left out.
type driftNumbers struct {
	Source, Type                              string
	Missing, Behind, Ahead, Different, Ghosts float64
	Checked, Hidden, Mended, Left             float64
}

const ofSweeps = " Of the newest sweep of the type that was done, dry runs aside, of each account, together, but for those that are left out (postern_accounts_left_out)." + asTold

var (
	driftDesc = prometheus.NewDesc("postern_drift_objects", "Objects at which the mirror differed from the provider, by kind: missing, behind, ahead (nothing to mend), different or ghost."+ofSweeps,
		[]string{"source", "type", "kind"}, nil)
	checkedDesc = prometheus.NewDesc("postern_drift_checked_objects", "Objects that were held against the provider: those that are not among missing, behind, ahead and different were equal."+ofSweeps, []string{"source", "type"}, nil)
	hiddenDesc  = prometheus.NewDesc("postern_drift_hidden_objects", "Objects here that the provider's lists do not show, and that were found alive by their names, with a call each."+ofSweeps, []string{"source", "type"}, nil)
	mendedDesc  = prometheus.NewDesc("postern_drift_mended_objects", "Objects that differed and are right since."+ofSweeps, []string{"source", "type"}, nil)
	leftDesc    = prometheus.NewDesc("postern_drift_left_objects", "Objects that differed and could not be mended: postern drift report RUN."+ofSweeps, []string{"source", "type"}, nil)
)

// driftNumbersSQL hops over accounts and types by their index.
const driftNumbersSQL = `
WITH RECURSIVE named AS MATERIALIZED (
  SELECT n.number, n.name FROM sources n WHERE n.name = ANY($1::text[])
), hop AS (
  SELECT f.* FROM named n CROSS JOIN LATERAL (
    SELECT s.source, s.account, s.object_type FROM sweeps s WHERE s.phase = 'done' AND s.source = n.number ORDER BY s.account, s.object_type LIMIT 1) f
  UNION ALL
  SELECT f.* FROM hop h CROSS JOIN LATERAL (
    SELECT s.source, s.account, s.object_type FROM sweeps s WHERE s.phase = 'done' AND s.source = h.source AND (s.account, s.object_type) > (h.account, h.object_type)
    ORDER BY s.account, s.object_type LIMIT 1) f
)
SELECT n.name, h.object_type, sum(w.missing)::float8, sum(w.behind)::float8, sum(w.ahead)::float8, sum(w.different)::float8, sum(w.ghosts)::float8, sum(w.checked)::float8, sum(w.hidden)::float8, sum(w.mended)::float8,
  sum(w.remaining)::float8
FROM hop h JOIN named n ON n.number = h.source CROSS JOIN LATERAL (
  SELECT s.checked, s.missing, s.behind, s.ahead, s.different, s.ghosts, s.hidden, s.mended, s.remaining FROM sweeps s JOIN runs r ON r.run = s.run AND r.asked -> 'dry_run' IS DISTINCT FROM 'true'
  WHERE s.phase = 'done' AND s.source = h.source AND s.account = h.account AND s.object_type = h.object_type ORDER BY s.run DESC LIMIT 1) w
WHERE NOT EXISTS (SELECT FROM unnest($2::int[], $3::text[]) AS l(source, account) WHERE l.source = h.source AND l.account = h.account)
GROUP BY n.name, h.object_type ORDER BY n.name, h.object_type`

// collect sends them.
func (d *driftNumbers) collect(out chan<- prometheus.Metric) {
	for _, k := range []struct {
		kind kind
		n    float64
	}{{missing, d.Missing}, {behind, d.Behind}, {ahead, d.Ahead}, {different, d.Different}, {ghost, d.Ghosts}} {
		out <- prometheus.MustNewConstMetric(driftDesc, prometheus.GaugeValue, k.n, d.Source, d.Type, string(k.kind))
	}
	out <- prometheus.MustNewConstMetric(checkedDesc, prometheus.GaugeValue, d.Checked, d.Source, d.Type)
	out <- prometheus.MustNewConstMetric(hiddenDesc, prometheus.GaugeValue, d.Hidden, d.Source, d.Type)
	out <- prometheus.MustNewConstMetric(mendedDesc, prometheus.GaugeValue, d.Mended, d.Source, d.Type)
	out <- prometheus.MustNewConstMetric(leftDesc, prometheus.GaugeValue, d.Left, d.Source, d.Type)
}

// forget: what was read is not known to be so any more.
func (d *driftNumbers) forget() {
	for _, n := range []*float64{&d.Missing, &d.Behind, &d.Ahead, &d.Different, &d.Ghosts, &d.Checked, &d.Hidden, &d.Mended, &d.Left} {
		*n = math.NaN()
	}
}
