package refetch

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/providerapi"
)

// Limits are time limits of refetches and account checks. Tests shorten them.
type Limits struct {
	// Overlap is how far before the watermark a run starts. ListDelay is how far before the
	// provider's now it ends, because later events may not be listed yet.
	Overlap, ListDelay time.Duration
	// EventRetention is how long the provider keeps its events.
	EventRetention time.Duration
	// Lease is the lease time of a refetch request.
	Lease time.Duration
	// AccountCheckTTL is how long a successful account check is cached.
	AccountCheckTTL time.Duration
}

// DefaultLimits are the shipped limits.
var DefaultLimits = Limits{Overlap: time.Hour, ListDelay: 30 * time.Second, EventRetention: 30 * 24 * time.Hour,
	Lease: 2 * time.Minute, AccountCheckTTL: 5 * time.Minute}

// Resources are what refetches and reconciliations read and append with.
type Resources struct {
	// Pool is connected as postern_processor. Log is connected as postern_gateway, which is the
	// only role that may append.
	Pool, Log *pgxpool.Pool
	Applier   *apply.Applier
	// Sources are the sources with an API.
	Sources *providerapi.Sources
	Limits  Limits
	// Now is this machine's clock, which gives refetched data its time of receipt; nil means
	// time.Now. Tests replace it.
	Now func() time.Time

	// accountChecks caches successful account checks.
	accountChecks accountCheckCache
}

// ReceiptTime returns the time of receipt of data that has just been fetched.
func (r *Resources) ReceiptTime() time.Time {
	if r.Now == nil {
		return time.Now().UTC()
	}
	return r.Now().UTC()
}
