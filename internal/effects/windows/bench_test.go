package windows_test

import (
	"testing"
	"time"
)

// BenchmarkWindow is one window over 20,000 objects of 1 kB, of which a hundredth has an effect.
func BenchmarkWindow(t *testing.B) {
	const objects = 20_000
	b := setup(t)
	b.at(t, "10:30")
	b.db.Exec(t, `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank, tie_set, overflow, window_lo, window_hi, look_after, ambiguous, deleted, state_hash, exact_hash,
  state, repaired, last_event_id, revision, rule_version, created_at, updated_at)
SELECT $1, '', 'invoice', 'in_' || n, false, 1, 0, 0, '[]', false, 0, 0, 0, false, false, '', '', jsonb_build_object('id', 'in_' || n, 'n', n, 'text', repeat(md5(n::text), 30)), false, 1, 1, 1, now(), now() FROM generate_series(1, $2::int) n`,
		b.source, objects)
	b.db.Exec(t, `ANALYZE objects`)
	a := b.asker(200, rule(t, perWindow, `new.n % 100 == 0`, time.Hour))
	tick(t, a)
	t.ResetTimer()
	for n := range t.N {
		b.at(t, time.Date(2026, 11, 2, 11+n%12, 0, 0, 0, time.UTC).Format("15:04"))
		tick(t, a)
	}
	t.ReportMetric(float64(t.Elapsed().Microseconds())/float64(t.N*objects), "µs/object")
}
