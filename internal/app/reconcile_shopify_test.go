package app_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// startShop starts a gateway and a processor that read the API of a fake shop.
func startShop(t *testing.T, fake *shopifyfake.Fake) *reloading {
	t.Helper()
	return startReading(t, fmt.Sprintf("  shop:\n    provider: shopify\n    account: %s\n    secrets: [{name: s, value: %s}]\n    api: {base_url: %s, key: {value: %s}, rate: 500, concurrency: 8}\n",
		shopifyfake.Shop, shopifyfake.Secret, fake.URL, shopifyfake.Key))
}

// A shop loses half of its webhooks, some changes send none, and REST answers in a shape of its own: each object that is looked at is then as the shop has it, whatever the faults.
func TestLooksOfAShop(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 7, Running: true, Start: time.Now(), Quiet: 10, Objects: 4, Webhooks: shopifyfake.Webhooks{Lost: 50, Shuffled: 30},
		Faults: shopifyfake.Faults{Throttled: 3, Broken: 3}})
	r := startShop(t, fake)
	fake.Live(100)
	for range 8 {
		fake.Create("refund")
	}
	r.deliver(t, fake)
	wrong := r.againstShop(t, fake)
	if len(wrong) < 5 || !slices.ContainsFunc(wrong, func(o shopifyfake.Object) bool { return o.Type == "refund" }) {
		t.Fatalf("%d objects are wrong: nothing is proven", len(wrong))
	}
	for _, o := range wrong {
		r.done(t, reconcile.Order{What: reconcile.Object, Type: o.Type, ID: o.ID})
	}
	r.untilLikeShop(t, fake)
}

// deliver sends what is due to the source, and waits until it is applied.
func (r *reloading) deliver(t *testing.T, fake *shopifyfake.Fake) {
	t.Helper()
	fake.Deliver(func(d *provider.Delivery) bool {
		status, _ := r.post(t, "shop", d)
		return status == http.StatusOK
	})
	r.applied(t)
}

func (r *reloading) untilLikeShop(t *testing.T, fake *shopifyfake.Fake) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if wrong := r.againstShop(t, fake); len(wrong) > 0 {
			return fmt.Errorf("%d objects are not as the shop has them, the first: %s %s %s", len(wrong), wrong[0].Type, wrong[0].ID, wrong[0].Body)
		}
		return nil
	})
}

// againstShop are the objects that the mirror does not show as the shop has them. What was never told of and is gone may be unknown.
func (r *reloading) againstShop(t *testing.T, fake *shopifyfake.Fake) (wrong []shopifyfake.Object) {
	t.Helper()
	for _, o := range fake.Truth() {
		var state []byte
		var doubt bool
		deleted := true
		err := r.db.Pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT state, deleted, ambiguous OR look_after <> 0 FROM objects WHERE account = $1 AND object_type = $2 AND object_id = $3
			UNION ALL SELECT NULL, true, false LIMIT 1`, shopifyfake.Shop, o.Type, o.ID).Scan(&state, &deleted, &doubt)
		if err != nil {
			t.Fatal(err)
		}
		if doubt || deleted != (o.Body == nil) || !deleted && shopSum(t, state) != shopSum(t, o.Body) {
			wrong = append(wrong, o)
		}
	}
	return wrong
}

// shopSum compares states but for what REST alone carries.
func shopSum(t *testing.T, text []byte) [32]byte {
	t.Helper()
	v, err := canonical.Parse(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v.Sum(canonical.Options{Without: []string{"rest_only"}})
}

// A shop loses half of its webhooks and sends none for some changes. A sweep over everything makes the mirror the shop's, also what was deleted quietly; after that one over what changed mends what has
// gone wrong since; and what is as it was costs no look.
func TestSweepsOfAShop(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 8, Running: true, Start: time.Now(), Quiet: 10, Objects: 6, Shapes: true, Webhooks: shopifyfake.Webhooks{Lost: 50, Shuffled: 30},
		Faults: shopifyfake.Faults{Throttled: 2, Broken: 2, Expired: 2}})
	r := startShop(t, fake)
	fake.Live(75)
	r.deliver(t, fake)
	fake.Live(75)
	ids := make([]string, 6)
	for i := range ids {
		ids[i] = fake.Create("product")
	}
	level := fake.Create("inventory_level")
	r.deliver(t, fake)
	for _, id := range ids {
		fake.Delete("product", id, true)
	}
	fake.Delete("inventory_level", level, true)
	fake.Advance(2 * time.Minute) // behind what the lists may not know yet
	if wrong := r.againstShop(t, fake); len(wrong) < 10 {
		t.Fatalf("%d objects are wrong: nothing is proven", len(wrong))
	}
	order := reconcile.Order{Source: 1, What: reconcile.Objects}
	counts := r.done(t, order).Counts
	if counts[reconcile.Missing] == 0 || counts[reconcile.Behind] == 0 || counts[reconcile.Ghosts] < 2 {
		t.Errorf("a first sweep counted %v", counts)
	}
	r.untilLikeShop(t, fake)

	fake.SetFaults(shopifyfake.Faults{})
	order.Since = fake.Now()
	fake.Live(60)
	fake.Advance(2 * time.Minute)
	r.deliver(t, fake)
	changed := r.done(t, order).Counts
	if changed[reconcile.Mended] == 0 || changed[reconcile.Seen] >= counts[reconcile.Seen] {
		t.Errorf("a sweep over what changed counted %v, the first %v", changed, counts)
	}
	r.done(t, reconcile.Order{What: reconcile.Objects, Full: true})
	r.untilLikeShop(t, fake)

	fake.Forget()
	again := r.done(t, reconcile.Order{What: reconcile.Objects, Full: true}).Counts
	if again[reconcile.Equal] != again[reconcile.Seen] || again[reconcile.Seen] == 0 {
		t.Errorf("a sweep over a mirror that is right counted %v", again)
	}
	if n := len(fake.Requests()); n > 40 {
		t.Errorf("that took %d calls: %v", n, fake.Requests())
	}
}

// An empty mirror is filled by the pages of the lists where these tell whole objects: no order is asked for by itself.
func TestFirstSweepOfAShop(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 9, Running: true, Start: time.Now()})
	for _, name := range []string{"order", "product", "customer", "fulfillment"} {
		for range 150 {
			fake.Create(name)
		}
	}
	fake.Advance(2 * time.Minute)
	r := startShop(t, fake)
	for _, name := range []string{"order", "product", "customer", "fulfillment"} {
		fake.Forget()
		counts := r.done(t, reconcile.Order{What: reconcile.Objects, Type: name}).Counts
		if n := len(fake.Requests()); n > 8 || counts[reconcile.Mended] != counts[reconcile.Seen] || counts[reconcile.Seen] < 150 {
			t.Errorf("%s: %d calls, %v", name, n, counts)
		}
	}
	for _, o := range r.againstShop(t, fake) {
		if o.Type != "location" {
			t.Errorf("%s %s is not as the shop has it", o.Type, o.ID)
		}
	}
}

// A key without read_all_orders sees no order of more than 60 days ago: the sweep says so, and makes no tombstone of it.
func TestOldOrdersOfAShop(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Running: true, Start: time.Now(), Scopes: []string{"read_orders", "read_fulfillments"}})
	r := startShop(t, fake)
	operator := r.db.Role(t, "operator")
	fake.Create("order")
	r.deliver(t, fake)
	r.untilLikeShop(t, fake)
	fake.Advance(61 * 24 * time.Hour)
	run, err := runs.Ask(t.Context(), operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: 1, What: reconcile.Objects, Type: "order", Full: true}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() error {
		now, err := runs.Show(t.Context(), operator, run)
		if err == nil && (now.Status != runs.Failed || !strings.Contains(now.Detail, "read_all_orders")) {
			err = fmt.Errorf("the run is %s: %s", now.Status, now.Detail)
		}
		return err
	})
	for _, o := range r.againstShop(t, fake) {
		if o.Type == "order" {
			t.Errorf("%+v is not as the shop has it", o)
		}
	}
}

// What webhooks have told costs a sweep no call of its own, where its list tells whole objects: whose shape differs from the webhooks', it is taken from the page, once.
func TestSweepOfAShopThatIsMirrored(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 10, Running: true, Start: time.Now(), Shapes: true})
	types := []string{"order", "product", "customer", "fulfillment"}
	for _, name := range types {
		for range 8 {
			fake.Create(name)
		}
	}
	r := startShop(t, fake)
	r.deliver(t, fake)
	r.untilLikeShop(t, fake)
	fake.Advance(2 * time.Minute) // behind what the lists may not know yet
	for i, kind := range []string{reconcile.Different, reconcile.Equal} {
		fake.Forget()
		for _, name := range types {
			counts := r.done(t, reconcile.Order{What: reconcile.Objects, Type: name, Full: true}).Counts
			if counts[kind] != counts[reconcile.Seen] || counts[reconcile.Seen] < 8 || i == 0 && counts[reconcile.Mended] != counts[reconcile.Seen] {
				t.Errorf("%s: sweep %d counted %v", name, i, counts)
			}
		}
		for _, one := range fake.Requests() {
			if one.Method == http.MethodGet && !strings.HasSuffix(one.Path, "s.json") {
				t.Errorf("sweep %d asked for %s", i, one.Path)
			}
		}
	}
}
