// Package stripefake is a small Stripe account that lives over time, on loopback: objects that a seeded chooser creates, changes and
// deletes, the events and webhooks that tell of it, the part of Stripe's API that lists and gets them, and whatever goes wrong on the
// way. Its clock is moved by the test. It knows the truth of each object at any moment, so that a mirror can be compared with it.
//
//	f := stripefake.New(t, stripefake.Options{Seed: 1, Webhooks: stripefake.Webhooks{Lost: 5, Shuffled: 20}, Faults: stripefake.Faults{Limited: 5}})
//	f.Live(1000)                                                     // or Create, Set, Do: a story of the test's own
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true })  // what is due, signed
//	http.Get(f.URL + "/v1/events?delivery_success=false")            // with stripefake.Key
//	f.Truth()                                                        // what the mirror must be in the end
package stripefake

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Chooser makes every choice of a life and of its deliveries: a seeded *rand.Rand, or a property test's generator. It is called by
// the goroutine alone that calls Step, Live, Create, Do and Deliver.
type Chooser interface {
	// IntN is a number from 0 to n-1.
	IntN(n int) int
}

// What a Fake is reached with where Options name nothing else.
const (
	Key     = "sk_test_stripefake"
	Secret  = "whsec_stripefake"
	Version = "2026-08-26.dahlia"
	// Own is the id of the account itself, which its events do not name.
	Own = "acct_Fake0000"
)

// Options say what an account is like. Percentages are from 0 to 100. The zero value is a calm account without faults.
type Options struct {
	// Choose makes the choices; nil: a generator with Seed.
	Choose Chooser
	// Seed chooses which requests meet a fault, and all else where there is no Chooser.
	Seed uint64
	// Name is part of all ids that Stripe makes, so that two accounts of different names share none; empty: "Fake".
	Name string
	// Start is what the clock shows first; zero: 2026-01-01.
	Start time.Time
	// Running: the clock also moves with real time, so one seed no longer makes one life.
	Running bool
	// Accounts are the connected accounts besides the own one; products of several accounts share ids.
	Accounts []string
	// Restricted are keys that may read only the named resources ("customers", "events", "account").
	Restricted map[string][]string
	// Live: objects and events are in live mode. In test mode the mirror keeps products and prices under the account "test".
	Live bool
	// Default is the API version that objects are answered in where a request names none; empty: that of the events. In any other
	// version they look different.
	Default string
	// Meanwhile is called before each request is looked at, so that the life can go on between two pages; nil: nothing happens.
	Meanwhile func()
	// Objects is how many objects go on changing; when others are made, the oldest stay as they are. 0: 20.
	Objects int
	// Kinds are the types of the objects that the life makes ("product"); empty: all.
	Kinds []string
	// Gap is the longest time between two steps; 0: 400 ms, so that a second holds several.
	Gap time.Duration
	// Burst is the percentage of steps that concern the object of the step before.
	Burst int
	// Still is the percentage of changes of a product that do not move its own version.
	Still int
	// Reborn is the percentage of new products that take the id of a deleted one.
	Reborn int
	// Thin: there are accounts of the second API too, whose events are thin.
	Thin bool

	Webhooks Webhooks
	Faults   Faults
}

// Fake is the account and its server.
type Fake struct {
	fakeapi.Base

	mu       sync.Mutex
	options  Options
	choose   Chooser
	accounts []*account
	last     *object // what the last step concerned
	made     map[string]int
	queue    []attempt
	requests []*Request
	links    int // how often links were rendered anew
	inFlight int
	most     int
}

// New starts a Fake; it ends with its owner.
func New(t fakeapi.Owner, o Options) *Fake {
	t.Helper()
	f := &Fake{options: o, made: map[string]int{}, choose: o.Choose}
	if f.choose == nil {
		f.choose = rand.New(rand.NewPCG(o.Seed, 1))
	}
	f.fill()
	for _, id := range append([]string{""}, o.Accounts...) {
		f.accounts = append(f.accounts, &account{id: id, objects: map[string]*object{}, kinds: map[string][]*object{}, named: map[string]*event{}, made: map[string]int{}})
	}
	f.Start(t, f, o.Seed, f.options.Start, o.Running)
	return f
}

// fill puts the defaults where the options say nothing.
func (f *Fake) fill() {
	o := &f.options
	if o.Start.IsZero() {
		o.Start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	}
	if o.Name == "" {
		o.Name = "Fake"
	}
	if o.Objects == 0 {
		o.Objects = 20
	}
	if o.Default == "" {
		o.Default = Version
	}
	if o.Gap == 0 {
		o.Gap = 400 * time.Millisecond
	}
}

// now is the time on the account's clock, in microseconds.
func (f *Fake) now() int64 { return f.Micros() }

func (f *Fake) chance(percent int) bool { return percent > 0 && f.choose.IntN(100) < percent }

// Times of the clock, in microseconds.
const (
	second = int64(1_000_000)
	// kept is how long events can be listed.
	kept = 30 * 24 * 3600 * second
)
