package githubfake

import "time"

// SentEvent is an event for which a webhook was sent.
type SentEvent struct {
	// Key is the GUID of the delivery, which all attempts share. At is the time of the first
	// attempt.
	Key string
	At  time.Time
}

// SentEvents returns the sent events including lost ones, oldest first.
func (f *Fake) SentEvents() (all []SentEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	met := map[string]bool{}
	for _, a := range f.sent {
		if !met[a.guid] {
			met[a.guid] = true
			all = append(all, SentEvent{a.guid, time.UnixMicro(a.at).UTC()})
		}
	}
	return all
}

// SetHidden makes the API not find an object, and lists omit it, or ends that.
func (f *Fake) SetHidden(id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hidden[id] = hidden
}
