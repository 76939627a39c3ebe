package suite

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rates returns a target's samples in a row, one per round.
func rates(row, target string, rates ...float64) Samples {
	var s Samples
	for round, rate := range rates {
		s = append(s, Sample{Row: row, Target: target, Round: round, Rate: rate})
	}
	return s
}

func TestValue_rounds_returnsMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		rates []float64
		want  Figure
	}{
		{"none", nil, Figure{}},
		{"one", []float64{7}, Figure{Median: 7, Min: 7, Max: 7, Rounds: 1}},
		{"odd, with an outlier", []float64{10, 11, 1000, 9, 12}, Figure{Median: 11, Min: 9, Max: 1000,
			Rounds: 5}},
		{"even", []float64{4, 1, 2, 3}, Figure{Median: 2.5, Min: 1, Max: 4, Rounds: 4}},
	} {
		got := rates("row", "a", c.rates...).Value("row", "a", Rate)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.name, diff)
		}
	}
}

// A machine that is half as fast in one round halves both rates, so the ratio within a round is
// unaffected. A ratio of medians would be affected.
func TestRatio_machineSlowsDown_staysSame(t *testing.T) {
	t.Parallel()
	samples := append(rates("row", "postern", 80, 40, 20), rates("row", "bare", 100, 50, 25)...)
	got := samples.Ratio("row", "postern", "bare", Rate)
	if diff := cmp.Diff(Figure{Median: 0.8, Min: 0.8, Max: 0.8, Rounds: 3}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRatio_roundWithoutReference_isSkipped(t *testing.T) {
	t.Parallel()
	samples := append(rates("row", "postern", 10, 20, 30), rates("row", "bare", 10, 0)...)
	samples = append(samples, rates("another", "bare", 1, 1, 1)...)
	got := samples.Ratio("row", "postern", "bare", Rate)
	if diff := cmp.Diff(Figure{Median: 1, Min: 1, Max: 1, Rounds: 1}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if f := samples.Value("row", "postern", More("nothing")); f.Rounds != 0 {
		t.Errorf("got %+v for a metric that no sample has", f)
	}
}
