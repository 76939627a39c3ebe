package app_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A gateway has the sessions open that it needs under load, before anything comes: to open them takes as long over a slow line as an append that hangs.
func TestGatewayHasSessionsReady(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.app = b.start(t, app.Options{Gateway: true})
	testkit.Eventually(t, time.Minute, func() error {
		var open int
		err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'postern_gateway'`).Scan(&open)
		if err != nil || open < b.cfg.Ingest.Writers+2 {
			return fmt.Errorf("%d sessions, %v", open, err)
		}
		return nil
	})
}

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
