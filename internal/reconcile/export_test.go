package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
)

// ResetAccountChecks resets the account checks, as another configuration does.
func (r *Runner) ResetAccountChecks() { r.accountChecks.reset() }

// MonthlyBudgetError is the error of a call whose account has used its monthly calls.
func MonthlyBudgetError(wait time.Duration) error {
	return fmt.Errorf("call it: %w", &providerapi.MonthlyBudgetError{Limit: 9, Monthly: 10, Wait: wait})
}

// PassFunc returns the function that makes one pass over the refetch requests of a source, as Run
// does repeatedly.
func (l *Refetcher) PassFunc(s *providerapi.Source) func(context.Context) (int, error) {
	l.applySlots = make(chan struct{}, MaxConcurrentApplies)
	h := &sourceRefetcher{fetcher: fetcher{Runner: l.Runner, source: s, verification: []byte(`{"scheme":"api"}`)},
		refetcher: l}
	return h.pass
}

// WalkSQL reads one part of the mirror.
const WalkSQL = walkSQL

// IsIgnored reports whether a field is one of the ignored paths.
func IsIgnored(ignoredPaths []string, path string) bool {
	return (&item{ignoredPaths: ignoredPaths}).isIgnored(path)
}

// InsertPendingSQL inserts requests for pending refetches. DeleteSuspendedSQL deletes suspended
// requests. LeaseRequestsSQL leases the requests that are due.
const (
	InsertPendingSQL   = insertPendingSQL
	DeleteSuspendedSQL = deleteSuspendedSQL
	LeaseRequestsSQL   = leaseRequestsSQL
)

// ListScope returns the scope of the list of a type, as an object scan stores it.
func ListScope(s *providerapi.Source, objectType string) string {
	of := &objectScan{execution: &execution{fetcher: fetcher{source: s}}, lister: s.Reader.(provider.ObjectLister),
		objectType: objectType}
	return of.listScope()
}
