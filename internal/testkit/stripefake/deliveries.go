package stripefake

import (
	"cmp"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// Webhooks says what becomes of the deliveries. Percentages are of the events.
type Webhooks struct {
	// Lost ones never arrive, and Stripe knows: delivery_success stays false.
	Lost int
	// Swallowed ones never arrive, and Stripe takes them for received: something on the way answered.
	Swallowed int
	// Doubled ones are delivered once more after they were received.
	Doubled int
	// Delayed ones are due only up to Delay after the event; 0: 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of deliveries of one pull that trade places with another.
	Shuffled int
	// Version is that of the API which the endpoint is pinned to; empty: that of the events. In any other one deliveries look different.
	Version string
	// Clock is what deliveries are signed by; nil: the account's clock. The tolerance of signatures is short.
	Clock func() time.Time
}

// attempt is a delivery that Stripe is going to try.
type attempt struct {
	event *event
	due   int64
	tries int
	again bool // it will be doubled
}

// owe decides what becomes of an event's delivery.
func (f *Fake) owe(e *event) {
	w := f.options.Webhooks
	a := attempt{event: e, due: e.at, again: f.chance(w.Doubled)}
	if f.chance(w.Delayed) {
		a.due += f.delay()
	}
	switch {
	case f.chance(w.Lost):
	case f.chance(w.Swallowed):
		f.received(e)
	default:
		f.queue = append(f.queue, a)
	}
}

func (f *Fake) delay() int64 {
	longest := f.options.Webhooks.Delay
	if longest == 0 {
		longest = time.Minute
	}
	return int64(f.choose.IntN(int(longest.Microseconds()) + 1))
}

// Deliver sends all that is due now, in the order of the network, and returns how many were sent. What send does not take is tried
// again later, for three days.
func (f *Fake) Deliver(send func(d *provider.Delivery) bool) int {
	due := f.due()
	for _, a := range due {
		taken := send(f.signed(a.event))
		f.mu.Lock()
		f.settle(a, taken)
		f.mu.Unlock()
	}
	return len(due)
}

// Waiting is how many deliveries Stripe still has to try, now or later.
func (f *Fake) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// SetWebhooks replaces what becomes of the deliveries of events to come.
func (f *Fake) SetWebhooks(w Webhooks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Webhooks = w
}

// due takes the attempts that are due out of the queue.
func (f *Fake) due() []attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	var due, later []attempt
	for _, a := range f.queue {
		if a.due <= now {
			due = append(due, a)
		} else {
			later = append(later, a)
		}
	}
	f.queue = later
	slices.SortStableFunc(due, func(a, b attempt) int { return cmp.Compare(a.due, b.due) })
	for i := range due {
		if f.chance(f.options.Webhooks.Shuffled) {
			j := f.choose.IntN(len(due))
			due[i], due[j] = due[j], due[i]
		}
	}
	return due
}

// signed is the delivery of an event as Stripe sends it.
func (f *Fake) signed(e *event) *provider.Delivery {
	at := f.Now()
	if clock := f.options.Webhooks.Clock; clock != nil {
		at = clock()
	}
	source := &provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "fake", Value: []byte(Secret)}}}
	d, err := stripe.Stripe{}.Sign(source, provider.Sample{Type: e.kind, ID: e.id, Body: e.pinned(f.options.Webhooks.Version)}, at)
	if err != nil {
		panic(err) // the source has a secret
	}
	return d
}

// settle notes how an attempt ended and plans the next. Waits grow from a minute fourfold, to half a day.
func (f *Fake) settle(a attempt, taken bool) {
	now := f.now()
	switch {
	case taken && a.again:
		f.queue = append(f.queue, attempt{event: a.event, due: now + f.delay()})
	case !taken:
		due := now + min(60*second<<(2*min(a.tries, 10)), 12*3600*second)
		if due-a.event.at <= 3*24*3600*second {
			f.queue = append(f.queue, attempt{event: a.event, due: due, tries: a.tries + 1, again: a.again})
		}
	}
	if taken {
		f.received(a.event)
	}
}

// received notes that Stripe takes an event for delivered; an invoice then shows when, and no event tells that.
func (f *Fake) received(e *event) {
	first := !e.delivered
	e.delivered = true
	if o := e.object; first && e.kind == "invoice.created" && !o.gone() {
		f.change(o, change{do: func(m *maker, t tree) { t["webhooks_delivered_at"] = m.now }})
	}
}
