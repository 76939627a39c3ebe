package suite

import "errors"

// ErrNoTraces is that traces are on and none came: what they cost was not measured.
var ErrNoTraces = errors.New("no traces arrived though they are on, so this is not what they cost: see whether " +
	"gateway and processor still take OTEL_EXPORTER_OTLP_ENDPOINT")

// trace is what a part of Postern that is about to be started needs in its environment, to send
// traces where the machine has a sink.
func (s *Suite) trace(r *running) []string {
	r.traces, r.traced = s.m.Traces, s.m.Traces.Traced()
	return s.m.Traces.Env()
}

// finish stops a target and puts into its sample what came of its traces, from its start to its
// end: the last ones come when it stops. None from a target that did something is ErrNoTraces.
func (r *running) finish(sample *Sample) error {
	return errors.Join(r.stop(), r.tellTraces(sample))
}

func (r *running) tellTraces(sample *Sample) error {
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
