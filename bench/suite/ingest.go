package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// closedLoopRate is the rate in deliveries per second for which a closed loop is prepared.
const closedLoopRate = 30_000

// longClosedLoopRate is the same for a loop of more than a minute.
const longClosedLoopRate = 12_000

// warmUp is how long a target is under load before it is measured. It makes plans and opens
// connections meanwhile.
const warmUp = 1 * time.Second

// ingest sends deliveries to a target and measures what they cost.
func (s *Suite) ingest(ctx context.Context, target string, shape Shape) (sample Sample, err error) {
	reset := s.m.Reset
	// The next run must not pay for a checkpoint: PostgreSQL logs the full page at its first change
	// after one.
	if shape.InPlace {
		reset = s.m.DropStreams
	}
	if err := reset(ctx); err != nil {
		return sample, err
	}
	r, err := s.start(ctx, target, shape)
	if err != nil {
		return sample, err
	}
	defer func() {
		err = errors.Join(err, r.finish(&sample))
		if !shape.InPlace {
			s.drop(ctx, r.database, &err)
		}
	}()
	deliveries := s.deliveries(shape)
	o := load.Options{Address: r.process.Address, Connections: shape.Connections, Rate: shape.Rate, For: warmUp}
	warm, err := load.Run(ctx, deliveries, 0, o)
	if err != nil {
		return sample, err
	}
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	var counted metrics
	if target == Postern {
		if counted, err = scrape(ctx, r.process.Admin); err != nil {
			return sample, err
		}
	}
	meanwhile := func(*Sample) error { return nil }
	switch {
	case shape.Replayed:
		meanwhile, err = s.startReplay(ctx, r.file)
	case shape.Drained:
		meanwhile = s.watch(ctx).end
	}
	if err != nil {
		return sample, err
	}
	o.For = shape.For
	result, err := load.Run(ctx, deliveries, warm.Next, o)
	sample = loaded(result)
	if err := errors.Join(err, meanwhile(&sample)); err != nil {
		return sample, err
	}
	if len(result.Errors) > 0 {
		s.log.Warn("the target did not accept all deliveries", "target", target, "refused", result.Refused, "broken",
			result.Broken, "errors", result.Errors)
	}
	sample.Offered = shape.Rate
	switch {
	case shape.Drained:
		err = s.drained(ctx, r, counted, &sample)
	case target == Postern:
		err = s.published(ctx, r, counted, &sample)
	}
	if err != nil {
		return sample, err
	}
	return sample, s.after(ctx, r, before, &sample)
}

// loaded returns the sample of a load; nil returns an empty one.
func loaded(r *load.Result) Sample {
	if r == nil {
		return Sample{}
	}
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return Sample{Events: r.Answered, Seconds: r.Took.Seconds(), Rate: r.Rate(), Errors: r.Refused + r.Broken,
		P50: ms(r.Latency.ValueAtQuantile(50)), P99: ms(r.Latency.ValueAtQuantile(99)),
		P999: ms(r.Latency.ValueAtQuantile(99.9)), Max: ms(r.Latency.Max())}
}

// deliveries makes deliveries for a warm-up and a run.
func (s *Suite) deliveries(shape Shape) *load.Deliveries {
	rate := shape.Rate
	all := shape.For + warmUp
	if rate == 0 {
		rate = closedLoopRate
		if all > time.Minute {
			rate = longClosedLoopRate
		}
	}
	count := int(rate*all.Seconds()) + shape.Connections
	s.runs++
	supply := load.Supply{Run: fmt.Sprintf("%05d", s.runs), Count: count, BodySize: shape.Body,
		Duplicates: shape.Duplicates, Sources: sourceNames(shape.Sources),
		Objects: shape.Objects, Secret: []byte(secret)}
	if shape.Rate > 0 {
		supply.Spread = all
	} else {
		supply.Ahead = all / 2
	}
	return load.Make(supply)
}

// before resets the memory peaks and reads the usage before a run.
func (s *Suite) before(ctx context.Context, r *running) (load.Usage, error) {
	errs := []error{s.m.ResetMemory()}
	for _, p := range r.processes() {
		errs = append(errs, p.ResetPeak())
	}
	if err := errors.Join(errs...); err != nil {
		return load.Usage{}, err
	}
	return s.m.Usage(ctx, r.processes()...)
}

// after adds the usage of a run to its sample.
func (s *Suite) after(ctx context.Context, r *running, before load.Usage, sample *Sample) error {
	u, err := s.m.Usage(ctx, r.processes()...)
	if err != nil {
		return err
	}
	n := float64(max(sample.Events, 1))
	us := func(d time.Duration) float64 { return float64(d.Microseconds()) / n }
	sample.CPU = map[string]float64{"postgresql": us(u.PostgreSQL - before.PostgreSQL),
		"nats": us(u.NATS - before.NATS)}
	sample.WAL = float64(u.WAL-before.WAL) / n
	postgreSQL, nats, err := s.m.Memory()
	if err != nil {
		return err
	}
	sample.Memory = map[string]float64{"postgresql": mib(postgreSQL), "nats": mib(nats)}
	for i, p := range r.processes() {
		sample.CPU[p.Name] = us(u.Processes[i] - before.Processes[i])
		peak, err := p.Peak()
		if err != nil {
			return err
		}
		sample.Memory[p.Name] = mib(peak)
	}
	return nil
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// publishWithin is how long after the end of a load its events may take to reach the stream.
const publishWithin = 5 * time.Second

// published waits until the stream has all events stored since the gateway's start, when it was
// empty. It adds the time to the sample, -1 if publishWithin was too short.
func (s *Suite) published(ctx context.Context, r *running, before metrics, sample *Sample) error {
	began := time.Now()
	m, err := scrape(ctx, r.process.Admin)
	if err != nil {
		return err
	}
	allocations(sample, before, m)
	stored, _ := m.published()
	sample.more("stored", stored)
	for {
		lag, err := s.m.Lag(ctx, eventsStream, processorConsumer)
		if err != nil {
			return err
		}
		took := time.Since(began)
		if lag.Last >= int64(stored) {
			sample.more("published_within_s", took.Seconds())
			break
		}
		if took > publishWithin {
			sample.more("published_within_s", -1)
			sample.more("unpublished", stored-float64(lag.Last))
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if m, err = scrape(ctx, r.process.Admin); err == nil {
		_, left := m.published()
		sample.more("left_to_republisher", left)
	}
	return err
}
