// Package githubfake simulates a small part of GitHub on loopback. It creates, changes and deletes
// issues, comments, pull requests, releases and other objects in random steps, sends the webhooks,
// and serves the API that lists and reads the objects and the deliveries, with faults. The test
// sets its clock. It keeps the true state of each object, so that tests can compare a mirror with
// it.
//
//	f := githubfake.New(t, githubfake.Options{Seed: 1,
//		Webhooks: githubfake.Webhooks{Repeated: 50}})
//	f.RunSteps(1000)                                                 // or OpenIssue, Edit, Delete
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true })  // the due deliveries, signed
//	                                                                 // and without retries
//	http.Get(f.URL + "/" + f.Hooks()[0] + "/deliveries")             // with githubfake.Key
//	f.CurrentObjects()                                               // the expected mirror
package githubfake

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// The credentials of a Fake. WriteKey may also request redeliveries.
const (
	Key      = "github_pat_fake_read"
	WriteKey = "github_pat_fake_write"
	Secret   = "a secret of githubfake"
	// Owner is the owner of the repositories.
	Owner = "octo-fake"
)

// Options configure a Fake. Percentages are from 0 to 100. The zero value has no faults.
type Options struct {
	// Seed makes all choices.
	Seed uint64
	// Start is the first time of the clock. Zero means 2026-01-01.
	Start time.Time
	// Running: the clock also moves with real time, so that one seed no longer gives the same data.
	Running bool
	// Repositories is the number of repositories, each with a webhook. Zero means 2.
	Repositories int
	// Objects is the number of objects that change. Zero means 20.
	Objects int
	// Gap is the longest time between two steps. Zero means 400 ms, so that several steps fall in a
	// second.
	Gap time.Duration
	// Comments is the percentage of steps that comment on an issue. A comment advances the version
	// of the issue without an event of the issue.
	Comments int
	// WithoutTransfers: steps transfer no issue.
	WithoutTransfers bool
	// SinceIsExclusive: lists by time begin after the given time. GitHub's documentation can be
	// read either way.
	SinceIsExclusive bool
	// MaxListedReleases limits the listed releases of a repository to the newest. Zero means no
	// limit. The page after them is rejected with ReleasesEndStatus, as GitHub did for years. Zero
	// means 422.
	MaxListedReleases, ReleasesEndStatus int
	// BeforeRequest is called before each request. Nil means no call.
	BeforeRequest func()

	Webhooks Webhooks
	Faults   Faults
}

// Fake is the service.
type Fake struct {
	fakeapi.Base

	mu               sync.Mutex
	options          Options
	choose           *rand.Rand
	lastID           int64
	repos            []*repo
	objects          []*object
	queue            fakeapi.Queue[*attempt]
	sent             []*attempt // oldest first
	withheld         map[string]bool
	repositoryStatus map[*repo]int
	hidden           map[string]bool
	callsByHour      map[int64]int // calls by hour of the clock
}

// New starts a Fake. It stops with its owner.
func New(t fakeapi.Owner, o Options) *Fake {
	t.Helper()
	if o.Start.IsZero() {
		o.Start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	}
	if o.Repositories == 0 {
		o.Repositories = 2
	}
	if o.Objects == 0 {
		o.Objects = 20
	}
	if o.Gap == 0 {
		o.Gap = 400 * time.Millisecond
	}
	f := &Fake{options: o, choose: rand.New(rand.NewPCG(o.Seed, 1)), lastID: 1000, withheld: map[string]bool{},
		repositoryStatus: map[*repo]int{}, hidden: map[string]bool{}, callsByHour: map[int64]int{}}
	f.Start(t, f, o.Seed, o.Start, o.Running)
	for i := range o.Repositories {
		f.createRepository(fmt.Sprintf("kettle-%d", i))
	}
	return f
}

// now returns the time of the clock in microseconds.
func (f *Fake) now() int64 { return f.Micros() }

func (f *Fake) chance(percent int) bool { return percent > 0 && f.choose.IntN(100) < percent }

// nextID returns a unique number.
func (f *Fake) nextID() int64 {
	f.lastID++
	return f.lastID
}

// Hooks returns the webhooks, one of each repository, in the format of the setting api.hooks.
func (f *Fake) Hooks() (hooks []string) {
	for _, r := range f.repos {
		hooks = append(hooks, fmt.Sprintf("repos/%s/hooks/%d", r.fullName(), r.hook))
	}
	return hooks
}

// Repositories returns the full names of the repositories.
func (f *Fake) Repositories() (names []string) {
	for _, r := range f.repos {
		names = append(names, r.fullName())
	}
	return names
}

const second = int64(1_000_000)

// stamp formats a time as GitHub does.
func stamp(micros int64) string {
	return time.UnixMicro(micros).UTC().Truncate(time.Second).Format(time.RFC3339)
}
