package suite

import (
	"context"
	"errors"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

const (
	// profiledEvents and profiledObjects are enough to keep the processor busy while it is
	// profiled.
	profiledEvents  = 150_000
	profiledObjects = 600_000
)

// Profile calls take with the admin address of each program while the program is busy, which lasts
// for some time: the targets of ingest at 64 connections, then the programs that apply events, and
// then the processor during an object scan.
func (s *Suite) Profile(ctx context.Context, lasts time.Duration, take func(program, admin string) error) error {
	for _, target := range allTargets {
		shape := closed(64)
		shape.For = lasts
		if err := s.profileIngest(ctx, target, shape, take); err != nil {
			return err
		}
	}
	if err := s.profileApply(ctx, take); err != nil {
		return err
	}
	return s.profileScan(ctx, take)
}

func (s *Suite) profileIngest(ctx context.Context, target string, shape Shape,
	take func(program, admin string) error) (err error) {
	if err := s.m.Reset(ctx); err != nil {
		return err
	}
	r, err := s.start(ctx, target, shape)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, r.stop())
		s.drop(ctx, r.database, &err)
	}()
	busy, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	deliveries := s.deliveries(shape)
	go func() {
		_, err := load.Run(busy, deliveries, 0, load.Options{Address: r.process.Address,
			Connections: shape.Connections, For: shape.For})
		done <- err
	}()
	err = take(r.process.Name, r.process.Admin)
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

// profileApply profiles the reference OneByOne and then the processor while they apply a full
// stream.
func (s *Suite) profileApply(ctx context.Context, take func(program, admin string) error) (err error) {
	f, err := s.fill(ctx, profiledEvents, profiledEvents/10)
	if err != nil {
		return err
	}
	defer s.drop(ctx, f.database, &err)
	for _, start := range []func(context.Context, string) (*running, error){s.startOneByOne, s.startProcessor} {
		r, err := start(ctx, f.database)
		if err != nil {
			return err
		}
		if err := errors.Join(take(r.process.Name, r.process.Admin), r.stop()); err != nil {
			return err
		}
	}
	return nil
}

// profileScan profiles the processor during an object scan.
func (s *Suite) profileScan(ctx context.Context, take func(program, admin string) error) (err error) {
	w, err := s.newScannedAccount(ctx, profiledObjects)
	defer w.close(ctx, &err)
	if err != nil {
		return err
	}
	_, err = w.scan(ctx, scannedSources[0], profiledObjects,
		func(admin string) error { return take(scanTarget, admin) })
	return err
}
