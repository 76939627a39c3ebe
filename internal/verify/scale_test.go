package verify_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/verify"
)

var (
	objects = flag.Int("verify.objects", 1000,
		"how many objects the benchmark verifies, each of ten events on ten days")
	text   = flag.Int("verify.text", 400, "how many bytes of text each of the events has, beside 120 others")
	sample = flag.Int64("verify.sample", 0, "about how many of them, and of the bodies; 0: all")
)

// cloneSQL copies the events and rows of one object for many others, with their own ids, names,
// keys, digests and hashes. Event n of each is on day n. It commits at intervals, so that it needs
// little extra disk space.
const cloneSQL = `
DO $$
DECLARE
  n bigint := %d;
  step CONSTANT bigint := 50000;
BEGIN
  CREATE TEMP TABLE one AS SELECT e.*, row_number() OVER (ORDER BY e.id) AS nth FROM events e;
  CREATE TEMP TABLE object AS SELECT * FROM objects;
  CREATE TEMP TABLE met AS SELECT * FROM outcomes;
  PERFORM ensure_partitions((extract(epoch FROM clock_now())::bigint - 10 * 86400) * 1000,
  	(extract(epoch FROM clock_now())::bigint - 86400) * 1000);
  FOR part IN 0..(n - 1) / step LOOP
    CREATE TEMP TABLE others AS SELECT i, 'obj_' || i AS name,
    	('x' || encode(substr(sha256(int4send(o.source) || int8send(0) || int8send(5) || 'thing'::bytea ||
    	int8send(length('obj_' || i)) ||
      ('obj_' || i)::bytea), 1, 8), 'hex'))::bit(64)::bigint AS hash FROM generate_series(part * step + 1,
      	least(n, (part + 1) * step)) i, object o;
    CREATE TEMP TABLE made AS
    SELECT (((extract(epoch FROM clock_now())::bigint - (11 - o.nth) * 86400) * 1000) << 20) + i.i AS id, o.source,
    	o.event_id || '_' || i.i AS event_id, i.name, i.hash, o.id AS from_id,
      convert_to(replace(convert_from(o.body, 'UTF8'), '"object_id":"template"', '"object_id":"' || i.name || '"'),
      	'UTF8') AS body, o.received_at
    FROM one o, others i;
    INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, received_at, origin,
    	api_version, headers, verification, fingerprint, delivery_id, delivery_index, body)
    SELECT m.id, m.source, m.event_id, 'thing', '', 'thing', m.name, m.received_at, 'webhook', '', '{}', '{}',
    	substr(sha256(m.body), 1, 16), m.id, 0, m.body FROM made m ORDER BY m.id;
    INSERT INTO event_keys (source, key, id, fingerprint)
    SELECT m.source, substr(sha256(convert_to(m.event_id, 'UTF8')), 1, 16), m.id, substr(sha256(m.body), 1, 16)
    	FROM made m ORDER BY m.id;
    INSERT INTO outcomes SELECT m.id, 0, o.source, m.hash, '', 'thing', m.name, o.status, o.reason, o.version,
    	o.decided_by, o.attempts, o.due, o.at, o.rule_version
    FROM made m JOIN met o ON o.event_id = m.from_id ORDER BY m.id;
    INSERT INTO objects SELECT (jsonb_populate_record(NULL::objects, to_jsonb(o) || jsonb_build_object('object_id',
    	i.name))).* FROM object o, others i;
    DROP TABLE made, others;
    COMMIT;
  END LOOP;
  DROP TABLE one, object, met;
END
$$`

// BenchmarkVerify fills a log with SQL. The flag -verify.objects sets its size.
func BenchmarkVerify(b *testing.B) {
	l := applied.New(b)
	var evs []sim.Event
	for i := range 10 {
		e := at("template", int64(i))
		e.Body = bytes.Replace(e.Body, []byte(`"object":{`), fmt.Appendf(nil, `"object":{"text":%q,`,
			strings.Repeat("t", *text)), 1)
		evs = append(evs, e)
	}
	for _, e := range evs {
		applied.Apply(b, l.Applier(b, nil), events.LiveRun, l.Append(b, l.Source, []sim.Event{e}))
	}
	l.DB.Exec(b, fmt.Sprintf(cloneSQL, *objects))
	l.DB.Exec(b, `VACUUM ANALYZE`)
	l.DB.Exec(b, `DELETE FROM outbox`)
	known, err := events.RegisterSources(b.Context(), l.OperatorPool, nil)
	testkit.Must(b, err)
	for b.Loop() {
		began, once, before := time.Now(), sync.Once{}, spending(b, l.DB.Pool)
		o := verify.Options{Pool: l.OperatorPool, Known: known, Sources: l.Sources, MaxItems: 3, Sample: *sample,
			Progress: func(what string, _, _ int64) {
				if what == "objects" {
					once.Do(func() {
						b.ReportMetric(time.Since(began).Seconds(), "s/log")
						at := spending(b, l.DB.Pool)
						b.ReportMetric(at.client-before.client, "cpu-client-s/log")
						b.ReportMetric(at.server-before.server, "cpu-server-s/log")
					})
				}
			}}
		r, err := verify.Verify(b.Context(), o)
		if err != nil || len(r.Findings) > 0 || r.Checked["events"] != int64(*objects+1)*10 || *sample == 0 &&
			r.Checked["objects"] != int64(*objects+1) {
			b.Fatalf("%+v, %v", r, err)
		}
		after := spending(b, l.DB.Pool)
		b.ReportMetric(after.client-before.client, "cpu-client-s")
		b.ReportMetric(after.server-before.server, "cpu-server-s")
		b.Log(r.Checked)
	}
	runtime.GC()
	total := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(total)
	b.ReportMetric(float64(total[0].Value.Uint64())/(1<<20), "MiB-most")
}

// spent is the CPU time, user and system, of this process and of the database's server, in seconds.
// On a busy machine it is more useful than elapsed time.
type spent struct{ client, server float64 }

func spending(t testing.TB, pool *pgxpool.Pool) (s spent) {
	t.Helper()
	var use syscall.Rusage
	testkit.Must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	s.client = (time.Duration(use.Utime.Nano()) + time.Duration(use.Stime.Nano())).Seconds()
	var pid int
	testkit.Must(t, pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
	server := stat(pid)[1]
	folders, err := os.ReadDir("/proc")
	testkit.Must(t, err)
	ticks := stat(int(server))[13] + stat(int(server))[14] // of processes that have ended
	for _, f := range folders {
		if pid, err := strconv.Atoi(f.Name()); err == nil {
			if fields := stat(pid); len(fields) > 14 && (fields[1] == server || float64(pid) == server) {
				ticks += fields[11] + fields[12]
			}
		}
	}
	s.server = ticks / 100
	return s
}

// stat returns the fields of /proc/PID/stat after the name: 1 is the parent, 11 to 14 are the ticks
// of the process and its ended children.
func stat(pid int) (fields []float64) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return make([]float64, 16)
	}
	for _, f := range strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) {
		n, _ := strconv.ParseFloat(f, 64)
		fields = append(fields, n)
	}
	return fields
}
