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

// The targets of Reapply: events applied live, replayed, and applied by a rebuild.
const (
	Live    = "live"
	Replay  = "replay"
	Rebuild = "rebuild"
)

// Reapply measures how fast a replay and a rebuild apply stored events, compared with applying the
// same events live.
func (s *Suite) Reapply(ctx context.Context, row string, rounds, events int) (samples []Sample, err error) {
	f, err := s.fill(ctx, events, events/10)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), f.database)) }()
	for round := range rounds {
		found, err := s.reapply(ctx, f)
		for _, sample := range found {
			sample.Row, sample.Round = row, round
			samples = append(samples, sample)
			s.log.Info(row, "target", sample.Target, "round", round+1, "of", rounds, "rate", int(sample.Rate), "cpu",
				fmt.Sprintf("%.1f", sample.ServerCPU()))
		}
		if err != nil {
			return samples, fmt.Errorf("%s: %w", row, err)
		}
	}
	return samples, nil
}

// reapply applies all events live, replays them and rebuilds them, on one copy of the database with
// one processor.
func (s *Suite) reapply(ctx context.Context, f *filled) (samples []Sample, err error) {
	if err := errors.Join(s.m.DeleteConsumers(ctx, eventsStream, processorConsumer), s.m.DeleteStream(ctx,
		changesStream)); err != nil {
		return nil, err
	}
	r := &running{}
	if r.database, err = s.m.NewDatabase(ctx, f.database); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), r.database)) }()
	file, err := s.configure(s.m.DatabaseURL(r.database), 1)
	if err != nil {
		return nil, err
	}
	if r.process, _, r.processorAdmin, err = s.m.Serve(ctx, "processor", s.trace(r), "--config", file); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.process.Stop()) }()
	live, err := s.follow(ctx, r, processorConsumer, int64(f.events))
	if err != nil {
		return nil, err
	}
	live.Target = Live
	samples = append(samples, live)
	for _, way := range [][]string{{Replay}, {Rebuild, "--source", sourceNames(1)[0]}} {
		sample, err := s.measureRun(ctx, r, f, file, way...)
		if err != nil {
			return samples, fmt.Errorf("%s: %w", way[0], err)
		}
		samples = append(samples, sample)
	}
	return samples, s.checkApplied(ctx, r.database, f)
}

// runRecord is a run as the command line prints it.
type runRecord struct {
	Run       int64            `json:"run"`
	Status    string           `json:"status"`
	Counts    map[string]int64 `json:"counts"`
	StartedAt time.Time        `json:"started_at"`
	EndedAt   time.Time        `json:"ended_at"`
}

// measureRun gives a command that the processor executes as a run, and measures that run.
func (s *Suite) measureRun(ctx context.Context, r *running, f *filled, file string, command ...string) (sample Sample,
	err error) {
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	run, err := s.startRun(ctx, file, command...)
	if err != nil {
		return sample, err
	}
	n := int64(f.events)
	if run.Status != "done" || run.Counts["processed"] != n || run.Counts["failed"]+run.Counts["dead"] > 0 {
		return sample, fmt.Errorf("run %d is %s with %v, want %d events", run.Run, run.Status, run.Counts, n)
	}
	sample = Sample{Target: command[0], Events: n, Seconds: run.EndedAt.Sub(run.StartedAt).Seconds()}
	sample.Rate = float64(n) / sample.Seconds
	return sample, s.after(ctx, r, before, &sample)
}

// startRun gives a command and returns the run that it created. The run has ended if the command
// waits.
func (s *Suite) startRun(ctx context.Context, file string, command ...string) (*runRecord, error) {
	out := &lastJSON{}
	if _, err := s.m.Tool(ctx, out, "postern", append(command, "--yes", "--config", file, "-o",
		"json")...); err != nil {
		return nil, err
	}
	return out.run()
}

// lastJSON collects the output of a command.
type lastJSON struct{ text []byte }

func (l *lastJSON) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	return len(p), nil
}

// run returns the last JSON text of the output as a run.
func (l *lastJSON) run() (*runRecord, error) {
	var found *runRecord
	d := json.NewDecoder(bytes.NewReader(l.text))
	for {
		var one runRecord
		err := d.Decode(&one)
		switch {
		case errors.Is(err, io.EOF) && found != nil:
			return found, nil
		case err != nil:
			return nil, fmt.Errorf("no run in %q: %w", l.text, err)
		}
		found = &one
	}
}

// IngestDuringReplay measures the gateway's responses at a rate, alone and during a replay at full
// speed.
func (s *Suite) IngestDuringReplay(ctx context.Context, row string, rounds, events int, shape Shape) (samples []Sample,
	err error) {
	f, err := s.fill(ctx, events, events/10)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), f.database)) }()
	if err := s.applyAll(ctx, f); err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	for round := range rounds {
		for i := range 2 {
			one := shape
			one.Database, one.Applied, one.Replayed = f.database, true, (i+round)%2 == 0
			target := Alone
			if one.Replayed {
				target = Replaying
			}
			sample, err := s.Ingest(ctx, Postern, one)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, target, err)
			}
			sample.Row, sample.Target, sample.Round = row, target, round
			samples = append(samples, sample)
			s.log.Info(row, "target", target, "round", round+1, "of", rounds, "rate", int(sample.Rate), "p50",
				sample.P50, "p99", sample.P99, "more", sample.More)
		}
	}
	return samples, nil
}

// The targets of IngestDuringReplay.
const (
	Alone     = "alone"
	Replaying = "replaying"
)

// applyAll applies all events of a filled database.
func (s *Suite) applyAll(ctx context.Context, f *filled) (err error) {
	if err := s.m.DeleteConsumers(ctx, eventsStream, processorConsumer); err != nil {
		return err
	}
	file, err := s.configure(s.m.DatabaseURL(f.database), 1)
	if err != nil {
		return err
	}
	p, _, _, err := s.m.Serve(ctx, "processor", nil, "--config", file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	_, err = s.acknowledged(ctx, p, processorConsumer, int64(f.events))
	return err
}

// startReplay starts a replay of everything. It returns a function that returns how many events per
// second were applied since then, and an error if the replay has ended meanwhile.
func (s *Suite) startReplay(ctx context.Context, file string) (func() (float64, error), error) {
	run, err := s.startRun(ctx, file, Replay, "--no-wait")
	if err != nil {
		return nil, err
	}
	began := time.Now()
	return func() (float64, error) {
		out := &lastJSON{}
		took := time.Since(began)
		if _, err := s.m.Tool(ctx, out, "postern", "runs", "show", fmt.Sprint(run.Run), "--config", file, "-o",
			"json"); err != nil {
			return 0, err
		}
		now, err := out.run()
		if err != nil {
			return 0, err
		}
		if now.Status != "running" {
			return 0, fmt.Errorf("the replay was %s with %v before the load ended: store more events", now.Status,
				now.Counts)
		}
		return float64(now.Counts["processed"]) / took.Seconds(), nil
	}, nil
}
