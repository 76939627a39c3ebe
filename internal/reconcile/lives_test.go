package reconcile_test

import (
	"cmp"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

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
			sweeps: 40, hides: true},
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

// However webhooks get lost, doubled and out of order, whatever the API does, wherever processes die: after the last reconciliation the mirror is what the
// account has, with few looks. Without reconciliation it is not.
func TestLives(t *testing.T) {
	t.Parallel()
	var all sums
	count, steps := livesMode()
	t.Cleanup(func() { all.check(t, steps) })
	for name, c := range kindsOfLife() {
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

// sums are those of the lives of a kind.
type sums struct {
	mu                     sync.Mutex
	lives, differ          int
	objects, looked, looks int
	events, calls          int
	counts                 map[string]int
}

func (s *sums) add(l *life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives++
	if l.counts[behind] > 0 {
		s.differ++
	}
	s.objects += len(l.truth())
	s.events += len(l.fake.Events())
	s.calls += l.caller.calls
	s.looked += l.counts[looked]
	s.looks += l.counts[looks]
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	for name, n := range l.counts {
		s.counts[name] += n
	}
}

func (s *sums) String() string {
	return fmt.Sprintf("%d lives of %d events and %d objects; webhooks alone leave %d objects wrong, in %d lives; %d looks at %d objects: %.2f each; %d calls; %v",
		s.lives, s.events, s.objects, s.counts[behind], s.differ, s.looks, s.looked, float64(s.looks)/float64(max(1, s.looked)), s.calls, s.counts)
}

// check fails where lives prove nothing, or cost too much.
func (s *sums) check(t *testing.T, steps int) {
	t.Helper()
	t.Log(s)
	if s.lives < 16 { // somebody looks at a few
		return
	}
	if s.looks*2 > s.looked*3 {
		t.Errorf("more than 1.5 looks at each object that needs any: %s", s)
	}
	if steps < wholeLife { // too short to meet everything
		return
	}
	if s.differ*10 < s.lives*9 || s.looked == 0 || s.counts["died"] == 0 || s.counts["died looking"] == 0 {
		t.Errorf("these lives need no reconciliation, no looks, or nobody dies: %s", s)
	}
	for _, name := range []string{"proven", "type proven", "looks checked", "dropped", "swept", "sick", "wrong key", "another account", "hidden", "wishes"} {
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
	l.check()
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
