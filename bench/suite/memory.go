package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

const (
	// idleConnections is the number of open connections without traffic.
	idleConnections = 10_000
	// idleFor is how long they stay idle until the memory is read again. It is longer than
	// ingest.header_timeout.
	idleFor = 7 * time.Second
	// spareFiles is the number of other files that a process has open.
	spareFiles = 500
)

// The targets of Idle.
const (
	NoneSent = "none sent"
	OneEach  = "one each"
)

// Idle measures the gateway's memory with 10,000 idle connections of two kinds. Those that send
// nothing are closed by the gateway after ingest.header_timeout. Those that sent one delivery are
// kept alive.
func (s *Suite) Idle(ctx context.Context, row string) ([]Sample, error) {
	if err := load.AllowFiles(idleConnections + spareFiles); err != nil {
		return nil, err
	}
	var samples []Sample
	for _, target := range []string{NoneSent, OneEach} {
		sample, err := s.idle(ctx, target == OneEach)
		if err != nil {
			return samples, fmt.Errorf("%s, %s: %w", row, target, err)
		}
		sample.Row, sample.Target = row, target
		samples = append(samples, sample)
		s.log.Info(row, "target", target, "peak_mib", int(sample.Memory["gateway"]), "more", sample.More)
	}
	return samples, nil
}

func (s *Suite) idle(ctx context.Context, send bool) (sample Sample, err error) {
	r, deliveries, err := s.gateway(ctx, body, idleConnections)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, s.discard(ctx, r, &sample)) }()
	if err := r.process.ResetPeak(); err != nil {
		return sample, err
	}
	if err := resident(r, "before_mib", &sample); err != nil {
		return sample, err
	}
	began := time.Now()
	if send {
		sample.Events = idleConnections
	} else {
		deliveries = nil
	}
	held, err := load.Hold(ctx, r.address, idleConnections, deliveries)
	if err != nil {
		return sample, err
	}
	defer held.Close()
	sample.Seconds = time.Since(began).Seconds()
	open := held.Open()
	if err := resident(r, "resident_mib", &sample); err != nil {
		return sample, err
	}
	if open != idleConnections {
		return sample, fmt.Errorf("only %d of %d connections are open after %.1f s", open, idleConnections,
			sample.Seconds)
	}
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		return sample, ctx.Err()
	}
	sample.more("open_later", float64(held.Open()))
	m, err := scrape(ctx, r.admin)
	if err != nil {
		return sample, err
	}
	sample.more("heap_mib", m["go_memstats_heap_alloc_bytes"]/(1<<20))
	sample.more("stacks_mib", m["go_memstats_stack_inuse_bytes"]/(1<<20))
	return sample, errors.Join(resident(r, "resident_later_mib", &sample), peak(r, &sample))
}

const (
	largeConnections = 256
	largeBody        = 1 << 20
	// largeEach is how many bodies each connection sends.
	largeEach   = 4
	largeWithin = 2 * time.Minute
)

// Large measures the gateway's memory under 256 bodies of 1 MiB at once. ingest.queue_bytes limits
// it: the gateway rejects with 503 what does not fit, and no other error may happen.
func (s *Suite) Large(ctx context.Context, row string) ([]Sample, error) {
	return one(s.large(ctx, row))
}

func (s *Suite) large(ctx context.Context, row string) (sample Sample, err error) {
	r, deliveries, err := s.gateway(ctx, largeBody, largeConnections*largeEach)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, s.discard(ctx, r, &sample)) }()
	if err := r.process.ResetPeak(); err != nil {
		return sample, err
	}
	result, err := load.Run(ctx, deliveries, 0, load.Options{Address: r.address, Connections: largeConnections,
		For: largeWithin, Progress: s.progress})
	if err != nil {
		return sample, err
	}
	sample = Sample{Row: row, Target: Postern, Events: result.Answered, Seconds: result.Took.Seconds(),
		Rate: result.Rate(), Errors: result.Refused + result.Broken}
	latency(&sample, result.Latency)
	s.log.Info(row, "answers", result.Status, "errors", result.Errors)
	sample.more("taken", float64(result.Answered))
	sample.more("refused_503", float64(result.Status[503]))
	sample.more("other", float64(result.Refused-result.Status[503]+result.Broken))
	sample.more("queue_mib", mib(int64(s.defaults.Ingest.QueueBytes)))
	if err := peak(r, &sample); err != nil {
		return sample, err
	}
	s.log.Info(row, "peak_mib", int(sample.Memory["gateway"]), "more", sample.More)
	return sample, nil
}

// gateway starts a gateway with an empty database and makes deliveries for it.
func (s *Suite) gateway(ctx context.Context, size, count int) (*running, *load.Deliveries, error) {
	if err := s.m.Reset(ctx); err != nil {
		return nil, nil, err
	}
	s.runs++
	d := load.Make(load.Supply{Run: fmt.Sprintf("%05d", s.runs), Count: count, BodySize: size, Sources: sourceNames(1),
		Secret: []byte(secret)})
	r, err := s.start(ctx, Postern, Shape{Sources: 1})
	return r, d, err
}

// discard stops the target, completes its sample and removes its database.
func (s *Suite) discard(ctx context.Context, r *running, sample *Sample) error {
	return errors.Join(r.finish(sample), s.m.DropDatabase(context.WithoutCancel(ctx), r.database))
}

func resident(r *running, name string, sample *Sample) error {
	n, err := r.process.Resident()
	sample.more(name, mib(n))
	return err
}

func peak(r *running, sample *Sample) error {
	n, err := r.process.Peak()
	sample.Memory = map[string]float64{r.process.Name: mib(n)}
	return err
}
