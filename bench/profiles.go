package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/postern-gateway/postern/bench/machine"
	"github.com/postern-gateway/postern/bench/profile"
	"github.com/postern-gateway/postern/bench/suite"
)

// profileEvents are enough to keep a processor busy while it is watched.
const profileEvents = 150_000

// profileObjects are enough to keep a sweep busy while it is watched.
const profileObjects = 600_000

// takeProfiles watches the targets of ingest at 64 connections, then who applies, and then a sweep.
func takeProfiles(ctx context.Context, o options, log *slog.Logger) error {
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	if err := os.Setenv("PPROF", "127.0.0.1:0"); err != nil { // the references serve profiles only if asked
		return err
	}
	var taken []string
	look := func(ctx context.Context, program, admin string) error {
		log.Info("watch", "program", program)
		taken = append(taken, program)
		return profile.Usual().Take(ctx, o.profile, program, admin)
	}
	err := withMachine(ctx, o, log, func(m *machine.Machine) error {
		s := suite.New(m, log)
		shape := suite.Shape{Connections: 64, Body: 2400, Sources: 1, For: profile.Usual().Takes()}
		for _, target := range []string{suite.Verify, suite.Bare, suite.Afternoon, suite.Postern} {
			if err := s.ProfileIngest(ctx, target, shape, look); err != nil {
				return err
			}
		}
		if err := s.ProfileApply(ctx, profileEvents, look); err != nil {
			return err
		}
		if err := s.ProfileSweep(ctx, profileObjects, look); err != nil {
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
		log.Info("explain", "program", program)
		if err := profile.Explain(ctx, o.profile, program); err != nil {
			return err
		}
	}
	log.Info("written", "folder", o.profile)
	return nil
}
