// Package githubfake is a small part of GitHub that lives over time, on loopback: repositories with issues, comments, pull requests, releases and more that a seeded
// chooser creates, changes and deletes, the webhooks that tell of it, the API that lists and gets them and what the webhooks were sent, and what goes wrong on
// the way. Its clock is moved by the test. It knows the truth of each object, so that a mirror can be compared with it.
//
//	f := githubfake.New(t, githubfake.Options{Seed: 1, Webhooks: githubfake.Webhooks{Lost: 50}})
//	f.Live(1000)                                                     // or Open, Edit, Delete: a story of the test's own
//	f.Deliver(func(d *provider.Delivery) bool { ...; return true })  // what is due, signed; GitHub never tries again
//	http.Get(f.URL + "/" + f.Hooks()[0] + "/deliveries")             // with githubfake.Key
//	f.Truth()                                                        // what the mirror must be in the end
package githubfake

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// What a Fake is reached with. WriteKey may ask for redeliveries too.
const (
	Key      = "github_pat_fake_read"
	WriteKey = "github_pat_fake_write"
	Secret   = "a secret of githubfake"
	// Owner is whom the repositories belong to.
	Owner = "octo-fake"
)

// Options say what it is like. Percentages are from 0 to 100. The zero value is calm and without faults.
type Options struct {
	// Seed makes all choices.
	Seed uint64
	// Start is what the clock shows first; zero: 2026-01-01.
	Start time.Time
	// Running: the clock also moves with real time, so one seed no longer makes one life.
	Running bool
	// Repositories is how many there are; 0: 2. Each has a webhook.
	Repositories int
	// Objects is how many objects go on changing; 0: 20.
	Objects int
	// Gap is the longest time between two steps; 0: 400 ms, so that a second holds several.
	Gap time.Duration
	// Comments is the percentage of steps that comment on an issue, which moves the version without an event of the issue.
	Comments int
	// Rooted: no issue is transferred.
	Rooted bool
	// SinceAfter: lists by time begin after it, and not with it; GitHub's documents can be read either way.
	SinceAfter bool
	// Releases is how many releases of a repository are listed, the newest; 0: all. The page behind them is refused, or answered with ReleasesEnd, as GitHub has done for years at a time; 0: 422.
	Releases, ReleasesEnd int
	// Meanwhile is called before each request is looked at; nil: nothing happens.
	Meanwhile func()

	Webhooks Webhooks
	Faults   Faults
}

// Fake is the service.
type Fake struct {
	fakeapi.Base

	mu       sync.Mutex
	options  Options
	choose   *rand.Rand
	ids      int64
	repos    []*repo
	all      []*object
	queue    []*attempt
	sent     []*attempt // the oldest first
	withheld map[string]bool
	shut     map[*repo]int
	away     map[string]bool
	used     map[int64]int // calls by hour of the clock
}

// New starts a Fake; it ends with its owner.
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
	f := &Fake{options: o, choose: rand.New(rand.NewPCG(o.Seed, 1)), ids: 1000, withheld: map[string]bool{}, shut: map[*repo]int{}, away: map[string]bool{}, used: map[int64]int{}}
	f.Start(t, f, o.Seed, o.Start, o.Running)
	for i := range o.Repositories {
		f.found(fmt.Sprintf("kettle-%d", i))
	}
	return f
}

// now is the time on the clock, in microseconds.
func (f *Fake) now() int64 { return f.Micros() }

func (f *Fake) chance(percent int) bool { return percent > 0 && f.choose.IntN(100) < percent }

// id is a number that nothing else has.
func (f *Fake) id() int64 {
	f.ids++
	return f.ids
}

// Hooks are the webhooks, one of each repository, as the setting api.hooks names them.
func (f *Fake) Hooks() (hooks []string) {
	for _, r := range f.repos {
		hooks = append(hooks, fmt.Sprintf("repos/%s/hooks/%d", r.fullName(), r.hook))
	}
	return hooks
}

// Repositories are their full names.
func (f *Fake) Repositories() (names []string) {
	for _, r := range f.repos {
		names = append(names, r.fullName())
	}
	return names
}

const second = int64(1_000_000)

// stamp is a time as GitHub writes it.
func stamp(micros int64) string {
	return time.UnixMicro(micros).UTC().Truncate(time.Second).Format(time.RFC3339)
}
