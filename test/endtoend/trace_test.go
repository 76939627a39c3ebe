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

// traces is a collector of traces that keeps what it is sent.
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

// named are the spans of a name that were sent so far.
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

// attribute is a span's attribute as text, "" where it has none.
func attribute(s *tracepb.Span, name string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == name {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// One event can be followed from the POST to its outcome under one trace, and what was not sent yet
// is at the stop.
func TestTraceFollowsAnEvent(t *testing.T) {
	t.Parallel()
	bin := build(t)
	c := newTraces(t)
	i := newInstance(t, bin, filepath.Join(t.TempDir(), "state"))
	// The collector is told nothing before the stop.
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
		t.Errorf("%d spans came before they were due: what follows proves no flush", n)
	}
	i.interrupt(t)
	if c.bad != nil {
		t.Fatal(c.bad)
	}

	posts, applied, batches := c.named("POST /webhooks/{source}"), c.named("apply"), c.named("apply batch")
	// A message that a slow machine acknowledges too late comes again, and then says that it was
	// settled.
	applied = slices.DeleteFunc(applied,
		func(s *tracepb.Span) bool { return attribute(s, "postern.outcome") == "settled before" })
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
			t.Errorf("the traces tell %q", secret)
		}
	}
}

// all are the names of all spans, for a failure's message.
func (c *traces) all() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		names = append(names, s.GetName())
	}
	return names
}
