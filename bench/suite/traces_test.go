package suite

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/bench/load"
)

// A sample counts the traces since the start of its target. A target that did something and sent no
// traces is an error.
func TestAddTraces_sink_countsSinceStart(t *testing.T) {
	t.Parallel()
	sink, err := load.NewSink()
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
	s, r := &Suite{m: &load.Machine{Traces: sink}}, &running{}
	send("from another target")
	if env := s.trace(r); len(env) != 1 {
		t.Errorf("the environment is %q", env)
	}
	sample := Sample{}
	if err := r.addTraces(&sample); err != nil || sample.More != nil {
		t.Errorf("no events: %v, %v", sample.More, err)
	}
	sample.Events = 1
	if err := r.addTraces(&sample); !errors.Is(err, ErrNoTraces) {
		t.Errorf("no traces: got %v, want ErrNoTraces", err)
	}
	send("seven b")
	if err := r.addTraces(&sample); err != nil || sample.More["trace_batches"] != 1 ||
		sample.More["trace_bytes"] != 7 {
		t.Errorf("one batch: %v, %v", sample.More, err)
	}

	r, sample = &running{}, Sample{Events: 1}
	if env := (&Suite{m: &load.Machine{}}).trace(r); env != nil {
		t.Errorf("traces are off, yet the environment is %q", env)
	}
	if err := r.addTraces(&sample); err != nil || sample.More != nil {
		t.Errorf("traces are off: %v, %v", sample.More, err)
	}
}
