// Package shopifyfake simulates a small Shopify shop on loopback. It creates, changes and deletes
// orders, products, customers, inventory, locations and fulfillments in random steps, sends the
// webhooks, and serves the part of Shopify's Admin API that lists and reads them, with faults. The
// test sets its clock. It keeps the true state of each object, so that tests can compare a mirror
// with it.
//
//	f := shopifyfake.New(t, shopifyfake.Options{Seed: 1, Webhooks: shopifyfake.Webhooks{Lost: 50},
//		Faults: shopifyfake.Faults{Throttled: 5}})
//	f.RunSteps(200)                                                  // or Create, Change, Delete
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true })  // the due deliveries, signed
//	f.CurrentObjects()                                               // the expected mirror
package shopifyfake

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// The credentials of a Fake.
const (
	Shop    = "fake.myshopify.com"
	Key     = "shpat_fake"
	Secret  = "shpss_fake"
	Version = "2026-07"
)

// Options configure a shop. Percentages are from 0 to 100. The zero value has no faults.
type Options struct {
	// Seed makes every choice.
	Seed uint64
	// Start is the first time of the clock. Zero means 2026-01-01.
	Start time.Time
	// Running: the clock also moves with real time.
	Running bool
	// Scopes are the scopes of the key. Nil means all.
	Scopes []string
	// Objects is the number of objects of a kind above which steps change objects more often than
	// they create them. Zero means 10.
	Objects int
	// Gap is the longest time between two steps. Zero means 400 ms, so that several steps fall in a
	// second.
	Gap time.Duration
	// WithoutWebhook is the percentage of changes without a webhook.
	WithoutWebhook int
	// RESTOnlyField: objects in REST have a field that webhooks do not contain.
	RESTOnlyField bool
	// MaxPageSize is the maximum page size of lists, whatever is requested. Zero means 250.
	MaxPageSize int
	// ShortPages is the percentage of pages of complete objects that hold one less than they could.
	ShortPages int
	// BeforeRequest is called before each request. Nil means no call.
	BeforeRequest func()

	Webhooks Webhooks
	Faults   Faults
	BulkPlan BulkPlan
}

// Fake is the shop and its server.
type Fake struct {
	fakeapi.Base

	mu        sync.Mutex
	options   Options
	choose    *rand.Rand
	objects   map[string]*object
	kinds     map[string][]*object // in the order of their ids
	lastID    int64                // the last id
	queue     fakeapi.Queue[attempt]
	sent      int
	requests  []Request
	calls     bucket
	points    bucket
	bulkState bulkState
}

// New starts a Fake with one location. It stops with its owner.
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
	if o.MaxPageSize == 0 {
		o.MaxPageSize = 250
	}
	f := &Fake{options: o, objects: map[string]*object{}, kinds: map[string][]*object{},
		lastID: 8_104_417_293_600_000_000, choose: rand.New(rand.NewPCG(o.Seed, 1))}
	f.calls, f.points = newBucket(o.Faults.Calls, 40, 2), newBucket(o.Faults.Points, 2000, 100)
	f.Start(t, f, o.Seed, o.Start, o.Running)
	f.Create("location")
	f.startBulk(t)
	f.bulkState.plan = o.BulkPlan
	return f
}

// now returns the time on the shop's clock, in microseconds.
func (f *Fake) now() int64 { return f.Micros() }

func (f *Fake) chance(percent int) bool { return percent > 0 && f.choose.IntN(100) < percent }

const second = int64(1_000_000)
