package main

import (
	"testing"

	"github.com/postern-gateway/postern/bench/suite"
)

func TestCompare_figures_failOnlyIfMuchWorse(t *testing.T) {
	t.Parallel()
	recorded := figures{CPU: 1.2, Rate: 0.8, Allocations: 50}
	for name, c := range map[string]struct {
		now figures
		ok  bool
	}{
		"the same": {recorded, true},
		"better":   {figures{CPU: 0.5, Rate: 2, Allocations: 10}, true},
		"noise":    {figures{CPU: 1.7, Rate: 0.5, Allocations: 55}, true},
		// The program waits, so it uses no more processor time.
		"half the throughput":   {figures{CPU: 1.2, Rate: 0.4, Allocations: 50}, false},
		"half, and a lucky day": {figures{CPU: 1.2, Rate: 0.45, Allocations: 50}, false},
		"more CPU":              {figures{CPU: 2, Rate: 0.8, Allocations: 50}, false},
		"twice the garbage":     {figures{CPU: 1.2, Rate: 0.8, Allocations: 100}, false},
	} {
		if findings, ok := compareFigures(recorded, c.now); ok != c.ok {
			t.Errorf("%s: %v, want %v: %v", name, ok, c.ok, findings)
		}
	}
}

func TestOf_threeRounds_returnsMediansOfRatios(t *testing.T) {
	t.Parallel()
	var samples suite.Samples
	for round, speed := range []float64{1, 0.5, 0.1} { // the machine gets slower: the ratios stay
		cpu := func(us float64) map[string]float64 { return map[string]float64{"one": us / speed} }
		samples = append(samples,
			suite.Sample{Row: "gate", Target: suite.Bare, Round: round, Rate: 1000 * speed, CPU: cpu(100)},
			suite.Sample{Row: "gate", Target: suite.Postern, Round: round, Rate: 800 * speed, CPU: cpu(130),
				More: map[string]float64{"allocations": 50 + float64(round)}})
	}
	got, err := figuresOf(samples)
	if err != nil {
		t.Fatal(err)
	}
	if want := (figures{CPU: 1.3, Rate: 0.8, Allocations: 51}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := figuresOf(samples[:1]); err == nil {
		t.Error("Of accepted samples of one target, which have no ratios")
	}
}

// CI compares with this record.
func TestRead_committedRecord_hasAllFigures(t *testing.T) {
	t.Parallel()
	r, err := readRecord(gateFile)
	if err != nil {
		t.Fatal(err)
	}
	if r.Date == "" || r.Command == "" || r.Figures.CPU <= 0 || r.Figures.Rate <= 0 || r.Figures.Allocations <= 0 {
		t.Errorf("the record is incomplete: %+v", r)
	}
}
