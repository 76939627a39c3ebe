package stripefake_test

import (
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// endpoint accepts deliveries as the gateway does and stores their keys in the order of arrival.
type endpoint struct {
	t    *testing.T
	keys []string
	down bool
}

func (e *endpoint) take(d *provider.Delivery) bool {
	source := &provider.Source{Name: "stripe",
		Secrets: []provider.Secret{{Name: "fake", Value: []byte(stripefake.Secret)}}}
	if _, err := (stripe.Stripe{}).Verify(source, d); err != nil {
		e.t.Errorf("verify: %v", err)
	}
	events, err := stripe.Stripe{}.Identify(source, d)
	if err != nil || len(events) != 1 || events[0].ContentKey {
		e.t.Errorf("identify %s: %+v (%v)", d.Body, events, err)
	}
	if e.down {
		return false
	}
	e.keys = append(e.keys, events[0].Key)
	return true
}

func keysOf(f *stripefake.Fake, want func(stripefake.Event) bool) []string {
	var out []string
	for _, e := range f.Events() {
		if want(e) {
			out = append(out, e.ID)
		}
	}
	return out
}

func everything(stripefake.Event) bool { return true }

func TestDeliver_noFaults_sendsEachEventOnce(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 1, IDOnlyEvents: true})
	to := &endpoint{t: t}
	for range 100 {
		f.Step()
		f.Deliver(to.take)
	}
	if want := keysOf(f, everything); !slices.Equal(to.keys, want) {
		t.Errorf("the deliveries are %v, want %v", to.keys, want)
	}
	c := newClient(t, f)
	if got := c.all("/v1/events", url.Values{"delivery_success": {"true"}}, 100); len(got) == 0 ||
		len(c.all("/v1/events", url.Values{"delivery_success": {"false"}}, 100)) != 0 {
		t.Errorf("%d events were received", len(got))
	}
	if e := c.get("/v1/events/"+ids(c.get("/v1/events", nil))[0], nil); e["pending_webhooks"] != 0.0 {
		t.Errorf("a received event is %v", e)
	}
	shown := 0
	for _, o := range f.CurrentObjects() {
		if o.Type == "invoice" && !o.Deleted() && tree(t, o.Body)["webhooks_delivered_at"] != nil {
			shown++
		}
	}
	if shown == 0 {
		t.Error("no invoice shows when its webhook was delivered")
	}
}

// Some deliveries never arrive, some arrive twice, late, or in another order. The API reports the
// results as Stripe sees them.
func TestDeliver_lossesAndRepeats_matchTheirPercentages(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 2, Webhooks: stripefake.Webhooks{LostUnacknowledged: 10,
		LostAcknowledged: 10,
		Repeated:         20, Delayed: 30, Delay: time.Hour, Shuffled: 30}})
	to := &endpoint{t: t}
	for range 50 {
		f.RunSteps(10)
		f.Deliver(to.take)
	}
	if f.PendingDeliveries() == 0 {
		t.Error("nothing is delayed")
	}
	for f.PendingDeliveries() > 0 {
		f.Advance(10 * time.Minute)
		f.Deliver(to.take)
	}
	arrived := map[string]int{}
	for _, key := range to.keys {
		arrived[key]++
	}
	lost, swallowed, doubled := 0, 0, 0
	for _, e := range f.Events() {
		switch n := arrived[e.ID]; {
		case n == 0 && e.Delivered:
			swallowed++
		case n == 0:
			lost++
		case n == 2:
			doubled++
		case n > 2 || !e.Delivered:
			t.Errorf("%s arrived %d times and is delivered %t", e.ID, n, e.Delivered)
		}
	}
	if all := len(f.Events()); lost < all/20 || swallowed < all/20 || doubled < all/20 || lost+swallowed > all/2 {
		t.Errorf("of %d events %d were lost, %d lost but acknowledged, %d repeated", all, lost, swallowed, doubled)
	}
	if slices.IsSorted(to.keys) {
		t.Error("the deliveries arrived in order")
	}
	if failed := newClient(t, f).all("/v1/events", url.Values{"delivery_success": {"false"}}, 50); len(failed) != lost {
		t.Errorf("the API lists %d failed deliveries, want %d", len(failed), lost)
	}
}

func TestDeliver_delayedEvents_arriveLater(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Webhooks: stripefake.Webhooks{Delayed: 100, Delay: time.Hour}})
	f.RunSteps(100)
	to := &endpoint{t: t}
	at := f.Deliver(to.take)
	f.Advance(30 * time.Minute)
	half := f.Deliver(to.take)
	f.Advance(30 * time.Minute)
	if rest := f.Deliver(to.take); at > 10 || half < 20 || rest < 20 || f.PendingDeliveries() > 0 {
		t.Errorf("%d arrived at once, %d within half an hour, %d within the next half hour", at, half, rest)
	}
}

func TestDeliver_shuffled_changesTheOrder(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Webhooks: stripefake.Webhooks{Shuffled: 20}})
	f.RunSteps(100)
	to := &endpoint{t: t}
	f.Deliver(to.take)
	if want := keysOf(f, everything); slices.Equal(to.keys, want) ||
		!slices.Equal(slices.Sorted(slices.Values(to.keys)), want) {
		t.Errorf("the deliveries are %v", to.keys)
	}
}

// A rejected delivery is retried for three days.
func TestDeliver_failedDelivery_isRetriedForThreeDays(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{})
	to := &endpoint{t: t, down: true}
	f.Create("", "customer", nil)
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
	if n := f.Deliver(to.take); n != 1 || len(to.keys) != 1 || f.PendingDeliveries() != 0 || !f.Events()[0].Delivered {
		t.Errorf("after the outage %d were sent, %v arrived", n, to.keys)
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

func TestDeliver_otherClock_signsWithThatClock(t *testing.T) {
	t.Parallel()
	at := time.Now()
	f := stripefake.New(t, stripefake.Options{})
	f.SetWebhooks(stripefake.Webhooks{Clock: func() time.Time { return at }})
	f.Create("", "customer", nil)
	f.Deliver(func(d *provider.Delivery) bool {
		if !d.ReceivedAt.Equal(at) {
			t.Errorf("signed at %s", d.ReceivedAt)
		}
		return (&endpoint{t: t}).take(d)
	})
}
