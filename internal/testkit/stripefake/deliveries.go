package stripefake

import (
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Webhooks configures the deliveries. Percentages are of the events.
type Webhooks struct {
	// LostUnacknowledged deliveries never arrive, and Stripe knows it: delivery_success stays
	// false.
	LostUnacknowledged int
	// LostAcknowledged deliveries never arrive, but Stripe considers them received, because
	// something on the way acknowledged them.
	LostAcknowledged int
	// Repeated deliveries are sent once more after they were received.
	Repeated int
	// Delayed deliveries are due up to Delay after the event. Zero means 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of due deliveries that swap places with another one.
	Shuffled int
	// Version is the API version of the webhook endpoint. Empty means the version of the events.
	// With any other version the bodies of deliveries differ.
	Version string
	// Clock provides the time of signatures. Nil means the clock of the account. Signatures have a
	// short tolerance.
	Clock func() time.Time
}

// attempt is a planned delivery.
type attempt struct {
	event   *event
	tries   int
	repeats bool // it is sent again after it was received
}

// planDelivery decides how an event is delivered.
func (f *Fake) planDelivery(e *event) {
	w := f.options.Webhooks
	a, due := attempt{event: e, repeats: f.chance(w.Repeated)}, e.at
	if f.chance(w.Delayed) {
		due += f.delay()
	}
	switch {
	case f.chance(w.LostUnacknowledged):
	case f.chance(w.LostAcknowledged):
		f.markDelivered(e)
	default:
		f.queue.Add(a, due)
	}
}

func (f *Fake) delay() int64 { return fakeapi.RandomDelay(f.chooser, f.options.Webhooks.Delay) }

// Deliver sends all due deliveries in the order of the network and returns their number. A delivery
// for which send returns false is retried for three days.
func (f *Fake) Deliver(send func(d *provider.Delivery) bool) int {
	due := f.takeDue()
	for _, a := range due {
		taken := send(f.signed(a.event))
		f.mu.Lock()
		f.recordAttempt(a, taken)
		f.mu.Unlock()
	}
	return len(due)
}

// PendingDeliveries returns the number of deliveries that are due now or later.
func (f *Fake) PendingDeliveries() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// SetWebhooks changes the configuration for the deliveries of future events.
func (f *Fake) SetWebhooks(w Webhooks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Webhooks = w
}

// takeDue removes the due attempts from the queue and returns them.
func (f *Fake) takeDue() []attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.TakeDue(f.now(), f.options.Webhooks.Shuffled, f.chooser)
}

// signed returns the delivery of an event as Stripe sends it.
func (f *Fake) signed(e *event) *provider.Delivery {
	at := f.Now()
	if clock := f.options.Webhooks.Clock; clock != nil {
		at = clock()
	}
	source := &provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "fake", Value: []byte(Secret)}}}
	d, err := stripe.Stripe{}.Sign(source, provider.Sample{Type: e.kind, ID: e.id,
		Body: e.bodyInVersion(f.options.Webhooks.Version)}, at)
	if err != nil {
		panic(err) // the source has a secret
	}
	return d
}

// recordAttempt records the result of an attempt and plans the next one. The wait starts at a
// minute and grows fourfold, up to half a day.
func (f *Fake) recordAttempt(a attempt, taken bool) {
	now := f.now()
	switch {
	case taken && a.repeats:
		f.queue.Add(attempt{event: a.event}, now+f.delay())
	case !taken:
		due := now + min(60*second<<(2*min(a.tries, 10)), 12*3600*second)
		if due-a.event.at <= 3*24*3600*second {
			f.queue.Add(attempt{event: a.event, tries: a.tries + 1, repeats: a.repeats}, due)
		}
	}
	if taken {
		f.markDelivered(a.event)
	}
}

// markDelivered records that Stripe considers an event delivered. An invoice then shows the time of
// the delivery, without an event.
func (f *Fake) markDelivered(e *event) {
	first := !e.delivered
	e.delivered = true
	if o := e.object; first && e.kind == "invoice.created" && !o.isDeleted() {
		f.change(o, change{do: func(m *changeContext, t tree) { t["webhooks_delivered_at"] = m.now }})
	}
}
