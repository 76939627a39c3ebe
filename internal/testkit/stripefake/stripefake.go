// Package stripefake simulates a small Stripe account on loopback. It creates, changes and deletes
// objects in random steps, sends the events and webhooks, and serves the part of Stripe's API that
// lists and reads them, with faults. The test sets its clock. It keeps the true state of each
// object at any time, so that tests can compare a mirror with it.
//
//	f := stripefake.New(t, stripefake.Options{Seed: 1,
//		Webhooks: stripefake.Webhooks{Repeated: 5, Shuffled: 20}})
//	f.RunSteps(1000)                                                 // or Create, Set, ApplyEvent
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true })  // the due deliveries, signed
//	http.Get(f.URL + "/v1/events?delivery_success=false")            // with stripefake.Key
//	f.CurrentObjects()                                               // the expected mirror
package stripefake

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Chooser makes every choice of the steps and the deliveries. It is a seeded *rand.Rand, or the
// generator of a property test. Only the goroutine that calls Step, RunSteps, Create, ApplyEvent
// and Deliver calls it.
type Chooser interface {
	// IntN returns a number from 0 to n-1.
	IntN(n int) int
}

// The defaults of a Fake.
const (
	Key     = "sk_test_stripefake"
	Secret  = "whsec_stripefake"
	Version = "2026-08-26.dahlia"
	// OwnAccount is the id of the account itself. Its events do not contain it.
	OwnAccount = "acct_Fake0000"
)

// Options configure an account. Percentages are from 0 to 100. The zero value has no faults.
type Options struct {
	// Chooser makes the choices. Nil means a generator with Seed.
	Chooser Chooser
	// Seed chooses the faults of requests, and all other choices without a Chooser.
	Seed uint64
	// Name is part of all ids that Stripe chooses, so that two fakes with different names share
	// none. Empty means "Fake".
	Name string
	// Start is the first time of the clock. Zero means 2026-01-01.
	Start time.Time
	// Running: the clock also moves with real time, so that one seed no longer gives the same data.
	Running bool
	// Accounts are the connected accounts. Products of several accounts have the same ids.
	Accounts []string
	// Restricted are keys that may read only the named resources ("customers", "events",
	// "account").
	Restricted map[string][]string
	// LiveMode: objects and events are in live mode. In test mode the mirror stores products and
	// prices under the account "test".
	LiveMode bool
	// Objects is the number of objects that change. When steps create more, the oldest do not
	// change any more. Zero means 20.
	Objects int
	// ObjectTypes are the types of the objects that steps create ("product"). Empty means all.
	ObjectTypes []string
	// Gap is the longest time between two steps. Zero means 400 ms, so that several steps fall in a
	// second.
	Gap time.Duration
	// Burst is the percentage of steps that change the object of the previous step.
	Burst int
	// VersionUnmoved is the percentage of changes of a product that do not advance its version.
	VersionUnmoved int
	// ReusedIDs is the percentage of new products that take the id of a deleted one.
	ReusedIDs int
	// IDOnlyEvents adds accounts of the v2 API, which has id-only events.
	IDOnlyEvents bool

	Webhooks Webhooks
	Faults   Faults
}

// Fake is the account and its server.
type Fake struct {
	fakeapi.Base

	mu        sync.Mutex
	options   Options
	chooser   Chooser
	accounts  []*account
	last      *object // the object of the last step
	idCounts  map[string]int
	queue     fakeapi.Queue[attempt]
	requests  []*Request
	linkCount int // number of rendered links
}

// New starts a Fake. It stops with its owner.
func New(t fakeapi.Owner, o Options) *Fake {
	t.Helper()
	f := &Fake{options: o, idCounts: map[string]int{}, chooser: o.Chooser}
	if f.chooser == nil {
		f.chooser = rand.New(rand.NewPCG(o.Seed, 1))
	}
	f.setDefaults()
	for _, id := range append([]string{""}, o.Accounts...) {
		f.accounts = append(f.accounts, &account{id: id, objects: map[string]*object{}, byType: map[string][]*object{},
			eventsByID: map[string]*event{}, idCounts: map[string]int{}})
	}
	f.Start(t, f, o.Seed, f.options.Start, o.Running)
	return f
}

// setDefaults fills in the defaults.
func (f *Fake) setDefaults() {
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
	if o.Gap == 0 {
		o.Gap = 400 * time.Millisecond
	}
}

// now returns the time on the account's clock, in microseconds.
func (f *Fake) now() int64 { return f.Micros() }

func (f *Fake) chance(percent int) bool { return percent > 0 && f.chooser.IntN(100) < percent }

// Durations in microseconds.
const (
	second = int64(1_000_000)
	// eventRetention is how long events can be listed.
	eventRetention = 30 * 24 * 3600 * second
)
