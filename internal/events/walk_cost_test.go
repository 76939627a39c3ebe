package events_test

import (
	"math"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Each window of a walk reads its own rows, also where nobody has analysed the log: not all that lie behind it.
func TestWalkReadsItsWindowsAlone(t *testing.T) {
	t.Parallel()
	const n = 80_000
	b := setup(t)
	b.log(t, listDay, 0) // the partition alone
	if _, err := b.db.Pool.Exec(t.Context(), `ALTER TABLE events_20260301 SET (autovacuum_enabled = false)`); err != nil {
		t.Fatal(err)
	}
	b.log(t, listDay, n)
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: b.db.URL, Role: "postern_processor", MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if ids, _ := walk(t, pool, &events.Filter{}, math.MaxInt64); len(ids) != n {
		t.Fatalf("walked over %d of %d", len(ids), n)
	}
	var read int64
	for _, sql := range []string{`SELECT pg_stat_force_next_flush()`, `SELECT 1`} { // what the session counted is told at its next end of a transaction
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := pool.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'events_20260301'`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if read > 3*n+n/10 { // once for the windows' ends, once for their events, and once by who wrote their keys here
		t.Errorf("%d rows read of %d", read, n)
	}
}
