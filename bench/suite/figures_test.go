package suite

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

func TestParse_prometheusText_hasFiguresByLabel(t *testing.T) {
	t.Parallel()
	m, err := parse(strings.NewReader(`# HELP postern_publishes_total Events.
# TYPE postern_publishes_total counter
postern_publishes_total{result="acknowledged"} 100
postern_publishes_total{result="failed"} 3
postern_publishes_total{result="overflowed"} 2
postern_publishes_total{result="withheld"} 1
postern_events_total{result="stored",source="a"} 50
postern_events_total{result="stored",source="b"} 56
postern_events_total{result="duplicate",source="b"} 7
postern_stream_lag_ratio NaN
go_memstats_mallocs_total 1.5e+06
`))
	if err != nil {
		t.Fatal(err)
	}
	if stored, left := m.published(); stored != 106 || left != 6 {
		t.Errorf("stored %g, left to the republisher %g", stored, left)
	}
	sample := Sample{Events: 9000, Errors: 1000}
	allocations(&sample, metrics{"go_memstats_mallocs_total": 1e6, "go_memstats_alloc_bytes_total": 0}, m)
	if n := sample.More["allocations"]; n != 50 {
		t.Errorf("got %g allocations per delivery, want 50", n)
	}
}

// lags returns readings a second apart.
func lags(pending ...int64) []load.Lag {
	out := make([]load.Lag, len(pending))
	for i, n := range pending {
		out[i] = load.Lag{At: time.Unix(int64(i), 0), Pending: n, Last: int64(1000 * i)}
	}
	return out
}

// A backlog that grows all the time has growth. One that rises and falls has none.
func TestWatch_readings_addsBacklogFigures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                              string
		lags                              []load.Lag
		growth, most, first, end, applied float64
	}{
		{"grows", lags(0, 100, 200, 300, 400, 500), 100, 500, 200, 500, 900},
		{"even", lags(0, 900, 100, 300, 500, 300), 0, 900, 900, 300, 940},
	} {
		sample := Sample{}
		(&watch{lags: c.lags}).addTo(&sample)
		for name, want := range map[string]float64{"backlog_growth_per_s": c.growth, "backlog_max": c.most,
			"backlog_max_first_half": c.first, "backlog_end": c.end, "applied_per_s": c.applied} {
			if got := sample.More[name]; math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: %s is %g, want %g", c.name, name, got, want)
			}
		}
	}
}
