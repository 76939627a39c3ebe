package restfake

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Webhooks configures the deliveries. Percentages are of the events.
type Webhooks struct {
	// Lost deliveries never arrive.
	Lost int
	// Repeated deliveries arrive twice.
	Repeated int
	// Delayed deliveries are due up to Delay after the event. Zero means 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of due deliveries that swap places with another one.
	Shuffled int
}

// RunSteps executes n steps.
func (f *Fake) RunSteps(n int) {
	for range n {
		f.Step()
	}
}

// Step moves the clock and creates, changes or deletes a thing.
func (f *Fake) Step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(f.choose.Int64N(f.options.Gap.Microseconds()+1)) * time.Microsecond)
	id, name := fmt.Sprintf("t%02d", f.choose.IntN(f.options.Objects)), fmt.Sprint("name ", f.choose.IntN(1000))
	if f.object(id, f.Now()) != nil && f.choose.IntN(8) == 0 {
		name = ""
	}
	f.set(id, name, f.chance(f.options.WithoutWebhook))
}

func (f *Fake) chance(percent int) bool { return percent > 0 && f.choose.IntN(100) < percent }

// SetHidden makes the API not find a thing, and lists omit it, or ends that.
func (f *Fake) SetHidden(id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hidden[id] = hidden
}

// LastChange returns the time of the last change of a thing, or zero for an unknown thing.
func (f *Fake) LastChange(id string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if states := f.things[id]; len(states) > 0 {
		return states[len(states)-1].at
	}
	return time.Time{}
}

// NeverDeleted reports whether a thing exists and was never deleted.
func (f *Fake) NeverDeleted(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(f.things[id], func(s state) bool { return s.name == "" })
}

// planDelivery plans the delivery of an event.
func (f *Fake) planDelivery(body []byte) {
	w := f.options.Webhooks
	due := f.Micros()
	if f.chance(w.Delayed) {
		due += f.delay()
	}
	if f.chance(w.Lost) {
		return
	}
	f.queue.Add(body, due)
	if f.chance(w.Repeated) {
		f.queue.Add(body, due+f.delay())
	}
}

func (f *Fake) delay() int64 { return fakeapi.RandomDelay(f.choose, f.options.Webhooks.Delay) }

// Deliver sends all due deliveries in the order of the network and returns their number. A rejected
// delivery is retried a minute later.
func (f *Fake) Deliver(take func(d *provider.Delivery) bool) int {
	due := f.takeDue()
	for _, body := range due {
		if take(f.signed(body)) {
			continue
		}
		f.mu.Lock()
		f.queue.Add(body, f.Micros()+time.Minute.Microseconds())
		f.mu.Unlock()
	}
	return len(due)
}

// takeDue removes the due deliveries from the queue and returns their bodies.
func (f *Fake) takeDue() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.TakeDue(f.Micros(), f.options.Webhooks.Shuffled, f.choose)
}

// signed makes a delivery with the signature scheme of the example.
func (f *Fake) signed(body []byte) *provider.Delivery {
	mac := hmac.New(sha256.New, []byte(Secret))
	mac.Write(body)
	return &provider.Delivery{Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"},
		"X-Signature": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}, Body: body, ReceivedAt: f.Now()}
}
