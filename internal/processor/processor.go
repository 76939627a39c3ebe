// Package processor is the daemon that applies events. Its workers read batches of messages from
// the stream, apply them, and acknowledge after the commit. The republisher publishes committed
// events without an outcome again, and the sender publishes the changes of objects to the feed. The
// serve command runs it. It decides nothing about events: that is in package apply.
package processor

import (
	"sync/atomic"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Settings are the limits and intervals of a processor, with those of applying. Tests shorten them.
type Settings struct {
	apply.Settings
	// RepublishInterval is the time between two passes of the republisher.
	RepublishInterval time.Duration
	// RepublishMinAge is the age from which an event without an outcome is published again.
	RepublishMinAge time.Duration
	// RepublishLease is how long a process stays the republisher without renewing the lease.
	RepublishLease time.Duration
	// RepublishMaxFill is the share of the stream's limits above which the republisher publishes
	// nothing.
	RepublishMaxFill float64
	// RepublishRate is the maximum of events that the republisher publishes in a second.
	RepublishRate int
	// ResendAfter is how long a change may stay unsent before any processor sends it again.
	ResendAfter time.Duration
	// ChangeRetention is how long a sent change stays in the outbox, in case the stream loses it.
	ChangeRetention time.Duration
	// StopTimeout is the soft limit for finishing the messages in progress at a stop.
	StopTimeout time.Duration
}

// DefaultSettings are the shipped settings.
var DefaultSettings = Settings{
	Settings:          apply.DefaultSettings,
	RepublishInterval: 10 * time.Second, RepublishMinAge: time.Minute, RepublishLease: 30 * time.Second,
	RepublishMaxFill: 0.5, RepublishRate: 10_000,
	ResendAfter: 30 * time.Second, ChangeRetention: 10 * time.Minute, StopTimeout: 5 * time.Second,
}

// Options configure a processor.
type Options struct {
	// Options are those of the applier. New sets their Settings and Changed.
	apply.Options
	// ID names this process in leases.
	ID       string
	Settings Settings
}

// Processor applies the events of the stream.
type Processor struct {
	*apply.Applier
	ID       string
	Settings Settings
	metrics  metrics
	changes  *sender
	// committed has an element after a commit whose changes have no numbers yet.
	committed chan struct{}
	forwards  *forwarder
	// databaseError is the permission or schema error that stops applying, nil if there is none.
	databaseError atomic.Pointer[error]
}

// New returns a processor. Run starts it; Apply works without Run.
func New(o Options) (p *Processor, err error) {
	p = &Processor{ID: o.ID, Settings: o.Settings, committed: make(chan struct{}, 1)}
	p.changes, p.forwards = newSender(p), newForwarder(p)
	o.Options.Settings, o.Changed = o.Settings.Settings, p.changed
	if p.Applier, err = apply.New(o.Options); err != nil {
		return nil, err
	}
	return p, p.metrics.register(o.Metrics)
}

// changed takes the changes of a committed transaction. It never blocks.
func (p *Processor) changed(batch int64, objs []*versioning.Object) {
	select {
	case p.committed <- struct{}{}:
	default:
	}
	p.changes.offer(batch, objs)
	p.forwards.notify()
}
