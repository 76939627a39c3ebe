package events_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// The days are found by whatever plan, also by one that reads the names of all tables first.
func TestDaysByAnyPlan(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	if err := events.EnsurePartitions(t.Context(), db.Pool, 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	c := db.Role(t, "operator").Config()
	c.ConnConfig.RuntimeParams["enable_nestloop"], c.ConnConfig.RuntimeParams["enable_mergejoin"] = "off", "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	days, err := events.Days(t.Context(), pool, &events.Filter{}, 0, 1<<62)
	if err != nil || len(days) == 0 {
		t.Errorf("%d days, %v", len(days), err)
	}
}
