package suite

import "errors"

// ErrNoTraces means that traces are on and none arrived, so that their cost was not measured.
var ErrNoTraces = errors.New("traces are on and none arrived, so their cost was not measured: check that " +
	"gateway and processor still read OTEL_EXPORTER_OTLP_ENDPOINT")

// trace returns the environment of a process that will be started: it enables traces if the machine
// has a sink. It stores the sink's counts so far.
func (s *Suite) trace(r *running) []string {
	r.traces, r.traced = s.m.Traces, s.m.Traces.Traced()
	return s.m.Traces.Env()
}

// finish stops a target and adds the counts of its traces to its sample. The last traces arrive
// when it stops. If a target with events sent none, it returns ErrNoTraces.
func (r *running) finish(sample *Sample) error {
	return errors.Join(r.stop(), r.addTraces(sample))
}

func (r *running) addTraces(sample *Sample) error {
	if r.traces == nil || sample.Events == 0 {
		return nil
	}
	now := r.traces.Traced()
	sample.more("trace_batches", float64(now.Batches-r.traced.Batches))
	sample.more("trace_bytes", float64(now.Bytes-r.traced.Bytes))
	if now.Batches == r.traced.Batches {
		return ErrNoTraces
	}
	return nil
}
