// Package runner executes planned effects, step by step. It commits a step as reserved before the
// request and its result after it, so that a process may end at any time. The processor daemon runs
// it. It never plans effects.
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

// Settings are the timings of the runner; tests shorten them.
type Settings struct {
	// PollEvery is how often each destination is checked for due effects that were not announced by
	// Wake.
	PollEvery time.Duration
	// LeaseMargin is how much longer than the longest call a lease lasts. After it, another process
	// leases the effect.
	LeaseMargin time.Duration
	// ReclaimEvery is how often expired leases are reclaimed, effects of unconfigured destinations
	// are redirected, and effects without approval expire.
	ReclaimEvery time.Duration
	// TxTimeout bounds one transaction.
	TxTimeout time.Duration
	// StopTimeout is how long calls in progress may take during a stop.
	StopTimeout time.Duration
	// MetricsEvery is how often metrics are read from the database.
	MetricsEvery time.Duration
}

// DefaultSettings are the settings of production.
var DefaultSettings = Settings{PollEvery: time.Second, LeaseMargin: 30 * time.Second, ReclaimEvery: 5 * time.Second,
	TxTimeout: 10 * time.Second, StopTimeout: 4 * time.Second, MetricsEvery: measureEvery}

// Options configure a runner.
type Options struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// ID identifies this process, and no other one, in leases.
	ID       string
	Settings Settings
	Logger   *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// Runner executes effects.
type Runner struct {
	Options
	logLimiter logSuppressor

	mu           sync.Mutex
	rules        *effects.Rules
	destinations map[string]*destination
	// slots are the call slots of each destination name that was ever configured here. If a removed
	// name is configured again, the calls that are still in progress count.
	slots map[string]*callSlots
	// replaced tells Run that the destinations have changed.
	replaced chan struct{}
}

// New returns a runner without rules; Replace sets them.
func New(o Options) *Runner {
	return &Runner{Options: o, destinations: map[string]*destination{}, slots: map[string]*callSlots{},
		replaced: make(chan struct{}, 1)}
}

// maxQueuedSeconds bounds the calls in progress to those that the destination's rate allows in so
// many seconds.
const maxQueuedSeconds = 5

// inProgressFactor is the ratio of effects in progress to concurrent calls of a destination. The
// difference are effects whose results are being recorded.
const inProgressFactor = 3

// destination is a configured destination with its calls.
type destination struct {
	r       *Runner
	config  config.ResolvedDestination
	client  *http.Client
	limit   *rate.Limiter
	breaker *breaker
	slots   *callSlots
	wake    chan struct{}
	// lease is how long an effect is leased.
	lease time.Duration
	rules *effects.Rules
	// configured are all destinations of the same configuration.
	configured destinationSet
	stop       context.CancelFunc
}

// Replace sets the rules and destinations. Calls in progress continue, and count for the
// destination that has their name now.
func (r *Runner) Replace(rules *effects.Rules, targets []config.ResolvedDestination) {
	next := map[string]*destination{}
	r.mu.Lock()
	before := r.destinations
	r.mu.Unlock()
	for _, target := range targets {
		if target.Rate > 0 { // no call waits for the rate limit as long as its lease lasts
			target.Concurrency = min(target.Concurrency, maxQueuedSeconds*target.Rate)
		}
		d := &destination{r: r, config: target, client: newClient(target.Allow, target.Concurrency),
			limit: rate.NewLimiter(rate.Inf, 1), wake: make(chan struct{}, 1), rules: rules, configured: next,
			slots: r.slotsOf(target.Name), breaker: &breaker{}}
		if target.AllowedOnly {
			d.client = newGuardedClient(requireListed(target.Allow), target.Concurrency)
		}
		if old := before[target.Name]; old != nil && old.config.Address() == target.Address() {
			d.breaker = old.breaker
		}
		d.lease = target.MaxTimeout + r.Settings.LeaseMargin
		if target.Rate > 0 {
			d.limit = rate.NewLimiter(rate.Limit(target.Rate), max(1, target.Rate/10))
		}
		next[target.Name] = d
	}
	r.mu.Lock()
	r.rules, r.destinations = rules, next
	r.mu.Unlock()
	r.logLimiter.resetRepeating()
	r.Metrics.register(r.destinationNames())
	select {
	case r.replaced <- struct{}{}:
	default:
	}
}

// slotsOf returns the call slots of a name.
func (r *Runner) slotsOf(name string) *callSlots {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots[name] == nil {
		r.slots[name] = &callSlots{}
	}
	return r.slots[name]
}

// Wake announces destinations that have due effects.
func (r *Runner) Wake(destinations []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range destinations {
		if d := r.destinations[name]; d != nil {
			d.notify()
		}
	}
}

func (d *destination) notify() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run executes effects until ctx ends, and then waits for calls in progress.
func (r *Runner) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer r.logSuppressed(true)
	defer workers.Wait()
	var running map[string]*destination
	if r.Metrics != nil {
		workers.Go(func() { r.measure(ctx) })
	}
	reclaim := time.NewTicker(r.Settings.ReclaimEvery)
	defer reclaim.Stop()
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
				workers.Go(func() { d.run(own, ctx) })
			}
		case <-reclaim.C:
			r.logSuppressed(false)
			if err := r.reclaim(ctx); err != nil && ctx.Err() == nil {
				r.Logger.Warn("expired leases of effects not reclaimed; retrying", "error", err)
			}
			if running == nil { // no destinations are configured yet
				continue
			}
			if err := r.expire(ctx); err != nil && ctx.Err() == nil {
				r.Logger.Warn("effects without approval not expired; retrying", "error", err)
			}
			if err := r.redirectDetached(ctx); err != nil && ctx.Err() == nil {
				r.Logger.Warn("effects of destinations that are not configured not redirected; retrying", "error", err)
			}
		}
	}
}

// reclaim ends the leases of processes that ended, and logs the steps whose outcome is unknown
// since then.
func (r *Runner) reclaim(ctx context.Context) error {
	var ids []int64
	var unknown map[string][]result
	err := postgres.InTx(ctx, r.Pool, "reclaim effects", r.Settings.TxTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			ids, unknown = nil, map[string][]result{}
			var e result
			var isUnknown bool
			err := postgres.ForEach(ctx, tx, reclaimSQL, nil, []any{&e.effect, &e.rule, &e.destination, &isUnknown},
				func() error {
					if ids = append(ids, e.effect); isUnknown {
						e.stepState = effects.Unknown
						unknown[e.destination] = append(unknown[e.destination], e)
					}
					return nil
				})
			return err
		})
	if err != nil || len(ids) == 0 {
		return err
	}
	r.Logger.Warn("the process that executed effects ended; steps with an unknown outcome are checked, repeated under "+
		"their keys, or left to an operator", "effects", len(ids), "first", ids[:min(len(ids), maxNamed)])
	for destination, all := range unknown {
		r.logNeedsReview(destination, all)
	}
	return nil
}

// run leases effects of one destination and executes their calls until ctx ends. Calls in progress
// then finish. If process ends, they may take at most StopTimeout.
func (d *destination) run(ctx, process context.Context) {
	defer d.client.CloseIdleConnections()
	callContext, stop := withGrace(process, d.r.Settings.StopTimeout)
	defer stop()
	slots, inProgress := make(chan struct{}, d.config.Concurrency),
		make(chan struct{}, inProgressFactor*d.config.Concurrency)
	results := make(chan result, cap(inProgress))
	var inFlight, recording sync.WaitGroup
	recordContext, stopRecording := withGrace(process, d.r.Settings.StopTimeout+recordTimeout)
	defer stopRecording()
	recording.Go(func() { d.recordResults(recordContext, results, inProgress) })
	defer recording.Wait()
	defer close(results)
	defer inFlight.Wait()
	poll := time.NewTicker(d.r.Settings.PollEvery)
	defer poll.Stop()
	for ctx.Err() == nil {
		free := d.slots.acquire(min(cap(slots)-len(slots), cap(inProgress)-len(inProgress)), cap(slots))
		leased, more, pause := d.leaseDue(ctx, free, len(slots))
		d.slots.release(free - len(leased))
		for _, c := range leased {
			slots <- struct{}{}
			inProgress <- struct{}{}
			inFlight.Go(func() {
				results <- d.execute(callContext, c)
				<-slots
				d.slots.release(1)
				// several effects are leased in one transaction, while earlier results are recorded
				if 2*len(slots) <= cap(slots) {
					// the name may belong to a new destination by now, which waits for a slot
					d.r.Wake([]string{d.config.Name})
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
		case <-timerChannel(pause):
		}
	}
}

// timerChannel returns the channel of a timer; for zero one that never fires.
func timerChannel(pause time.Duration) <-chan time.Time {
	if pause == 0 {
		return nil
	}
	return time.After(pause)
}

// withGrace returns a context that ends a grace period after ctx.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(out, func() { timer.Stop() })
	})
	return out, func() { stop(); cancel() }
}

// leaseDue leases as many effects as there is capacity for. more reports that more may be due at
// once; pause is how long to pause the destination.
func (d *destination) leaseDue(ctx context.Context, free, inFlight int) (calls []*call, more bool,
	pause time.Duration) {
	capacity, pause := d.breaker.capacity(free, inFlight)
	if capacity == 0 {
		return nil, false, pause
	}
	var n int
	var finished []result
	var skipped []skippedStep
	err := postgres.InTx(ctx, d.r.Pool, "lease effects", d.r.Settings.TxTimeout,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			calls, finished, skipped = nil, nil, nil
			leased, err := d.r.leaseEffects(ctx, tx, d.config.Name, capacity, d.lease)
			if n = len(leased); err != nil || n == 0 {
				return err
			}
			for _, t := range leased {
				c, end := d.r.decideSafely(t, func() (*call, *result) { return d.nextCall(t) })
				skipped = append(skipped, t.skipped...)
				if end != nil {
					end.leaseEpoch, end.rule = t.leaseEpoch, t.rule
					finished = append(finished, *end)
					continue
				}
				calls = append(calls, c)
			}
			if err := reserve(ctx, tx, calls, skipped); err != nil {
				return err
			}
			if len(finished) == 0 {
				return nil
			}
			_, err = record(ctx, tx, finished)
			return err
		})
	if err != nil {
		if ctx.Err() == nil {
			d.r.Logger.Warn("effects not leased; retrying", "destination", d.config.Name, "error", err)
		}
		return nil, false, d.r.Settings.PollEvery
	}
	d.r.Metrics.countResults(d.config.Name, finished)
	d.r.Metrics.countSkipped(skipped)
	d.r.logMissingRules(finished)
	d.r.logNeedsReview(d.config.Name, finished)
	d.r.Wake(dueDestinations(finished))
	return calls, n == capacity && len(calls) < free, 0
}
