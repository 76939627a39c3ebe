package app_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

var update = flag.Bool("update", false, "write the golden pages again")

const metricsPage = "../../docs/metrics.md"

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

// get asks an address, under another name if host is one. Whoever calls closes the body.
func get(t *testing.T, url, host string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// apart starts a gateway and a processor as processes of their own; b.app is the gateway.
func apart(t *testing.T) (b *testBundle, gateway, processor *app.App) {
	t.Helper()
	b = configured(t, nil)
	b.cfg.Ingest.Spool.Dir = t.TempDir() // a gateway without a spool has no metrics of it
	gateway = b.start(t, app.Options{Gateway: true})
	stripe := b.cfg.Sources["stripe"]
	stripe.API = config.API{BaseURL: "http://127.0.0.1:1", Key: config.APIKey{Value: "sk_test_metrics"}} // nothing is owed, so nobody calls
	b.cfg.Sources["stripe"] = stripe
	b.db.Exec(t, `WITH r AS (INSERT INTO runs (job, asked, who, reason, detail, counts, status, made_at, updated_at, ended_at, told_at)
		VALUES ('reconcile', '{}', 'test', '', '', '{}', 'done', now(), now(), now(), now()) RETURNING run)
		INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at)
		SELECT r.run, s.number, '', 'customer', 'done', now(), now() FROM r, sources s WHERE s.name = 'stripe'`)
	b.db.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) SELECT number, '', 'events', now(), now(), 1, now() FROM sources WHERE name = 'stripe'`)
	b.cfg.Schedules = map[string]*config.Schedule{"nightly": {Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC", Overlap: "skip", Missed: "run"}}
	b.cfg.Destinations = map[string]*config.Destination{"mail": {URL: "http://127.0.0.1:1", Concurrency: 1, Timeout: time.Second, MaxAnswerBytes: 1024}} // no rule about changes, so nobody calls
	b.cfg.Effects = map[string]*config.Effect{"yearly": {Source: "stripe", Type: "customer", Key: "{{ object.id }}", Schedule: config.EffectSchedule{Cron: "0 0 29 2 *", TimeZone: "UTC", CatchUp: 1}, When: "false", RuleVersion: 1,
		Approval: "none", Steps: []config.EffectStep{{Name: "tell", To: "mail", Method: http.MethodPost, Path: "/"}}}}
	processor = b.start(t, app.Options{Processor: true, Tune: func(tuning *app.Tuning) { tuning.Runs.Measure = 50 * time.Millisecond }})
	b.app = gateway
	return b, gateway, processor
}

// The metrics are an interface: names, labels, types and meaning change on purpose, and with the page.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	b, gateway, processor := apart(t)
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
		if scrape(t, processor)["postern_schedule_skipped_total"] == nil {
			return errors.New("the schedule is not measured")
		}
		if scrape(t, processor)["postern_proven_until_timestamp_seconds"] == nil {
			return errors.New("what is owed is not measured")
		}
		if scrape(t, processor)["postern_effects_due_seconds"] == nil {
			return errors.New("effects are not measured")
		}
		return nil
	})
	got := renderMetrics(scrape(t, gateway), scrape(t, processor))
	if *update {
		if err := os.WriteFile(metricsPage, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/metrics.md is not current: go test ./internal/app -run TestMetricsPage -update\n%s", diff)
	}
}

const metricsHead = `# Metrics

Every process serves its metrics to Prometheus: at ` + "`/metrics`" + ` of the admin address, and of ` + "`--metrics ADDRESS`" + `
(` + "`admin.metrics_listen`" + `) for a scraper elsewhere. ` + "`postern top`" + ` shows them without a Prometheus. ` + "`postern serve`" + ` and
` + "`postern dev`" + ` have those of both processes. Beside these there are ` + "`go_...`" + `, ` + "`process_...`" + ` and ` + "`promhttp_...`" + ` of the
client library.

Labels come from closed sets: the configuration's sources, schedules and destinations, and words of Postern. Nothing that a sender writes makes a
series. This page is written by a test: ` + "`go test ./internal/app -run TestMetricsPage -update`" + `.

| metric | type | labels | process | what it is |
| --- | --- | --- | --- | --- |
`

// renderMetrics writes the page, and with it all that others rely on.
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
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, strings.ToLower(f.GetType().String()), strings.Join(slices.Sorted(maps.Keys(labels)), ", "), where, f.GetHelp())
	}
	return b.String()
}

// series counts what a process would have Prometheus keep.
func series(families map[string]*dto.MetricFamily) (n int) {
	for name, f := range families {
		if strings.HasPrefix(name, "postern_") {
			n += len(f.GetMetric())
		}
	}
	return n
}

// besiege sends n requests whose every part is chosen by a stranger: path, method, headers, type, ids. A few are signed, as those
// of a customer who chooses names are.
func (b *testBundle) besiege(t *testing.T, from, n int) {
	t.Helper()
	requests := make(chan *http.Request)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for req := range requests {
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					continue
				}
				_ = res.Body.Close()
			}
		})
	}
	for i := range n {
		requests <- b.strange(t, from+i)
	}
	close(requests)
	group.Wait()
}

func (b *testBundle) strange(t *testing.T, i int) *http.Request {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(i)))
	method := []string{http.MethodPost, http.MethodGet, http.MethodHead, http.MethodPut, fmt.Sprintf("X%d", i)}[i%5]
	path := []string{"/webhooks/stripe", "/webhooks/shopify", fmt.Sprintf("/webhooks/s%d", i), fmt.Sprintf("/webhooks/%%ff%d", i), fmt.Sprintf("/%d", i)}[r.IntN(5)]
	body := fmt.Sprintf(`{"id":"evt_%d","type":"type_%d","object":"event","data":{"object":{"id":"x_%d","object":"o_%d"}}}`, i, i, i, i)
	header := http.Header{}
	for _, name := range []string{"Stripe-Signature", "X-Shopify-Hmac-Sha256", "X-Shopify-Topic", "X-Shopify-Shop-Domain", "Content-Encoding", "Traceparent"} {
		if r.IntN(2) == 0 {
			header.Set(name, fmt.Sprintf("%s%d", name, i))
		}
	}
	if i%15 == 0 { // of a type and object that nobody has heard of
		path, header = "/webhooks/stripe", b.signBody(t, "stripe", "", body).Header
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+b.app.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	return req
}

// What strangers write makes no series: after every kind of request has come once, thousands more add next to none.
func TestStrangersMakeNoSeries(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.besiege(t, 0, 500)
	settled := func() (n int) { // the processor has caught up, so that its series are there
		testkit.Eventually(t, time.Minute, func() error {
			var open int
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`).Scan(&open); err != nil || open > 0 {
				return fmt.Errorf("%d events without outcome, %v", open, err)
			}
			return nil
		})
		return series(scrape(t, b.app))
	}
	before := settled()
	b.besiege(t, 500, 3000)
	var stored int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(DISTINCT event_type) FROM events`).Scan(&stored); err != nil || stored < 50 {
		t.Errorf("only %d types were stored, %v: the signed ones were to come through", stored, err)
	}
	const results = 20 // of a loaded machine may come for the first time: a stranger's label would make hundreds
	if after := settled(); after > before+results {
		t.Errorf("%d series, %d before 3,000 more requests", after, before)
	}
}

// The listener for scrapers answers to any name, and has nothing but metrics and health; profiles are for who sits at the machine.
func TestMetricsListener(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.cfg.Admin.MetricsListen = "127.0.0.1:0"
	a := b.start(t, app.Options{Gateway: true, Processor: true})
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
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %d", res.StatusCode)
	}
}
