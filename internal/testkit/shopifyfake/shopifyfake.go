// Package shopifyfake is a small Shopify shop that lives over time, on loopback: orders, products, customers, items and their levels, locations and fulfillments
// that a seeded chooser creates, changes and deletes, the webhooks that tell of it, the part of Shopify's Admin API that lists and reads them, and whatever goes
// wrong on the way. Its clock is moved by the test. It knows the truth of each object, so that a mirror can be compared with it.
//
//	f := shopifyfake.New(t, shopifyfake.Options{Seed: 1, Webhooks: shopifyfake.Webhooks{Lost: 50}, Faults: shopifyfake.Faults{Throttled: 5}})
//	f.Live(200)                                                      // or Create, Change, Delete: a story of the test's own
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true })  // what is due, signed
//	f.Truth()                                                        // what the mirror must be in the end
package shopifyfake

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// What a Fake is reached with.
const (
	Shop    = "fake.myshopify.com"
	Key     = "shpat_fake"
	Secret  = "shpss_fake"
	Version = "2026-07"
)

// Options say what a shop is like. Percentages are from 0 to 100. The zero value is a calm shop without faults.
type Options struct {
	// Seed makes every choice.
	Seed uint64
	// Start is what the clock shows first; zero: 2026-01-01.
	Start time.Time
	// Running: the clock also moves with real time.
	Running bool
	// Scopes are what the key may; nil: everything.
	Scopes []string
	// Objects is how many objects of a kind there are before changes outweigh what is new; 0: 10.
	Objects int
	// Gap is the longest time between two steps; 0: 400 ms, so that a second holds several.
	Gap time.Duration
	// Quiet is the percentage of changes that no webhook tells of.
	Quiet int
	// Shapes: REST answers objects with a field that webhooks do not carry.
	Shapes bool
	// Page is the most that a list gives at a time, whatever is asked for; 0: 250.
	Page int
	// Short is the percentage of pages of whole objects that hold one less than they could.
	Short int
	// Meanwhile is called before each request is looked at; nil: nothing happens.
	Meanwhile func()

	Webhooks Webhooks
	Faults   Faults
	Bulk     Bulk
}

// Fake is the shop and its server.
type Fake struct {
	fakeapi.Base

	mu       sync.Mutex
	options  Options
	choose   *rand.Rand
	objects  map[string]*object
	kinds    map[string][]*object // in the order of their ids
	last     int64                // the last id
	queue    []attempt
	sent     int
	requests []Request
	calls    bucket
	points   bucket
	bulks    bulks
}

// New starts a Fake with one location; it ends with its owner.
func New(t fakeapi.Owner, o Options) *Fake {
	t.Helper()
	if o.Start.IsZero() {
		o.Start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	}
	if o.Objects == 0 {
		o.Objects = 10
	}
	if o.Gap == 0 {
		o.Gap = 400 * time.Millisecond
	}
	if o.Page == 0 {
		o.Page = 250
	}
	f := &Fake{options: o, objects: map[string]*object{}, kinds: map[string][]*object{}, last: 8_104_417_293_600_000_000, choose: rand.New(rand.NewPCG(o.Seed, 1))}
	f.calls, f.points = newBucket(o.Faults.Calls, 40, 2), newBucket(o.Faults.Points, 2000, 100)
	f.Start(t, f, o.Seed, o.Start, o.Running)
	f.Create("location")
	f.startBulk(t)
	f.bulks.plan = o.Bulk
	return f
}

// now is the time on the shop's clock, in microseconds.
func (f *Fake) now() int64 { return f.Micros() }

func (f *Fake) chance(percent int) bool { return percent > 0 && f.choose.IntN(100) < percent }

const second = int64(1_000_000)
