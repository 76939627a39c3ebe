package restfake

import (
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is what goes wrong with an answer.
type Fault = fakeapi.Fault

// The faults.
const (
	// None: the answer is right.
	None = fakeapi.Fine
	// Throttled: 429, to be tried again after a second.
	Throttled = fakeapi.Limited
	// Broken: 500.
	Broken = fakeapi.Broken
	// Cut: the request is served, and the answer lost on its way.
	Cut = fakeapi.Dropped
	// Forgotten: the cursor that the request names is no longer known.
	Forgotten = fakeapi.Expired
)

// Faults say what goes wrong. Percentages are of the requests.
type Faults struct {
	Throttled, Broken, Cut, Forgotten int
	// Lag is how old a state answers may show, objects and lists alike; ListLag is how much older lists may be.
	Lag, ListLag time.Duration
	// Skew is how far an answer's Date may be off the clock, either way.
	Skew time.Duration
	// Revoked: the key is no longer known.
	Revoked bool
}

// SetFaults replaces what goes wrong from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

func (f *Fake) fault(r *http.Request) Fault {
	if f.Fails != nil {
		if fault := f.Fails(r); fault != None {
			return f.Note(r, fault)
		}
	}
	o := f.options.Faults
	return f.Meet(r, fakeapi.Odds{Throttled: o.Throttled, Broken: o.Broken, Cut: o.Cut, Forgotten: o.Forgotten})
}

// ago is a random part of a length.
func (f *Fake) ago(longest time.Duration) time.Duration {
	return time.Duration(f.UpTo(longest)) * time.Microsecond
}
