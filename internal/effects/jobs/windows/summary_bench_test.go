package windows_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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

// BenchmarkSummary plans a window of 10,000 customers with three changed invoices each. In every
// other slice of three seconds it only applies events. It compares the times to apply an event in
// the two kinds of slices. On 2026-11-28, with two idle processors, a window took 47 s, and an
// event took 3.8 % longer alongside it, with a standard error of 2.0 % (mean; 1.27 ms and 1.30 ms).
// The p99 was 2.2 ms and 4.4 ms. Without pauses the window took 3 s, and an event 76 % longer:
//
//	go test -run '^$' -bench BenchmarkSummary -benchtime 3x ./internal/effects/jobs/windows
func BenchmarkSummary(t *testing.B) {
	const customers, slice, pace = 10_000, 300, 10 * time.Millisecond
	var took time.Duration
	var alone, alongside []time.Duration
	var slower []float64 // in percent, for each two slices
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
			sim.Options{Objects: 8000, Changes: 6, Contents: 4, Unit: 1, Gap: 10}).Events)
		applier := l.Applier(t, nil)
		apply := func(count int) (took []time.Duration) {
			each := time.NewTicker(pace)
			defer each.Stop()
			for ; len(took) < count; <-each.C {
				began := time.Now()
				must(t, applier.Apply(t.Context(), 0, []stream.Event{stored[0]}))
				took, stored = append(took, time.Since(began)), stored[1:]
			}
			return took
		}
		apply(slice)
		for more := true; more; {
			_, more, _ = changes.Number(t.Context(), b.pool)
		}
		// The window waits for all events before its end. These are applied during the window.
		b.db.Exec(t, `UPDATE effect_windows SET window_start = '2026-11-02 10:00+00',
			window_end = '2026-11-02 11:00+00'`)
		clock("11:00:01")
		// The scheduler runs in every other slice, so that both have the same machine and data.
		for done := false; !done; {
			var pair [2][]time.Duration
			for i := range pair {
				alongside := (i + len(slower)) % 2
				ctx, stop := context.WithCancel(t.Context())
				stopped := make(chan error, 1)
				if alongside == 0 {
					stopped <- nil
				} else {
					t.StartTimer()
					go func() { stopped <- a.Run(ctx) }()
				}
				began := time.Now()
				pair[alongside] = apply(slice)
				stop()
				must(t, <-stopped)
				t.StopTimer()
				if alongside == 1 {
					took += time.Since(began)
				}
			}
			done = b.db.QueryStrings(t, `SELECT (window_end IS NULL)::text FROM effect_windows`)[0] == "true"
			if !done || len(slower) == 0 {
				slower = append(slower, 100*(mean(pair[1])/mean(pair[0])-1))
				alone, alongside = append(alone, pair[0]...), append(alongside, pair[1]...)
			}
		}
		if got := len(b.db.QueryStrings(t, `SELECT key FROM effects`)); got != customers {
			t.Fatalf("%d effects", got)
		}
	}
	t.ReportMetric(took.Seconds()/float64(t.N), "s/window")
	t.ReportMetric(mean(slower), "%-slower")
	var squares float64
	for _, one := range slower {
		squares += (one - mean(slower)) * (one - mean(slower))
	}
	t.ReportMetric(math.Sqrt(squares)/float64(len(slower)), "%-standard-error")
	for name, all := range map[string][]time.Duration{"alone": alone, "alongside": alongside} {
		slices.Sort(all)
		t.ReportMetric(mean(all)/1e6, "ms-mean-"+name)
		t.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-p50-"+name)
		t.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms-p99-"+name)
	}
}

func mean[T time.Duration | float64](all []T) float64 {
	var sum T
	for _, one := range all {
		sum += one
	}
	return float64(sum) / float64(len(all))
}
