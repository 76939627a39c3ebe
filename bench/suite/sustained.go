package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// Sustained measures gateway and processor together at an arrival rate: how far applying falls
// behind, and how long it takes to catch up afterwards.
func (s *Suite) Sustained(ctx context.Context, row string, rate float64, d time.Duration) ([]Sample, error) {
	return one(s.sustained(ctx, row, Shape{Connections: 256, Rate: rate, For: d,
		Objects: int(rate * d.Seconds() / 10)}))
}

// closedGuess is a guess at the events per second of gateway and processor together. It only
// determines the number of objects.
const closedGuess = 4000

// SustainedClosed is the same under a closed loop of 64 connections. It shows the highest rate that
// both sustain: if the backlog grows, the rate of applying is the lower one.
func (s *Suite) SustainedClosed(ctx context.Context, row string, d time.Duration) ([]Sample, error) {
	return one(s.sustained(ctx, row, Shape{Connections: 64, For: d, Objects: int(closedGuess * d.Seconds() / 10)}))
}

// one returns the samples of a row with one sample.
func one(sample Sample, err error) ([]Sample, error) {
	if err != nil {
		return nil, err
	}
	return []Sample{sample}, nil
}

func (s *Suite) sustained(ctx context.Context, row string, shape Shape) (sample Sample, err error) {
	shape.Body, shape.Sources, shape.Applied = body, 1, true
	if err := s.m.Reset(ctx); err != nil {
		return sample, err
	}
	r, err := s.start(ctx, Postern, shape)
	if err != nil {
		return sample, err
	}
	defer func() {
		err = errors.Join(err, r.finish(&sample), s.m.DropDatabase(context.WithoutCancel(ctx), r.database))
	}()
	deliveries := s.deliveries(shape)
	o := load.Options{Address: r.address, Connections: shape.Connections, Rate: shape.Rate, For: warmUp,
		Progress: s.progress}
	warm, err := load.Run(ctx, deliveries, 0, o)
	if err != nil {
		return sample, err
	}
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	counted, err := scrape(ctx, r.admin)
	if err != nil {
		return sample, err
	}
	watch := s.watch(ctx, row)
	o.For = shape.For
	result, err := load.Run(ctx, deliveries, warm.Next, o)
	if err := errors.Join(err, watch.end()); err != nil {
		return sample, err
	}
	sample = Sample{Row: row, Target: Postern, Events: result.Answered, Seconds: result.Took.Seconds(),
		Rate: result.Rate(), Errors: result.Refused + result.Broken, Offered: shape.Rate}
	latency(&sample, result.Latency)
	watch.addTo(&sample)
	if err := s.drained(ctx, r, counted, &sample); err != nil {
		return sample, err
	}
	if err := s.after(ctx, r, before, &sample); err != nil {
		return sample, err
	}
	s.log.Info(row, "rate", int(sample.Rate), "applied", int(sample.More["applied_per_s"]), "backlog",
		sample.More["backlog_end"], "errors", sample.Errors, "cpu", fmt.Sprintf("%.0f", sample.ServerCPU()))
	return sample, nil
}

// drainWithin limits the time until all events are applied.
const drainWithin = 10 * time.Minute

const countOutcomesSQL = `SELECT count(*) FROM postern.outcomes WHERE run = 0`

// drained waits until all stored events are published and applied. It records how many of them the
// republisher published.
func (s *Suite) drained(ctx context.Context, r *running, before metrics, sample *Sample) error {
	began := time.Now()
	if err := s.published(ctx, r, before, sample); err != nil {
		return err
	}
	for {
		lag, err := s.m.Lag(ctx, eventsStream, processorConsumer)
		if err != nil {
			return err
		}
		if lag.Pending == 0 {
			break
		}
		if err := r.processor.Ended(); err != nil {
			return err
		}
		if time.Since(began) > drainWithin {
			return fmt.Errorf("%d events are not applied %s after the end of the load", lag.Pending, drainWithin)
		}
		time.Sleep(20 * time.Millisecond)
	}
	sample.more("drained_after_s", time.Since(began).Seconds())
	m, err := scrape(ctx, r.processorAdmin)
	if err != nil {
		return err
	}
	sample.more("republished", m.sum("postern_republisher_events_total", ""))
	if n := m.sum("postern_apply_lag_seconds_count", ""); n > 0 {
		sample.more("apply_lag_mean_s", m.sum("postern_apply_lag_seconds_sum", "")/n)
	}
	conn, err := s.m.Connect(ctx, r.database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var outcomes int64
	if err := conn.QueryRow(ctx, countOutcomesSQL).Scan(&outcomes); err != nil {
		return err
	}
	if stored := int64(sample.More["stored"]); outcomes != stored {
		return fmt.Errorf("%d outcomes of %d stored events", outcomes, stored)
	}
	return nil
}
