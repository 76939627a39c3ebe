package app_test

import (
	"testing"
)

// Runs have connections of their own, enough for all that may be carried out at once: live batches that wait for a swap hold theirs.
func TestRunsHaveConnectionsOfTheirOwn(t *testing.T) {
	t.Parallel()
	_, _, processor := apart(t)
	limits := map[string]float64{}
	for _, m := range scrape(t, processor)["postern_database_connections_limit"].GetMetric() {
		limits[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if limits["processor_runs"] != (6+1)*(2+2)+2+4 || limits["processor"] == 0 {
		t.Errorf("%v", limits)
	}
}
