package reconcile_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const key = "sk_test_s3cret"

// nowhere is the address of an API that nothing calls.
const nowhere = "http://127.0.0.1:1"

type testBundle struct {
	db  *testkit.DB
	log lockedBuffer
}

// lockedBuffer is for loggers of several clients.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// text is all that was written.
func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

// count says how often a text was written.
func (b *lockedBuffer) count(text string) int { return strings.Count(b.text(), text) }

func setup(t *testing.T) *testBundle {
	t.Helper()
	return &testBundle{db: testkit.Database(t)}
}

// client is one of a process of its own: with its own pool. edit changes the API's settings.
func (b *testBundle) client(t *testing.T, url string, edit func(*provider.API)) (*reconcile.Client, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics, err := reconcile.NewMetrics(reg, []string{"shop"})
	if err != nil {
		t.Fatal(err)
	}
	api := &provider.API{BaseURL: url, Key: provider.Secret{Name: "api.key", Value: []byte(key)}, Rate: 1000, Concurrency: 5, Timeout: 30 * time.Second, MaxBytes: 1 << 20}
	if edit != nil {
		edit(api)
	}
	c, err := reconcile.NewClient(reconcile.Options{Pool: b.db.Role(t, "processor"), Number: 1, Source: "shop", Reader: stripe.Stripe{}, API: api, Metrics: metrics,
		Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, reg
}

// clock replaces the database's clock by one that stands; the function sets it forward.
func (b *testBundle) clock(t *testing.T) (forward func(time.Duration)) {
	t.Helper()
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := b.db.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	standing(t, b.db)
	run(`UPDATE test_clock SET at = '2026-11-22 04:00:00Z'`)
	return func(d time.Duration) { t.Helper(); run(`UPDATE test_clock SET at = at + $1::interval`, d) }
}

// serve is a provider's API.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

var customer = provider.Call{Path: "/v1/customers/cus_1"}
