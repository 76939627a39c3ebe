package githubfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Webhooks configures the deliveries. Percentages are of the events.
type Webhooks struct {
	// LostUnacknowledged deliveries never arrive, and GitHub knows it.
	LostUnacknowledged int
	// LostAcknowledged deliveries never arrive, but GitHub considers them received.
	LostAcknowledged int
	// Repeated deliveries arrive twice with one id.
	Repeated int
	// Delayed deliveries are due up to Delay after the event. Zero means 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of due deliveries that swap places with another one.
	Shuffled int
}

// attempt is one attempt to deliver an event.
type attempt struct {
	id        int64
	guid      string
	hook      int64
	eventType string
	action    string
	body      []byte
	at        int64
	// listedAt is the time at which the list begins to show it.
	listedAt   int64
	redelivery bool // it was requested
	status     int  // 0: no response
}

// sendCurrent sends an event with the current state of an object.
func (f *Fake) sendCurrent(o *object, eventType, action string, rest tree) {
	f.send(o, o.current(), eventType, action, rest)
}

// send makes an event and plans its delivery.
func (f *Fake) send(o *object, body tree, eventType, action string, rest tree) {
	member := map[string]string{"issues": "issue", "issue_comment": "comment", "pull_request_review_comment": "comment",
		"commit_comment": "comment"}[eventType]
	if member == "" {
		member = eventType
	}
	payload := tree{"action": action, "sender": user(), "repository": o.repo.object.current()}
	maps.Copy(payload, rest)
	payload[member] = webhookBody(o.kind, body)
	a := &attempt{guid: fmt.Sprintf("%08x-fa4e-11f0-8000-%012x", f.options.Seed, f.nextID()), hook: o.repo.hook,
		eventType: eventType, action: action, body: encode(payload)}
	due := f.now()
	w := f.options.Webhooks
	if f.chance(w.Delayed) {
		due += f.delay()
	}
	switch {
	case f.chance(w.LostUnacknowledged):
		f.recordAttempt(a, 0)
	case f.chance(w.LostAcknowledged):
		f.recordAttempt(a, 200)
	default:
		f.queue.Add(a, due)
		if f.chance(w.Repeated) {
			twice := *a
			f.queue.Add(&twice, due+f.delay())
		}
	}
}

func (f *Fake) delay() int64 { return fakeapi.RandomDelay(f.choose, f.options.Webhooks.Delay) }

// webhookBody returns an object with the fields that only webhooks contain.
func webhookBody(kind string, body tree) tree {
	shown := maps.Clone(body)
	switch kind {
	case "release":
		shown["short_description_html"] = "<p>tea</p>"
	case "pull_request":
		shown["delete_branch_on_merge"], shown["squash_merge_commit_title"] = false, "PR_TITLE"
	}
	return shown
}

// recordAttempt records an attempt that was made.
func (f *Fake) recordAttempt(a *attempt, status int) {
	a.id, a.at, a.status = f.nextID(), f.now(), status
	a.listedAt = a.at + f.RandomUpTo(f.options.Faults.MaxListDelay)
	f.sent = append(f.sent, a)
}

// Deliver sends all due deliveries in the order of the network and returns their number. Rejected
// deliveries are not retried.
func (f *Fake) Deliver(take func(d *provider.Delivery) bool) int {
	due := f.takeDue()
	for _, a := range due {
		taken := take(sign(a, f.Now()))
		f.mu.Lock()
		status := 500
		if taken {
			status = 200
		}
		f.recordAttempt(a, status)
		f.mu.Unlock()
	}
	return len(due)
}

// takeDue removes the due attempts from the queue and returns them.
func (f *Fake) takeDue() []*attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.TakeDue(f.now(), f.options.Webhooks.Shuffled, f.choose)
}

// SetWebhooks changes the configuration for the deliveries of future events.
func (f *Fake) SetWebhooks(w Webhooks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Webhooks = w
}

// HideSentDeliveries makes the API respond with 404 to requests for the bodies of all events that
// were sent so far.
func (f *Fake) HideSentDeliveries() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.sent {
		f.withheld[a.guid] = true
	}
}

// sign makes a delivery as GitHub sends it.
func sign(a *attempt, at time.Time) *provider.Delivery {
	source := &provider.Source{Name: "github", Secrets: []provider.Secret{{Name: "fake", Value: []byte(Secret)}}}
	d, err := github.GitHub{}.Sign(source, provider.Sample{Type: a.eventType + "." + a.action, ID: a.guid,
		Body: a.body},
		at)
	if err != nil {
		panic(err) // the source has a secret
	}
	d.Header.Set("X-GitHub-Hook-ID", fmt.Sprint(a.hook))
	return d
}

// deliveryRetention is how long GitHub stores deliveries.
const deliveryRetention = 3 * 24 * 3600 * second

// summary returns an attempt as the API lists it.
func (a *attempt) summary() tree {
	status := "OK"
	switch {
	case a.status == 0:
		status = "failed to connect to host"
	case a.status != 200:
		status = "Invalid HTTP Response: 500"
	}
	return tree{"id": a.id, "guid": a.guid,
		"delivered_at": time.UnixMicro(a.at).UTC().Format("2006-01-02T15:04:05.999Z"), "redelivery": a.redelivery,
		"duration": 0.27, "status": status,
		"status_code": a.status, "event": a.eventType, "action": a.action, "installation_id": nil, "repository_id": 1,
		"throttled_at": nil}
}

// details returns an attempt with its request. The API encodes the body again, as GitHub does: the
// same content in other bytes.
func (a *attempt) details(d *provider.Delivery) tree {
	headers := tree{}
	for name := range d.Header {
		headers[strings.ReplaceAll(name, "Github", "GitHub")] = d.Header.Get(name)
	}
	out := a.summary()
	out["request"] = tree{"headers": headers, "payload": json.RawMessage(a.body)}
	out["response"] = tree{"headers": tree{}, "payload": nil}
	return out
}

// Redeliver sends all failed deliveries again, as an operator may request.
func (f *Fake) Redeliver() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.sent {
		if a.status != 200 {
			again := *a
			again.redelivery = true
			f.queue.Add(&again, f.now())
		}
	}
}

// SentCount returns the number of events that were sent, including lost ones.
func (f *Fake) SentCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := map[string]bool{}
	for _, a := range f.sent {
		sent[a.guid] = true
	}
	return len(sent)
}
