package reconcile_test

import (
	"cmp"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A failing life is made again with its seed and steps: go test -run TestLives/NAME ./internal/reconcile -lives.seed=N -lives.steps=N -lives.count=1.
var (
	livesCount = flag.Int("lives.count", 0, "how many lives there are of each kind; 0: 2, or 1 with -short or the race detector")
	livesSteps = flag.Int("lives.steps", 0, "how many steps a life has; 0: 200, or 50 with -short or the race detector")
	livesShort = flag.Bool("lives.short", true, "look for a shorter life where one fails")
	livesSeed  = flag.Uint64("lives.seed", 1, "the seed of the first life")
)

var (
	badWebhooks = stripefake.Webhooks{Lost: 25, Swallowed: 10, Doubled: 15, Delayed: 20, Delay: 40 * time.Second, Shuffled: 30}
	badAPI      = stripefake.Faults{Limited: 4, Locked: 3, Broken: 4, Garbled: 2, Dropped: 3, Cut: 3, Slow: 1, SlowFor: 2 * time.Millisecond}
)

// lateAPI is one whose answers are behind and whose clock is not exact, besides.
func lateAPI() stripefake.Faults {
	f := badAPI
	f.Lag, f.Late = time.Second, 6*time.Second
	return f
}

// kindsOfLife are what lives are tried in. In most of them an object changes several times a second, and each kind adds something to go wrong.
func kindsOfLife() map[string]conditions {
	account := stripefake.Options{Burst: 40, Reborn: 50, Webhooks: badWebhooks}
	with := func(edit func(*stripefake.Options)) stripefake.Options {
		o := account
		edit(&o)
		return o
	}
	// Lists are as late as they are taken to be, and forget where they were.
	swept := with(func(o *stripefake.Options) {
		o.Kinds, o.Objects, o.Gap, o.Webhooks.Lost = []string{"customer", "product"}, 8, 4*time.Second, 40
		o.Faults = stripefake.Faults{Lag: time.Second, ListLag: 29 * time.Second, Expired: 12}
	})
	sweptApart := swept
	sweptApart.Faults.Skew = 3 * time.Second
	// Their own version stays as it is at most changes.
	products := with(func(o *stripefake.Options) { o.Kinds, o.Still, o.Burst, o.Objects = []string{"product"}, 80, 70, 8 })
	return map[string]conditions{
		"reconciled in the end": {account: account, before: 10, quiet: true},
		"killed":                {account: account, before: 25, between: 20, deaths: 40, unready: 20},
		"bad API":               {account: with(func(o *stripefake.Options) { o.Faults = badAPI }), before: 20, between: 20, deaths: 20, wrongKey: 20},
		"API that is mostly down": {account: with(func(o *stripefake.Options) {
			o.Faults = stripefake.Faults{Broken: 35, Garbled: 10, Cut: 5}
		}), before: 20, between: 10, deaths: 10},
		"late API":           {account: with(func(o *stripefake.Options) { o.Faults = lateAPI() }), before: 20, between: 20, deaths: 20, unready: 20},
		"late lists":         {account: with(func(o *stripefake.Options) { o.Faults.Late, o.Webhooks.Lost = 30*time.Second, 60 }), before: 40, between: 10, deaths: 10},
		"connected accounts": {account: with(func(o *stripefake.Options) { o.Accounts, o.Faults = []string{"acct_1"}, badAPI }), before: 20, between: 10, deaths: 20},
		"down for hours": {account: with(func(o *stripefake.Options) {
			o.Gap, o.Webhooks = 10*time.Second, stripefake.Webhooks{Doubled: 10, Shuffled: 30}
		}),
			before: 10, between: 10, deaths: 10, down: 90, waits: 10 * time.Minute},
		"products that change unseen": {account: products, before: 30, between: 10, deaths: 10},
		"thin events":                 {account: with(func(o *stripefake.Options) { o.Thin, o.Accounts, o.Faults = true, []string{"acct_1"}, lateAPI() }), before: 20, between: 20, deaths: 20},
		"swept":                       {account: swept, before: 60, between: 25, deaths: 30, sweeps: 70, sickness: 10, unready: 10, waits: 90 * time.Second},
		"swept through a bad API":     {account: with(func(o *stripefake.Options) { o.Accounts, o.Faults = []string{"acct_1"}, lateAPI() }), before: 40, between: 20, deaths: 20, wrongKey: 30, sweeps: 70},
		"away for longer than events are kept": {account: with(func(o *stripefake.Options) { o.Gap, o.Webhooks.Lost = 10*time.Second, 60 }), before: 10, between: 10, deaths: 10,
			waits: 5 * time.Hour, sweeps: 33},
		"hidden and back": {account: with(func(o *stripefake.Options) {
			o.Kinds, o.Still, o.Objects = []string{"product", "product", "customer"}, 80, 8
		}), before: 40, between: 10, deaths: 10,
			sweeps: 40, hides: 20},
		"swept while the API's clocks differ":          {account: sweptApart, clocks: true, before: 60, between: 25, deaths: 30, sweeps: 70, sickness: 10, unready: 10, waits: 90 * time.Second},
		"the API's clocks differ":                      {account: with(func(o *stripefake.Options) { o.Faults.Skew = 3 * time.Second }), clocks: true, before: 25, between: 20, deaths: 20},
		"all clocks agree":                             clocks(account, 0, 0),
		"events are stamped by a clock that is behind": clocks(account, 4*time.Second, 4*time.Second),
		"events are stamped by a clock that is ahead":  clocks(account, -4*time.Second, -4*time.Second),
		"the API's clock is ahead":                     clocks(account, 4*time.Second, 0),
		"the API's clock is behind":                    clocks(account, -4*time.Second, 0),
		"our clock is behind":                          {account: products, before: 40, between: 10, deaths: 10, ahead: -8 * time.Second},
		"our clock is ahead":                           {account: products, before: 20, between: 10, deaths: 10, ahead: 20 * time.Second},
	}
}

// clocks are conditions in which the API's clock and this machine's are ahead of the clock that stamps events.
func clocks(o stripefake.Options, api, ours time.Duration) conditions {
	o.Faults.Ahead = api
	return conditions{account: o, before: 40, between: 20, deaths: 20, ahead: ours, clocks: true}
}

// However webhooks get lost, doubled and out of order, whatever the API does, wherever processes die: after the last
// reconciliation the mirror is what the account has, with few looks. Without reconciliation it is not.
func TestLives(t *testing.T) {
	t.Parallel()
	live(t, []string{"proven", "type proven", "looks checked", "dropped", "swept", "sick", "wrong key", "another account",
		"hidden", "wishes"}, kindsOfLife())
}

// others are what happens in the lives of wards other than accounts.
var others = []string{"swept", "wrong key", "hidden", "wishes"}

// Repositories live, their webhooks get lost, doubled and out of order, the API has its troubles and processes die anywhere: after the last reconciliation the
// mirror is what GitHub has, with few looks. Without reconciliation it is not.
func TestLivesOfRepositories(t *testing.T) {
	t.Parallel()
	bad := githubfake.Webhooks{Lost: 25, Swallowed: 10, Doubled: 15, Delayed: 20, Delay: 40 * time.Second, Shuffled: 30}
	calm := githubfake.Options{Objects: 8, Comments: 20, Webhooks: bad, Faults: githubfake.Faults{Hour: 1e6}}
	with := func(edit func(*githubfake.Options)) func(*testing.T, uint64, time.Time) ward {
		return func(t *testing.T, seed uint64, start time.Time) ward {
			o := calm
			edit(&o)
			o.Seed, o.Start = seed, start
			return newForgeWard(t, o, false)
		}
	}
	// What webhooks there are is not said: lists alone tell what was lost, which are late, and leave out what changed at the time that they are asked since.
	deaf := func(t *testing.T, seed uint64, start time.Time) ward {
		return newForgeWard(t, githubfake.Options{Seed: seed, Start: start, Objects: 16, Comments: 30, Gap: 250 * time.Millisecond, Rooted: true, SinceAfter: seed%2 == 0,
			Webhooks: githubfake.Webhooks{Lost: 50, Shuffled: 30}, Faults: githubfake.Faults{Hour: 1e6, Lag: time.Second, ListLag: 9 * time.Second}}, true)
	}
	troubles := githubfake.Faults{Limited: 3, Hurried: 2, Broken: 4, Garbled: 2, Dropped: 3, Cut: 3, Expired: 3, Hour: 1e6}
	live(t, others, map[string]conditions{
		"killed":  {sweeps: 33, ward: with(func(*githubfake.Options) {}), before: 20, between: 15, deaths: 30, hides: 20},
		"bad API": {sweeps: 33, ward: with(func(o *githubfake.Options) { o.Faults = troubles }), before: 15, between: 15, deaths: 15, wrongKey: 20, hides: 20},
		"late API": {sweeps: 33, ward: with(func(o *githubfake.Options) {
			o.Faults.Lag, o.Faults.ListLag, o.Faults.Late = time.Second, 9*time.Second, 8*time.Second
		}), before: 15, between: 15, deaths: 15},
		"few calls an hour":                        {sweeps: 33, ward: with(func(o *githubfake.Options) { o.Faults.Hour = 80 }), before: 10, between: 10, deaths: 10},
		"no webhook is named":                      {sweeps: 100, ward: deaf, before: 30, between: 10, deaths: 10},
		"away for longer than deliveries are kept": {sweeps: 33, ward: with(func(o *githubfake.Options) { o.Rooted = true }), before: 15, between: 10, deaths: 10, away: 4 * 24 * time.Hour},
	})
}

// A shop lives likewise.
func TestLivesOfAShop(t *testing.T) {
	t.Parallel()
	bad := shopifyfake.Webhooks{Lost: 30, Doubled: 15, Delayed: 20, Delay: 40 * time.Second, Shuffled: 30}
	calm := shopifyfake.Options{Objects: 3, Quiet: 15, Page: 3, Short: 20, Gap: 250 * time.Millisecond, Webhooks: bad}
	with := func(edit func(*shopifyfake.Options)) func(*testing.T, uint64, time.Time) ward {
		return func(t *testing.T, seed uint64, start time.Time) ward {
			o := calm
			edit(&o)
			o.Seed, o.Start = seed, start
			return newShopWard(t, o)
		}
	}
	troubles := shopifyfake.Faults{Throttled: 5, Broken: 5, Dropped: 3, Cut: 3, Expired: 3}
	live(t, others, map[string]conditions{
		"killed":   {sweeps: 100, ward: with(func(*shopifyfake.Options) {}), before: 20, between: 15, deaths: 30, hides: 20},
		"bad API":  {sweeps: 100, ward: with(func(o *shopifyfake.Options) { o.Faults = troubles }), before: 15, between: 15, deaths: 15, wrongKey: 20},
		"late API": {sweeps: 100, ward: with(func(o *shopifyfake.Options) { o.Faults.Lag, o.Faults.Late = time.Second, 55*time.Second }), before: 40, between: 15, deaths: 15, waits: 40 * time.Second, hides: 20},
	})
}

// An API that is read by its description lives likewise, however it pages.
func TestLivesOfAnyAPI(t *testing.T) {
	t.Parallel()
	bad := restfake.Webhooks{Lost: 30, Doubled: 15, Delayed: 20, Delay: 40 * time.Second, Shuffled: 30}
	calm := restfake.Options{Objects: 14, Quiet: 10, Webhooks: bad}
	with := func(paging string, edit func(*restfake.Options), edits ...string) func(*testing.T, uint64, time.Time) ward {
		edits = append(append([]string{"limit: 100", "limit: 5"}, pagings[paging]...), edits...)
		return func(t *testing.T, seed uint64, start time.Time) ward {
			o := calm
			edit(&o)
			o.Seed, o.Start = seed, start
			return newThingsWard(t, o, edits)
		}
	}
	same := func(*restfake.Options) {}
	seconds := func(o *restfake.Options) { o.Seconds = true }
	troubles := func(o *restfake.Options) { o.Faults = restfake.Faults{Throttled: 4, Broken: 5, Cut: 5, Forgotten: 5} }
	late := func(o *restfake.Options) {
		o.Seconds = true
		o.Faults.Lag, o.Faults.ListLag = 2*time.Second, 20*time.Second
	}
	lags := []string{"rate: 20", "rate: 20\n      lag: 2s", "path: /lists/field", "path: /lists/field\n            lag: 22s"}
	live(t, others, map[string]conditions{
		"killed":                    {sweeps: 100, ward: with("field", seconds), before: 20, between: 15, deaths: 30, hides: 20},
		"by addresses, bad API":     {sweeps: 100, ward: with("address", troubles), before: 15, between: 15, deaths: 15, wrongKey: 20, hides: 20},
		"by links":                  {sweeps: 100, ward: with("link", seconds), before: 15, between: 15, deaths: 15},
		"by numbers":                {sweeps: 100, ward: with("page", seconds), before: 15, between: 15, deaths: 15},
		"by the last one":           {sweeps: 100, ward: with("last", troubles), before: 15, between: 15, deaths: 15},
		"by the time of the change": {sweeps: 100, ward: with("window", same), before: 15, between: 15, deaths: 15},
		"whole":                     {sweeps: 100, ward: with("whole", same), before: 15, between: 15, deaths: 15, hides: 20},
		"late API":                  {sweeps: 100, ward: with("field", late, lags...), before: 20, between: 15, deaths: 15, waits: 20 * time.Second},
	})
}

// live lets lives of all kinds go on, and checks that they need what they prove: that each of the named things happens.
func live(t *testing.T, things []string, kinds map[string]conditions) {
	t.Helper()
	var all sums
	count, steps := livesMode()
	t.Cleanup(func() { all.check(t, steps, len(kinds), things) })
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum sums
			for i := range uint64(count) {
				l := liveOnce(t, c, *livesSeed+i, steps)
				sum.add(l)
				all.add(l)
				if len(l.wrongs) > 0 {
					t.Fatalf("seed %d: %s", l.seed, shrunk(t, c, l, steps))
				}
			}
			t.Log(&sum)
		})
	}
}

// sums are those of lives.
type sums struct {
	mu            sync.Mutex
	lives, differ int
	objects       int
	counts        map[string]int
}

func (s *sums) add(l *life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives++
	if l.counts[behind] > 0 {
		s.differ++
	}
	s.objects += len(l.beings())
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	s.counts["calls"] += l.caller.calls
	for name, n := range l.counts {
		s.counts[name] += n
	}
}

func (s *sums) String() string {
	return fmt.Sprintf("%d lives of %d objects, in %d of which webhooks alone leave objects wrong; %.2f looks each; %v", s.lives,
		s.objects, s.differ, float64(s.counts[looks])/float64(max(1, s.counts[looked])), s.counts)
}

// check fails where lives prove nothing, or cost too much. Where somebody looks at a few of the kinds alone, it does not.
func (s *sums) check(t *testing.T, steps, kinds int, things []string) {
	t.Helper()
	t.Log(s)
	if s.lives < kinds {
		return
	}
	if s.counts[looks]*2 > s.counts[looked]*3 || s.counts[looked] == 0 {
		t.Errorf("more than 1.5 looks at each object that needs any, or none: %s", s)
	}
	if steps < wholeLife { // too short to meet everything
		return
	}
	if s.differ*10 < s.lives*9 || s.counts["died"] == 0 || s.counts["died looking"] == 0 {
		t.Errorf("these lives need no reconciliation, or nobody dies: %s", s)
	}
	for _, name := range things {
		if s.counts[name] == 0 {
			t.Errorf("in these lives there was nothing %q: %s", name, s)
		}
	}
}

// livesMode returns how many lives there are of each kind and how many steps each has. Under the race detector a life costs
// three times as much. Short lives meet less of what must happen, so only whole ones are held to have met it.
func livesMode() (count, steps int) {
	count, steps = *livesCount, *livesSteps
	brief := testing.Short() || raced
	if count == 0 && brief {
		count = 1
	}
	if steps == 0 && brief {
		steps = wholeLife / 4
	}
	return cmp.Or(count, 2), cmp.Or(steps, wholeLife)
}

// wholeLife is how many steps a life has in which something of everything goes wrong.
const wholeLife = 200

// era is how many steps there are from one reconciliation that is waited for to the next.
const era = 50

// liveOnce is one life from its beginning to what is wrong after its end.
func liveOnce(t *testing.T, c conditions, seed uint64, steps int) (l *life) {
	t.Helper()
	defer func() {
		r := recover()
		if b, ok := r.(broken); ok {
			t.Fatal(b)
		}
		if r != nil {
			panic(r)
		}
	}()
	l = newLife(t, &c, seed)
	for n := steps; n > 0 && len(l.wrongs) == 0; n -= era {
		l.lives(min(n, era))
		l.ends()
		l.compare("in the end")
	}
	if len(l.wrongs) == 0 {
		l.check()
	}
	return l
}

// shrunk looks for a shorter life that goes wrong too, and says how to see it again.
func shrunk(t *testing.T, c conditions, l *life, steps int) string {
	t.Helper()
	for least := 0; *livesShort && steps-least > 1; {
		half := (least + steps) / 2
		if again := liveOnce(t, c, l.seed, half); len(again.wrongs) > 0 {
			l, steps = again, half
		} else {
			least = half
		}
	}
	return fmt.Sprintf("%d steps (-lives.seed=%d -lives.steps=%d -lives.count=1)\n%s", steps, l.seed, steps, strings.Join(l.wrongs, "\n"))
}
