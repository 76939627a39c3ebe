// Package apply decides a batch of events and commits it: objects, outcomes, changes and planned
// effects, in one transaction. The processor calls it for events that arrive, the jobs (replay,
// rebuild, retention, redaction, reconcile) for stored events. It never reads messages from the
// stream, verifies deliveries, or calls a provider's API.
package apply

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
	"github.com/postern-gateway/postern/internal/versioning"
)

// Settings are the limits of applying. Tests shorten them.
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
var DefaultSettings = Settings{Batch: 500, Workers: 2, ApplyTimeout: 30 * time.Second,
	BackOff: []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
		6 * time.Hour, 8 * time.Hour, 16 * time.Hour}}

// Source is a configured source as applying uses it.
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

// Options configure an applier.
type Options struct {
	// Pool is connected as postern_processor.
	Pool *pgxpool.Pool
	// Conn publishes stored events. It may be nil for an applier that only applies.
	Conn *stream.Conn
	// Limits are those of the streams that publishing creates if they are missing.
	Limits stream.Limits
	// Sources are the configured sources by name. Replace changes them.
	Sources map[string]Source
	// Known are all sources that the log has events of. The configured ones are added.
	Known events.Sources
	// Planned receives the destinations for which effects are due, after the commit that planned
	// them. It may be nil.
	Planned func(destinations []string)
	// Changed receives the objects that a committed transaction changed, with the row of the outbox
	// that announces them. It must not block. It may be nil.
	Changed  func(batch int64, objs []*versioning.Object)
	Settings Settings
	Logger   *slog.Logger
	// Metrics may be nil.
	Metrics prometheus.Registerer
	// Tracer creates the spans. Nil means the tracer of the process.
	Tracer trace.Tracer
}

// Applier applies events. It has no state except its connections.
type Applier struct {
	Options
	sources *directory
	rules   *atomic.Pointer[effects.Rules]
	metrics metrics
}

// New returns an applier.
func New(o Options) (*Applier, error) {
	a := &Applier{Options: o, sources: newDirectory(o.Known, o.Sources), rules: &atomic.Pointer[effects.Rules]{}}
	if a.Tracer == nil {
		a.Tracer = otel.Tracer("github.com/postern-gateway/postern/internal/apply")
	}
	if err := a.metrics.register(o.Metrics); err != nil {
		return nil, err
	}
	a.metrics.createSeries(o.Sources)
	return a, nil
}

// Rules returns the current rules of effects, nil if there are none.
func (a *Applier) Rules() *effects.Rules { return a.rules.Load() }

// ReplaceRules replaces the rules of effects for events that are applied from now on. Without
// rules, applying does no work for effects.
func (a *Applier) ReplaceRules(r *effects.Rules) {
	if r.Empty() {
		r = nil
	}
	a.rules.Store(r)
}

// WithLogger returns the same applier with another logger. A run's logger names the run.
func (a *Applier) WithLogger(log *slog.Logger) *Applier {
	other := *a
	other.Logger = log
	return &other
}

// WithPool returns the same applier with another pool, also connected as postern_processor. Work
// through it never waits for the connections of live batches.
func (a *Applier) WithPool(pool *pgxpool.Pool) *Applier {
	other := *a
	other.Pool = pool
	return &other
}
