package app_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/golden"
)

const metricsPage = "../../docs/reference/metrics.md"

// scrape reads a process's metrics from its admin address.
func scrape(t *testing.T, a *app.App) map[string]*dto.MetricFamily {
	t.Helper()
	res := get(t, "http://"+a.AdminAddr()+"/metrics", "")
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", res.Status, err)
	}
	return families
}

// gauge returns the value of a metric without labels.
func gauge(t *testing.T, a *app.App, name string) float64 {
	t.Helper()
	return scrape(t, a)[name].GetMetric()[0].GetGauge().GetValue()
}

// get requests an address, with another host name if host is set. The caller closes the body.
func get(t *testing.T, url, host string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	testkit.Must(t, err)
	req.Host = host
	res, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	return res
}

// startSeparately starts a gateway and a processor as separate processes; b.app is the gateway.
func startSeparately(t *testing.T) (b *testBundle, gateway, processor *app.App) {
	t.Helper()
	b = configured(t, nil)
	b.cfg.Ingest.Spool.Dir = t.TempDir() // a gateway without a spool does not have these metrics
	gateway = b.start(t, app.Options{Gateway: true})
	cfg, stripe := *b.cfg, *b.cfg.Sources["stripe"] // copies, because the gateway reads its own
	b.cfg, cfg.Sources = &cfg, maps.Clone(cfg.Sources)
	// no refetch is pending, so there are no calls
	stripe.API = config.API{BaseURL: "http://127.0.0.1:1", Key: config.APIKey{Value: "sk_test_metrics"}}
	b.cfg.Sources["stripe"] = &stripe
	b.db.Exec(t, `WITH r AS (INSERT INTO runs (job, params, actor, reason, detail, counts, status, created_at,
		updated_at,
		ended_at, published_at)
		VALUES ('reconcile', '{}', 'test', '', '', '{}', 'done', now(), now(), now(), now()) RETURNING run)
		INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at)
		SELECT r.run, s.number, '', 'customer', 'done', now(), now() FROM r, sources s WHERE s.name = 'stripe'`)
	b.db.Exec(t, `INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at) SELECT number, '',
		'events',
		now(), now(), 1, now() FROM sources WHERE name = 'stripe'`)
	b.db.Exec(t, `INSERT INTO feed_cursors VALUES ('shop', '', 0, NULL, now(), now(), '', NULL)`)
	b.cfg.Schedules = map[string]*config.Schedule{"nightly": {Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC",
		Overlap: "skip", Missed: "run"}}
	// there are no rules about changes, so there are no calls
	b.cfg.Destinations = map[string]*config.Destination{"mail": {URL: "http://127.0.0.1:1", Concurrency: 1,
		Timeout: time.Second, MaxResponseBytes: 1024}}
	b.cfg.Effects = map[string]*config.Effect{"yearly": {Source: "stripe", Type: "customer", Key: "{{ object.id }}",
		Schedule: config.EffectSchedule{Cron: "0 0 29 2 *", TimeZone: "UTC", CatchUp: 1}, When: "false", RuleVersion: 1,
		Approval: "none", Steps: []config.EffectStep{{Name: "tell", To: "mail", Method: http.MethodPost, Path: "/"}}}}
	processor = b.start(t, app.Options{Processor: true,
		Tune: func(tuning *app.Tuning) { tuning.Runs.MetricsInterval = 50 * time.Millisecond }})
	b.app = gateway
	return b, gateway, processor
}

// The metrics are an interface. Names, labels, types and meaning only change together with the page
// in the documents.
func TestMetrics_page_matchesGoldenFile(t *testing.T) {
	t.Parallel()
	b, gateway, processor := startSeparately(t)
	now := time.Now()
	d := b.sign(t, "stripe", "invoice.paid", 1, now)
	b.outcome(t, b.mustPost(t, "stripe", d).ID)
	b.mustPost(t, "stripe", d)
	forged := &provider.Delivery{Header: d.Header, Body: append([]byte(" "), d.Body...)}
	if status, _ := b.post(t, "stripe", forged); status != http.StatusUnauthorized {
		t.Errorf("a forgery: %d", status)
	}
	if status, _ := b.post(t, "nobody", d); status != http.StatusNotFound {
		t.Errorf("an unknown source: %d", status)
	}
	testkit.Eventually(t, time.Minute, func() error {
		for _, name := range []string{"schedule_skipped_total", "complete_until_timestamp_seconds",
			"effects_due_seconds", "feed_cursor_lag_changes"} {
			if scrape(t, processor)["postern_"+name] == nil {
				return fmt.Errorf("%s is not measured", name)
			}
		}
		return nil
	})
	limits := map[string]float64{} // runs have their own connections, enough for all that may be executed at once
	for _, m := range scrape(t, processor)["postern_database_connections_limit"].GetMetric() {
		limits[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if limits["processor_runs"] != (6+1)*(2+2)+2+4 || limits["processor"] == 0 {
		t.Errorf("%v", limits)
	}
	page := renderMetrics(scrape(t, gateway), scrape(t, processor))
	golden.Page(t, metricsPage, page)
}

const metricsHead = `# Metrics

This page is for everyone who monitors Postern: it lists all metrics of its processes.

Every process serves its metrics in Prometheus format at ` + "`/metrics`" + ` of the admin address. Use
` + "`--metrics ADDRESS`" + ` (` + "`admin.metrics_listen`" + `) to serve them at a second address, for a scraper on
another machine. ` + "`postern top`" + ` shows them without Prometheus. ` + "`postern serve`" + ` and ` +
	"`postern dev`" + `
have the metrics of both processes. The client library adds the metrics ` + "`go_...`, `process_...`" + ` and
` + "`promhttp_...`" + `.

The values of labels come from closed sets: the names of configured sources, schedules and
destinations, of the first 100 feed cursors, and constants of Postern. Content from senders never
creates a series. A test writes this page: ` + "`go test ./internal/app -run TestMetrics_page -update`" + `.

| metric | type | labels | process | meaning |
| --- | --- | --- | --- | --- |
`

// renderMetrics writes the page of the documents.
func renderMetrics(gateway, processor map[string]*dto.MetricFamily) string {
	all := maps.Clone(gateway)
	maps.Copy(all, processor)
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(name, "postern_") {
			continue
		}
		where := "both"
		switch {
		case processor[name] == nil:
			where = "gateway"
		case gateway[name] == nil:
			where = "processor"
		}
		labels := map[string]bool{}
		for _, f := range []*dto.MetricFamily{gateway[name], processor[name]} {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					labels["`"+l.GetName()+"`"] = true
				}
			}
		}
		f := all[name]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, strings.ToLower(f.GetType().String()),
			strings.Join(slices.Sorted(maps.Keys(labels)), ", "), where, f.GetHelp())
	}
	return b.String()
}

// series counts the series of a process in Prometheus.
func series(families map[string]*dto.MetricFamily) (n int) {
	for name, f := range families {
		if strings.HasPrefix(name, "postern_") {
			n += len(f.GetMetric())
		}
	}
	return n
}

// The metrics listener accepts any host name and serves only metrics and health. Profiles are only
// on loopback. Values from senders do not become series: after a few types and objects, more of
// them add almost none. For requests that are not verified see
// ingest.TestMetrics_hostileInput_addsNoSeries.
func TestMetrics_listenersAndHostileInput_serveOnlyMetrics(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.cfg.Admin.MetricsListen = "127.0.0.1:0"
	a := b.start(t, app.Options{Gateway: true, Processor: true})
	b.app = a
	for _, c := range []struct {
		base, path, host string
		want             int
	}{
		{a.MetricsAddr(), "/metrics", "scraped.example:9090", 200},
		{a.MetricsAddr(), "/healthz", "scraped.example", 200},
		{a.MetricsAddr(), "/readyz", "scraped.example", 200},
		{a.MetricsAddr(), "/", "", 404},
		{a.MetricsAddr(), "/api/v1/events", "", 404},
		{a.MetricsAddr(), "/debug/pprof/", "", 404},
		{a.MetricsAddr(), "/debug/pprof/heap", "", 404},
		{a.MetricsAddr(), "/webhooks/stripe", "", 404},
		{a.MetricsAddr(), "/metrics/..%2fapi/v1/events", "", 404},
		{a.AdminAddr(), "/debug/pprof/", "", 200},
		{a.AdminAddr(), "/debug/pprof/heap", "", 200},
		{a.AdminAddr(), "/debug/pprof/goroutine?debug=1", "", 200},
		{a.AdminAddr(), "/debug/pprof/cmdline", "", 404},
		{a.AdminAddr(), "/debug/pprof/heap", "rebound.example", 421},
		{a.AdminAddr(), "/metrics", "rebound.example", 421},
		{a.Addr(), "/metrics", "", 404},
		{a.Addr(), "/debug/pprof/heap", "", 404},
	} {
		res := get(t, "http://"+c.base+c.path, c.host)
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s under the name %q: %d, want %d", c.path, c.host, res.StatusCode, c.want)
		}
	}
	res, err := http.Post("http://"+a.MetricsAddr()+"/metrics", "text/plain", nil)
	testkit.Must(t, err)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %d", res.StatusCode)
	}
	if limit := debug.SetMemoryLimit(-1); limit == int64(b.cfg.Ingest.QueueBytes)+app.ExtraMemory {
		t.Error("an app in a test set the collector of the test")
	}

	sent := 0
	send := func(n int) int {
		for range n {
			sent++
			body := fmt.Sprintf(`{"id":"evt_%[1]d","type":"type_%[1]d","object":"event",`+
				`"data":{"object":{"id":"x_%[1]d","object":"o_%[1]d"}}}`, sent)
			b.mustPost(t, "stripe", b.signBody(t, "stripe", "", body))
		}
		b.applied(t)
		return series(scrape(t, b.app))
	}
	before := send(20)
	// some may appear for the first time on a busy machine; a label with a sender's value would add
	// hundreds
	const others = 20
	if after := send(150); after > before+others {
		t.Errorf("%d series, %d before 150 more types", after, before)
	}
	b.db.WantRows(t, 170, `(SELECT DISTINCT event_type FROM events) types`)
}

// Garbage is limited in bytes, not as a percentage of the memory in use.
func TestGCPercentFor_bytesInUse(t *testing.T) {
	t.Parallel()
	for inUse, want := range map[uint64]int{0: 400, 1: 400, 10 << 20: 400, 20 << 20: 200, 40 << 20: 100, 80 << 20: 50,
		160 << 20: 25, 192 << 20: 25, 1 << 40: 25} {
		if got := app.GCPercentFor(inUse); got != want {
			t.Errorf("%d bytes in use: %d, want %d", inUse, got, want)
		}
	}
}

// Two apps in one process set the collector once. An app in a foreign process, such as this test,
// does not set it.
func TestTuneMemory_severalApps_tunesOncePerProcess(t *testing.T) {
	t.Parallel()
	var asked int
	env := func(string) string { asked++; return "set" } // so nothing is set
	app.TuneMemory(t.Context(), config.Default(), env)
	if asked != 0 {
		t.Error("tuneMemory would tune a process that Postern does not own")
	}
	owned, release := app.OwnProcess(t.Context())
	defer release()
	for range 2 {
		ctx, cancel := context.WithCancel(owned)
		app.TuneMemory(ctx, config.Default(), env)
		cancel()
	}
	if asked != 3 {
		t.Errorf("%d variables were read, want GOGC for each app and GOMEMLIMIT once", asked)
	}
	for gogc, want := range map[string]bool{"100": false, "": true} {
		if got := app.TuneMemory(owned, config.Default(), func(string) string { return gogc }); got != want {
			t.Errorf("with GOGC=%q: memory is returned, also by the second app of a process: %v", gogc, got)
		}
	}
}

// Memory is returned when the process is idle and enough of it is unused, at most once per minute.
func TestIdleDetector_isDue(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	var q app.IdleDetector
	began, asked := time.Now(), uint64(0)
	for i, step := range []struct {
		after      time.Duration
		asks, idle uint64
		want       bool
	}{
		{0, 500 * mib, 40 * mib, false}, // a burst
		{2 * time.Second, 9 * mib, 40 * mib, false},
		{4 * time.Second, mib / 4, 40 * mib, true},
		{6 * time.Second, mib / 4, 40 * mib, false},
		{62 * time.Second, 0, 40 * mib, false},
		{64 * time.Second, 2 * mib, 40 * mib, false}, // busy again
		{66 * time.Second, 0, 15 * mib, false},       // too little to return
		{68 * time.Second, 0, 17 * mib, true},
	} {
		asked += step.asks
		if got := q.IsDue(asked, step.idle, began.Add(step.after)); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

// The measurements come from Go: garbage and free pages count as unused until they are returned.
func TestReadMemory_garbage_countsAsUnused(t *testing.T) { // not parallel, because other tests allocate memory too
	debug.FreeOSMemory()
	before, _ := app.ReadMemory()
	for range 100 {
		waste = make([]byte, 1<<20)
	}
	waste = nil
	asked, idle := app.ReadMemory()
	if asked-before < 100<<20 || idle < 2<<20 {
		t.Errorf("%d bytes allocated, %d unused", asked-before, idle)
	}
	debug.FreeOSMemory()
	if _, after := app.ReadMemory(); after >= idle {
		t.Errorf("%d bytes unused after the return, %d before", after, idle)
	}
}

// waste prevents that the compiler removes an allocation.
var waste []byte
