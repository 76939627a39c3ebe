package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// The targets of reapply: events applied live, replayed, and applied by a rebuild.
const (
	liveTarget    = "live"
	replayTarget  = "replay"
	rebuildTarget = "rebuild"
)

// reapply measures how fast a replay and a rebuild apply stored events, compared with applying the
// same events live.
func (s *Suite) reapply(ctx context.Context, row string, rounds, events int) (samples []Sample, err error) {
	f, err := s.fill(ctx, events, events/10)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer s.drop(ctx, f.database, &err)
	for round := range rounds {
		found, err := s.reapplyOnce(ctx, f)
		for _, sample := range found {
			samples = append(samples, s.record(sample, row, round, rounds))
		}
		if err != nil {
			return samples, fmt.Errorf("%s: %w", row, err)
		}
	}
	return samples, nil
}

// reapplyOnce applies all events live, replays them and rebuilds them, on one copy of the database
// with one processor.
func (s *Suite) reapplyOnce(ctx context.Context, f *filled) (samples []Sample, err error) {
	database, err := s.rewind(ctx, f)
	if err != nil {
		return nil, err
	}
	defer s.drop(ctx, database, &err)
	r, err := s.startProcessor(ctx, database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	live, err := s.follow(ctx, r, processorConsumer, int64(f.events))
	if err != nil {
		return nil, err
	}
	live.Target = liveTarget
	samples = append(samples, live)
	for _, way := range [][]string{{replayTarget, "--yes"}, {rebuildTarget, "--yes", "--source", sourceNames(1)[0]}} {
		sample, err := s.measureRun(ctx, r, int64(f.events), "processed", way...)
		if err != nil {
			return samples, fmt.Errorf("%s: %w", way[0], err)
		}
		sample.Target = way[0]
		samples = append(samples, sample)
	}
	return samples, s.checkApplied(ctx, database, f)
}

// runRecord is a run as the command line prints it.
type runRecord struct {
	Run       int64            `json:"run"`
	Status    string           `json:"status"`
	Counts    map[string]int64 `json:"counts"`
	StartedAt time.Time        `json:"started_at"`
	EndedAt   time.Time        `json:"ended_at"`
}

// measureRun gives a command that the processor executes as a run, and measures that run. It must
// process n events or objects, and count all of them under a name.
func (s *Suite) measureRun(ctx context.Context, r *running, n int64, name string, command ...string) (sample Sample,
	err error) {
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	run, err := s.command(ctx, r.file, command...)
	if err != nil {
		return sample, err
	}
	if run.Status != "done" || run.Counts["processed"] != n || run.Counts[name] != n ||
		run.Counts["failed"]+run.Counts["dead"] > 0 {
		return sample, fmt.Errorf("run %d is %s with %v, want %d %s", run.Run, run.Status, run.Counts, n, name)
	}
	sample = rated(n, run.EndedAt.Sub(run.StartedAt).Seconds())
	return sample, s.after(ctx, r, before, &sample)
}

// command executes a command of Postern and returns the run that it prints last.
func (s *Suite) command(ctx context.Context, file string, command ...string) (*runRecord, error) {
	var out bytes.Buffer
	if _, err := s.m.Tool(ctx, &out, "postern", append(command, "--config", file, "-o", "json")...); err != nil {
		return nil, err
	}
	var found *runRecord
	for d := json.NewDecoder(bytes.NewReader(out.Bytes())); ; {
		var one runRecord
		err := d.Decode(&one)
		switch {
		case errors.Is(err, io.EOF) && found != nil:
			return found, nil
		case err != nil:
			return nil, fmt.Errorf("no run in %q: %w", out.Bytes(), err)
		}
		found = &one
	}
}

// ingestDuringReplay measures the gateway's responses at a rate, alone and during a replay at full
// speed.
func (s *Suite) ingestDuringReplay(ctx context.Context, row string, rounds, events int, shape Shape) (_ []Sample,
	err error) {
	f, err := s.fill(ctx, events, events/10)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer s.drop(ctx, f.database, &err)
	if err := s.applyAll(ctx, f); err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	shape.Database, shape.Applied = f.database, true
	return s.inTurn(row, rounds, []string{replayingTarget, aloneTarget}, func(target string) (Sample, error) {
		one := shape
		one.Replayed = target == replayingTarget
		return s.ingest(ctx, Postern, one)
	})
}

// The targets of ingestDuringReplay.
const (
	aloneTarget     = "alone"
	replayingTarget = "replaying"
)

// applyAll applies all events of a filled database.
func (s *Suite) applyAll(ctx context.Context, f *filled) (err error) {
	if err := s.m.DeleteConsumers(ctx, eventsStream, processorConsumer); err != nil {
		return err
	}
	r, err := s.startProcessor(ctx, f.database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	_, err = s.acknowledged(ctx, r.process, processorConsumer, int64(f.events))
	return err
}

// startReplay starts a replay of everything. It returns a function that adds to a sample how many
// events per second were applied since then. The replay must not have ended meanwhile.
func (s *Suite) startReplay(ctx context.Context, file string) (func(*Sample) error, error) {
	run, err := s.command(ctx, file, replayTarget, "--no-wait", "--yes")
	if err != nil {
		return nil, err
	}
	began := time.Now()
	return func(sample *Sample) error {
		took := time.Since(began)
		now, err := s.command(ctx, file, "runs", "show", fmt.Sprint(run.Run))
		if err != nil {
			return err
		}
		if now.Status != "running" {
			return fmt.Errorf("the replay was %s with %v before the load ended: store more events", now.Status,
				now.Counts)
		}
		sample.more("replayed_per_s", float64(now.Counts["processed"])/took.Seconds())
		return nil
	}, nil
}
