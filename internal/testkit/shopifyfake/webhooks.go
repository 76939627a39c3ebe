package shopifyfake

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Webhooks says what becomes of the deliveries. Percentages are of the events.
type Webhooks struct {
	// Lost ones never arrive.
	Lost int
	// Doubled ones are delivered once more after they were received.
	Doubled int
	// Delayed ones are due only up to Delay later; 0: 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of deliveries of one pull that trade places with another.
	Shuffled int
}

// attempt is a delivery that Shopify is going to try.
type attempt struct {
	object *object
	topic  string
	id     int
	at     int64
	due    int64
	// body is what the first try carried: it is rendered then, and stays.
	body  []byte
	again bool
	tries int
}

// mostTries is how often a delivery is tried.
const mostTries = 9

func (f *Fake) owe(o *object, topic string, at int64) {
	w := f.options.Webhooks
	f.sent++
	a := attempt{object: o, topic: topic, id: f.sent, at: at, due: at, again: f.chance(w.Doubled)}
	if f.chance(w.Delayed) {
		longest := w.Delay
		if longest == 0 {
			longest = time.Minute
		}
		a.due += f.choose.Int64N(longest.Microseconds() + 1)
	}
	if topic == o.kind.remove {
		a.body = o.gone()
	}
	if topic != "" && !f.chance(w.Lost) {
		f.queue = append(f.queue, a)
	}
}

// Deliver sends all that is due now, and returns how many were sent. What send does not take is tried again later.
func (f *Fake) Deliver(send func(d *provider.Delivery) bool) int {
	due := f.due()
	for _, a := range due {
		took := send(f.delivery(a))
		f.mu.Lock()
		switch a.tries++; {
		case took && a.again:
			a.again = false
			f.queue = append(f.queue, a)
		case !took && a.tries < mostTries:
			a.due = f.now() + int64(a.tries)*60*second
			f.queue = append(f.queue, a)
		}
		f.mu.Unlock()
	}
	return len(due)
}

// due takes from the queue what is due, rendered with what its object is now.
func (f *Fake) due() []attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	var due, later []attempt
	for _, a := range f.queue {
		if a.due > f.now() {
			later = append(later, a)
			continue
		}
		if a.body == nil {
			a.body = lastBody(a.object)
		}
		due = append(due, a)
	}
	f.queue = later
	for i := range due {
		if f.chance(f.options.Webhooks.Shuffled) {
			j := f.choose.IntN(len(due))
			due[i], due[j] = due[j], due[i]
		}
	}
	return due
}

// lastBody is what the object is, or was before it went.
func lastBody(o *object) []byte {
	for i := len(o.history) - 1; ; i-- {
		if o.history[i].body != nil {
			return o.history[i].body
		}
	}
}

// delivery is a webhook as Shopify sends it.
func (f *Fake) delivery(a attempt) *provider.Delivery {
	mac := hmac.New(sha256.New, []byte(Secret))
	mac.Write(a.body)
	h := http.Header{}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "X-Shopify-Hmac-Sha256": base64.StdEncoding.EncodeToString(mac.Sum(nil)), "X-Shopify-Topic": a.topic, "X-Shopify-Shop-Domain": Shop,
		"X-Shopify-Api-Version": Version, "X-Shopify-Webhook-Id": fmt.Sprintf("webhook-%d", a.id), "X-Shopify-Event-Id": fmt.Sprintf("event-%d", a.at),
		"X-Shopify-Triggered-At": time.UnixMicro(a.at).UTC().Format(time.RFC3339Nano),
	} {
		h.Set(name, value)
	}
	return &provider.Delivery{Method: http.MethodPost, Header: h, Body: a.body, ReceivedAt: time.Now().UTC()}
}
