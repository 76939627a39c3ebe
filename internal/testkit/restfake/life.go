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
)

// Webhooks says what becomes of the deliveries. Percentages are of the events.
type Webhooks struct {
	// Lost ones never arrive.
	Lost int
	// Doubled ones arrive twice.
	Doubled int
	// Delayed ones are due only up to Delay after the event; 0: 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of deliveries of one pull that trade places with another.
	Shuffled int
}

// attempt is a delivery that is going to be made, at a time in microseconds.
type attempt struct {
	due  int64
	body []byte
}

// Live lets n things happen.
func (f *Fake) Live(n int) {
	for range n {
		f.Step()
	}
}

// Step lets something happen: a thing is made, changed or deleted.
func (f *Fake) Step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(f.choose.Int64N(f.options.Gap.Microseconds()+1)) * time.Microsecond)
	id, name := fmt.Sprintf("t%02d", f.choose.IntN(f.options.Objects)), fmt.Sprint("name ", f.choose.IntN(1000))
	if f.object(id, f.Now()) != nil && f.choose.IntN(8) == 0 {
		name = ""
	}
	f.set(id, name, f.chance(f.options.Quiet))
}

func (f *Fake) chance(percent int) bool { return percent > 0 && f.choose.IntN(100) < percent }

// Hide lets a thing look as if it were gone, to whoever asks for it and to whoever lists things, until it is shown again.
func (f *Fake) Hide(id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hidden[id] = hidden
}

// Changed is when a thing changed last; zero where there never was one.
func (f *Fake) Changed(id string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if states := f.things[id]; len(states) > 0 {
		return states[len(states)-1].at
	}
	return time.Time{}
}

// Lasts says whether a thing is there, and always was since it was made.
func (f *Fake) Lasts(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(f.things[id], func(s state) bool { return s.name == "" })
}

// owe decides what becomes of an event's delivery.
func (f *Fake) owe(body []byte) {
	w := f.options.Webhooks
	a := attempt{f.Micros(), body}
	if f.chance(w.Delayed) {
		a.due += f.delay()
	}
	if f.chance(w.Lost) {
		return
	}
	f.queue = append(f.queue, a)
	if f.chance(w.Doubled) {
		f.queue = append(f.queue, attempt{a.due + f.delay(), body})
	}
}

func (f *Fake) delay() int64 {
	longest := f.options.Webhooks.Delay
	if longest == 0 {
		longest = time.Minute
	}
	return f.choose.Int64N(longest.Microseconds() + 1)
}

// Deliver sends all that is due now, in the order of the network, and returns how many were sent. What is not taken is tried again a minute later.
func (f *Fake) Deliver(take func(d *provider.Delivery) bool) int {
	due := f.due()
	for _, a := range due {
		if take(f.signed(a.body)) {
			continue
		}
		f.mu.Lock()
		a.due = f.Micros() + time.Minute.Microseconds()
		f.queue = append(f.queue, a)
		f.mu.Unlock()
	}
	return len(due)
}

// due takes the attempts that are due out of the queue.
func (f *Fake) due() (due []attempt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var later []attempt
	for _, a := range f.queue {
		if a.due <= f.Micros() {
			due = append(due, a)
		} else {
			later = append(later, a)
		}
	}
	f.queue = later
	slices.SortStableFunc(due, func(a, b attempt) int { return int(a.due - b.due) })
	for i := range due {
		if f.chance(f.options.Webhooks.Shuffled) {
			j := f.choose.IntN(len(due))
			due[i], due[j] = due[j], due[i]
		}
	}
	return due
}

// signed is a delivery as the sender makes it, which the example's scheme verifies.
func (f *Fake) signed(body []byte) *provider.Delivery {
	mac := hmac.New(sha256.New, []byte(Secret))
	mac.Write(body)
	return &provider.Delivery{Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"}, "X-Signature": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}, Body: body, ReceivedAt: f.Now()}
}
