package reconciled

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// ShopifyEnv is a Shopify source with a fake shop, a real client and lists from bulk files.
type ShopifyEnv struct {
	*Env
	Fake   *shopifyfake.Fake
	config *provider.Source
	API    *provider.API
}

// ObjectSet is a number of objects of a type, or one object.
type ObjectSet struct {
	Name string
	N    int
	id   string
}

// NewShopifyEnv makes a shop whose mirror got two of three webhooks. Some objects were deleted
// without a webhook.
func NewShopifyEnv(t *testing.T, o shopifyfake.Options, objects ...ObjectSet) *ShopifyEnv {
	t.Helper()
	if o.Start.IsZero() { // otherwise the clock of the fake stands still
		o.Running, o.Start = true, time.Now()
	}
	b := &ShopifyEnv{Env: newEnvWithoutAPI(t), Fake: shopifyfake.New(t, o),
		config: &provider.Source{Name: applied.SourceName, Account: shopifyfake.Shop}}
	b.API = &provider.API{BaseURL: b.Fake.URL, Key: provider.Secret{Name: "api.key", Value: []byte(shopifyfake.Key)},
		Rate: 1000, Concurrency: 4, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
	b.API.Bulk = shopify.Shopify{}.FileTypes(b.API)
	testkit.Must(t, (shopify.Shopify{}).CompleteAPI(b.API))
	s := b.Sources[applied.SourceName]
	s.Config, s.Provider = b.config, shopify.Shopify{}
	b.Sources[applied.SourceName] = s
	var gone []ObjectSet
	for _, m := range objects {
		for range m.N / 10 {
			gone = append(gone, ObjectSet{Name: m.Name, id: b.Fake.Create(m.Name)})
		}
	}
	b.Deliver(t, LoseNone)
	for _, m := range gone {
		b.Fake.Delete(m.Name, m.id, true)
	}
	for _, m := range objects {
		for i := range m.N {
			id := b.Fake.Create(m.Name)
			if i%3 == 0 {
				b.Fake.Change(m.Name, id, i%2 == 0)
			}
		}
	}
	b.Deliver(t, func(n int) bool { return n%3 == 0 })
	b.Fake.Advance(2 * time.Minute) // longer than the delay of lists
	return b
}

// Deliver appends and applies the webhooks that are not lost.
func (b *ShopifyEnv) Deliver(t *testing.T, lost func(n int) bool) {
	t.Helper()
	var ds []*provider.Delivery
	n := 0
	b.Fake.Deliver(func(d *provider.Delivery) bool {
		if n++; !lost(n) {
			ds = append(ds, d)
		}
		return true
	})
	applied.AppendAndApply(t, b.Gateway, b.Applier(t, nil), b.Sources[applied.SourceName], ds...)
}

// Runner makes a runner that calls the API over HTTP.
func (b *ShopifyEnv) Runner(t *testing.T) *reconcile.Runner {
	t.Helper()
	sources := &providerapi.Sources{}
	source := &providerapi.Source{Name: applied.SourceName, Number: b.Source, Config: b.config, API: b.API,
		Provider: shopify.Shopify{}, Reader: shopify.Shopify{}}
	source.Caller = newClient(t, b.Pool, source)
	sources.Replace(source)
	s := reconcile.DefaultSettings
	s.RetryDelay, s.MaxPollDelay = 5*time.Millisecond, 20*time.Millisecond
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.Gateway, Applier: b.Applier(t, nil),
		Sources: sources, Limits: refetch.DefaultLimits}, Settings: s}
}
