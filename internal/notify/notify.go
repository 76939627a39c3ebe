// Package notify sends alerts to operators about failed runs, dead events, and effects that need
// review, await approval or have an unknown outcome. The processor daemon runs it. It never changes
// what it reports.
package notify

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
)

// Recipient is a configured receiver of notifications.
type Recipient struct {
	Name        string
	Destination config.ResolvedDestination
	// Notification says what to report and how often. Conditions is not empty.
	config.Notification
}

// Recipients returns the recipients of a checked configuration.
func Recipients(cfg *config.Config) (all []Recipient) {
	for name, n := range cfg.Notify {
		r := Recipient{Name: name, Destination: *cfg.ResolveDestination(n.To), Notification: *n}
		if len(r.Conditions) == 0 {
			for _, k := range topics {
				r.Conditions = append(r.Conditions, k.name)
			}
		}
		all = append(all, r)
	}
	return all
}

// Settings are the timings of the watcher; tests shorten them.
type Settings struct {
	// Every is the interval of checks.
	Every time.Duration
	// Timeout bounds the database part of a check.
	Timeout time.Duration
	// RunDelay is how long ago a run must have ended to be reported. By then, every run that ended
	// before it is visible.
	RunDelay time.Duration
	// FirstWait is the wait after a failed notification. It doubles with each failure, up to
	// MaxWait.
	FirstWait, MaxWait time.Duration
}

// DefaultSettings are the settings of production.
var DefaultSettings = Settings{Every: 30 * time.Second, Timeout: 10 * time.Second, RunDelay: 30 * time.Second,
	FirstWait: time.Minute, MaxWait: 30 * time.Minute}

// Watcher checks the database and sends notifications. Several processes may run one. Each
// notification is sent by one of them, and repeated only if that process ended before it recorded
// the result.
type Watcher struct {
	// Pool is connected as postern_processor.
	Pool     *pgxpool.Pool
	Settings Settings
	Logger   *slog.Logger

	sent       *prometheus.CounterVec
	mu         sync.Mutex
	recipients []Recipient
	// notifying are the names of the recipients that are being notified.
	notifying map[string]bool
}

// The results of notifications.
const (
	resultSent   = "sent"
	resultFailed = "failed"
)

// New returns a watcher without recipients; Replace sets them.
func New(pool *pgxpool.Pool, s Settings, logger *slog.Logger, reg prometheus.Registerer) (*Watcher, error) {
	w := &Watcher{Pool: pool, Settings: s, Logger: logger, notifying: map[string]bool{},
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_notifications_total",
			Help: "Notifications of the configuration's section notify by condition and result: sent, or " +
				"failed (Postern tries again)."}, []string{"condition", "result"})}
	for _, k := range topics {
		for _, result := range []string{resultSent, resultFailed} {
			w.sent.WithLabelValues(k.name, result)
		}
	}
	return w, reg.Register(w.sent)
}

// Replace sets the recipients.
func (w *Watcher) Replace(all []Recipient) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recipients = all
}

// Run checks until ctx ends. Each recipient has its own goroutine, so that a recipient that does
// not respond delays no other.
func (w *Watcher) Run(ctx context.Context) error {
	var notifiers sync.WaitGroup
	defer notifiers.Wait()
	tick := time.NewTicker(w.Settings.Every)
	defer tick.Stop()
	for {
		for _, r := range w.lockIdle() {
			notifiers.Go(func() {
				defer w.release(r.Name)
				if err := w.notify(ctx, &r); err != nil && ctx.Err() == nil {
					w.Logger.Warn("notifications not checked; retrying", "name", r.Name, "error", err)
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

// lockIdle returns the recipients that are not being notified, and marks them as being notified.
func (w *Watcher) lockIdle() (all []Recipient) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.recipients {
		if !w.notifying[r.Name] {
			w.notifying[r.Name] = true
			all = append(all, r)
		}
	}
	return all
}

func (w *Watcher) release(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.notifying, name)
}

// notify sends a recipient everything that is due.
func (w *Watcher) notify(ctx context.Context, r *Recipient) error {
	due, err := w.leaseDue(ctx, r)
	if err != nil {
		return err
	}
	for i := range due {
		err := runner.SendNotice(ctx, r.Destination, due[i].notice(r))
		if err != nil && ctx.Err() != nil {
			return ctx.Err() // another process sends it when the lease ends
		}
		result := resultSent
		if err != nil {
			result = resultFailed
			w.Logger.Warn("a notification was not sent; retrying", "name", r.Name, "condition", due[i].name, "error",
				err)
		}
		w.sent.WithLabelValues(due[i].name, result).Inc()
		if err := w.recordResult(ctx, r, &due[i], err); err != nil {
			return err
		}
	}
	return nil
}

// Test sends a recipient a test notice.
func Test(ctx context.Context, r *Recipient, at time.Time) error {
	t := notification{topic: topic{name: "test"}, phase: phaseTest, at: at, id: "postern-test-" +
		at.UTC().Format("20060102T150405.000000000")}
	return runner.SendNotice(ctx, r.Destination, t.notice(r))
}
