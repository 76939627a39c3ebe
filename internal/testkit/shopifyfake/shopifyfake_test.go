package shopifyfake_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// Deliveries have the signature and the format that the provider package reads. A rejected delivery
// is retried with the same bytes. A lost one does not arrive.
func TestDeliver_retriesAndLosses_sendTheSameBodies(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Account: shopifyfake.Shop,
		Secrets: []provider.Secret{{Name: "s", Value: []byte(shopifyfake.Secret)}}}
	f := shopifyfake.New(t, shopifyfake.Options{Seed: 2, Webhooks: shopifyfake.Webhooks{Repeated: 20, Delayed: 20,
		Shuffled: 20}})
	f.RunSteps(300)
	bodies, sent, refused := map[string]string{}, 0, 0
	send := func(d *provider.Delivery) bool {
		sent++
		if _, err := (shopify.Shopify{}).Verify(src, d); err != nil {
			t.Fatal(err)
		}
		events, err := shopify.Shopify{}.Identify(src, d)
		if err != nil || events[0].ObjectID == "" {
			t.Fatalf("%+v, %v: %s", events, err, d.Body)
		}
		if firstBody, again := bodies[events[0].Key]; again && firstBody != string(d.Body) {
			t.Fatalf("%s came with another body than before", events[0].Key)
		}
		bodies[events[0].Key] = string(d.Body)
		if sent%7 == 0 {
			refused++
			return false
		}
		return true
	}
	for range 4 {
		f.Deliver(send)
		f.Advance(time.Hour)
	}
	if len(bodies) < 250 || sent < len(bodies)+refused/2 {
		t.Errorf("%d webhooks, %d sent, %d rejected", len(bodies), sent, refused)
	}
	lost := shopifyfake.New(t, shopifyfake.Options{Seed: 2, Webhooks: shopifyfake.Webhooks{Lost: 100}})
	lost.RunSteps(300)
	if n := lost.Deliver(send); n != 0 {
		t.Errorf("%d lost deliveries were sent", n)
	}
}

// One seed gives the same data, with several changes in one second and deletes.
func TestFake_sameSeed_makesSameHistory(t *testing.T) {
	t.Parallel()
	lives := [2][]shopifyfake.Object{}
	for i := range lives {
		f := shopifyfake.New(t, shopifyfake.Options{Seed: 9})
		f.RunSteps(500)
		lives[i] = f.CurrentObjects()
	}
	if diff := cmp.Diff(lives[0], lives[1]); diff != "" {
		t.Error(diff)
	}
	gone := 0
	for _, o := range lives[0] {
		if o.Body == nil {
			gone++
		}
	}
	if gone < 10 || gone > len(lives[0])/2 {
		t.Errorf("%d of %d objects are deleted", gone, len(lives[0]))
	}
}
