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

// The targets of idle.
const (
	noneSent = "none sent"
	oneEach  = "one each"
)

// idle measures the gateway's memory with 10,000 idle connections of two kinds. Those that send
// nothing are closed by the gateway after ingest.header_timeout. Those that sent one delivery are
// kept alive.
func (s *Suite) idle(ctx context.Context, row string) ([]Sample, error) {
	if err := load.AllowFiles(idleConnections + spareFiles); err != nil {
		return nil, err
	}
	return s.inTurn(row, 1, []string{noneSent, oneEach},
		func(target string) (Sample, error) { return s.hold(ctx, target == oneEach) })
}

func (s *Suite) hold(ctx context.Context, send bool) (sample Sample, err error) {
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
	held, err := load.Hold(ctx, r.process.Address, idleConnections, deliveries)
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
	m, err := scrape(ctx, r.process.Admin)
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

// large measures the gateway's memory under 256 bodies of 1 MiB at once. ingest.queue_bytes limits
// it: the gateway rejects with 503 what does not fit, and no other error may happen.
func (s *Suite) large(ctx context.Context, row string) ([]Sample, error) {
	return s.inTurn(row, 1, []string{Postern}, func(string) (Sample, error) { return s.sendLarge(ctx, row) })
}

func (s *Suite) sendLarge(ctx context.Context, row string) (sample Sample, err error) {
	r, deliveries, err := s.gateway(ctx, largeBody, largeConnections*largeEach)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, s.discard(ctx, r, &sample)) }()
	if err := r.process.ResetPeak(); err != nil {
		return sample, err
	}
	result, err := load.Run(ctx, deliveries, 0, load.Options{Address: r.process.Address, Connections: largeConnections,
		For: largeWithin})
	if err != nil {
		return sample, err
	}
	sample = loaded(result)
	s.log.Info(row, "answers", result.Status, "errors", result.Errors)
	sample.more("taken", float64(result.Answered))
	sample.more("refused_503", float64(result.Status[503]))
	sample.more("other", float64(result.Refused-result.Status[503]+result.Broken))
	sample.more("queue_mib", mib(int64(s.defaults.Ingest.QueueBytes)))
	return sample, peak(r, &sample)
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
	err := r.finish(sample)
	s.drop(ctx, r.database, &err)
	return err
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
