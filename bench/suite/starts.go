package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// startEvents is the number of events in the log and in the stream before the gateway starts.
const startEvents = 50_000

// starts measures how long a gateway takes from the start of its process until it logs that it is
// ready, and until /readyz responds with 200. The log and the streams are filled before.
func (s *Suite) starts(ctx context.Context, row string, rounds int) (_ []Sample, err error) {
	f, err := s.fill(ctx, startEvents, startEvents/10)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer s.drop(ctx, f.database, &err)
	return s.inTurn(row, rounds, []string{Postern}, func(string) (Sample, error) { return s.startOnce(ctx, f) })
}

func (s *Suite) startOnce(ctx context.Context, f *filled) (sample Sample, err error) {
	began := time.Now()
	r, err := s.start(ctx, Postern, Shape{Sources: 1, Database: f.database, InPlace: true})
	if err != nil {
		return sample, err
	}
	logged := time.Since(began)
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := readyz(ctx, r.process.Admin); err != nil {
		return sample, err
	}
	took := time.Since(began)
	sample = Sample{Events: 1, Seconds: took.Seconds()}
	sample.more("ready_line_ms", logged.Seconds()*1000)
	sample.more("readyz_ms", took.Seconds()*1000)
	return sample, nil
}

// readyz waits until /readyz responds with 200.
func readyz(ctx context.Context, admin string) error {
	const within = 30 * time.Second
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		_, err := load.Get(ctx, "http://"+admin+"/readyz", within)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if time.Since(began) > within {
			return fmt.Errorf("not ready within %s: %w", within, err)
		}
	}
}
