package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/postern-gateway/postern/bench/load"
	"github.com/postern-gateway/postern/bench/suite"
)

// figures are the numbers with which the gate detects large regressions. They are ratios and
// counts, which hardly depend on how fast the machine is.
type figures struct {
	// CPU is the processor time per event of all servers. Rate is events per second. Both are
	// divided by the figure of the target bare in the same round.
	CPU  float64 `json:"cpu_to_bare"`
	Rate float64 `json:"rate_to_bare"`
	// Allocations is how often the gateway allocates memory for one delivery.
	Allocations float64 `json:"allocations_per_delivery"`
}

// gateRecord is the measurement that later ones are compared with.
type gateRecord struct {
	Date    string  `json:"date"`
	Command string  `json:"command"`
	Machine string  `json:"machine"`
	Figures figures `json:"figures"`
}

// These factors limit how much worse a figure may become. Allocations hardly vary, but ratios do on
// a machine with busy neighbours. rateLeast is above a half, so that half the throughput fails even
// if the processor time per event stays the same: a program that waits longer uses no more of it.
const (
	cpuMost         = 1.6
	rateLeast       = 0.6
	allocationsMost = 1.3
)

// The row that the gate measures.
const (
	gateRow         = "gate"
	gateRounds      = 3
	gateFor         = 2500 * time.Millisecond
	gateConnections = 64
)

// gateShape returns the load under which the gate measures.
func gateShape() suite.Shape {
	return suite.Shape{Connections: gateConnections, Body: 2400, Sources: 1, For: gateFor}
}

// figuresOf returns the medians over the rounds of some samples.
func figuresOf(s suite.Samples) (figures, error) {
	cpu := s.Ratio(gateRow, suite.Postern, suite.Bare, suite.CPU)
	rate := s.Ratio(gateRow, suite.Postern, suite.Bare, suite.Rate)
	allocations := s.Value(gateRow, suite.Postern, suite.More("allocations"))
	for _, f := range []suite.Figure{cpu, rate, allocations} {
		if f.Rounds == 0 || f.Median == 0 {
			return figures{}, fmt.Errorf("gate: %d samples are too few to compare: a figure is missing or zero", len(s))
		}
	}
	return figures{CPU: cpu.Median, Rate: rate.Median, Allocations: allocations.Median}, nil
}

// finding is the comparison of one figure with its recorded value.
type finding struct {
	What                   string
	Now, Recorded, Allowed float64
	OK                     bool
}

// String describes a finding in one line.
func (f finding) String() string {
	word := "ok"
	if !f.OK {
		word = "MUCH WORSE"
	}
	return fmt.Sprintf("%-10s  %s: %.2f, recorded %.2f, allowed to %.2f", word, f.What, f.Now, f.Recorded, f.Allowed)
}

// compareFigures compares the figures with the recorded ones. It returns whether all are within
// their limits.
func compareFigures(recorded, now figures) (findings []finding, ok bool) {
	cpu, rate, allocations := recorded.CPU*cpuMost, recorded.Rate*rateLeast, recorded.Allocations*allocationsMost
	findings = []finding{
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

// readRecord reads a record.
func readRecord(file string) (r gateRecord, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, fmt.Errorf("%w; make bench-record writes it", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", file, err)
	}
	return r, nil
}

// write writes a record.
func (r gateRecord) write(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// measureGate appends some rounds. It numbers them after the existing ones.
func measureGate(ctx context.Context, s *suite.Suite, samples suite.Samples) (suite.Samples, error) {
	before := len(samples.Of(gateRow, suite.Postern))
	more, err := s.Compare(ctx, gateRow, gateRounds, gateShape(), suite.Bare, suite.Postern)
	for i := range more {
		more[i].Round += before
	}
	return append(samples, more...), err
}

// checkGate measures and compares with a record. If a figure looks worse, it measures once more and
// compares the medians of all rounds, so that a neighbour that was busy for half a minute does not
// fail a change.
func checkGate(ctx context.Context, s *suite.Suite, recorded figures, log *slog.Logger) (findings []finding, ok bool,
	err error) {
	var samples suite.Samples
	for attempt := range 2 {
		if attempt > 0 {
			log.Warn("a figure looks worse: measure once more")
		}
		if samples, err = measureGate(ctx, s, samples); err != nil {
			return nil, false, err
		}
		now, err := figuresOf(samples)
		if err != nil {
			return nil, false, err
		}
		if findings, ok = compareFigures(recorded, now); ok {
			break
		}
	}
	return findings, ok, nil
}

// gateFile is the record that the gate compares with.
const gateFile = "gate.json"

var errWorse = errors.New("a figure is much worse than in gate.json: fix the regression or, if the cost is " +
	"intended, record it with `make bench-record`")

// gated measures and compares with the recorded figures.
func gated(ctx context.Context, o options, log *slog.Logger) error {
	recorded, err := readRecord(gateFile)
	if err != nil {
		return err
	}
	return withMachine(ctx, o, log, func(m *load.Machine) error {
		findings, ok, err := checkGate(ctx, suite.New(m, log), recorded.Figures, log)
		if err != nil {
			return err
		}
		for _, f := range findings {
			fmt.Println(f)
		}
		if !ok {
			return errWorse
		}
		return nil
	})
}

// recordings is how often the rounds of the gate are repeated for a record.
const recordings = 2

// record measures the figures that later gates compare with.
func record(ctx context.Context, o options, log *slog.Logger) error {
	return withMachine(ctx, o, log, func(m *load.Machine) error {
		s := suite.New(m, log)
		samples, err := measureGate(ctx, s, nil)
		for range recordings - 1 {
			if err == nil {
				samples, err = measureGate(ctx, s, samples)
			}
		}
		if err != nil {
			return err
		}
		figures, err := figuresOf(samples)
		if err != nil {
			return err
		}
		about, err := describeMachine(ctx, m)
		if err != nil {
			return err
		}
		log.Info("recorded", "figures", fmt.Sprintf("%+v", figures), "file", gateFile)
		return gateRecord{Date: time.Now().UTC().Format(time.DateOnly), Command: "make bench-record",
			Machine: about.String(), Figures: figures}.write(gateFile)
	})
}
