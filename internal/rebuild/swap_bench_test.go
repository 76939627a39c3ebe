package rebuild_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

var swapObjects = flag.Int("swap.objects", 20_000, "how many objects the benchmark of a swap replaces")

// fillSQL adds objects to the mirror and, with another state, to the staged objects. Parameter: the
// number.
const fillSQL = `
WITH live AS (
  INSERT INTO objects SELECT r.* FROM objects o, generate_series(1, $1) n,
    jsonb_populate_record(o, jsonb_build_object('object_id', 'bulk_' || n)) r
  WHERE o.ctid = (SELECT ctid FROM objects LIMIT 1)
)
INSERT INTO staged_objects SELECT r.* FROM staged_objects s, generate_series(1, $1) n,
  jsonb_populate_record(s, jsonb_build_object('object_id', 'bulk_' || n, 'state',
    jsonb_build_object('number', n), 'exact_hash', '\x' || encode(sha256(int4send(n)), 'hex'))) r
WHERE s.ctid = (SELECT ctid FROM staged_objects LIMIT 1)`

// BenchmarkSwap swaps objects that all differ, while events of other objects of the source are
// applied, and compares the time to apply an event with that before the swap:
//
//	go test ./internal/rebuild -run xxx -bench Swap -benchtime 1x -swap.objects 1000000
func BenchmarkSwap(t *testing.B) {
	const interval = 10 * time.Millisecond
	b := setup(t)
	evs := sim.Generate(rand.New(rand.NewPCG(1, 1)),
		sim.Options{Objects: 8000, Changes: 12, Contents: 4, Unit: 1, Gap: 10}).Events
	p := b.applier(t, nil)
	apply := func(until func(count int) bool) (took []time.Duration) {
		each := time.NewTicker(interval)
		defer each.Stop()
		for ; !until(len(took)); <-each.C {
			if len(evs) == 0 {
				t.Fatal("there are no more events")
			}
			e := b.log.AppendEvents(t, b.source, evs[:1])[0]
			began := time.Now()
			must(t, p.Apply(t.Context(), 0, []stream.Event{e}))
			took, evs = append(took, time.Since(began)), evs[1:]
		}
		return took
	}
	apply(func(count int) bool { return count == 200 })
	b.start(t, "swap", nil, rebuild.DefaultSettings)
	run := b.stage(t)
	b.db.Exec(t, fillSQL, *swapObjects)
	b.db.Exec(t, `VACUUM ANALYZE objects, staged_objects`)
	before := apply(func(count int) bool { return count == 1000 })
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	began := time.Now()
	during := apply(func(count int) bool {
		return count%20 == 0 && len(b.db.QueryStrings(t, `SELECT run::text FROM runs WHERE ended_at IS NULL`)) == 0
	})
	took := time.Since(began)
	if n := b.awaitRun(t, run, done).Counts[rebuild.Swapped]; n < int64(*swapObjects) {
		t.Fatalf("%d objects were swapped", n)
	}
	t.ReportMetric(took.Seconds(), "s/swap")
	for name, all := range map[string][]time.Duration{"before": before, "during": during} {
		slices.Sort(all)
		t.ReportMetric(float64(len(all)), "events-"+name)
		t.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-p50-"+name)
		t.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms-p99-"+name)
		t.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, "ms-max-"+name)
	}
}
