// Package processor applies events to the mirror: it decides a batch of messages, writes objects,
// outcomes and the outbox row in one transaction, and acknowledges after the commit. It also runs
// the republisher, which publishes committed events without an outcome again, and the sender of the
// feed of changes. The serve command and the jobs (replay, rebuild, retention) call it; it never
// verifies deliveries or calls a provider's API.
package processor

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
)

// Settings are the limits and intervals of a processor. Tests shorten them.
type Settings struct {
	// Batch bounds the events of one transaction.
	Batch int
	// Workers is how many batches are applied at once. Objects are distributed over workers by
	// hash.
	Workers int
	// ApplyTimeout bounds one transaction.
	ApplyTimeout time.Duration
	// BackOff is how long a failed event waits after its first, second, ... attempt. After the last
	// attempt it is dead.
	BackOff []time.Duration
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

// DefaultSettings are the shipped settings. A failing event gets nine attempts in about 33 hours:
//
//	attempt  wait after it   since the first
//	1        10 s            10 s
//	2        1 min           1 min 10 s
//	3        5 min           6 min
//	4        30 min          36 min
//	5        2 h             2.6 h
//	6        6 h             8.6 h
//	7        8 h             16.6 h
//	8        16 h            32.6 h
//	9        dead
var DefaultSettings = Settings{
	Batch: 500, Workers: 2, ApplyTimeout: 30 * time.Second,
	BackOff: []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
		6 * time.Hour, 8 * time.Hour, 16 * time.Hour},
	RepublishInterval: 10 * time.Second, RepublishMinAge: time.Minute, RepublishLease: 30 * time.Second,
	RepublishMaxFill: 0.5, RepublishRate: 10_000,
	ResendAfter: 30 * time.Second, ChangeRetention: 10 * time.Minute, StopTimeout: 5 * time.Second,
}

// Source is a configured source as the processor uses it.
type Source struct {
	Number   int32
	Config   *provider.Source
	Provider provider.Provider
	// RefetchReader reads refetches. If it is nil, the provider reads them if it can.
	RefetchReader provider.Refetcher
	// LateEventGrace is how long the processor waits for a late event before it requests a refetch
	// of an object whose stored state does not match an event's previous attributes. Zero disables
	// these refetches.
	LateEventGrace time.Duration
	// ReadsByID reports whether the API can read an object by its id. Nil means that it reads none.
	ReadsByID func(account, objectType, id string) bool
	// Locates reports whether the API can find objects of a type by their stored state. Nil means
	// that it finds none.
	Locates func(account, objectType string) bool
}

// refetchReader returns the reader of the source's refetches, nil if there is none.
func (s Source) refetchReader() provider.Refetcher {
	if s.RefetchReader != nil {
		return s.RefetchReader
	}
	own, _ := s.Provider.(provider.Refetcher)
	return own
}

// Options configure a processor.
type Options struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// Conn may be nil for a processor that only applies (replay, tests).
	Conn   *stream.Conn
	Limits stream.Limits
	// Sources are the configured sources by name. Replace changes them.
	Sources map[string]Source
	// Known are all sources that the log has events of. The configured ones are added.
	Known events.Sources
	// Planned receives the destinations for which effects are due, after the commit that planned
	// them. It may be nil.
	Planned func(destinations []string)
	// ID names this process in leases.
	ID       string
	Settings Settings
	Logger   *slog.Logger
	Metrics  prometheus.Registerer
	// Tracer creates the spans. Nil means the tracer of the process.
	Tracer trace.Tracer
}

// Processor applies events. It has no state except its connections.
type Processor struct {
	Options
	sources *directory
	rules   *atomic.Pointer[effects.Rules]
	metrics metrics
	changes *sender
	// databaseError is the permission or schema error that stops applying, nil if there is none.
	databaseError *atomic.Pointer[error]
}

// New returns a processor. Run starts it; Apply works without Run.
func New(o Options) (*Processor, error) {
	p := &Processor{Options: o, sources: newDirectory(o.Known, o.Sources), databaseError: &atomic.Pointer[error]{},
		rules: &atomic.Pointer[effects.Rules]{}}
	p.changes = newSender(p)
	if p.Tracer == nil {
		p.Tracer = otel.Tracer("github.com/postern-gateway/postern/internal/processor")
	}
	return p, p.metrics.register(o.Metrics)
}

// Rules returns the current rules of effects, nil if there are none.
func (p *Processor) Rules() *effects.Rules { return p.rules.Load() }

// ReplaceRules replaces the rules of effects for events that are applied from now on. Without
// rules, applying does no work for effects.
func (p *Processor) ReplaceRules(r *effects.Rules) {
	if r.Empty() {
		r = nil
	}
	p.rules.Store(r)
}

// WithPool returns the same processor with another pool, also connected as postern_processor. Work
// through it never waits for the connections of live batches.
func (p *Processor) WithPool(pool *pgxpool.Pool) *Processor {
	other := *p
	other.Pool = pool
	return &other
}

// sourceEvent converts a record of the log to a stream event.
func (p *Processor) sourceEvent(r *events.Record) stream.Event {
	return stream.Event{StoredEvent: r.StoredEvent, Source: p.sources.name(r.Source), ObjectType: r.ObjectType,
		ObjectID: r.ObjectID, OccurredAt: r.OccurredAt, BodyInLog: r.BodyOmitted, Redacted: r.Redacted}
}
