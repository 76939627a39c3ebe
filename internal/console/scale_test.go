package console

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

var (
	scaleEvents = flag.Int("console.events", 20_000, "how many events the benchmark of the pages has, on 30 days")
	scaleRounds = flag.Int("console.rounds", 40, "how many times it requests each page")
	scaleCold   = flag.Bool("console.cold", false, "drop the kernel's file cache before each request, as root")
)

// scaleSources is the number of sources of the benchmark.
const scaleSources = 200

// scaleSQL fills 30 days of the log with SQL: object n has about 10 events of source 1 + n % 200.
// The republisher has passed all days but the last minute, as it has where a processor runs.
// Parameters: the number of events of a day, and of objects.
const scaleSQL = `
DO $$
DECLARE
  per_day CONSTANT bigint := %d;
  things CONSTANT bigint := %d;
  now_ms CONSTANT bigint := clock_ms();
BEGIN
  PERFORM ensure_partitions(now_ms - 31::bigint * 86400000, now_ms);
  INSERT INTO sources (name, provider, api_reads) SELECT 'source_' || n, 'stripe', '{}'
  FROM generate_series((SELECT count(*) FROM sources) + 1, %d) n;
  UPDATE sources SET name = 'source_' || number;
  COMMIT;
  FOR day IN REVERSE 29..0 LOOP
    CREATE TEMP TABLE made AS
    SELECT ((now_ms - day::bigint * 86400000 - i * 86000000 / per_day) << 20) + i %% 1000 AS id, i,
      i * 7919 %% things AS n FROM generate_series(0, per_day - 1) i;
    INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, occurred_at, received_at,
      origin, api_version, headers, verification, fingerprint, delivery_id, delivery_index, body)
    SELECT m.id, 1 + m.n %% %[3]d, 'evt_' || m.id, 'type_' || m.i %% 40, '', 'thing', 'obj_' || m.n,
      to_timestamp((m.id >> 20) / 1000.0), to_timestamp((m.id >> 20) / 1000.0), 'webhook', '', '{}',
      '{"scheme": "stripe", "secret": "first"}', substr(sha256(int8send(m.id)), 1, 16), m.id, 0,
      convert_to('{"id": "evt_' || m.id || '", "text": "' || repeat(encode(sha256(int8send(m.id)), 'hex'), 7) || '"}',
        'UTF8')
    FROM made m ORDER BY m.id;
    INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts,
      due, at, rule_version)
    SELECT m.id, 0, 1 + m.n %% %[3]d, ('x' || encode(substr(sha256(int4send((1 + m.n %% %[3]d)::int) || int8send(0) ||
        int8send(5) || 'thing'::bytea || int8send(length('obj_' || m.n)) || ('obj_' || m.n)::bytea), 1, 8),
        'hex'))::bit(64)::bigint, '', 'thing', 'obj_' || m.n,
      CASE WHEN m.i %% 100000 = 7 THEN 'dead' WHEN m.i %% 20 = 3 THEN 'stale' ELSE 'applied' END,
      'reason ' || m.i %% 3, 1, NULL, to_timestamp((m.id >> 20) / 1000.0), 1
    FROM made m ORDER BY m.id;
    DROP TABLE made;
    COMMIT;
  END LOOP;
  INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen,
    version_rank, tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash,
    state, sanitized, last_event_id, revision, rule_version, created_at, updated_at)
  SELECT 1 + n %% %[3]d, '', 'thing', 'obj_' || n, false, 1790000000000000, 0, 1, '[{}]', false, 0, 0, 0, false, false,
    sha256(int8send(n)), sha256(int8send(n)), jsonb_build_object('id', 'obj_' || n, 'text', repeat('t', 300)), false,
    now_ms << 20, 10, 1, now(), now() - n * interval '1 second'
  FROM generate_series(0, things - 1) n;
  COMMIT;
  INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
  SELECT 'republisher', 0, (now_ms - 60000) << 20, '', now(), now();
  INSERT INTO activity_minutes (minute, source, stored, applied)
  SELECT now_ms / 60000 - m, s, 10, 10 FROM generate_series(0, 2879) m, generate_series(1, %[3]d) s ORDER BY 1;
  INSERT INTO activity_hours (hour, source, stored, applied)
  SELECT now_ms / 3600000 - h, s, 600, 600 FROM generate_series(0, 719) h, generate_series(1, %[3]d) s ORDER BY 1;
  INSERT INTO source_types (source, event_type, first_at, last_at, count)
  SELECT s, 'type_' || k, now() - interval '30 days', now(), 1000
  FROM generate_series(1, %[3]d) s, generate_series(0, 39) k;
END
$$`

// BenchmarkPages requests pages over a large log. The flag -console.events sets its size.
func BenchmarkPages(b *testing.B) {
	e := newEnv(b)
	perDay := max(*scaleEvents/30, 1)
	objects := max(*scaleEvents/10, 1)
	e.db.Exec(b, fmt.Sprintf(scaleSQL, perDay, objects, scaleSources))
	e.db.Exec(b, `VACUUM ANALYZE`)
	event := func() string {
		return e.db.QueryStrings(b, fmt.Sprintf(`SELECT id::text FROM events WHERE id > ((SELECT clock_ms()) - %d) << 20
			ORDER BY id LIMIT 1`, rand.Int64N(28*86400000)))[0]
	}
	object := func() int { return rand.IntN(objects) }
	since := func() string {
		at := time.Now().Add(-time.Duration(1+rand.IntN(28*24)) * time.Hour)
		return at.UTC().Format(time.RFC3339)
	}
	thing := func() string {
		n := object()
		return fmt.Sprintf("/console/objects/source_%d/thing/obj_%d", 1+n%scaleSources, n)
	}
	// The limits are for p95 in milliseconds; 0 is no limit.
	for name, page := range map[string]struct {
		path       func() string
		warm, cold float64
	}{
		"overview":       {func() string { return "/console/" }, 100, 0},
		"events":         {func() string { return "/console/events?until=" + since() }, 150, 700},
		"events-of-type": {func() string { return "/console/events?type=type_7&until=" + since() }, 150, 700},
		"events-rare":    {func() string { return "/console/events?type=absent&until=" + since() }, 600, 0},
		"events-dead":    {func() string { return "/console/events?status=dead&until=" + since() }, 150, 700},
		"events-of-object": {func() string {
			return fmt.Sprint("/console/events?object_type=thing&object_id=obj_", object())
		}, 150, 700},
		"event":          {func() string { return "/console/events/" + event() }, 120, 0},
		"objects":        {func() string { return "/console/objects?type=thing" }, 150, 700},
		"object":         {thing, 400, 0},
		"outcomes-stale": {func() string { return "/console/outcomes?status=stale&until=" + since() }, 150, 700},
		"failures":       {func() string { return "/console/failures" }, 150, 700},
		"sources":        {func() string { return "/console/sources" }, 150, 700},
		"find-by-object": {func() string { return fmt.Sprint("/console/find?q=obj_", object()) }, 150, 700},
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				for range *scaleRounds {
					took = append(took, e.load(b, page.path()))
				}
			}
			slices.Sort(took)
			b.ReportMetric(ms(took[len(took)/2]), "ms/p50")
			p95, limit := ms(took[len(took)*95/100]), page.warm
			if *scaleCold {
				limit = page.cold
			}
			if limit > 0 && p95 > limit {
				b.Errorf("p95 %.0f ms, limit %.0f ms", p95, limit)
			}
			b.ReportMetric(p95, "ms/p95")
			b.ReportMetric(ms(took[len(took)-1]), "ms/max")
		})
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// load requests a page and returns the time until its last byte.
func (e *env) load(b *testing.B, path string) time.Duration {
	b.Helper()
	if *scaleCold {
		testkit.Must(b, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	}
	began := time.Now()
	response, err := http.Get(e.url + path)
	testkit.Must(b, err)
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	testkit.Must(b, err)
	if response.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s", path, response.Status)
	}
	return time.Since(began)
}
