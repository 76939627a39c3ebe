package load_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/bench/load"
)

func TestSink_requests_countsOnlyTraceBatches(t *testing.T) {
	t.Parallel()
	s, err := load.NewSink()
	if err != nil {
		t.Fatal(err)
	}
	url, ok := strings.CutPrefix(strings.Join(s.Env(), " "), "OTEL_EXPORTER_OTLP_ENDPOINT=")
	if !ok {
		t.Fatalf("the environment is %q", s.Env())
	}
	for _, c := range []struct {
		path, body string
		status     int
	}{{"/v1/traces", "batch", 200}, {"/v1/traces", strings.Repeat("x", 100_000), 200}, {"/v1/traces", "", 200},
		{"/v1/metrics", "other", 404}} {
		res, err := http.Post(url+c.path, "application/x-protobuf", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil || res.StatusCode != c.status {
			t.Errorf("%s with %d bytes: %s, %v; want %d", c.path, len(c.body), res.Status, err, c.status)
		}
	}
	if got, want := s.Traced(), (load.Traced{Batches: 2, Bytes: 100_005}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if res, err := http.Get(url); err == nil {
		_ = res.Body.Close()
		t.Error("the sink responds after Close")
	}
}

func TestSink_nil_countsNothing(t *testing.T) {
	t.Parallel()
	var s *load.Sink
	if s.Env() != nil || s.Traced() != (load.Traced{}) {
		t.Errorf("a nil sink returns %q and %+v", s.Env(), s.Traced())
	}
}
