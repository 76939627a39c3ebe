package shopifyfake

import "time"

// Fault is what goes wrong with one request.
type Fault int

// What may go wrong.
const (
	Fine Fault = iota
	// Throttled is answered THROTTLED by GraphQL, with 200, and 429 by REST.
	Throttled
	// Broken is answered 502 by what stands before Shopify.
	Broken
	// Dropped: the work is done, and no answer comes.
	Dropped
	// Expired: the cursor that the request names is no longer known.
	Expired
)

// Faults say what goes wrong. Percentages are of the requests.
type Faults struct {
	Throttled, Broken, Dropped, Expired int
	// Lag is how old a state an answer may show, and Late how far a list that is asked for by time may be behind.
	Lag, Late time.Duration
	// Skew is how far an answer's Date may be off the shop's clock, either way.
	Skew time.Duration
	// Revoked: the key is no longer known.
	Revoked bool
	// Calls is how many REST calls the bucket holds and Points how many points, restored at 2 and 100 a second of real time; 0: it never empties.
	Calls, Points float64
}

// SetFaults replaces what goes wrong from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

// Script says what goes wrong with the next requests, one by one, before chance decides again.
func (f *Fake) Script(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = append(f.script, faults...)
}

// Met is how often each fault happened.
func (f *Fake) Met(fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.met[fault]
}

func (f *Fake) fault() (fault Fault) {
	defer func() { f.met[fault]++ }()
	if len(f.script) > 0 {
		fault, f.script = f.script[0], f.script[1:]
		return fault
	}
	o := f.options.Faults
	n := f.luck.IntN(100)
	for i, percent := range []int{o.Throttled, o.Broken, o.Dropped, o.Expired} {
		if n -= percent; n < 0 {
			return Throttled + Fault(i)
		}
	}
	return Fine
}

// bucket is what calls are paid from.
type bucket struct {
	most, rate, left float64
	at               time.Time
	// endless: nothing is taken.
	endless bool
}

func newBucket(size, most, rate float64) bucket {
	if size == 0 {
		return bucket{most: most, rate: rate, left: most, endless: true}
	}
	return bucket{most: size, rate: rate, left: size, at: time.Now()}
}

func (b *bucket) now() float64 {
	if !b.endless {
		now := time.Now()
		b.left, b.at = min(b.most, b.left+now.Sub(b.at).Seconds()*b.rate), now
	}
	return b.left
}

func (b *bucket) take(n float64) bool {
	if b.endless {
		return true
	}
	if b.now() < n {
		return false
	}
	b.left -= n
	return true
}
