package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/postern-gateway/postern/bench/load"
	"github.com/postern-gateway/postern/bench/suite"
)

// takeProfiles profiles Postern and the references while they are busy.
func takeProfiles(ctx context.Context, o options, log *slog.Logger) error {
	if err := os.MkdirAll(o.profile, 0o755); err != nil {
		return err
	}
	if err := os.Setenv("PPROF", "127.0.0.1:0"); err != nil { // the references serve profiles only with this variable
		return err
	}
	var taken []string
	usual := load.UsualProfile()
	err := withMachine(ctx, o, log, func(m *load.Machine) error {
		err := suite.New(m, log).Profile(ctx, usual.Takes(), func(program, admin string) error {
			log.Info("take profiles", "program", program)
			taken = append(taken, program)
			return usual.Take(ctx, o.profile, program, admin)
		})
		if err == nil && o.traces && m.Traces.Traced().Batches == 0 {
			err = suite.ErrNoTraces
		}
		return err
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
