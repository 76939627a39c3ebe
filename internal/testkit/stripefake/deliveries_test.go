package stripefake_test

import (
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// endpoint stores the ids of the events that arrive, in their order.
type endpoint struct {
	t    *testing.T
	ids  []string
	down bool
}

func (e *endpoint) take(d *provider.Delivery) bool {
	if !e.down {
		e.ids = append(e.ids, tree(e.t, d.Body)["id"].(string))
	}
	return !e.down
}

// deliveryCounts are the results of deliveries, in numbers of events.
type deliveryCounts struct {
	events int
	// once and twice arrived so often. failed and swallowed never arrived; of the swallowed ones
	// Stripe believes that they did.
	once, twice, failed, swallowed int
	// later is the number of deliveries that were not due at once. inOrder: the others arrived in
	// the order of their events.
	later   int
	inOrder bool
}

// Each option changes the deliveries as it says. The API reports the results as Stripe sees them.
func TestDeliver_eachOption_changesTheDeliveries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		webhooks stripefake.Webhooks
		want     func(n deliveryCounts) bool
	}{
		"none: each event arrives once, in order": {stripefake.Webhooks{},
			func(n deliveryCounts) bool { return n.once == n.events && n.later == 0 && n.inOrder }},
		"repeated: each event arrives twice": {stripefake.Webhooks{Repeated: 100, Delay: time.Hour},
			func(n deliveryCounts) bool { return n.twice == n.events && n.inOrder }},
		"delayed: most events arrive later": {stripefake.Webhooks{Delayed: 100, Delay: time.Hour},
			func(n deliveryCounts) bool { return n.once == n.events && n.later > n.events/2 }},
		"shuffled: the order is another one": {stripefake.Webhooks{Shuffled: 20},
			func(n deliveryCounts) bool { return n.once == n.events && n.later == 0 && !n.inOrder }},
		"lost: some events never arrive": {stripefake.Webhooks{LostUnacknowledged: 30},
			func(n deliveryCounts) bool { return n.once+n.failed == n.events && n.failed > n.events/10 }},
		"lost but acknowledged: some events count as received": {stripefake.Webhooks{LostAcknowledged: 30},
			func(n deliveryCounts) bool { return n.once+n.swallowed == n.events && n.swallowed > n.events/10 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := stripefake.New(t, stripefake.Options{Seed: 2, Webhooks: c.webhooks})
			f.RunSteps(50)
			to := &endpoint{t: t}
			f.Deliver(to.take)
			n := deliveryCounts{events: len(f.Events()), later: f.PendingDeliveries(),
				inOrder: slices.IsSorted(to.ids)}
			for range 3 {
				f.Advance(time.Hour)
				f.Deliver(to.take)
			}
			arrived := map[string]int{}
			for _, id := range to.ids {
				arrived[id]++
			}
			for _, e := range f.Events() {
				switch times := arrived[e.ID]; {
				case times == 0 && e.Delivered:
					n.swallowed++
				case times == 0:
					n.failed++
				case times == 1 && e.Delivered:
					n.once++
				case times == 2 && e.Delivered:
					n.twice++
				}
			}
			if !c.want(n) {
				t.Errorf("%+v", n)
			}
			if failed := list[string](t, f, "/v1/events?delivery_success=false&limit=100", "id"); len(
				failed) != n.failed || n.events > 100 {
				t.Errorf("the API lists %d failed deliveries, want %d", len(failed), n.failed)
			}
		})
	}
}

// A rejected delivery is retried for three days. When it arrives, the invoice changes without an
// event.
func TestDeliver_failedDelivery_isRetriedForThreeDays(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	to := &endpoint{t: t, down: true}
	invoice := f.Create("", "invoice", nil)
	attempts := 0
	for range 6 {
		attempts += f.Deliver(to.take)
		f.Advance(time.Hour)
	}
	if attempts < 4 || attempts > 6 || f.PendingDeliveries() != 1 {
		t.Errorf("%d attempts in six hours, %d pending", attempts, f.PendingDeliveries())
	}
	f.Advance(12 * time.Hour)
	to.down = false
	if n := f.Deliver(to.take); n != 1 || len(to.ids) != 1 || f.PendingDeliveries() != 0 || !f.Events()[0].Delivered ||
		get(t, f, "/v1/invoices/"+invoice)["webhooks_delivered_at"] == nil || len(f.Events()) != 1 {
		t.Errorf("after the outage %d were sent, %v arrived", n, to.ids)
	}
	to.down = true
	f.Create("", "customer", nil)
	for range 80 {
		f.Advance(time.Hour)
		f.Deliver(to.take)
	}
	if f.PendingDeliveries() != 0 || f.Events()[1].Delivered {
		t.Errorf("after three days %d are pending", f.PendingDeliveries())
	}
}
