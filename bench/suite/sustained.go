package suite

import (
	"context"
	"fmt"
	"time"
)

// sustained measures gateway and processor together: how far applying falls behind, and how long it
// takes to catch up afterwards. Each of the objects has ten events if events arrive at a rate.
func (s *Suite) sustained(ctx context.Context, row string, shape Shape, rate float64) ([]Sample, error) {
	shape.Applied, shape.Drained, shape.Objects = true, true, int(rate*shape.For.Seconds()/10)
	return s.Compare(ctx, row, 1, shape, Postern)
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
	m, err := scrape(ctx, r.processor.Admin)
	if err != nil {
		return err
	}
	sample.more("republished", m.sum("postern_republisher_events_total", ""))
	if n := m.sum("postern_apply_lag_seconds_count", ""); n > 0 {
		sample.more("apply_lag_mean_s", m.sum("postern_apply_lag_seconds_sum", "")/n)
	}
	outcomes, err := s.number(ctx, r.database, countOutcomesSQL)
	if stored := sample.More["stored"]; err == nil && outcomes != stored {
		err = fmt.Errorf("%.0f outcomes of %.0f stored events", outcomes, stored)
	}
	return err
}
