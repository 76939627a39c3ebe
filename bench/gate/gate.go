// Package gate detects large regressions. It compares ratios and counts, which hardly depend on the
// machine, with recorded ones and allows a wide margin for noise.
package gate

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/postern-gateway/postern/bench/plan"
	"github.com/postern-gateway/postern/bench/suite"
)

// Figures are the compared numbers. None depends on how fast the machine is.
type Figures struct {
	// CPU is the processor time per event of all servers. Rate is events per second. Both are
	// divided by the figure of the target bare in the same round.
	CPU  float64 `json:"cpu_to_bare"`
	Rate float64 `json:"rate_to_bare"`
	// Allocations is how often the gateway allocates memory for one delivery.
	Allocations float64 `json:"allocations_per_delivery"`
}

// Record is the measurement that later ones are compared with.
type Record struct {
	Date    string  `json:"date"`
	Command string  `json:"command"`
	Machine string  `json:"machine"`
	Figures Figures `json:"figures"`
}

// These factors limit how much worse a figure may become. Allocations hardly vary, but ratios do on
// a machine with busy neighbours. rateLeast is above a half, so that half the throughput fails even
// if the processor time per event stays the same: a program that waits longer uses no more of it.
const (
	cpuMost         = 1.6
	rateLeast       = 0.6
	allocationsMost = 1.3
)

// The row that is measured.
const (
	row         = "gate"
	rounds      = 3
	runFor      = 2500 * time.Millisecond
	connections = 64
)

// Shape returns the load under which the gate measures.
func Shape() suite.Shape {
	return suite.Shape{Connections: connections, Body: 2400, Sources: 1, For: runFor}
}

// Of returns the medians over the rounds of some samples.
func Of(s plan.Samples) (Figures, error) {
	cpu, rate := s.Ratio(row, suite.Postern, suite.Bare, plan.CPU), s.Ratio(row, suite.Postern, suite.Bare, plan.Rate)
	allocations := s.Value(row, suite.Postern, plan.More("allocations"))
	for _, f := range []plan.Figure{cpu, rate, allocations} {
		if f.Rounds == 0 || f.Median == 0 {
			return Figures{}, fmt.Errorf("gate: %d samples are too few to compare: a figure is missing or zero", len(s))
		}
	}
	return Figures{CPU: cpu.Median, Rate: rate.Median, Allocations: allocations.Median}, nil
}

// Finding is the comparison of one figure with its recorded value.
type Finding struct {
	What                   string
	Now, Recorded, Allowed float64
	OK                     bool
}

// String describes a finding in one line.
func (f Finding) String() string {
	word := "ok"
	if !f.OK {
		word = "MUCH WORSE"
	}
	return fmt.Sprintf("%-10s  %s: %.2f, recorded %.2f, allowed to %.2f", word, f.What, f.Now, f.Recorded, f.Allowed)
}

// Compare compares the figures with the recorded ones. It returns whether all are within their
// limits.
func Compare(recorded, now Figures) (findings []Finding, ok bool) {
	cpu, rate, allocations := recorded.CPU*cpuMost, recorded.Rate*rateLeast, recorded.Allocations*allocationsMost
	findings = []Finding{
		{"CPU per event / bare's", now.CPU, recorded.CPU, cpu, now.CPU <= cpu},
		{"events per second / bare's", now.Rate, recorded.Rate, rate, now.Rate >= rate},
		{"allocations per delivery", now.Allocations, recorded.Allocations, allocations,
			now.Allocations <= allocations},
	}
	ok = true
	for _, f := range findings {
		ok = ok && f.OK
	}
	return findings, ok
}

// Read reads a record.
func Read(file string) (r Record, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, fmt.Errorf("%w; make bench-record writes it", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", file, err)
	}
	return r, nil
}

// Write writes a record.
func (r Record) Write(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
