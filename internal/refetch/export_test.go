package refetch

// InsertPendingSQL inserts requests for pending refetches. DeleteSuspendedSQL deletes suspended
// requests. LeaseRequestsSQL leases the requests that are due.
const (
	InsertPendingSQL   = insertPendingSQL
	DeleteSuspendedSQL = deleteSuspendedSQL
	LeaseRequestsSQL   = leaseRequestsSQL
)
