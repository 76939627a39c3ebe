package providerapi_test

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
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const apiKey = "sk_test_s3cret"

// unusedURL is the address of an API that is never called.
const unusedURL = "http://127.0.0.1:1"

type databaseEnv struct {
	db  *testkit.DB
	log lockedBuffer
}

// lockedBuffer is a buffer for the loggers of several clients.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// text returns everything that was written.
func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

// count returns how often a text was written.
func (b *lockedBuffer) count(text string) int { return strings.Count(b.text(), text) }

func newDatabaseEnv(t *testing.T) *databaseEnv {
	t.Helper()
	return &databaseEnv{db: testkit.Database(t)}
}

// client makes a client with its own pool, as in a process of its own. A non-nil edit changes the
// settings of the API.
func (b *databaseEnv) client(t *testing.T, url string, edit func(*provider.API)) (*providerapi.Client,
	*prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics, err := providerapi.NewCallMetrics(reg, []string{"shop"})
	if err != nil {
		t.Fatal(err)
	}
	api := &provider.API{BaseURL: url, Key: provider.Secret{Name: "api.key", Value: []byte(apiKey)}, Rate: 1000,
		Concurrency: 5, Timeout: 30 * time.Second, MaxBytes: 1 << 20}
	if edit != nil {
		edit(api)
	}
	c, err := providerapi.NewClient(providerapi.Options{Pool: b.db.Role(t, "processor"), Number: 1, Source: "shop",
		Reader: stripe.Stripe{}, API: api, Metrics: metrics,
		Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, reg
}

// stopClock replaces the database's clock by one that stands still. The returned function moves it
// forward.
func (b *databaseEnv) stopClock(t *testing.T) (forward func(time.Duration)) {
	t.Helper()
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := b.db.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	replaceClock(t, b.db)
	run(`UPDATE test_clock SET at = '2026-11-22 04:00:00Z'`)
	return func(d time.Duration) { t.Helper(); run(`UPDATE test_clock SET at = at + $1::interval`, d) }
}

// replaceClock replaces the database's clock by one that stands still at the time in test_clock.
func replaceClock(t *testing.T, db *testkit.DB) {
	t.Helper()
	for _, sql := range []string{`CREATE TABLE test_clock (at timestamptz NOT NULL)`,
		`GRANT SELECT ON test_clock TO PUBLIC`,
		`INSERT INTO test_clock VALUES (to_timestamp(0))`,
		`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
			'SELECT at FROM postern.test_clock'`} {
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// serve starts the API of a provider.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

var customerCall = provider.Call{Path: "/v1/customers/cus_1"}
