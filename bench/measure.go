package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/postern-gateway/postern/bench/load"
	"github.com/postern-gateway/postern/bench/suite"
)

// withMachine starts a machine, calls do with it, and then stops and removes it.
func withMachine(ctx context.Context, o options, log *slog.Logger, do func(*load.Machine) error) (err error) {
	m, err := load.StartMachine(ctx, load.MachineOptions{Parent: o.dir, Settings: o.postgres, Traces: o.traces}, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	return do(m)
}

// measure runs rows, writes the results and prints the verdicts.
func measure(ctx context.Context, o options, rows []suite.Row, p *progress, log *slog.Logger) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	r := &results{Began: time.Now().UTC().Truncate(time.Second), Command: o.command, Commit: currentCommit(ctx),
		Rows: rows}
	err := withMachine(ctx, o, log, func(m *load.Machine) (err error) {
		if r.Machine, err = describeMachine(ctx, m); err != nil {
			return err
		}
		s := suite.New(m, log)
		return s.Do(ctx, rows, p.setRemaining, func() error {
			r.Samples, r.Gaps, r.Took = s.Samples, s.Gaps, time.Since(r.Began).Round(time.Second).String()
			r.judge()
			return r.save(o.out)
		})
	})
	if len(r.Samples) == 0 {
		return err
	}
	if e := r.write(o.out); e != nil {
		return errors.Join(err, e)
	}
	fmt.Print(r.summary())
	log.Info("written", "folder", o.out)
	switch {
	case err != nil:
		return err
	case len(r.Gaps) > 0:
		return fmt.Errorf("%d rows could not be measured, the first: %s: %s", len(r.Gaps), r.Gaps[0].Row,
			r.Gaps[0].Error)
	}
	return o.strictError(r.Bounds)
}

// command returns the command line without the options that name folders.
func command(flags *flag.FlagSet) string {
	words := []string{"bench"}
	flags.Visit(func(f *flag.Flag) {
		if f.Name == "dir" || f.Name == "out" {
			return
		}
		values := []string{f.Value.String()}
		if many, ok := f.Value.(settings); ok {
			values = many.words()
		}
		for _, v := range values {
			word := "-" + f.Name + "=" + v
			if strings.ContainsAny(word, " \t\n'\"$&|;<>()*?#`\\") {
				word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
			}
			words = append(words, word)
		}
	})
	return strings.Join(words, " ")
}
