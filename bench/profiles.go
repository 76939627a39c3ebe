package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/postern-gateway/postern/bench/load"
	"github.com/postern-gateway/postern/bench/suite"
)

// profileEvents is enough to keep a processor busy while it is profiled.
const profileEvents = 150_000

// profileObjects is enough to keep an object scan busy while it is profiled.
const profileObjects = 600_000

// takeProfiles profiles the targets of ingest at 64 connections, then the programs that apply
// events, and then an object scan.
func takeProfiles(ctx context.Context, o options, log *slog.Logger) error {
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	if err := os.Setenv("PPROF", "127.0.0.1:0"); err != nil { // the references serve profiles only with this variable
		return err
	}
	var taken []string
	take := func(ctx context.Context, program, admin string) error {
		log.Info("take profiles", "program", program)
		taken = append(taken, program)
		return load.UsualProfile().Take(ctx, o.profile, program, admin)
	}
	err := withMachine(ctx, o, log, func(m *load.Machine) error {
		s := suite.New(m, log)
		shape := suite.Shape{Connections: 64, Body: 2400, Sources: 1, For: load.UsualProfile().Takes()}
		for _, target := range []string{suite.Verify, suite.Bare, suite.Afternoon, suite.Postern} {
			if err := s.ProfileIngest(ctx, target, shape, take); err != nil {
				return err
			}
		}
		if err := s.ProfileApply(ctx, profileEvents, take); err != nil {
			return err
		}
		if err := s.ProfileScan(ctx, profileObjects, take); err != nil {
			return err
		}
		if o.traces && m.Traces.Traced().Batches == 0 {
			return suite.ErrNoTraces
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, program := range taken {
		log.Info("write profiles as text", "program", program)
		if err := load.ExplainProfiles(ctx, o.profile, program); err != nil {
			return err
		}
	}
	log.Info("written", "folder", o.profile)
	return nil
}
