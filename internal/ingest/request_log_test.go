package ingest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// logBuffer stores a server's log lines.
type logBuffer struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(b)
}

// withMessage returns the lines with a message since the last call.
func (l *logBuffer) withMessage(t *testing.T, message string) (out []map[string]any) {
	t.Helper()
	for _, line := range l.all(t) {
		if line["msg"] == message {
			out = append(out, line)
		}
	}
	return out
}

// all returns the lines since the last call.
func (l *logBuffer) all(t *testing.T) (out []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.lines.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, fields)
	}
	l.lines.Reset()
	return out
}

func captureLog(level slog.Level) (*logBuffer, func(*ingest.Options)) {
	l := &logBuffer{}
	return l, func(o *ingest.Options) {
		o.Logger = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level}))
	}
}

// Each request to a source is one log line, whatever its result is. The line is written before the
// response, which shows no secret and nothing of the program. Each batch is one line too.
func TestHandler_eachRequest_isOneLogLine(t *testing.T) {
	t.Parallel()
	log, tune := captureLog(slog.LevelDebug) // level debug shows suppressed lines too
	b := setup(t, tune)
	forged := b.invoice(t, 1)
	forged.Body = append(forged.Body, ' ')
	gzipped := b.invoice(t, 2)
	gzipped.Header.Set("Content-Encoding", "gzip")
	line := func(text string) *provider.Delivery { return b.line(t, "many", text) }
	twelve := "x\na\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n"
	for _, c := range []struct {
		method, path string
		d            *provider.Delivery
		want         string
	}{
		{"POST", "stripe", b.invoice(t, 1), "source=stripe result=accepted status=200 events=1 duplicates=0 " +
			"type=invoice.paid level=INFO"},
		{"POST", "many", line(twelve), "source=many result=accepted status=200 events=12 duplicates=0 type=line " +
			"bytes=24"},
		{"POST", "many", line("a\nnew\n"), "source=many result=accepted status=200 events=2 duplicates=1"},
		{"POST", "stripe", forged, "source=stripe result=rejected status=401 reason=wrong_signature remote=127.0.0.1"},
		{"POST", "shop", forged, "source=shop result=rejected status=401"},
		{"POST", "stripe", gzipped, "source=stripe result=encoding status=415"},
		{"POST", "nobody", line("a"), "source=nobody result=unknown_source status=404"},
		{"POST", strings.Repeat("n", 1000), line("a"), "source=" + strings.Repeat("n", 64) +
			" result=unknown_source status=404"},
		{"POST", "polite", line("ping"), "source=polite result=handshake status=202 bytes=4"},
		{"POST", "panic", line("a"), "source=panic result=panic status=500 level=ERROR"},
		{"GET", "polite?challenge=a", line(""), "source=polite result=challenge status=200"},
		{"GET", "stripe", line(""), "source=stripe result=method status=405"},
		{"DELETE", "stripe", line(""), "source=stripe result=method status=405"},
	} {
		a := b.request(t, c.method, "/webhooks/"+c.path, c.d)
		for _, secret := range []string{stripeSecret, shopifySecret, "whsec", "goroutine", "SELECT", ".go:"} {
			if bytes.Contains(a.body, []byte(secret)) {
				t.Errorf("%s %.20s: the response contains %q: %s", c.method, c.path, secret, a.body)
			}
		}
		lines := log.withMessage(t, "delivery")
		if len(lines) != 1 {
			t.Fatalf("%s %s: %d lines", c.method, c.path, len(lines))
		}
		for want := range strings.FieldsSeq(c.want) {
			name, value, _ := strings.Cut(want, "=")
			if got := fmt.Sprint(lines[0][name]); got != value {
				t.Errorf("%s %.20s: %s is %q, want %q", c.method, c.path, name, got, value)
			}
		}
		if elapsed, ok := lines[0]["duration_ms"].(float64); !ok || elapsed < 0 {
			t.Errorf("duration_ms %v", lines[0]["duration_ms"])
		}
		if lines[0]["status"] == 200.0 && c.method == "POST" {
			if ids := strings.Split(fmt.Sprint(lines[0]["event"]), ","); len(ids) != min(10,
				int(lines[0]["events"].(float64))) {
				t.Errorf("%s names the events %v", c.path, ids)
			}
		}
	}
	b.postLine(t, "many", "one\ntwo\none\n")
	lines := log.withMessage(t, "appended batch")
	if len(lines) != 1 || fmt.Sprint(lines[0]["deliveries"], lines[0]["events"], lines[0]["new"]) != "1 3 2" ||
		lines[0]["level"] != "DEBUG" {
		t.Errorf("%v", lines)
	}
}

// However a client varies its requests, the number of series depends only on the configuration.
func TestMetrics_hostileInput_addsNoSeries(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, nil, nil)
	handler := b.server.Handler()
	hostile := func(n int) {
		for _, method := range []string{"POST", "GET", "HEAD", "PUT", "OPTIONS", fmt.Sprintf("M%d", n)} {
			for _, path := range []string{"/webhooks/stripe", "/webhooks/polite", "/webhooks/polite?challenge=%d",
				"/webhooks/many", "/webhooks/panic", "/webhooks/x%d", "/x%d"} {
				if strings.Contains(path, "%d") {
					path = fmt.Sprintf(path, n)
				}
				req := httptest.NewRequest(method, path, strings.NewReader(fmt.Sprintf(`{"type":"t%d"}`, n)))
				req.Header.Set(fmt.Sprintf("X-H%d", n), "v")
				req.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=zz%d", n, n))
				req.Header.Set("Content-Type", fmt.Sprintf("a/%d", n))
				req.Header.Set("Traceparent", fmt.Sprintf("00-%032x-%016x-01", n+1, n+1))
				handler.ServeHTTP(httptest.NewRecorder(), req)
			}
		}
	}
	count := func() (n int) {
		families, err := b.registry.Gather()
		testkit.Must(t, err)
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	hostile(0)
	before := count()
	for n := range 20 {
		hostile(n + 1)
	}
	if after := count(); after != before {
		t.Errorf("%d series after one request of each kind, %d after twenty", before, after)
	}
	b.wantCounter(t, 3*21, "postern_deliveries_total", "result=unknown_source", "source=")
}

// captureSpans collects a server's spans.
func captureSpans(t *testing.T, sampled bool) (*tracetest.InMemoryExporter, func(*ingest.Options)) {
	t.Helper()
	out := tracetest.NewInMemoryExporter()
	sampler := sdktrace.NeverSample()
	if sampled {
		sampler = sdktrace.AlwaysSample()
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(out), sdktrace.WithSampler(sampler))
	t.Cleanup(func() { _ = provider.Shutdown(t.Context()) }) // nothing is buffered
	return out, func(o *ingest.Options) { o.Tracer = provider.Tracer("test") }
}

// A delivery has its own trace, with spans for verification and append. A client's trace is only
// linked.
func TestTracing_delivery_isOwnTrace(t *testing.T) {
	t.Parallel()
	const clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	spans, tune := captureSpans(t, true)
	log := &logBuffer{}
	b := setup(t, func(o *ingest.Options) { tune(o); o.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
	d := b.invoice(t, 1)
	d.Header.Set("Traceparent", "00-"+clientTrace+"-00f067aa0ba902b7-01")
	a := b.post(t, "stripe", d)
	r := a.receipt(t)
	byName := map[string]tracetest.SpanStub{}
	for _, s := range spans.GetSpans() {
		byName[s.Name] = s
	}
	root, id := byName["POST /webhooks/{source}"], a.header.Get("Postern-Trace-Id")
	if len(byName) != 3 || root.SpanContext.TraceID().String() != id || id == clientTrace || root.Parent.IsValid() {
		t.Fatalf("trace %q in the response, spans %v", id, byName)
	}
	if len(root.Links) != 1 || root.Links[0].SpanContext.TraceID().String() != clientTrace {
		t.Errorf("links %v", root.Links)
	}
	for _, name := range []string{"verify", "append"} {
		if s := byName[name]; s.Parent.SpanID() != root.SpanContext.SpanID() ||
			s.SpanContext.TraceID() != root.SpanContext.TraceID() {
			t.Errorf("span %s is not a child of the request's span", name)
		}
	}
	attributes := attribute.NewSet(root.Attributes...)
	for name, want := range map[attribute.Key]string{"postern.source": "stripe", "postern.result": "accepted",
		"postern.event": r.ID, "http.response.status_code": "200"} {
		if got, ok := attributes.Value(name); !ok || got.String() != want {
			t.Errorf("%s is %q, want %q", name, got.String(), want)
		}
	}
	if e := <-b.published; e.Trace != "00-"+id+"-"+root.SpanContext.SpanID().String()+"-01" {
		t.Errorf("the event has the trace %q", e.Trace)
	}
	if lines := log.withMessage(t, "delivery"); len(lines) != 1 || lines[0]["trace_id"] != id {
		t.Errorf("logged %v", lines)
	}
}

// An unsampled delivery has no trace.
func TestTracing_unsampled_hasNoTrace(t *testing.T) {
	t.Parallel()
	for name, tune := range map[string]func(t *testing.T) func(*ingest.Options){
		"not sampled": func(t *testing.T) func(*ingest.Options) { _, tune := captureSpans(t, false); return tune },
		"no exporter": func(*testing.T) func(*ingest.Options) { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, tune(t))
			d := b.invoice(t, 1)
			d.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
			a := b.post(t, "stripe", d)
			a.receipt(t)
			if e := <-b.published; e.Trace != "" || a.header.Get("Postern-Trace-Id") != "" {
				t.Errorf("trace %q, header %q", e.Trace, a.header.Get("Postern-Trace-Id"))
			}
		})
	}
}

// Requests of unauthenticated clients make one log line per source and reason, however many there
// are. Each handshake is logged, and everything is counted.
func TestLogSuppressor_floods_areFewLines(t *testing.T) {
	t.Parallel()
	const flood = 100
	log, tune := captureLog(slog.LevelInfo)
	b := setupIdle(t, nil, tune)
	handler := b.server.Handler()
	wrong := b.invoice(t, 1)
	wrong.Body = append(wrong.Body, ' ')
	old := b.signAt(t, "stripe", b.sample(t, "stripe", "invoice.paid", 2), time.Now().Add(-time.Hour))
	unsigned := &provider.Delivery{Header: http.Header{}, Body: []byte("{}")}
	gzipped := &provider.Delivery{Header: http.Header{"Content-Encoding": {"gzip"}}}
	handshake := b.line(t, "polite", "ping")
	request := func(method, path string) {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, path, http.NoBody))
	}
	b.server.Drain()
	for n := range flood {
		serve(handler, "stripe", wrong)
		serve(handler, "stripe", old)
		serve(handler, "shop", unsigned)
		serve(handler, "shop", gzipped)
		serve(handler, fmt.Sprint("nobody", n), unsigned)
		request(http.MethodPut, "/webhooks/stripe")
		request(http.MethodOptions, "/webhooks/shop")
		request(http.MethodGet, "/webhooks/polite?challenge=a")
		request(http.MethodGet, fmt.Sprint("/", n))
		request(http.MethodGet, "/readyz")
		serve(handler, "polite", handshake)
	}
	lines := map[string]int{}
	for _, l := range log.all(t) {
		lines[fmt.Sprint(l["msg"], " ", l["source"], " ", l["result"], " ", l["reason"])]++
	}
	for _, c := range []struct {
		line string
		want int
	}{
		{"delivery stripe rejected wrong_signature", 1},
		{"delivery stripe rejected stale_timestamp", 1},
		{"delivery shop rejected missing_signature", 1},
		{"delivery shop encoding <nil>", 1},
		{"delivery nobody0 unknown_source <nil>", 1},
		{"delivery stripe method <nil>", 1},
		{"delivery shop method <nil>", 1},
		{"delivery polite challenge <nil>", 1},
		{"request rejected <nil> not_found <nil>", 1},
		{"not ready <nil> <nil> <nil>", 1},
		{"delivery polite handshake <nil>", flood},
	} {
		if lines[c.line] != c.want {
			t.Errorf("%s: %d lines, want %d", c.line, lines[c.line], c.want)
		}
		delete(lines, c.line)
	}
	if len(lines) > 0 {
		t.Errorf("further lines: %v", lines)
	}
	for _, labels := range [][]string{{"source=stripe", "reason=wrong_signature"},
		{"source=stripe", "reason=stale_timestamp"}, {"source=shop", "reason=missing_signature"}} {
		b.wantCounter(t, flood, "postern_rejections_total", labels...)
	}
}

// The end of a flood is logged when its minute is over or the gateway stops. A flood that continues
// is one line a minute.
func TestLogSuppressor_endOfFlood_logsCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		log := &logBuffer{}
		refuse, ended := ingest.LogRejections(ctx, slog.New(slog.NewJSONHandler(log, nil)))
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, l := range log.all(t) {
				got = append(got, fmt.Sprint(l["source"], " ", l["result"], " ", l["more_since"]))
			}
			slices.Sort(got)
			testkit.Equal(t, when, want, got)
		}
		began := time.Now()
		until := func(d time.Duration) { <-time.After(time.Until(began.Add(d))) }
		for range 10 {
			refuse("shop", "rejected")
			refuse("", "not_found")
		}
		refuse("other", "rejected")
		expect("at once", " not_found 0", "other rejected 0", "shop rejected 0")
		until(59 * time.Second)
		expect("within the minute")
		until(61 * time.Second)
		expect("after it", " not_found 9", "shop rejected 9")
		until(90 * time.Second)
		refuse("shop", "rejected")
		expect("soon after")
		until(125 * time.Second)
		expect("a minute after the last line", "shop rejected 1")
		until(10 * time.Minute)
		expect("when nothing comes")
		refuse("shop", "rejected")
		refuse("shop", "rejected")
		expect("again", "shop rejected 0")
		stop()
		<-ended
		expect("at the end", "shop rejected 1")
	})
}
