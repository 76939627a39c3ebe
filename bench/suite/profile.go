package suite

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/bench/load"
)

// TakeProfiles takes profiles of a working program from its admin address.
type TakeProfiles func(ctx context.Context, program, admin string) error

// ProfileIngest profiles a target under a load.
func (s *Suite) ProfileIngest(ctx context.Context, target string, shape Shape, take TakeProfiles) (err error) {
	if err := s.m.Reset(ctx); err != nil {
		return err
	}
	r, err := s.start(ctx, target, shape)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, r.stop(), s.m.DropDatabase(context.WithoutCancel(ctx), r.database))
	}()
	loaded, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	deliveries := s.deliveries(shape)
	go func() {
		_, err := load.Run(loaded, deliveries, 0, load.Options{Address: r.address, Connections: shape.Connections,
			For: shape.For})
		done <- err
	}()
	err = take(ctx, r.process.Name, r.admin)
	early := len(done) > 0
	cancel()
	if e := <-done; err == nil && e != nil && !errors.Is(e, context.Canceled) {
		return e
	}
	if err == nil && early {
		s.log.Warn("the load ended before the profiles were taken", "target", target)
	}
	return err
}

// ProfileApply profiles the reference OneByOne and then the processor while they apply a full
// stream.
func (s *Suite) ProfileApply(ctx context.Context, events int, take TakeProfiles) (err error) {
	f, err := s.fill(ctx, events, events/10)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), f.database)) }()
	url := s.m.DatabaseURL(f.database)
	one, _, admin, err := s.m.Serve(ctx, OneByOne, nil, "-database", url, "-nats", s.m.NATS(), "-goroutines",
		fmt.Sprint(s.defaults.Processor.Workers))
	if err != nil {
		return err
	}
	if err := errors.Join(take(ctx, OneByOne, admin), one.Stop()); err != nil {
		return err
	}
	file, err := s.configure(url, 1)
	if err != nil {
		return err
	}
	processor, _, admin, err := s.m.Serve(ctx, "processor", s.m.Traces.Env(), "--config", file)
	if err != nil {
		return err
	}
	return errors.Join(take(ctx, "processor", admin), processor.Stop())
}
