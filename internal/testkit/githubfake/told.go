package githubfake

import "time"

// Told is an event of which a webhook was to tell.
type Told struct {
	// Key is the delivery's GUID, which all attempts share; At is when the first was made.
	Key string
	At  time.Time
}

// Told are the events that were sent, or were lost on the way, the oldest first.
func (f *Fake) Told() (all []Told) {
	f.mu.Lock()
	defer f.mu.Unlock()
	met := map[string]bool{}
	for _, a := range f.sent {
		if !met[a.guid] {
			met[a.guid] = true
			all = append(all, Told{a.guid, time.UnixMicro(a.at).UTC()})
		}
	}
	return all
}

// Hide lets an object look as if it were gone, to whoever asks for it and in lists, until it is shown again.
func (f *Fake) Hide(id string, hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away[id] = hidden
}
