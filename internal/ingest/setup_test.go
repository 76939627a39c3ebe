package ingest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/signature"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

const (
	stripeSecret  = "whsec_the_first_secret_of_the_test"
	shopifySecret = "the_shared_secret_of_the_test"
	apiToken      = "the_token_of_the_test"
	shop          = "allowed.myshopify.com"
	maxBody       = 1 << 20
)

// sources returns the endpoints of a test server by name.
func sources() map[string]ingest.Endpoint {
	return map[string]ingest.Endpoint{
		"stripe": {Provider: stripe.Stripe{}, MaxBody: maxBody, Config: &provider.Source{Name: "stripe",
			Keys: new(signature.Keys), Tolerance: 300 * time.Second,
			Secrets: []provider.Secret{{Name: "main", Value: []byte(stripeSecret)}}}},
		"shop": {Provider: shopify.Shopify{}, MaxBody: maxBody, Config: &provider.Source{Name: "shop", Account: shop,
			Tolerance: 300 * time.Second, Secrets: []provider.Secret{{Name: "main", Value: []byte(shopifySecret)}}}},
		"shops": {Provider: shopify.Shopify{}, MaxBody: maxBody, Config: &provider.Source{Name: "shops",
			Accounts: []string{"*"}, Tolerance: 300 * time.Second,
			Secrets: []provider.Secret{{Name: "main", Value: []byte(shopifySecret)}}}},
		"api": {Provider: api.New(), MaxBody: maxBody, RequireCommit: true,
			Config: &provider.Source{Name: "api", Keys: new(signature.Keys),
				Secrets: []provider.Secret{{Name: "old", Value: []byte("another_token_of_the_test")},
					{Name: "main", Value: []byte(apiToken)}}}},
		"many":   {Provider: lineProvider{}, MaxBody: maxBody, Config: &provider.Source{Name: "many"}},
		"polite": {Provider: respondingProvider{}, MaxBody: maxBody, Config: &provider.Source{Name: "polite"}},
		"panic": {Provider: panickingProvider{value: "a fault that holds " + stripeSecret}, MaxBody: maxBody,
			Config: &provider.Source{Name: "panic"}},
	}
}

type testBundle struct {
	db        *testkit.DB
	server    *ingest.Server
	endpoints map[string]ingest.Endpoint
	url       string
	client    *http.Client
	registry  *prometheus.Registry
	published chan stream.Event
	samples   sync.Map // of a source, by its name: making them takes milliseconds
}

// wantPublished waits until that many events are published, which happens after the response.
func (b *testBundle) wantPublished(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := len(b.published); n != want {
			return fmt.Errorf("%d events published, want %d", n, want)
		}
		return nil
	})
}

// numberEndpoints registers the sources, and gives their endpoints the numbers.
func numberEndpoints(t testing.TB, db *testkit.DB, endpoints map[string]ingest.Endpoint) {
	t.Helper()
	names := map[string]string{}
	for name, ep := range endpoints {
		names[name] = ep.Provider.Name()
	}
	registered, err := events.RegisterSources(t.Context(), db.Pool, names)
	testkit.Must(t, err)
	for name, ep := range endpoints {
		ep.Number = registered.Number[name]
		endpoints[name] = ep
	}
}

// changeEndpoint changes the endpoint of a source, or of each source if the name is empty.
func changeEndpoint(o *ingest.Options, source string, change func(*ingest.Endpoint)) {
	for name, ep := range o.Endpoints {
		if source == "" || name == source {
			change(&ep)
			o.Endpoints[name] = ep
		}
	}
}

// setup starts an ingest server behind a real HTTP listener; tune changes its options.
func setup(t testing.TB, tune func(*ingest.Options)) *testBundle {
	t.Helper()
	return setupOn(t, testkit.Database(t), tune)
}

// setupOn is setup with a given database.
func setupOn(t testing.TB, db *testkit.DB, tune func(*ingest.Options)) *testBundle {
	t.Helper()
	b := setupIdle(t, db, tune)
	b.run(t)
	return b
}

// setupIdle serves requests but writes nothing before run: accepted deliveries wait in memory. It
// has no database if db is nil, for requests that must not need one.
func setupIdle(t testing.TB, db *testkit.DB, tune func(*ingest.Options)) *testBundle {
	t.Helper()
	b := &testBundle{db: db, endpoints: sources(), registry: prometheus.NewRegistry(),
		published: make(chan stream.Event, 10_000)}
	if db != nil {
		numberEndpoints(t, db, b.endpoints)
	}
	o := ingest.Options{Endpoints: b.endpoints, Logger: slog.New(slog.DiscardHandler), Metrics: b.registry,
		Now: time.Now,
		Publish: func(evs ...stream.Event) {
			for _, e := range evs {
				b.published <- e
			}
		},
		Settings: ingest.Settings{Deadline: 20 * time.Second, StallAfter: 15 * time.Second,
			AcquireTimeout: 20 * time.Second, Queue: 4096, QueueBytes: 64 << 20, BatchMax: 256, BatchBytes: 8 << 20,
			Writers:            2,
			RejectionsMaxCount: 1000, RejectionsMaxBytes: 16 << 20, RejectionsMaxBody: maxBody}}
	if tune != nil {
		tune(&o)
	}
	if o.Pool == nil && db != nil {
		o.Pool = b.db.Role(t, "gateway")
	}
	var err error
	b.server, err = ingest.New(o)
	testkit.Must(t, err)
	b.serve(t, readTimeout)
	return b
}

// proxiedPool connects the gateway's pool through a proxy that can fail.
func proxiedPool(t *testing.T, db *testkit.DB) (*testkit.FaultProxy, func(*ingest.Options)) {
	t.Helper()
	proxy := testkit.Proxy(t, db.URL)
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: proxy.URL, Role: "postern_gateway", MaxConns: 8})
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return proxy, func(o *ingest.Options) { o.Pool, o.Settings.AcquireTimeout = pool, time.Second }
}

// readTimeout is long enough for a busy machine; tests of slow senders serve again with
// shortTimeout.
const readTimeout, shortTimeout = 8 * time.Second, 2 * time.Second

// serve serves requests until the test ends, with a read timeout.
func (b *testBundle) serve(t testing.TB, within time.Duration) {
	t.Helper()
	web := httptest.NewUnstartedServer(b.server.Handler())
	// the default idle timeout is the read timeout, which may close a connection just when it is
	// used again
	web.Config.ReadTimeout, web.Config.IdleTimeout = within, 5*time.Minute
	web.Start()
	b.url = web.URL
	b.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 40 * time.Second}
	client := b.client
	t.Cleanup(func() {
		client.CloseIdleConnections()
		web.Close()
	})
}

// run writes until the test ends.
func (b *testBundle) run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// sample returns the n-th variant of a provider's sample event.
func (b *testBundle) sample(t testing.TB, source, eventType string, n int) provider.Sample {
	t.Helper()
	p := b.endpoints[source].Provider
	samples, ok := b.samples.Load(source)
	if !ok {
		samples = p.Samples()
		b.samples.Store(source, samples)
	}
	for _, s := range samples.([]provider.Sample) {
		if s.Type != eventType {
			continue
		}
		varied, err := p.MakeVariant(s, n, time.Now(), true)
		testkit.Must(t, err)
		return varied
	}
	t.Fatalf("no sample %s", eventType)
	return provider.Sample{}
}

// sign returns a delivery as the source's provider would send it now.
func (b *testBundle) sign(t testing.TB, source string, s provider.Sample) *provider.Delivery {
	t.Helper()
	return b.signAt(t, source, s, time.Now())
}

// line returns a delivery of one event, whose key is the body, as the source's provider sends it.
func (b *testBundle) line(t testing.TB, source, key string) *provider.Delivery {
	t.Helper()
	return b.sign(t, source, provider.Sample{Body: []byte(key)})
}

func (b *testBundle) postLine(t testing.TB, source, key string) response {
	t.Helper()
	return b.post(t, source, b.line(t, source, key))
}

func (b *testBundle) signAt(t testing.TB, source string, s provider.Sample, at time.Time) *provider.Delivery {
	t.Helper()
	ep := b.endpoints[source]
	d, err := ep.Provider.Sign(ep.Config, s, at)
	testkit.Must(t, err)
	return d
}

// invoice returns the n-th signed Stripe delivery.
func (b *testBundle) invoice(t testing.TB, n int) *provider.Delivery {
	t.Helper()
	return b.sign(t, "stripe", b.sample(t, "stripe", "invoice.paid", n))
}

// response is the response to a request.
type response struct {
	status   int
	header   http.Header
	body     []byte
	duration time.Duration
}

func (b *testBundle) post(t testing.TB, source string, d *provider.Delivery) response {
	t.Helper()
	return b.request(t, http.MethodPost, "/webhooks/"+source, d)
}

func (b *testBundle) request(t testing.TB, method, path string, d *provider.Delivery) response {
	t.Helper()
	a, err := b.do(t.Context(), method, path, d.Header.Clone(), bytes.NewReader(d.Body))
	testkit.Must(t, err)
	return a
}

func (b *testBundle) try(ctx context.Context, source string, d *provider.Delivery) (response, error) {
	return b.do(ctx, http.MethodPost, "/webhooks/"+source, d.Header.Clone(), bytes.NewReader(d.Body))
}

func (b *testBundle) do(ctx context.Context, method, path string, header http.Header,
	content io.Reader) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, content)
	if err != nil {
		return response{}, err
	}
	if header != nil {
		req.Header = header
	}
	began := time.Now()
	res, err := b.client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return response{status: res.StatusCode, header: res.Header, body: body, duration: time.Since(began)}, err
}

type receipt struct {
	EventID    string    `json:"event_id"`
	ID         string    `json:"id"`
	Duplicate  bool      `json:"duplicate"`
	ReceivedAt time.Time `json:"received_at"`
	Conflict   bool      `json:"conflict"`
}

// receipt parses a response that must be a receipt.
func (a response) receipt(t testing.TB) receipt {
	t.Helper()
	var r receipt
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	if err := json.Unmarshal(a.body, &r); err != nil {
		t.Fatalf("receipt %s: %v", a.body, err)
	}
	return r
}

// wantProblem checks that the response is a problem of the given status and type.
func (a response) wantProblem(t testing.TB, status int, kind string) {
	t.Helper()
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Errorf("status %d, want a problem of %d: %q (%v)", a.status, status, a.body, err)
		return
	}
	if a.status != status || p.Status != status || p.Type != "urn:postern:problem:"+kind || p.Title == "" ||
		p.Detail == "" {
		t.Errorf("status %d %+v, want %d %s", a.status, p, status, kind)
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q", got)
	}
	if retry := a.header.Get("Retry-After"); (retry != "") != (status == http.StatusServiceUnavailable ||
		status == http.StatusTooManyRequests || status == http.StatusConflict) {
		t.Errorf("status %d with Retry-After %q", status, retry)
	}
}

// count returns a number from the database.
func (b *testBundle) count(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	testkit.Must(t, b.db.Pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

// wantRows checks the number of rows; from is a table and the rest of a query.
func (b *testBundle) wantRows(t testing.TB, want int, from string, args ...any) {
	t.Helper()
	if n := b.count(t, `SELECT count(*) FROM `+from, args...); n != want {
		t.Errorf("%d rows, want %d: %s", n, want, from)
	}
}

// waitRows waits for a number of rows.
func (b *testBundle) waitRows(t testing.TB, want int, from string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM `+from, args...); n != want {
			return fmt.Errorf("%d rows, want %d: %s", n, want, from)
		}
		return nil
	})
}

// wantCounter checks a metric's value; labels are those of counter.
func (b *testBundle) wantCounter(t testing.TB, want float64, name string, labels ...string) {
	t.Helper()
	if n := b.counter(t, name, labels...); n != want {
		t.Errorf("%s %v is %v, want %v", name, labels, n, want)
	}
}

// waitMetric waits until a metric has a value; labels are those of counter.
func (b *testBundle) waitMetric(t testing.TB, want float64, name string, labels ...string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.counter(t, name, labels...); n != want {
			return fmt.Errorf("%s %v is %v, want %v", name, labels, n, want)
		}
		return nil
	})
}

// waitStatus posts a delivery until it gets a status, and returns the response.
func (b *testBundle) waitStatus(t testing.TB, source string, d *provider.Delivery, status int) (a response) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if a, err = b.try(t.Context(), source, d); err == nil && a.status != status {
			err = fmt.Errorf("status %d %s, want %d", a.status, a.body, status)
		}
		return err
	})
	return a
}

// counter returns the sum of a metric over the series with all labels ("source=stripe"). For a
// histogram, that is the number of observations. It fails without a gauge or histogram of the name.
func (b *testBundle) counter(t testing.TB, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := b.registry.Gather()
	testkit.Must(t, err)
	found := false
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		found = true
		for _, m := range f.GetMetric() {
			matching := 0
			for _, l := range m.GetLabel() {
				if slices.Contains(labels, l.GetName()+"="+l.GetValue()) {
					matching++
				}
			}
			if matching == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	if !found && !strings.HasSuffix(name, "_total") { // a counter with labels begins with its first series
		t.Fatalf("no metric %s", name)
	}
	return sum
}

// lineProvider is a provider whose deliveries have one event per line.
type lineProvider struct{ sim.Provider }

func (lineProvider) Name() string { return "lines" }

func (lineProvider) Identify(_ *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	var out []provider.Event
	for line := range bytes.Lines(d.Body) {
		key := string(bytes.TrimSpace(line))
		out = append(out, provider.Event{Key: key, Type: "line", ObjectType: "thing", ObjectID: key,
			Fingerprint: provider.BodyFingerprint(line)})
	}
	return out, nil
}

// panickingProvider is a provider that panics with a value.
type panickingProvider struct {
	sim.Provider
	value any
}

func (panickingProvider) Name() string { return "panics" }

func (p panickingProvider) Verify(*provider.Source, *provider.Delivery) (provider.Verification, error) {
	panic(p.value)
}

func TestMain(m *testing.M) { testkit.Main(m) }
