package windows_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// BenchmarkSummary plans a window of 10,000 customers with three changed invoices each, while
// events are applied, and compares the time to apply an event with that before the window. On
// 2026-11-28 it took 38 s on two idle processors. An event took 1.60 ms before and 1.85 ms during
// it (p50), 1.66 ms and 1.99 ms (mean), 2.4 ms and 7.3 ms (p99). In a run with longer pauses it
// took 48 s: 1.38 ms and 1.29 ms (p50), 1.63 ms and 1.73 ms (mean). Without pauses it took 4.3 s:
// 1.30 ms and 1.30 ms (p50), 1.37 ms and 1.80 ms (mean), 2.4 ms and 10.1 ms (p99):
//
//	go test -run '^$' -bench BenchmarkSummary -benchtime 2x ./internal/effects/jobs/windows
func BenchmarkSummary(t *testing.B) {
	const customers, pace = 10_000, 10 * time.Millisecond
	var took time.Duration
	var alone, beside []time.Duration
	for n := range t.N {
		t.StopTimer()
		l := applied.New(t)
		b := &fixture{db: l.DB, pool: l.Pool, source: l.Source, log: &strings.Builder{}}
		clock := func(at string) { // runs on from a time
			start, err := time.Parse(time.DateTime, "2026-11-02 "+at)
			must(t, err)
			b.db.ReplaceClock(t, fmt.Sprintf("clock_timestamp() + interval '%d microseconds'",
				time.Until(start).Microseconds()))
			b.db.Exec(t, `SELECT ensure_partitions(clock_ms(), clock_ms())`)
		}
		clock("10:30:00")
		r := perCustomer(t, 0)
		r.Source = applied.SourceName
		a := windows.New(windows.Options{Pool: b.pool, Settings: windows.DefaultSettings,
			Logger: slog.New(slog.DiscardHandler)})
		a.Replace(effects.NewRules([]*rules.Rule{r}))
		tick(t, a)
		b.change(t, func() {
			b.db.Exec(t, insertInvoicesSQL, b.source, 3*customers, 0)
			b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o,
				jsonb_build_object('object_type', 'customer', 'object_id', o.state->>'customer'))).*
				FROM objects o WHERE (o.state->>'number')::int % 3 = 0`)
		})
		b.db.Exec(t, `ANALYZE`)
		stored := l.AppendEvents(t, l.Source, sim.Generate(rand.New(rand.NewPCG(uint64(n), 1)),
			sim.Options{Objects: 2000, Changes: 6, Contents: 4, Unit: 1, Gap: 10}).Events)
		applier := l.Applier(t, nil)
		apply := func(until func(count int) bool) (took []time.Duration) {
			each := time.NewTicker(pace)
			defer each.Stop()
			for ; len(stored) > 0 && !until(len(took)); <-each.C {
				began := time.Now()
				must(t, applier.Apply(t.Context(), 0, []stream.Event{stored[0]}))
				took, stored = append(took, time.Since(began)), stored[1:]
			}
			return took
		}
		apply(func(count int) bool { return count == 200 })
		alone = append(alone, apply(func(count int) bool { return count == 1000 })...)
		number := func() {
			for more := true; more; {
				_, more, _ = changes.Number(t.Context(), b.pool)
			}
		}
		number()
		// The window waits for all events before its end. These are applied during the window.
		b.db.Exec(t, `UPDATE effect_windows SET window_start = '2026-11-02 10:00+00',
			window_end = '2026-11-02 11:00+00'`)
		clock("11:00:01")
		t.StartTimer()
		ctx, stop := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		began := time.Now()
		go func() { stopped <- a.Run(ctx) }()
		beside = append(beside, apply(func(count int) bool {
			return count%20 == 0 && b.db.QueryStrings(t,
				`SELECT (window_end IS NULL)::text FROM effect_windows`)[0] == "true"
		})...)
		took += time.Since(began)
		t.StopTimer()
		stop()
		must(t, <-stopped)
		if got := len(b.db.QueryStrings(t, `SELECT key FROM effects`)); got != customers {
			t.Fatalf("%d effects", got)
		}
	}
	t.ReportMetric(took.Seconds()/float64(t.N), "s/window")
	for name, all := range map[string][]time.Duration{"alone": alone, "beside": beside} {
		slices.Sort(all)
		var sum time.Duration
		for _, one := range all {
			sum += one
		}
		t.ReportMetric(float64(len(all)), "events-"+name)
		t.ReportMetric(float64(sum.Microseconds())/1000/float64(len(all)), "ms-mean-"+name)
		t.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-p50-"+name)
		t.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms-p99-"+name)
	}
}
