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

// The ways to apply what is stored: as it arrives, and again.
const (
	Live    = "live"
	Replay  = "replay"
	Rebuild = "rebuild"
)

// Again measures how fast stored events are applied again, by a replay and by a rebuild, beside how
// fast the same were applied live.
func (s *Suite) Again(ctx context.Context, row string, rounds, events int) (samples []Sample, err error) {
	f, err := s.fill(ctx, events, events/10)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), f.database)) }()
	for round := range rounds {
		found, err := s.again(ctx, f)
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

// again applies all events live, then again, on one copy of the database and by one processor.
func (s *Suite) again(ctx context.Context, f *filled) (samples []Sample, err error) {
	if err := errors.Join(s.m.Forget(ctx, eventsStream, processorConsumer), s.m.Empty(ctx, changesStream)); err != nil {
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
		sample, err := s.runOf(ctx, r, f, file, way...)
		if err != nil {
			return samples, fmt.Errorf("%s: %w", way[0], err)
		}
		samples = append(samples, sample)
	}
	return samples, s.checkApplied(ctx, r.database, f)
}

// ranAs is what the ledger says of a run.
type ranAs struct {
	Run       int64            `json:"run"`
	Status    string           `json:"status"`
	Counts    map[string]int64 `json:"counts"`
	StartedAt time.Time        `json:"started_at"`
	EndedAt   time.Time        `json:"ended_at"`
}

// runOf has a command carried out by the processor and measures the run, from its beginning to its
// end.
func (s *Suite) runOf(ctx context.Context, r *running, f *filled, file string, command ...string) (sample Sample,
	err error) {
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	run, err := s.order(ctx, file, command...)
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

// order gives a command and returns the run that it made, which has ended where the command waits.
func (s *Suite) order(ctx context.Context, file string, command ...string) (*ranAs, error) {
	out := &lastJSON{}
	if _, err := s.m.Tool(ctx, out, "postern", append(command, "--yes", "--config", file, "-o",
		"json")...); err != nil {
		return nil, err
	}
	return out.run()
}

// lastJSON keeps what a command prints.
type lastJSON struct{ text []byte }

func (l *lastJSON) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	return len(p), nil
}

// run is the last JSON text that was printed.
func (l *lastJSON) run() (*ranAs, error) {
	var found *ranAs
	d := json.NewDecoder(bytes.NewReader(l.text))
	for {
		var one ranAs
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

// Beside measures the answers of the gateway at a rate, alone and while a replay at full speed is
// carried out beside it.
func (s *Suite) Beside(ctx context.Context, row string, rounds, events int, shape Shape) (samples []Sample, err error) {
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

// The targets of Beside.
const (
	Alone     = "alone"
	Replaying = "replaying"
)

// applyAll leaves a filled database as a processor leaves it that has applied everything.
func (s *Suite) applyAll(ctx context.Context, f *filled) (err error) {
	if err := s.m.Forget(ctx, eventsStream, processorConsumer); err != nil {
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

// beside starts a replay of everything and returns a function that tells how many events it has
// applied since, per second; it fails if the replay has ended meanwhile.
func (s *Suite) beside(ctx context.Context, file string) (func() (float64, error), error) {
	run, err := s.order(ctx, file, Replay, "--no-wait")
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
			return 0, fmt.Errorf("the replay was %s with %v before the load's end: give it more events", now.Status,
				now.Counts)
		}
		return float64(now.Counts["processed"]) / took.Seconds(), nil
	}, nil
}
