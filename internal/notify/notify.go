// Package notify tells people what needs one: runs that failed, events that are dead, and effects that are in doubt or wait.
package notify

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/runner"
)

// Recipient is somebody who is told.
type Recipient struct {
	Name  string
	Reach config.Reach
	// Notification says of what, and how often. About is not empty.
	config.Notification
}

// Recipients are those of a configuration that was checked.
func Recipients(cfg *config.Config) (all []Recipient) {
	for name, n := range cfg.Notify {
		r := Recipient{Name: name, Reach: *cfg.Reach(n.To), Notification: *n}
		if len(r.About) == 0 {
			for _, k := range kinds {
				r.About = append(r.About, k.about)
			}
		}
		all = append(all, r)
	}
	return all
}

// Settings are the watcher's numbers; tests shorten them.
type Settings struct {
	// Every is how often is looked.
	Every time.Duration
	// Within bounds a look.
	Within time.Duration
	// Settled is how long ago a run must have ended, so that all that ended before it are seen.
	Settled time.Duration
	// FirstWait is how long is waited after what could not be told, and twice as long each further time, up to LongestWait.
	FirstWait, LongestWait time.Duration
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{Every: 30 * time.Second, Within: 10 * time.Second, Settled: 30 * time.Second, FirstWait: time.Minute, LongestWait: 30 * time.Minute}

// Watcher looks and tells. Any number of processes may: each thing is told by one of them, and again only where that one ended before it noted so.
type Watcher struct {
	// Pool is connected as postern_processor.
	Pool     *pgxpool.Pool
	Settings Settings
	Logger   *slog.Logger

	sent *prometheus.CounterVec
	mu   sync.Mutex
	all  []Recipient
	// busy are the names of those who are being told.
	busy map[string]bool
}

// The results of telling.
const (
	resultSent   = "sent"
	resultFailed = "failed"
)

// New is a watcher that tells nobody; Replace names some.
func New(pool *pgxpool.Pool, s Settings, logger *slog.Logger, reg prometheus.Registerer) (*Watcher, error) {
	w := &Watcher{Pool: pool, Settings: s, Logger: logger, busy: map[string]bool{}, sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_notifications_total",
		Help: "What the configuration's notify told, or could not, by what it is about: sent, or failed (tried again)."}, []string{"about", "result"})}
	for _, k := range kinds {
		for _, result := range []string{resultSent, resultFailed} {
			w.sent.WithLabelValues(k.about, result)
		}
	}
	return w, reg.Register(w.sent)
}

// Replace makes others those who are told.
func (w *Watcher) Replace(all []Recipient) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = all
}

// Run looks until ctx ends. Each of those who are told is by itself, so that one who does not answer keeps nobody waiting.
func (w *Watcher) Run(ctx context.Context) error {
	var looks sync.WaitGroup
	defer looks.Wait()
	tick := time.NewTicker(w.Settings.Every)
	defer tick.Stop()
	for {
		for _, r := range w.idle() {
			looks.Go(func() {
				defer w.release(r.Name)
				if err := w.look(ctx, &r); err != nil && ctx.Err() == nil {
					w.Logger.Warn("notifications not seen to; tried again", "name", r.Name, "error", err)
				}
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// idle takes those who are told and are not being told already.
func (w *Watcher) idle() (all []Recipient) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.all {
		if !w.busy[r.Name] {
			w.busy[r.Name] = true
			all = append(all, r)
		}
	}
	return all
}

func (w *Watcher) release(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.busy, name)
}

// look tells one of those who are told all that is due.
func (w *Watcher) look(ctx context.Context, r *Recipient) error {
	due, err := w.take(ctx, r)
	if err != nil {
		return err
	}
	for i := range due {
		err := runner.Tell(ctx, r.Reach, due[i].notice(r))
		if err != nil && ctx.Err() != nil {
			return ctx.Err() // what was taken is told by another process
		}
		result := resultSent
		if err != nil {
			result = resultFailed
			w.Logger.Warn("a notification was not sent; tried again", "name", r.Name, "about", due[i].about, "error", err)
		}
		w.sent.WithLabelValues(due[i].about, result).Inc()
		if err := w.note(ctx, r, &due[i], err); err != nil {
			return err
		}
	}
	return nil
}

// Test sends somebody who is told a notice that says that it is a test.
func Test(ctx context.Context, r *Recipient, at time.Time) error {
	t := tell{kind: kind{about: "test"}, phase: phaseTest, at: at, id: "postern-test-" + at.UTC().Format("20060102T150405.000000000")}
	return runner.Tell(ctx, r.Reach, t.notice(r))
}
