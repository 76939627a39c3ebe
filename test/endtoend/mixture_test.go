package endtoend_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

const (
	stripeSecret  = "whsec_of_the_end_to_end_test"
	shopifySecret = "shared_secret_of_the_end_to_end_test"
	shop          = "end-to-end.myshopify.com"
)

// door is a source as both sides know it.
type door struct {
	provider provider.Provider
	source   *provider.Source
}

var doors = map[string]door{
	"stripe": {stripe.Stripe{}, &provider.Source{Name: "stripe", Tolerance: time.Hour, Secrets: []provider.Secret{{Name: "main", Value: []byte(stripeSecret)}}}},
	"shop":   {shopify.Shopify{}, &provider.Source{Name: "shop", Account: shop, Tolerance: time.Hour, Secrets: []provider.Secret{{Name: "main", Value: []byte(shopifySecret)}}}},
}

// sent is one delivery and what it must come to.
type sent struct {
	source   string
	delivery *provider.Delivery
	// refused: it must be answered 401 and never be stored.
	refused bool
}

// stories are event types of one object each, in the order they happen.
var stories = map[string][][]string{
	"stripe": {
		{"customer.created", "customer.updated", "customer.updated", "customer.deleted"},
		{"customer.subscription.created", "customer.subscription.updated", "customer.subscription.updated", "customer.subscription.deleted"},
		{"invoice.created", "invoice.finalized", "invoice.payment_failed", "invoice.paid"},
		{"charge.succeeded", "charge.refunded"},
		{"product.created", "product.updated", "product.updated", "product.deleted"},
	},
	"shop": {
		{"orders/create", "orders/updated", "orders/paid", "orders/cancelled", "orders/delete"},
		{"products/create", "products/update", "products/update", "products/delete"},
		{"customers/create", "customers/update", "customers/update"},
		{"inventory_levels/update", "inventory_levels/update"},
	},
}

// mixture is what the clients send, in random order: whole stories of many objects, a third of it twice, and among it
// what is tampered with, of another shop, in conflict with what came before, or no JSON.
type mixture struct {
	t    *testing.T
	rand *rand.Rand
	all  []sent
}

// mix makes lives of some objects of each kind, numbered from the first on.
func mix(t *testing.T, seed uint64, first, objects int) *mixture {
	t.Helper()
	m := &mixture{t: t, rand: rand.New(rand.NewPCG(seed, 1))}
	for source, lives := range stories {
		for n := range objects {
			for _, life := range lives {
				m.live(source, life, first+n)
			}
		}
	}
	for _, s := range slices.Clone(m.all) {
		if m.rand.IntN(3) == 0 {
			m.all = append(m.all, s)
		}
	}
	m.rand.Shuffle(len(m.all), func(i, j int) { m.all[i], m.all[j] = m.all[j], m.all[i] })
	return m
}

// live sends a life of object n. Some changes fall into one second, so that providers' clocks cannot tell them apart.
func (m *mixture) live(source string, life []string, n int) {
	at := time.Now().Add(-10 * time.Minute).Truncate(time.Second)
	for step, eventType := range life {
		at = at.Add(time.Duration(m.rand.IntN(3)) * time.Second)
		varied := m.vary(source, eventType, n, at.Add(time.Duration(step)*time.Millisecond))
		switch m.rand.IntN(25) {
		case 0:
			m.tamper(source, varied)
		case 1:
			m.conflict(source, varied)
		case 2:
			m.garble(source, n, step)
			m.add(source, varied)
		case 3:
			m.wrongShop(varied, source)
		default:
			m.add(source, varied)
		}
	}
}

func (m *mixture) vary(source, eventType string, n int, at time.Time) provider.Sample {
	m.t.Helper()
	p := doors[source].provider
	for _, s := range p.Samples() {
		if s.Type == eventType {
			varied, err := p.Vary(s, n, at, true)
			if err != nil {
				m.t.Fatal(err)
			}
			return varied
		}
	}
	m.t.Fatalf("no sample %s of %s", eventType, source)
	return provider.Sample{}
}

func (m *mixture) add(source string, s provider.Sample) *provider.Delivery {
	m.t.Helper()
	d, err := doors[source].provider.Sign(doors[source].source, s, time.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	m.all = append(m.all, sent{source: source, delivery: d})
	return d
}

// tamper sends a delivery whose body is not the one that was signed, and never the right one.
func (m *mixture) tamper(source string, s provider.Sample) {
	d := m.add(source, s)
	d.Body = append(bytes.Clone(d.Body), ' ')
	m.all[len(m.all)-1].refused = true
}

// wrongShop sends a delivery of a shop that the source does not take; what has no shop is sent as it is.
func (m *mixture) wrongShop(s provider.Sample, source string) {
	d := m.add(source, s)
	if source != "shop" {
		return
	}
	d.Header.Set("X-Shopify-Shop-Domain", "another.myshopify.com")
	m.all[len(m.all)-1].refused = true
}

// conflict sends two bodies under one key; which of them is the event is a matter of arrival.
func (m *mixture) conflict(source string, s provider.Sample) {
	m.add(source, s)
	other := s
	other.Body = slices.Concat(bytes.TrimSuffix(bytes.TrimSpace(s.Body), []byte("}")), []byte(`,"another":1}`))
	m.add(source, other)
}

// garble sends a signed body that is no JSON.
func (m *mixture) garble(source string, n, step int) {
	d := m.add(source, provider.Sample{Type: "orders/create", Body: fmt.Appendf(nil, `{"id": "garbled %d %d`, n, step)})
	d.Header.Del("X-Shopify-Webhook-Id")
}
