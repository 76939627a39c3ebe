package suite

import (
	"slices"
)

// Samples are the results of all rows.
type Samples []Sample

// Of returns a target's samples in a row.
func (s Samples) Of(row, target string) Samples {
	var found Samples
	for _, x := range s {
		if x.Row == row && x.Target == target {
			found = append(found, x)
		}
	}
	return found
}

// Targets returns a row's targets in the order in which they first ran.
func (s Samples) Targets(row string) []string {
	var found []string
	for _, x := range s {
		if x.Row == row && !slices.Contains(found, x.Target) {
			found = append(found, x.Target)
		}
	}
	return found
}

// Metric reads a number from a sample. ok reports whether the sample has it.
type Metric func(Sample) (value float64, ok bool)

// The metrics that every row has.
var (
	Rate = of(func(s Sample) float64 { return s.Rate })
	P50  = of(func(s Sample) float64 { return s.P50 })
	P99  = of(func(s Sample) float64 { return s.P99 })
	P999 = of(func(s Sample) float64 { return s.P999 })
	Max  = of(func(s Sample) float64 { return s.Max })
	CPU  = of(func(s Sample) float64 { return s.ServerCPU() })
	WAL  = of(func(s Sample) float64 { return s.WAL })
	// Errors counts the deliveries that were not accepted.
	Errors = of(func(s Sample) float64 { return float64(s.Errors) })
)

func of(value func(Sample) float64) Metric {
	return func(s Sample) (float64, bool) { return value(s), true }
}

// More returns the metric of a number that only some rows have.
func More(name string) Metric {
	return func(s Sample) (float64, bool) { v, ok := s.More[name]; return v, ok }
}

// CPUOf returns the metric of a program's processor time in microseconds per event.
func CPUOf(program string) Metric {
	return func(s Sample) (float64, bool) { v, ok := s.CPU[program]; return v, ok }
}

// Memory returns the metric of a program's memory in MiB.
func Memory(program string) Metric {
	return func(s Sample) (float64, bool) { v, ok := s.Memory[program]; return v, ok }
}

// Figure is the median of some rounds, and the least and most of them.
type Figure struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Rounds int     `json:"rounds"`
}

// figure summarizes values. Without values it has no rounds.
func figure(values []float64) Figure {
	if len(values) == 0 {
		return Figure{}
	}
	return Figure{Median: median(values), Min: slices.Min(values), Max: slices.Max(values), Rounds: len(values)}
}

// median returns the middle value, or the mean of the two middle ones.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[half-1] + sorted[half]) / 2
	}
	return sorted[half]
}

// Value returns a metric of a target in a row over the rounds.
func (s Samples) Value(row, target string, m Metric) Figure {
	var values []float64
	for _, x := range s.Of(row, target) {
		if v, ok := m(x); ok {
			values = append(values, v)
		}
	}
	return figure(values)
}

// Ratio returns a target's metric divided by a reference's in the same round. A disturbance of the
// machine then affects both.
func (s Samples) Ratio(row, target, reference string, m Metric) Figure {
	var ratios []float64
	below := s.Of(row, reference)
	for _, above := range s.Of(row, target) {
		i := slices.IndexFunc(below, func(x Sample) bool { return x.Round == above.Round })
		if i < 0 {
			continue
		}
		a, ok := m(above)
		b, also := m(below[i])
		if ok && also && b != 0 {
			ratios = append(ratios, a/b)
		}
	}
	return figure(ratios)
}
