package suite

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/bench/machine"
)

// A sample tells what came since its target was started. A target that did something and sent
// nothing has not been measured with traces.
func TestTracesAreToldAndMissed(t *testing.T) {
	t.Parallel()
	sink, err := machine.NewSink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	send := func(body string) {
		t.Helper()
		_, url, _ := strings.Cut(sink.Env()[0], "=")
		res, err := http.Post(url+"/v1/traces", "application/x-protobuf", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	s, r := &Suite{m: &machine.Machine{Traces: sink}}, &running{}
	send("of another")
	if env := s.trace(r); len(env) != 1 {
		t.Errorf("the environment is %q", env)
	}
	sample := Sample{}
	if err := r.tellTraces(&sample); err != nil || sample.More != nil {
		t.Errorf("nothing was done: %v, %v", sample.More, err)
	}
	sample.Events = 1
	if err := r.tellTraces(&sample); !errors.Is(err, ErrNoTraces) {
		t.Errorf("nothing came: %v", err)
	}
	send("seven b")
	if err := r.tellTraces(&sample); err != nil || sample.More["trace_batches"] != 1 ||
		sample.More["trace_bytes"] != 7 {
		t.Errorf("one batch came: %v, %v", sample.More, err)
	}

	r, sample = &running{}, Sample{Events: 1}
	if env := (&Suite{m: &machine.Machine{}}).trace(r); env != nil {
		t.Errorf("traces are off, yet the environment is %q", env)
	}
	if err := r.tellTraces(&sample); err != nil || sample.More != nil {
		t.Errorf("traces are off: %v, %v", sample.More, err)
	}
}
