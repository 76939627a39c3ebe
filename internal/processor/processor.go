// Package processor applies events: a batch of messages is decided, written as sets in one transaction with its outcomes
// and its change row, and only then acknowledged. It also runs the auditor, which makes sure that no committed event is
// forgotten, and the sender of changes.
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

// Settings are the processor's numbers; tests shorten them.
type Settings struct {
	// Batch bounds the events of one transaction.
	Batch int
	// Lanes is how many batches are applied at once; objects are spread over them by hash.
	Lanes int
	// ApplyTimeout bounds one transaction.
	ApplyTimeout time.Duration
	// BackOff is how long a failed event waits after its first, second, ... attempt; after the last attempt it is dead.
	BackOff []time.Duration
	// AuditEvery is how often the auditor freezes a bound.
	AuditEvery time.Duration
	// AuditAge is how old an event without an outcome must be before the auditor publishes it again.
	AuditAge time.Duration
	// AuditLease is how long one process stays the auditor without renewing.
	AuditLease time.Duration
	// AuditShare is the lag, as a share of the stream's limits, above which the auditor publishes nothing more.
	AuditShare float64
	// AuditRate is how many events a second the auditor publishes at most.
	AuditRate int
	// SweepAfter is how long a change may stay unsent before any processor sends it again.
	SweepAfter time.Duration
	// KeepChanges is how long a sent change stays in the outbox, in case the stream loses it.
	KeepChanges time.Duration
	// StopWithin is the soft limit for finishing the messages in hand at a stop.
	StopWithin time.Duration
}

// DefaultSettings are the shipped ones. A failing event is tried nine times in about 33 hours:
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
	Batch: 500, Lanes: 2, ApplyTimeout: 30 * time.Second,
	BackOff: []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 6 * time.Hour,
		8 * time.Hour, 16 * time.Hour},
	AuditEvery: 10 * time.Second, AuditAge: time.Minute, AuditLease: 30 * time.Second, AuditShare: 0.5, AuditRate: 10_000,
	SweepAfter: 30 * time.Second, KeepChanges: 10 * time.Minute, StopWithin: 5 * time.Second,
}

// Source is a source as the processor needs it.
type Source struct {
	Number   int32
	Config   *provider.Source
	Provider provider.Provider
	// Looker reads looks; nil: the provider, where it can.
	Looker provider.Looker
	// Stragglers is how long to wait for late events before an object is looked at to which a change-set does not fit; 0: none is looked at for that.
	Stragglers time.Duration
	// Reads says whether the API reads such an object by its name; nil: it reads none.
	Reads func(account, objectType, id string) bool
	// Locates says whether the API reads objects of a type by what is known of them; nil: it reads none so.
	Locates func(account, objectType string) bool
}

// looker is who reads the source's looks; nil where nobody can.
func (s Source) looker() provider.Looker {
	if s.Looker != nil {
		return s.Looker
	}
	own, _ := s.Provider.(provider.Looker)
	return own
}

// Options are what a processor works with.
type Options struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// Conn may be nil for a processor that only applies (replay, tests).
	Conn   *stream.Conn
	Limits stream.Limits
	// Sources by name, until Replace gives others.
	Sources map[string]Source
	// Known are all sources the log has events of; those configured here are added.
	Known events.Sources
	// Planned is told which destinations have something to do, after the commit that planned it; nil: nobody is.
	Planned func(destinations []string)
	// ID names this process in leases.
	ID       string
	Settings Settings
	Logger   *slog.Logger
	Metrics  prometheus.Registerer
	// Tracer makes the spans; nil: the process's.
	Tracer trace.Tracer
}

// Processor applies events; it has no state but its connections.
type Processor struct {
	Options
	sources *directory
	rules   *atomic.Pointer[effects.Rules]
	metrics metrics
	changes *sender
	// refusal is why the database takes nothing of what is applied live; nil: it does.
	refusal *atomic.Pointer[error]
}

// New returns a processor; Run starts it, Apply may be called without.
func New(o Options) (*Processor, error) {
	p := &Processor{Options: o, sources: newDirectory(o.Known, o.Sources), refusal: &atomic.Pointer[error]{}, rules: &atomic.Pointer[effects.Rules]{}}
	p.changes = newSender(p)
	if p.Tracer == nil {
		p.Tracer = otel.Tracer("github.com/postern-gateway/postern/internal/processor")
	}
	return p, p.metrics.register(o.Metrics)
}

// Rules are the rules of effects in use; nil: there are none.
func (p *Processor) Rules() *effects.Rules { return p.rules.Load() }

// ReplaceRules makes others the rules of effects in use, for events that are applied from now on. Where there are none, applying costs nothing for them.
func (p *Processor) ReplaceRules(r *effects.Rules) {
	if r.None() {
		r = nil
	}
	p.rules.Store(r)
}

// On is the same processor over another pool, as postern_processor too: what is applied through it never waits for the connections of live batches.
func (p *Processor) On(pool *pgxpool.Pool) *Processor {
	other := *p
	other.Pool = pool
	return &other
}

// sourceEvent makes the stream's form of a record of the log.
func (p *Processor) sourceEvent(r *events.Record) stream.Event {
	return stream.Event{Stored: r.Stored, Source: p.sources.name(r.Source), ObjectType: r.ObjectType, ObjectID: r.ObjectID, OccurredAt: r.OccurredAt, BodyInLog: r.BodyLeftOut, Redacted: r.Redacted}
}
