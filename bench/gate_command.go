package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/postern-gateway/postern/bench/gate"
	"github.com/postern-gateway/postern/bench/machine"
	"github.com/postern-gateway/postern/bench/report"
	"github.com/postern-gateway/postern/bench/suite"
)

// gateFile is the record that the gate compares with.
const gateFile = "gate.json"

var errWorse = errors.New("a figure is much worse than in gate.json: fix the regression or, if the cost is " +
	"intended, record it with `make bench-record`")

// gated measures and compares with the recorded figures.
func gated(ctx context.Context, o options, log *slog.Logger) error {
	recorded, err := gate.Read(gateFile)
	if err != nil {
		return err
	}
	return withMachine(ctx, o, log, func(m *machine.Machine) error {
		findings, ok, err := gate.Check(ctx, suite.New(m, log), recorded.Figures, log)
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
	return withMachine(ctx, o, log, func(m *machine.Machine) error {
		s := suite.New(m, log)
		samples, err := gate.Measure(ctx, s, nil)
		for range recordings - 1 {
			if err == nil {
				samples, err = gate.Measure(ctx, s, samples)
			}
		}
		if err != nil {
			return err
		}
		figures, err := gate.Of(samples)
		if err != nil {
			return err
		}
		about, err := report.Describe(ctx, m)
		if err != nil {
			return err
		}
		log.Info("recorded", "figures", fmt.Sprintf("%+v", figures), "file", gateFile)
		return gate.Record{Date: time.Now().UTC().Format(time.DateOnly), Command: "make bench-record",
			Machine: about.String(), Figures: figures}.Write(gateFile)
	})
}
