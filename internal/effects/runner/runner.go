// Package runner carries out planned effects, step by step: a step is committed as reserved before its call is made, and as done after, so that a process may end anywhere.
package runner

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Settings are the runner's numbers; tests shorten them.
type Settings struct {
	// PollEvery is how often each destination's effects are looked for that nobody told of.
	PollEvery time.Duration
	// Margin is how much longer than a call may take an effect stays taken. After that another process takes it.
	Margin time.Duration
	// LapseEvery is how often effects are given back whose process ended, handed over whose destination is not configured, and ended that nobody approved in time.
	LapseEvery time.Duration
	// Within bounds one transaction.
	Within time.Duration
	// StopWithin is how long calls under way may take at a stop.
	StopWithin time.Duration
	// MeasureEvery is how often metrics are read from the database.
	MeasureEvery time.Duration
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{PollEvery: time.Second, Margin: 30 * time.Second, LapseEvery: 5 * time.Second, Within: 10 * time.Second, StopWithin: 4 * time.Second, MeasureEvery: measureEvery}

// Options are what a runner works with.
type Options struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// ID names this process, and no other one, in what it takes.
	ID       string
	Settings Settings
	Logger   *slog.Logger
	// Metrics count; nil: nobody does.
	Metrics *Metrics
}

// Runner carries out effects.
type Runner struct {
	Options
	said sayings

	mu           sync.Mutex
	rules        *effects.Rules
	destinations map[string]*destination
	// turns are those of every name that was ever configured here: what is under way to one that is taken out counts when it comes back.
	turns map[string]*turns
	// replaced tells Run that there are other destinations.
	replaced chan struct{}
}

// New is a runner without rules; Replace gives it some.
func New(o Options) *Runner {
	return &Runner{Options: o, destinations: map[string]*destination{}, turns: map[string]*turns{}, replaced: make(chan struct{}, 1)}
}

// maxTurns is for how many seconds of a destination's rate there may be calls under way.
const maxTurns = 5

// handfuls is how many times as many effects of a destination may be in hand as there may be calls at once: those whose calls are over and that are being recorded.
const handfuls = 3

// destination is another side, with what is under way to it.
type destination struct {
	r       *Runner
	reach   config.Reach
	client  *http.Client
	limit   *rate.Limiter
	breaker *breaker
	turns   *turns
	wake    chan struct{}
	// lease is how long an effect is taken.
	lease time.Duration
	rules *effects.Rules
	// sides are all destinations of its configuration.
	sides sides
	stop  context.CancelFunc
}

// Replace makes others the rules and destinations in use. Calls under way go on, and count for the destination that has their name now.
func (r *Runner) Replace(rules *effects.Rules, reaches []config.Reach) {
	fresh := map[string]*destination{}
	r.mu.Lock()
	before := r.destinations
	r.mu.Unlock()
	for _, reach := range reaches {
		if reach.Rate > 0 { // none waits for its turn for as long as it is taken
			reach.Concurrency = min(reach.Concurrency, maxTurns*reach.Rate)
		}
		d := &destination{r: r, reach: reach, client: newClient(reach.Allow, reach.Concurrency), limit: rate.NewLimiter(rate.Inf, 1), wake: make(chan struct{}, 1), rules: rules, sides: fresh, turns: r.turnsOf(reach.Name), breaker: &breaker{}}
		if old := before[reach.Name]; old != nil && old.reach.Place() == reach.Place() {
			d.breaker = old.breaker
		}
		d.lease = reach.Longest + r.Settings.Margin
		if reach.Rate > 0 {
			d.limit = rate.NewLimiter(rate.Limit(reach.Rate), max(1, reach.Rate/10))
		}
		fresh[reach.Name] = d
	}
	r.mu.Lock()
	r.rules, r.destinations = rules, fresh
	r.mu.Unlock()
	r.said.anew()
	r.Metrics.know(r.names())
	select {
	case r.replaced <- struct{}{}:
	default:
	}
}

// turnsOf are the turns of a name.
func (r *Runner) turnsOf(name string) *turns {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turns[name] == nil {
		r.turns[name] = &turns{}
	}
	return r.turns[name]
}

// Wake tells of destinations that have something to do.
func (r *Runner) Wake(destinations []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range destinations {
		if d := r.destinations[name]; d != nil {
			d.awake()
		}
	}
}

func (d *destination) awake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run carries out effects until ctx ends, and lets calls under way come to their end.
func (r *Runner) Run(ctx context.Context) error {
	var lanes sync.WaitGroup
	defer r.tellRest(true)
	defer lanes.Wait()
	var running map[string]*destination
	if r.Metrics != nil {
		lanes.Go(func() { r.measure(ctx) })
	}
	lapse := time.NewTicker(r.Settings.LapseEvery)
	defer lapse.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.replaced:
			for _, d := range running {
				d.stop()
			}
			r.mu.Lock()
			running = r.destinations
			r.mu.Unlock()
			for _, d := range running {
				var own context.Context
				own, d.stop = context.WithCancel(ctx)
				lanes.Go(func() { d.run(own, ctx) })
			}
		case <-lapse.C:
			r.tellRest(false)
			if err := r.lapse(ctx); err != nil && ctx.Err() == nil {
				r.Logger.Warn("effects of processes that ended not given back; tried again", "error", err)
			}
			if running == nil { // nobody has said yet which destinations there are
				continue
			}
			if err := r.expire(ctx); err != nil && ctx.Err() == nil {
				r.Logger.Warn("effects that nobody approved in time not ended; tried again", "error", err)
			}
			if err := r.strays(ctx); err != nil && ctx.Err() == nil {
				r.Logger.Warn("effects of destinations that are not configured not seen to; tried again", "error", err)
			}
		}
	}
}

// lapse gives back what processes had taken that ended, and tells of which steps nobody knows since then whether they were done.
func (r *Runner) lapse(ctx context.Context) error {
	var ids []int64
	var doubts map[string][]ending
	err := postgres.InTx(ctx, r.Pool, "give back effects", r.Settings.Within, func(ctx context.Context, tx pgx.Tx) error {
		ids, doubts = nil, map[string][]ending{}
		rows, err := tx.Query(ctx, lapseSQL)
		if err != nil {
			return err
		}
		var e ending
		var doubted bool
		_, err = pgx.ForEachRow(rows, []any{&e.effect, &e.rule, &e.destination, &doubted}, func() error {
			if ids = append(ids, e.effect); doubted {
				e.stepIs = effects.Unknown
				doubts[e.destination] = append(doubts[e.destination], e)
			}
			return nil
		})
		return err
	})
	if err != nil || len(ids) == 0 {
		return err
	}
	r.Logger.Warn("effects were given back whose process ended; their steps in doubt are asked for, repeated under their keys, or left to a person", "effects", len(ids), "first", ids[:min(len(ids), fewMost)])
	for destination, all := range doubts {
		r.tellPeople(destination, all)
	}
	return nil
}

// run takes effects of one destination and makes their calls until ctx ends. Calls under way come to their end then, unless the process, which is whole, is stopped as well.
func (d *destination) run(ctx, whole context.Context) {
	defer d.client.CloseIdleConnections()
	calls, stop := lasting(whole, d.r.Settings.StopWithin)
	defer stop()
	slots, hand := make(chan struct{}, d.reach.Concurrency), make(chan struct{}, handfuls*d.reach.Concurrency)
	endings := make(chan ending, cap(hand))
	var underWay, recording sync.WaitGroup
	recorded, give := lasting(whole, d.r.Settings.StopWithin+recordWithin)
	defer give()
	recording.Go(func() { d.recorder(recorded, endings, hand) })
	defer recording.Wait()
	defer close(endings)
	defer underWay.Wait()
	poll := time.NewTicker(d.r.Settings.PollEvery)
	defer poll.Stop()
	for ctx.Err() == nil {
		free := d.turns.get(min(cap(slots)-len(slots), cap(hand)-len(hand)), cap(slots))
		taken, more, pause := d.take(ctx, free, len(slots))
		d.turns.give(free - len(taken))
		for _, c := range taken {
			slots <- struct{}{}
			hand <- struct{}{}
			underWay.Go(func() {
				endings <- d.carry(calls, c)
				<-slots
				d.turns.give(1)
				if 2*len(slots) <= cap(slots) { // several are taken in one transaction, while what came of those before is recorded
					d.r.Wake([]string{d.reach.Name}) // which may be another's by now, that waits for a turn
				}
			})
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-poll.C:
		case <-after(pause):
		}
	}
}

// after is a timer's channel; of zero one that never fires.
func after(pause time.Duration) <-chan time.Time {
	if pause == 0 {
		return nil
	}
	return time.After(pause)
}

// lasting is a context that outlives ctx by so long.
func lasting(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(by, cancel)
		context.AfterFunc(out, func() { timer.Stop() })
	})
	return out, func() { stop(); cancel() }
}

// take takes what there is room for. more says that there may be more to take at once; pause is how long the destination is to be left alone.
func (d *destination) take(ctx context.Context, free, underWay int) (calls []*call, more bool, pause time.Duration) {
	room, pause := d.breaker.room(free, underWay)
	if room == 0 {
		return nil, false, pause
	}
	var n int
	var over []ending
	err := postgres.InTx(ctx, d.r.Pool, "take effects", d.r.Settings.Within, func(ctx context.Context, tx pgx.Tx) (err error) {
		calls, over = nil, nil
		taken, err := claim(ctx, tx, d.reach.Name, d.r.ID, room, d.lease)
		if n = len(taken); err != nil || n == 0 {
			return err
		}
		for _, t := range taken {
			c, end := d.r.decide(t, func() (*call, *ending) { return d.next(t) })
			if end != nil {
				end.claims, end.rule = t.claims, t.rule
				over = append(over, *end)
				continue
			}
			calls = append(calls, c)
		}
		if err := reserve(ctx, tx, calls); err != nil {
			return err
		}
		if len(over) == 0 {
			return nil
		}
		_, err = record(ctx, tx, over)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			d.r.Logger.Warn("effects not taken; tried again", "destination", d.reach.Name, "error", err)
		}
		return nil, false, d.r.Settings.PollEvery
	}
	d.r.Metrics.ended(d.reach.Name, over)
	d.r.tellUnruled(over)
	d.r.tellPeople(d.reach.Name, over)
	d.r.Wake(following(over))
	return calls, n == room && len(calls) < free, 0
}
