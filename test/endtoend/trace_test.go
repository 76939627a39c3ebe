package endtoend_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/postern-gateway/postern/internal/testkit"
)

// traces is a trace collector that stores everything it receives.
type traces struct {
	*httptest.Server
	mu     sync.Mutex
	spans  []*tracepb.Span
	bodies []byte
	names  map[string]bool
	bad    error
}

func newTraces(t *testing.T) *traces {
	t.Helper()
	c := &traces{names: map[string]bool{}}
	c.Server = httptest.NewServer(http.HandlerFunc(c.take))
	t.Cleanup(c.Close)
	return c
}

func (c *traces) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &req)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || r.URL.Path != "/v1/traces" {
		c.bad = fmt.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.bodies = append(c.bodies, body...)
	for _, rs := range req.GetResourceSpans() {
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				c.names[a.GetValue().GetStringValue()] = true
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			c.spans = append(c.spans, ss.GetSpans()...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// named returns the received spans with a name.
func (c *traces) named(name string) (found []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.GetName() == name {
			found = append(found, s)
		}
	}
	return found
}

// attribute returns an attribute of a span as text, "" if there is none.
func attribute(s *tracepb.Span, name string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == name {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// One trace has all spans of an event, from the POST to its outcome. The program sends the
// remaining spans when it stops.
func TestTraces_event_oneTraceFromPostToOutcome(t *testing.T) {
	t.Parallel()
	bin := build(t)
	c := newTraces(t)
	i := newInstance(t, bin, filepath.Join(t.TempDir(), "state"))
	// With this delay the program sends nothing before it stops.
	i.process, _ = start(t, "env", "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_BSP_SCHEDULE_DELAY=3600000",
		"OTEL_SERVICE_NAME=under test",
		i.program, "dev", "--dir", i.dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	i.send(t)
	var events []struct{ ID string }
	testkit.Eventually(t, time.Minute, func() error { // the outcome is committed a moment before its span is made
		out, _, err := i.run(t.Context(), "outcomes", "list", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &events)
		}
		if err == nil && len(events) != 1 {
			err = fmt.Errorf("%d outcomes", len(events))
		}
		return err
	})
	if n := len(c.named("apply")); n > 0 {
		t.Errorf("%d spans arrived before the stop, so this test cannot prove that the stop sends them", n)
	}
	i.interrupt(t)
	if c.bad != nil {
		t.Fatal(c.bad)
	}

	posts, applied, batches := c.named("POST /webhooks/{source}"), c.named("apply"), c.named("apply batch")
	// On a slow machine a message may be acknowledged too late. It is delivered again and gets a
	// span without a new outcome.
	applied = slices.DeleteFunc(applied,
		func(s *tracepb.Span) bool { return attribute(s, "postern.outcome") == "finished before" })
	if len(posts) != 1 || len(applied) != 1 || len(batches) < 1 {
		t.Fatalf("%d posts, %d applied, %d batches in %v", len(posts), len(applied), len(batches), c.all())
	}
	post, apply := posts[0], applied[0]
	for _, name := range []string{"verify", "append"} {
		if s := c.named(name); len(s) != 1 || !slices.Equal(s[0].GetTraceId(), post.GetTraceId()) ||
			!slices.Equal(s[0].GetParentSpanId(), post.GetSpanId()) {
			t.Errorf("%s is no child of the POST: %v", name, s)
		}
	}
	if !slices.Equal(apply.GetTraceId(), post.GetTraceId()) || len(apply.GetParentSpanId()) == 0 ||
		len(post.GetParentSpanId()) != 0 {
		t.Errorf("applied under trace %s, posted under %s", hex.EncodeToString(apply.GetTraceId()),
			hex.EncodeToString(post.GetTraceId()))
	}
	for _, batch := range batches {
		foreign := func(l *tracepb.Span_Link) bool { return !slices.Equal(l.GetTraceId(), post.GetTraceId()) }
		if links := batch.GetLinks(); len(links) == 0 || slices.ContainsFunc(links, foreign) ||
			slices.Equal(batch.GetTraceId(), post.GetTraceId()) {
			t.Errorf("the batch is linked to %v", links)
		}
	}
	if attribute(apply, "postern.outcome") != "applied" || attribute(apply, "postern.object_type") != "subscription" {
		t.Errorf("applied with %v", apply.GetAttributes())
	}
	if !c.names["under test"] {
		t.Errorf("services %v", c.names)
	}
	for _, secret := range []string{"whsec", "sub_1Postern0Team0001", "v1=", "postgres://"} {
		if strings.Contains(string(c.bodies), secret) {
			t.Errorf("the traces contain %q", secret)
		}
	}
}

// all returns the names of all spans.
func (c *traces) all() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		names = append(names, s.GetName())
	}
	return names
}
