package reconcile_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

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
	lifetimes(t, map[string]trials{
		"killed":  {ward: with(func(*githubfake.Options) {}), before: 20, between: 15, deaths: 30, hides: 20},
		"bad API": {ward: with(func(o *githubfake.Options) { o.Faults = troubles }), before: 15, between: 15, deaths: 15, wrongKey: 20, hides: 20},
		"late API": {ward: with(func(o *githubfake.Options) {
			o.Faults.Lag, o.Faults.ListLag, o.Faults.Late = time.Second, 9*time.Second, 8*time.Second
		}), before: 15, between: 15, deaths: 15},
		"few calls an hour":                        {ward: with(func(o *githubfake.Options) { o.Faults.Hour = 80 }), before: 10, between: 10, deaths: 10},
		"no webhook is named":                      {ward: deaf, before: 30, between: 10, deaths: 10},
		"away for longer than deliveries are kept": {ward: with(func(o *githubfake.Options) { o.Rooted = true }), before: 15, between: 10, deaths: 10, away: 4 * 24 * time.Hour},
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
	lifetimes(t, map[string]trials{
		"killed":   {ward: with(func(*shopifyfake.Options) {}), before: 20, between: 15, deaths: 30, hides: 20},
		"bad API":  {ward: with(func(o *shopifyfake.Options) { o.Faults = troubles }), before: 15, between: 15, deaths: 15, wrongKey: 20},
		"late API": {ward: with(func(o *shopifyfake.Options) { o.Faults.Lag, o.Faults.Late = time.Second, 55*time.Second }), before: 40, between: 15, deaths: 15, waits: 40 * time.Second, hides: 20},
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
	lifetimes(t, map[string]trials{
		"killed":                    {ward: with("field", seconds), before: 20, between: 15, deaths: 30, hides: 20},
		"by addresses, bad API":     {ward: with("address", troubles), before: 15, between: 15, deaths: 15, wrongKey: 20, hides: 20},
		"by links":                  {ward: with("link", seconds), before: 15, between: 15, deaths: 15},
		"by numbers":                {ward: with("page", seconds), before: 15, between: 15, deaths: 15},
		"by the last one":           {ward: with("last", troubles), before: 15, between: 15, deaths: 15},
		"by the time of the change": {ward: with("window", same), before: 15, between: 15, deaths: 15},
		"whole":                     {ward: with("whole", same), before: 15, between: 15, deaths: 15, hides: 20},
		"late API":                  {ward: with("field", late, lags...), before: 20, between: 15, deaths: 15, waits: 20 * time.Second},
	})
}

// lifetimes are lived in all kinds of trials, and proven to need what they prove.
func lifetimes(t *testing.T, kinds map[string]trials) {
	t.Helper()
	count, steps := livesMode()
	var mu sync.Mutex
	all, lives, differ := map[string]int{}, 0, 0
	t.Cleanup(func() {
		t.Logf("%d lives, in %d of which webhooks alone leave objects wrong; %d looks at %d objects; %v", lives, differ, all[looks], all[looked], all)
		if steps >= wholeLife && (differ < lives || all["died"]+all["died looking"] == 0 || all["hidden"] == 0) {
			t.Error("lives need no reconciliation, or nobody dies, or nothing is hidden")
		}
		if all[looks]*2 > all[looked]*3 || all[looked] == 0 {
			t.Errorf("more than 1.5 looks at each object that needs any, or none: %d looks at %d objects", all[looks], all[looked])
		}
	})
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range uint64(count) {
				l := lifetimeOnce(t, c, *livesSeed+i, steps)
				mu.Lock()
				lives++
				if l.counts[behind] > 0 {
					differ++
				}
				for what, n := range l.counts {
					all[what] += n
				}
				mu.Unlock()
				if len(l.wrongs) > 0 {
					t.Fatalf("seed %d: %s", l.seed, shrunkLifetime(t, c, l, steps))
				}
				t.Logf("seed %d: %v, %.2f looks each", l.seed, l, float64(l.counts[looks])/float64(max(1, l.counts[looked])))
			}
		})
	}
}

// lifetimeOnce is one life from its beginning to what is wrong after its end.
func lifetimeOnce(t *testing.T, c trials, seed uint64, steps int) (l *lifetime) {
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
	l = newLifetime(t, &c, seed)
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

// shrunkLifetime looks for a shorter life that goes wrong too, and says how to see it again.
func shrunkLifetime(t *testing.T, c trials, l *lifetime, steps int) string {
	t.Helper()
	for least := 0; *livesShort && steps-least > 1; {
		half := (least + steps) / 2
		if again := lifetimeOnce(t, c, l.seed, half); len(again.wrongs) > 0 {
			l, steps = again, half
		} else {
			least = half
		}
	}
	return fmt.Sprintf("%d steps (-lives.seed=%d -lives.steps=%d -lives.count=1)\n%s", steps, l.seed, steps, strings.Join(l.wrongs, "\n"))
}
