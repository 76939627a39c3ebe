package shopifyfake

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Webhooks configures the deliveries. Percentages are of the events.
type Webhooks struct {
	// Lost deliveries never arrive.
	Lost int
	// Repeated deliveries are sent once more after they were received.
	Repeated int
	// Delayed deliveries are due up to Delay later. Zero means 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of due deliveries that swap places with another one.
	Shuffled int
}

// attempt is a planned delivery.
type attempt struct {
	object *object
	topic  string
	id     int
	at     int64
	// body is the body of the first attempt. It is rendered then and does not change.
	body    []byte
	repeats bool
	tries   int
}

// maxTries is the maximum number of attempts of a delivery.
const maxTries = 9

func (f *Fake) planDelivery(o *object, topic string, at int64) {
	w := f.options.Webhooks
	f.sent++
	a, due := attempt{object: o, topic: topic, id: f.sent, at: at, repeats: f.chance(w.Repeated)}, at
	if f.chance(w.Delayed) {
		due += fakeapi.RandomDelay(f.choose, w.Delay)
	}
	if topic == o.kind.remove {
		a.body = o.deleteWebhookBody()
	}
	if topic != "" && !f.chance(w.Lost) {
		f.queue.Add(a, due)
	}
}

// Deliver sends all due deliveries and returns their number. A delivery for which send returns
// false is retried later.
func (f *Fake) Deliver(send func(d *provider.Delivery) bool) int {
	due := f.takeDue()
	for _, a := range due {
		took := send(f.delivery(a))
		f.mu.Lock()
		switch a.tries++; {
		case took && a.repeats:
			a.repeats = false
			f.queue.Add(a, f.now())
		case !took && a.tries < maxTries:
			f.queue.Add(a, f.now()+int64(a.tries)*60*second)
		}
		f.mu.Unlock()
	}
	return len(due)
}

// takeDue removes the due attempts from the queue, and renders them with the current state of their
// object.
func (f *Fake) takeDue() []attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	due := f.queue.TakeDue(f.now(), f.options.Webhooks.Shuffled, f.choose)
	for i, a := range due {
		if a.body == nil {
			due[i].body = lastBody(a.object)
		}
	}
	return due
}

// lastBody returns the body of the object, or its last body before the delete.
func lastBody(o *object) []byte {
	for i := len(o.history) - 1; ; i-- {
		if o.history[i].body != nil {
			return o.history[i].body
		}
	}
}

// delivery returns a webhook as Shopify sends it.
func (f *Fake) delivery(a attempt) *provider.Delivery {
	mac := hmac.New(sha256.New, []byte(Secret))
	mac.Write(a.body)
	h := http.Header{}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "X-Shopify-Hmac-Sha256": base64.StdEncoding.EncodeToString(mac.Sum(nil)),
		"X-Shopify-Topic": a.topic, "X-Shopify-Shop-Domain": Shop,
		"X-Shopify-Api-Version": Version, "X-Shopify-Webhook-Id": fmt.Sprintf("webhook-%d", a.id),
		"X-Shopify-Event-Id":     fmt.Sprintf("event-%d", a.at),
		"X-Shopify-Triggered-At": time.UnixMicro(a.at).UTC().Format(time.RFC3339Nano),
	} {
		h.Set(name, value)
	}
	return &provider.Delivery{Method: http.MethodPost, Header: h, Body: a.body, ReceivedAt: time.Now().UTC()}
}
