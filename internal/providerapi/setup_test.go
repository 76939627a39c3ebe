package providerapi_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// unusedURL is the address of an API that is never called.
const unusedURL = "http://127.0.0.1:1"

type databaseEnv struct {
	db  *testkit.DB
	log reconciled.LockedBuffer
}

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
	testkit.Must(t, err)
	api := &provider.API{BaseURL: url, Key: provider.Secret{Name: "api.key", Value: []byte(reconciled.APIKey)},
		Rate: 1000, Concurrency: 5, Timeout: 30 * time.Second, MaxBytes: 1 << 20}
	if edit != nil {
		edit(api)
	}
	c, err := providerapi.NewClient(providerapi.Options{Pool: b.db.Role(t, "processor"), Number: 1, Source: "shop",
		Reader: stripe.Stripe{}, API: api, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	return c, reg
}

// stopClock replaces the database's clock by one that stands still. The returned function moves it
// forward.
func (b *databaseEnv) stopClock(t *testing.T) (forward func(time.Duration)) {
	t.Helper()
	b.db.StopClock(t, time.Date(2026, time.November, 22, 4, 0, 0, 0, time.UTC))
	return func(d time.Duration) {
		t.Helper()
		b.db.Exec(t, `UPDATE test_clock SET at = at + $1::interval`, d)
	}
}

var customerCall = provider.Call{Path: "/v1/customers/cus_1"}
