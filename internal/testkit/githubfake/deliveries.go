package githubfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
)

// Webhooks says what becomes of the deliveries. Percentages are of the events.
type Webhooks struct {
	// Lost ones never arrive, and GitHub knows.
	Lost int
	// Swallowed ones never arrive, and GitHub takes them for received.
	Swallowed int
	// Doubled ones arrive twice under one id.
	Doubled int
	// Delayed ones are due only up to Delay after the event; 0: 1 minute.
	Delayed int
	Delay   time.Duration
	// Shuffled is the percentage of deliveries of one pull that trade places with another.
	Shuffled int
}

// attempt is one try to send an event.
type attempt struct {
	id      int64
	guid    string
	hook    int64
	event   string
	action  string
	body    []byte
	due, at int64
	// listed is when the list tells of it.
	listed int64
	again  bool // it was asked for
	status int  // 0: nobody answered
}

// tell sends an object as it is.
func (f *Fake) tell(o *object, event, action string, rest tree) {
	f.send(o, o.last(), event, action, rest)
}

// send makes the event, and decides what becomes of its delivery.
func (f *Fake) send(o *object, body tree, event, action string, rest tree) {
	member := map[string]string{"issues": "issue", "issue_comment": "comment", "pull_request_review_comment": "comment", "commit_comment": "comment"}[event]
	if member == "" {
		member = event
	}
	payload := tree{"action": action, "sender": user(), "repository": o.repo.self.last()}
	maps.Copy(payload, rest)
	payload[member] = shownByWebhooks(o.kind, body)
	a := &attempt{guid: fmt.Sprintf("%08x-fa4e-11f0-8000-%012x", f.options.Seed, f.id()), hook: o.repo.hook, event: event, action: action, body: encode(payload), due: f.now()}
	w := f.options.Webhooks
	if f.chance(w.Delayed) {
		a.due += f.delay()
	}
	switch {
	case f.chance(w.Lost):
		f.note(a, 0)
	case f.chance(w.Swallowed):
		f.note(a, 200)
	default:
		f.queue = append(f.queue, a)
		if f.chance(w.Doubled) {
			twice := *a
			twice.due += f.delay()
			f.queue = append(f.queue, &twice)
		}
	}
}

func (f *Fake) delay() int64 {
	longest := f.options.Webhooks.Delay
	if longest == 0 {
		longest = time.Minute
	}
	return f.choose.Int64N(longest.Microseconds() + 1)
}

// shownByWebhooks is an object as webhooks alone show it.
func shownByWebhooks(kind string, body tree) tree {
	shown := maps.Clone(body)
	switch kind {
	case "release":
		shown["short_description_html"] = "<p>tea</p>"
	case "pull_request":
		shown["delete_branch_on_merge"], shown["squash_merge_commit_title"] = false, "PR_TITLE"
	}
	return shown
}

// note writes down that an attempt was made.
func (f *Fake) note(a *attempt, status int) {
	a.id, a.at, a.status = f.id(), f.now(), status
	a.listed = a.at + f.UpTo(f.options.Faults.Late)
	f.sent = append(f.sent, a)
}

// Deliver sends all that is due now, in the order of the network, and returns how many were sent. What is not taken is not tried again.
func (f *Fake) Deliver(take func(d *provider.Delivery) bool) int {
	due := f.due()
	for _, a := range due {
		taken := take(sign(a, f.Now()))
		f.mu.Lock()
		status := 500
		if taken {
			status = 200
		}
		f.note(a, status)
		f.mu.Unlock()
	}
	return len(due)
}

// due takes the attempts that are due out of the queue.
func (f *Fake) due() (due []*attempt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	var later []*attempt
	for _, a := range f.queue {
		if a.due <= now {
			due = append(due, a)
		} else {
			later = append(later, a)
		}
	}
	f.queue = later
	slices.SortStableFunc(due, func(a, b *attempt) int { return int(a.due - b.due) })
	for i := range due {
		if f.chance(f.options.Webhooks.Shuffled) {
			j := f.choose.IntN(len(due))
			due[i], due[j] = due[j], due[i]
		}
	}
	return due
}

// SetWebhooks replaces what becomes of the deliveries of events to come.
func (f *Fake) SetWebhooks(w Webhooks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Webhooks = w
}

// Withhold has the API answer 404 where it is asked for what the events that were sent so far have carried.
func (f *Fake) Withhold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.sent {
		f.withheld[a.guid] = true
	}
}

// sign makes a delivery as GitHub sends it.
func sign(a *attempt, at time.Time) *provider.Delivery {
	source := &provider.Source{Name: "github", Secrets: []provider.Secret{{Name: "fake", Value: []byte(Secret)}}}
	d, err := github.GitHub{}.Sign(source, provider.Sample{Type: a.event + "." + a.action, ID: a.guid, Body: a.body}, at)
	if err != nil {
		panic(err) // the source has a secret
	}
	d.Header.Set("X-GitHub-Hook-ID", fmt.Sprint(a.hook))
	return d
}

// kept is how long GitHub knows what it has sent.
const kept = 3 * 24 * 3600 * second

// shown is an attempt as the API lists it.
func (a *attempt) shown() tree {
	status := "OK"
	switch {
	case a.status == 0:
		status = "failed to connect to host"
	case a.status != 200:
		status = "Invalid HTTP Response: 500"
	}
	return tree{"id": a.id, "guid": a.guid, "delivered_at": time.UnixMicro(a.at).UTC().Format("2006-01-02T15:04:05.999Z"), "redelivery": a.again, "duration": 0.27, "status": status,
		"status_code": a.status, "event": a.event, "action": a.action, "installation_id": nil, "repository_id": 1, "throttled_at": nil}
}

// whole is an attempt with its request. Whoever answers it writes the body anew, as GitHub does: it says the same in other bytes.
func (a *attempt) whole(d *provider.Delivery) tree {
	headers := tree{}
	for name := range d.Header {
		headers[strings.ReplaceAll(name, "Github", "GitHub")] = d.Header.Get(name)
	}
	out := a.shown()
	out["request"] = tree{"headers": headers, "payload": json.RawMessage(a.body)}
	out["response"] = tree{"headers": tree{}, "payload": nil}
	return out
}

// Redeliver sends again all that did not arrive, as a person may ask for.
func (f *Fake) Redeliver() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.sent {
		if a.status != 200 {
			again := *a
			again.again, again.due = true, f.now()
			f.queue = append(f.queue, &again)
		}
	}
}

// Sent is how many events were sent, or were lost on the way.
func (f *Fake) Sent() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := map[string]bool{}
	for _, a := range f.sent {
		sent[a.guid] = true
	}
	return len(sent)
}
