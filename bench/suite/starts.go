package suite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// startEvents is the number of events in the log and in the stream before the gateway starts.
const startEvents = 50_000

// Starts measures how long a gateway takes from the start of its process until it logs that it is
// ready, and until /readyz responds with 200. The log and the streams are filled before.
func (s *Suite) Starts(ctx context.Context, row string, rounds int) (samples []Sample, err error) {
	f, err := s.fill(ctx, startEvents, startEvents/10)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), f.database)) }()
	for round := range rounds {
		sample, err := s.startOnce(ctx, f)
		if err != nil {
			return samples, fmt.Errorf("%s: %w", row, err)
		}
		sample.Row, sample.Round = row, round
		samples = append(samples, sample)
		s.log.Info(row, "round", round+1, "of", rounds, "ready_line_ms", sample.More["ready_line_ms"], "readyz_ms",
			sample.More["readyz_ms"])
	}
	return samples, nil
}

func (s *Suite) startOnce(ctx context.Context, f *filled) (sample Sample, err error) {
	began := time.Now()
	r, err := s.start(ctx, Postern, Shape{Sources: 1, Database: f.database, InPlace: true})
	if err != nil {
		return sample, err
	}
	logged := time.Since(began)
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := readyz(ctx, r.admin); err != nil {
		return sample, err
	}
	took := time.Since(began)
	sample = Sample{Target: Postern, Events: 1, Seconds: took.Seconds()}
	sample.more("ready_line_ms", logged.Seconds()*1000)
	sample.more("readyz_ms", took.Seconds()*1000)
	return sample, nil
}

// readyz waits until /readyz responds with 200.
func readyz(ctx context.Context, admin string) error {
	const within = 30 * time.Second
	for began := time.Now(); time.Since(began) < within; time.Sleep(time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			continue // it does not listen yet
		}
		_ = res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("/readyz does not respond with 200 within %s", within)
}
