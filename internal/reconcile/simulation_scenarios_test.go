package reconcile_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A failed simulation is reproduced with its seed and steps: go test -run
// TestSimulation_stripe_mirrorEqualsProvider/NAME ./internal/reconcile -simulation.seed=N
// -simulation.steps=N -simulation.count=1.
var (
	simulationCount = flag.Int("simulation.count", 0, "number of simulations of each scenario; 0: 2, or 1 with "+
		"-short or "+"the race detector")
	simulationSteps = flag.Int("simulation.steps", 0, "number of steps of a simulation; 0: 200, or 30 with -short or "+
		"the "+"race detector")
	shortenFailures = flag.Bool("simulation.short", true, "search for a shorter simulation when one fails")
	firstSeed       = flag.Uint64("simulation.seed", 1, "the seed of the first simulation")
)

var (
	lossyWebhooks = stripefake.Webhooks{LostUnacknowledged: 25, LostAcknowledged: 10, Repeated: 15, Delayed: 20,
		Delay: 40 * time.Second, Shuffled: 30}
	faultyAPI = stripefake.Faults{RateLimited: 4, Locked: 3, ServerError: 4, Garbled: 2, Dropped: 3, Truncated: 3,
		Slow: 1, SlowDuration: 2 * time.Millisecond}
)

// laggingAPI also responds with old states and has an inexact clock.
func laggingAPI() stripefake.Faults {
	f := faultyAPI
	f.Lag, f.MaxListDelay = time.Second, 6*time.Second
	return f
}

// stripeScenarios are the scenarios for Stripe. In most of them an object changes several times a
// second, and each scenario adds another fault.
func stripeScenarios() map[string]scenario {
	account := stripefake.Options{Burst: 40, ReusedIDs: 50, Webhooks: lossyWebhooks}
	with := func(edit func(*stripefake.Options)) stripefake.Options {
		o := account
		edit(&o)
		return o
	}
	// Lists are as late as the product assumes, and their cursors expire.
	scanned := with(func(o *stripefake.Options) {
		o.ObjectTypes, o.Objects, o.Gap, o.Webhooks.LostUnacknowledged = []string{"customer", "product"}, 8,
			4*time.Second, 40
		o.Faults = stripefake.Faults{Lag: time.Second, ListLag: 29 * time.Second, CursorExpired: 12}
	})
	scannedApart := scanned
	scannedApart.Faults.DateSkew = 3 * time.Second
	// Most changes do not advance the version.
	products := with(func(o *stripefake.Options) {
		o.ObjectTypes, o.VersionUnmoved, o.Burst, o.Objects = []string{"product"}, 80, 70, 8
	})
	return map[string]scenario{
		"reconciled at the end": {stripe: account, actionPercent: 10, onlyAtEnd: true},
		"killed": {stripe: account, actionPercent: 25, duringCallPercent: 20, killPercent: 40,
			applyFailurePercent: 20},
		"bad API": {long: true, stripe: with(func(o *stripefake.Options) { o.Faults = faultyAPI }), actionPercent: 20,
			duringCallPercent: 20, killPercent: 20, wrongKeyPercent: 20},
		"API with frequent outages": {long: true, stripe: with(func(o *stripefake.Options) {
			o.Faults = stripefake.Faults{ServerError: 35, Garbled: 10, Truncated: 5}
		}), actionPercent: 20, duringCallPercent: 10, killPercent: 10},
		"late API": {stripe: with(func(o *stripefake.Options) { o.Faults = laggingAPI() }), actionPercent: 20,
			duringCallPercent: 20, killPercent: 20, applyFailurePercent: 20},
		"late lists": {stripe: with(func(o *stripefake.Options) {
			o.Faults.MaxListDelay, o.Webhooks.LostUnacknowledged = 30*time.Second, 60
		}), actionPercent: 40, duringCallPercent: 10, killPercent: 10},
		"connected accounts": {long: true, stripe: with(func(o *stripefake.Options) {
			o.Accounts, o.Faults = []string{"acct_1"}, faultyAPI
		}), actionPercent: 20, duringCallPercent: 10, killPercent: 20},
		"down for hours": {stripe: with(func(o *stripefake.Options) {
			o.Gap, o.Webhooks = 10*time.Second, stripefake.Webhooks{Repeated: 10, Shuffled: 30}
		}), actionPercent: 10, duringCallPercent: 10, killPercent: 10, gatewayDownPercent: 90,
			maxWait: 10 * time.Minute},
		"products that change without events": {long: true, stripe: products, actionPercent: 30, duringCallPercent: 10,
			killPercent: 10},
		"id-only events": {stripe: with(func(o *stripefake.Options) {
			o.IDOnlyEvents, o.Accounts, o.Faults = true, []string{"acct_1"}, laggingAPI()
		}), actionPercent: 20, duringCallPercent: 20, killPercent: 20},
		"scanned": {stripe: scanned, actionPercent: 60, duringCallPercent: 25, killPercent: 30, scanPercent: 70,
			unreadablePercent: 10, applyFailurePercent: 10, maxWait: 90 * time.Second},
		"scanned through a bad API": {stripe: with(func(o *stripefake.Options) {
			o.Accounts, o.Faults = []string{"acct_1"}, laggingAPI()
		}), actionPercent: 40, duringCallPercent: 20, killPercent: 20, wrongKeyPercent: 30, scanPercent: 70},
		"outage longer than the event retention": {stripe: with(func(o *stripefake.Options) {
			o.Gap, o.Webhooks.LostUnacknowledged = 10*time.Second, 60
		}), actionPercent: 10, duringCallPercent: 10, killPercent: 10, maxWait: 5 * time.Hour, scanPercent: 33},
		"hidden and shown": {stripe: with(func(o *stripefake.Options) {
			o.ObjectTypes, o.VersionUnmoved, o.Objects = []string{"product", "product", "customer"}, 80, 8
		}), actionPercent: 40, duringCallPercent: 10, killPercent: 10, scanPercent: 40, hidePercent: 20},
		"scanned while the API's clocks differ": {long: true, stripe: scannedApart, learnsClocks: true,
			actionPercent: 60, duringCallPercent: 25, killPercent: 30, scanPercent: 70, unreadablePercent: 10,
			applyFailurePercent: 10, maxWait: 90 * time.Second},
		"the API's clocks differ": {stripe: with(func(o *stripefake.Options) {
			o.Faults.DateSkew = 3 * time.Second
		}), learnsClocks: true, actionPercent: 25, duringCallPercent: 20, killPercent: 20},
		"all clocks agree": {long: true, stripe: account, actionPercent: 40, duringCallPercent: 20, killPercent: 20,
			learnsClocks: true},
		"events are stamped by a clock that is behind": differingClocks(account, 4*time.Second, 4*time.Second),
		"events are stamped by a clock that is ahead":  differingClocks(account, -4*time.Second, -4*time.Second),
		"the API's clock is ahead":                     differingClocks(account, 4*time.Second, 0),
		"the API's clock is behind":                    differingClocks(account, -4*time.Second, 0),
		"this machine's clock is behind": {stripe: products, actionPercent: 40, duringCallPercent: 10, killPercent: 10,
			clockAhead: -8 * time.Second},
		"this machine's clock is ahead": {stripe: products, actionPercent: 20, duringCallPercent: 10, killPercent: 10,
			clockAhead: 20 * time.Second},
	}
}

// differingClocks is a scenario in which the API's clock and this machine's are ahead of the clock
// that stamps events.
func differingClocks(o stripefake.Options, api, local time.Duration) scenario {
	o.Faults.DateAhead = api
	return scenario{stripe: o, actionPercent: 40, duringCallPercent: 20, killPercent: 20, clockAhead: local,
		learnsClocks: true}
}

// Webhooks are lost, repeated and reordered, the API fails, and processes are killed. After the
// last reconciliation the mirror equals the account, with few refetches. Without reconciliation it
// does not.
func TestSimulation_stripe_mirrorEqualsProvider(t *testing.T) {
	t.Parallel()
	runScenarios(t, []string{"events complete", "type complete", "refetches checked", "requests done", "scanned",
		"object unreadable", "wrong key", "another account", "not_listed", "manual refetches"}, stripeScenarios())
}

// expectedElsewhere are the situations that must occur in the simulations of other providers.
var expectedElsewhere = []string{"scanned", "wrong key", "not_listed", "manual refetches"}

// GitHub's webhooks are lost, repeated and reordered, the API fails, and processes are killed.
// After the last reconciliation the mirror equals GitHub, with few refetches. Without
// reconciliation it does not.
func TestSimulation_github_mirrorEqualsProvider(t *testing.T) {
	t.Parallel()
	bad := githubfake.Webhooks{LostUnacknowledged: 25, LostAcknowledged: 10, Repeated: 15, Delayed: 20,
		Delay: 40 * time.Second, Shuffled: 30}
	calm := githubfake.Options{Objects: 8, Comments: 20, Webhooks: bad, Faults: githubfake.Faults{CallsPerHour: 1e6}}
	with := func(edit func(*githubfake.Options)) func(*testing.T, uint64, time.Time) liveProvider {
		return func(t *testing.T, seed uint64, start time.Time) liveProvider {
			o := calm
			edit(&o)
			o.Seed, o.Start = seed, start
			return newGitHubProvider(t, o, false)
		}
	}
	// No webhook is configured, so that only lists show the lost changes. The lists are late, and
	// omit changes at the time from which they are requested.
	withoutHooks := func(t *testing.T, seed uint64, start time.Time) liveProvider {
		return newGitHubProvider(t, githubfake.Options{Seed: seed, Start: start, Objects: 16, Comments: 30,
			Gap: 250 * time.Millisecond, WithoutTransfers: true, SinceIsExclusive: seed%2 == 0,
			Webhooks: githubfake.Webhooks{LostUnacknowledged: 50, Shuffled: 30},
			Faults:   githubfake.Faults{CallsPerHour: 1e6, Lag: time.Second, ListLag: 9 * time.Second}}, true)
	}
	faults := githubfake.Faults{HourlyLimited: 3, SecondaryLimited: 2, ServerError: 4, Garbled: 2, Dropped: 3,
		Truncated: 3, CursorExpired: 3, CallsPerHour: 1e6}
	runScenarios(t, expectedElsewhere, map[string]scenario{
		"killed": {long: true, scanPercent: 33, newProvider: with(func(*githubfake.Options) {}), actionPercent: 20,
			duringCallPercent: 15, killPercent: 30, hidePercent: 20},
		"bad API": {scanPercent: 33, newProvider: with(func(o *githubfake.Options) { o.Faults = faults }),
			actionPercent: 15, duringCallPercent: 15, killPercent: 15, wrongKeyPercent: 20, hidePercent: 20},
		"late API": {scanPercent: 33, newProvider: with(func(o *githubfake.Options) {
			o.Faults.Lag, o.Faults.ListLag, o.Faults.MaxListDelay = time.Second, 9*time.Second, 8*time.Second
		}), actionPercent: 15, duringCallPercent: 15, killPercent: 15},
		"few calls an hour": {scanPercent: 33,
			newProvider: with(func(o *githubfake.Options) { o.Faults.CallsPerHour = 80 }), actionPercent: 10,
			duringCallPercent: 10, killPercent: 10},
		"no webhook is configured": {scanPercent: 100, newProvider: withoutHooks, actionPercent: 30,
			duringCallPercent: 10, killPercent: 10},
		"outage longer than the delivery retention": {scanPercent: 33,
			newProvider: with(func(o *githubfake.Options) { o.WithoutTransfers = true }), actionPercent: 15,
			duringCallPercent: 10, killPercent: 10, outage: 4 * 24 * time.Hour},
	})
}

// The same for a Shopify shop.
func TestSimulation_shopify_mirrorEqualsProvider(t *testing.T) {
	t.Parallel()
	bad := shopifyfake.Webhooks{Lost: 30, Repeated: 15, Delayed: 20, Delay: 40 * time.Second, Shuffled: 30}
	calm := shopifyfake.Options{Objects: 3, WithoutWebhook: 15, MaxPageSize: 3, ShortPages: 20,
		Gap: 250 * time.Millisecond, Webhooks: bad}
	with := func(edit func(*shopifyfake.Options)) func(*testing.T, uint64, time.Time) liveProvider {
		return func(t *testing.T, seed uint64, start time.Time) liveProvider {
			o := calm
			edit(&o)
			o.Seed, o.Start = seed, start
			return newShopifyProvider(t, o)
		}
	}
	faults := shopifyfake.Faults{Throttled: 5, ServerError: 5, Dropped: 3, Truncated: 3, CursorExpired: 3}
	runScenarios(t, expectedElsewhere, map[string]scenario{
		"killed": {long: true, scanPercent: 100, newProvider: with(func(*shopifyfake.Options) {}), actionPercent: 20,
			duringCallPercent: 15, killPercent: 30, hidePercent: 20},
		"bad API": {scanPercent: 100, newProvider: with(func(o *shopifyfake.Options) { o.Faults = faults }),
			actionPercent: 15, duringCallPercent: 15, killPercent: 15, wrongKeyPercent: 20},
		"late API": {scanPercent: 100, newProvider: with(func(o *shopifyfake.Options) {
			o.Faults.Lag, o.Faults.MaxListDelay = time.Second, 55*time.Second
		}), actionPercent: 40, duringCallPercent: 15, killPercent: 15, maxWait: 40 * time.Second, hidePercent: 20},
	})
}

// The same for a configured API with each kind of paging.
func TestSimulation_configuredAPI_mirrorEqualsProvider(t *testing.T) {
	t.Parallel()
	bad := restfake.Webhooks{Lost: 30, Repeated: 15, Delayed: 20, Delay: 40 * time.Second, Shuffled: 30}
	calm := restfake.Options{Objects: 14, WithoutWebhook: 10, Webhooks: bad}
	with := func(paging string, edit func(*restfake.Options), edits ...string) func(*testing.T, uint64,
		time.Time) liveProvider {
		edits = append(append([]string{"limit: 100", "limit: 5"}, reconciled.Pagings[paging]...), edits...)
		return func(t *testing.T, seed uint64, start time.Time) liveProvider {
			o := calm
			edit(&o)
			o.Seed, o.Start = seed, start
			return newRESTProvider(t, o, edits)
		}
	}
	same := func(*restfake.Options) {}
	seconds := func(o *restfake.Options) { o.WholeSeconds = true }
	faults := func(o *restfake.Options) {
		o.Faults = restfake.Faults{Throttled: 4, ServerError: 5, ConnectionDropped: 5, CursorExpired: 5}
	}
	late := func(o *restfake.Options) {
		o.WholeSeconds = true
		o.Faults.Lag, o.Faults.ListLag = 2*time.Second, 20*time.Second
	}
	lags := []string{"rate: 20", "rate: 20\n      lag: 2s", "path: /lists/field",
		"path: /lists/field\n            lag: 22s"}
	runScenarios(t, expectedElsewhere, map[string]scenario{
		"killed": {long: true, scanPercent: 100, newProvider: with("field", seconds), actionPercent: 20,
			duringCallPercent: 15, killPercent: 30, hidePercent: 20},
		"by addresses, bad API": {scanPercent: 100, newProvider: with("address", faults), actionPercent: 15,
			duringCallPercent: 15, killPercent: 15, wrongKeyPercent: 20, hidePercent: 20},
		"by links": {long: true, scanPercent: 100, newProvider: with("link", seconds), actionPercent: 15,
			duringCallPercent: 15, killPercent: 15},
		"by numbers": {long: true, scanPercent: 100, newProvider: with("page", seconds), actionPercent: 15,
			duringCallPercent: 15, killPercent: 15},
		"by the last one": {long: true, scanPercent: 100, newProvider: with("last", faults), actionPercent: 15,
			duringCallPercent: 15, killPercent: 15},
		"by the time of the change": {long: true, scanPercent: 100, newProvider: with("window", same),
			actionPercent: 15, duringCallPercent: 15, killPercent: 15},
		"whole": {scanPercent: 100, newProvider: with("whole", same), actionPercent: 15, duringCallPercent: 15,
			killPercent: 15, hidePercent: 20},
		"late API": {scanPercent: 100, newProvider: with("field", late, lags...), actionPercent: 20,
			duringCallPercent: 15, killPercent: 15, maxWait: 20 * time.Second},
	})
}

// runScenarios runs the simulations of all scenarios. It also checks that they are difficult
// enough: each of the named situations must occur.
func runScenarios(t *testing.T, situations []string, kinds map[string]scenario) {
	t.Helper()
	var all totals
	count, steps := simulationSize()
	if brief() {
		maps.DeleteFunc(kinds, func(_ string, c scenario) bool { return c.long })
	}
	t.Cleanup(func() { all.check(t, steps, len(kinds), situations) })
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum totals
			for i := range uint64(count) {
				l := simulateOnce(t, c, *firstSeed+i, steps)
				sum.add(l)
				all.add(l)
				if len(l.failures) > 0 {
					t.Fatalf("seed %d: %s", l.seed, shorten(t, c, l, steps))
				}
			}
			t.Log(&sum)
		})
	}
}

// totals are the sums over simulations.
type totals struct {
	mu                     sync.Mutex
	simulations, differing int
	objects                int
	counts                 map[string]int
}

func (s *totals) add(l *simulation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.simulations++
	if l.counts[countDiffering] > 0 {
		s.differing++
	}
	s.objects += len(l.objects())
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	s.counts["calls"] += l.caller.calls
	for name, n := range l.counts {
		s.counts[name] += n
	}
}

func (s *totals) String() string {
	return fmt.Sprintf("%d simulations of %d objects, in %d of which webhooks alone leave differences; %.2f "+
		"refetches of each object; %v", s.simulations, s.objects, s.differing,
		float64(s.counts[countRefetches])/float64(max(1, s.counts[countRefetchedObjects])), s.counts)
}

// check fails when the simulations are too easy or need too many refetches. It is skipped when only
// some of the scenarios run.
func (s *totals) check(t *testing.T, steps, kinds int, situations []string) {
	t.Helper()
	t.Log(s)
	if s.simulations < kinds {
		return
	}
	if n := s.counts[countRefetchedObjects]; n == 0 || n >= 20 && s.counts[countRefetches]*2 > n*3 {
		t.Errorf("more than 1.5 refetches of each object that needs one, or none: %s", s)
	}
	if steps < fullSteps { // too short for every situation
		return
	}
	if s.differing*10 < s.simulations*9 || s.counts["runs killed"] == 0 || s.counts["passes killed"] == 0 {
		t.Errorf("these simulations need no reconciliation, or no process is killed: %s", s)
	}
	for _, name := range situations {
		if s.counts[name] == 0 {
			t.Errorf("these simulations have no %q: %s", name, s)
		}
	}
}

// simulationSize returns the number of simulations of each scenario and the number of their steps.
// The race detector makes a simulation three times as slow. Short simulations do not have every
// situation, so only full ones are checked for that.
func simulationSize() (count, steps int) {
	count, steps = *simulationCount, *simulationSteps
	if count == 0 && brief() {
		count = 1
	}
	if steps == 0 && brief() {
		steps = briefSteps
	}
	return cmp.Or(count, 2), cmp.Or(steps, fullSteps)
}

// brief: the run has short simulations of some scenarios, which have all faults.
func brief() bool { return testing.Short() || raceEnabled }

// fullSteps is the number of steps in which every situation occurs.
const fullSteps = 200

// briefSteps is the number of steps of a short simulation.
const briefSteps = 30

// stepsPerEra is the number of steps between two complete reconciliations.
const stepsPerEra = 50

// simulateOnce runs one simulation and its final checks.
func simulateOnce(t *testing.T, c scenario, seed uint64, steps int) (l *simulation) {
	t.Helper()
	defer func() {
		r := recover()
		if b, ok := r.(fatalError); ok {
			t.Fatal(b)
		}
		if r != nil {
			panic(r)
		}
	}()
	l = newSimulation(t, &c, seed)
	for n := steps; n > 0 && len(l.failures) == 0; n -= stepsPerEra {
		l.runSteps(min(n, stepsPerEra))
		l.finishEra()
		l.compareMirror("at the end")
	}
	if len(l.failures) == 0 {
		l.checkAfterLateWebhooks()
	}
	return l
}

// shorten searches for a shorter simulation that fails too and describes how to run it.
func shorten(t *testing.T, c scenario, l *simulation, steps int) string {
	t.Helper()
	for least := 0; *shortenFailures && steps-least > 1; {
		half := (least + steps) / 2
		if again := simulateOnce(t, c, l.seed, half); len(again.failures) > 0 {
			l, steps = again, half
		} else {
			least = half
		}
	}
	return fmt.Sprintf("%d steps (-simulation.seed=%d -simulation.steps=%d -simulation.count=1)\n%s", steps, l.seed,
		steps, strings.Join(l.failures, "\n"))
}
