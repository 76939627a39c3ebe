package refetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Refetcher makes the requested refetches. Any number of processes may run one; each request is
// leased by one of them at a time.
type Refetcher struct {
	*Resources
	// ID names this process as lease owner.
	ID     string
	Logger *slog.Logger
	// PollInterval is how often to query for due requests.
	PollInterval time.Duration

	applySlots chan struct{}
}

// MaxConcurrentApplies is how many refetches of all sources a process applies to the mirror at
// once. Each holds a connection, and may wait with it for the swap of a rebuild.
const MaxConcurrentApplies = 4

// Run makes refetches of the current sources until ctx ends. It logs failures and retries.
func (l *Refetcher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		passes, cancel := context.WithCancel(ctx)
		l.Sources.CancelOnReplace(cancel)
		var wg sync.WaitGroup
		for _, s := range l.Sources.All() {
			refetcher := l.ForSource(s)
			wg.Go(func() { refetcher.run(passes) })
		}
		<-passes.Done()
		wg.Wait()
		cancel()
	}
	return nil
}

// ForSource returns what makes the refetches of one source.
func (l *Refetcher) ForSource(s *providerapi.Source) *SourceRefetcher {
	if l.applySlots == nil {
		l.applySlots = make(chan struct{}, MaxConcurrentApplies)
	}
	return &SourceRefetcher{Fetcher: Fetcher{Resources: l.Resources, Source: s,
		Verification: []byte(`{"scheme":"api"}`)}, refetcher: l}
}

// SourceRefetcher makes the refetches of one source.
type SourceRefetcher struct {
	Fetcher
	refetcher *Refetcher
	// pendingCursor is where the next pass continues to search for objects with a pending refetch.
	// suspendedCursor is the same for suspended requests that are no longer needed.
	pendingCursor, suspendedCursor versioning.Key
	// resumed: suspended requests were checked once.
	resumed bool
}

// run passes until ctx ends. It passes again at once while passes use the whole concurrency.
func (h *SourceRefetcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := h.Pass(ctx)
		if err != nil && ctx.Err() == nil {
			h.refetcher.Logger.Warn("refetches failed; they are retried", "source", h.Source.Name, "error", err)
		}
		if n < h.concurrency() || err != nil {
			runs.Sleep(ctx, h.refetcher.PollInterval)
		}
	}
}

const (
	// pendingBatch is how many objects with a pending refetch one pass reads. maxLeasedRequests is
	// how many requests it leases at most.
	pendingBatch, maxLeasedRequests = 1000, 20
	// outcomePollDelay is when to check an object again whose refetch has no outcome yet and waits
	// for the republisher.
	outcomePollDelay = 2 * time.Minute
	// minRetryDelay and maxRetryDelay bound the wait after a failed attempt, which doubles each
	// time.
	minRetryDelay, maxRetryDelay = 2 * time.Second, time.Hour
)

// Pass inserts pending requests and makes the refetches that are due. n is how many requests it
// leased.
func (h *SourceRefetcher) Pass(ctx context.Context) (n int, err error) {
	defer func() {
		if p := recover(); p != nil { // resuming calls the provider's code
			err = PanicError(p)
		}
	}()
	if !h.resumed {
		if err := providerapi.OpenBudget(ctx, h.Pool, h.Source.Number, h.Source.API); err != nil {
			return 0, err
		}
		if err := h.resumeRequests(ctx); err != nil {
			return 0, err
		}
		h.resumed = true
	}
	if err := h.insertPending(ctx); err != nil {
		return 0, err
	}
	if err := h.deleteSuspended(ctx); err != nil {
		return 0, err
	}
	requests, err := h.leaseRequests(ctx)
	if err != nil {
		return 0, err
	}
	var g errgroup.Group
	for _, one := range requests {
		g.Go(func() error {
			err := h.process(ctx, one)
			if err != nil {
				h.returnRequest(ctx, one, err)
			}
			return err
		})
	}
	return len(requests), g.Wait()
}

// concurrency is how many refetches are made at once: all leased ones, because the leases of others
// would expire meanwhile.
func (h *SourceRefetcher) concurrency() int {
	return min(max(1, h.Source.API.Concurrency), maxLeasedRequests)
}

// insertPendingSQL inserts requests for objects with a pending refetch, a batch at a time in key
// order. A request that waits for late events becomes due, and is kept for them if the ambiguity
// ends. A suspended request becomes due if its object has become ambiguous again. Objects that have
// their request are excluded before the insert, which would lock each row that it meets.
const insertPendingSQL = `
WITH page AS MATERIALIZED (
  SELECT o.account, o.object_type, o.object_id, o.refetch_after FROM objects o
  WHERE o.source = $1 AND o.refetch_after <> 0 AND (o.account, o.object_type, o.object_id) > ($2, $3, $4)
  ORDER BY o.account, o.object_type, o.object_id LIMIT $5
), fresh AS MATERIALIZED (
  SELECT p.* FROM page p WHERE (SELECT h.missed_changes IS NULL AND h.due < 'infinity'
  	OR h.start_after >= p.refetch_after FROM refetch_requests h
    WHERE h.source = $1 AND h.account = p.account AND h.object_type = p.object_type AND h.object_id = p.object_id
    	LIMIT 1) IS NOT true
), made AS (
  INSERT INTO refetch_requests AS h (source, account, object_type, object_id, reason, requested_at, due, start_after)
  SELECT $1, p.account, p.object_type, p.object_id, 'ambiguous', n.at, n.at, p.refetch_after
  	FROM fresh p, (SELECT clock_now() AS at) n
  ORDER BY p.account, p.object_type, p.object_id
  ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET reason = CASE
  	WHEN h.requested_by = '' THEN excluded.reason ELSE h.reason END, due = excluded.due,
  		start_after = excluded.start_after
  WHERE (h.missed_changes IS NOT NULL OR h.due = 'infinity') AND h.start_after < excluded.start_after
)
SELECT p.account, p.object_type, p.object_id FROM page p ORDER BY p.account DESC, p.object_type DESC, p.object_id DESC
	LIMIT 1`

func (h *SourceRefetcher) insertPending(ctx context.Context) error {
	err := h.Pool.QueryRow(ctx, insertPendingSQL, h.Source.Number, h.pendingCursor.Account, h.pendingCursor.Type,
		h.pendingCursor.ID, pendingBatch).Scan(&h.pendingCursor.Account, &h.pendingCursor.Type, &h.pendingCursor.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		h.pendingCursor, err = versioning.Key{}, nil
	}
	if err != nil {
		return fmt.Errorf("insert pending refetch requests: %w", err)
	}
	return nil
}

// refetchRequest is a leased request.
type refetchRequest struct {
	key versioning.Key
	// requestedBy is the operator who requested it, "" if the mirror did. reason is the reason of
	// the request.
	requestedBy, reason string
	// requestedAt advances with each new reason for a refetch.
	requestedAt time.Time
	attempts    int
	// missedChange: a change-set did not fit the stored row, and the events between did not arrive
	// in time.
	missedChange bool
	// refetchAfter is the provider's time after which the refetch must begin, 0 if the object has
	// no pending refetch.
	refetchAfter int64
}

// leaseRequestsSQL leases due requests and reads when their objects need a refetch. $3 is the lease
// owner. A subquery reads the clock once, because a condition on a volatile function cannot use an
// index.
const leaseRequestsSQL = `
WITH due AS MATERIALIZED (
  SELECT h.account, h.object_type, h.object_id FROM refetch_requests h WHERE h.source = $1
  	AND h.due <= (SELECT clock_now())
  	AND h.lease_until < (SELECT clock_now())
  ORDER BY h.due LIMIT $2 FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE refetch_requests h SET lease_owner = $3, lease_until = clock_now() + $4::interval FROM due d
  WHERE h.source = $1 AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id
  RETURNING h.account, h.object_type, h.object_id, h.requested_by, h.reason, h.requested_at, h.attempts,
  	h.missed_changes IS NOT NULL AS missed_changes
)
SELECT t.account, t.object_type, t.object_id, t.requested_by, t.reason, t.requested_at, t.attempts, t.missed_changes,
	coalesce(o.refetch_after, 0) FROM taken t LEFT JOIN LATERAL (
  SELECT o.refetch_after FROM objects o WHERE o.source = $1 AND o.account = t.account AND o.object_type = t.object_type
  	AND o.object_id = t.object_id LIMIT 1) o ON true`

func (h *SourceRefetcher) leaseRequests(ctx context.Context) ([]refetchRequest, error) {
	var all []refetchRequest
	one := refetchRequest{key: versioning.Key{Source: h.Source.Number}}
	err := postgres.ForEach(ctx, h.Pool, leaseRequestsSQL, []any{h.Source.Number, h.concurrency(), h.refetcher.ID,
		h.Limits.Lease}, []any{&one.key.Account, &one.key.Type, &one.key.ID, &one.requestedBy, &one.reason,
		&one.requestedAt, &one.attempts, &one.missedChange, &one.refetchAfter}, func() error {
		all = append(all, one)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lease refetch requests: %w", err)
	}
	return all, nil
}

// process makes the refetch of a request, and deletes, reschedules or suspends the request. A
// request without a reason is deleted, and one that is too early waits.
func (h *SourceRefetcher) process(ctx context.Context, one refetchRequest) (err error) {
	defer func() {
		if p := recover(); p != nil { // otherwise each processor that leases the request would crash in turn
			err = h.reschedule(ctx, one, maxRetryDelay, one.attempts+1, PanicError(p))
		}
	}()
	if one.refetchAfter == 0 && one.requestedBy == "" && !one.missedChange {
		return h.deleteRequest(ctx, one)
	}
	if wait := h.remainingWait(one); wait > 0 {
		return h.reschedule(ctx, one, wait, one.attempts, nil)
	}
	// the rate budget may delay the refetch for longer than the lease
	within, cancel := lifecycle.WithTimeout(ctx, "refetch within the lease", h.Limits.Lease/2)
	defer cancel()
	d, err := h.refetchFor(within, one)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if reason := suspendReason(err); reason != nil {
		return h.suspend(ctx, one, suspension{reason: reason, refetchAfter: one.refetchAfter})
	}
	var spent *providerapi.MonthlyBudgetError
	if errors.As(err, &spent) {
		return h.reschedule(ctx, one, spent.Wait, one.attempts, spent)
	}
	if err != nil { // a failure of the API
		return h.reschedule(ctx, one, retryDelay(one.attempts), one.attempts+1, err)
	}
	if one.refetchAfter == 0 { // a manual refetch of an object without a pending one
		unknown, err := h.IsUnknownObject(ctx, d)
		if err != nil {
			return err
		}
		if unknown {
			h.refetcher.Logger.Info("manual refetch found nothing, and the mirror never had the object; nothing is "+
				"appended", "source", h.Source.Name, "account", one.key.Account, "type", one.key.Type, "object",
				one.key.ID, "actor", one.requestedBy, "reason", one.reason)
			return h.deleteRequest(ctx, one)
		}
	}
	return h.appendAndApply(ctx, within, one, d)
}

// errNoApplySlot: the refetch must not wait any longer, because its lease may expire and another
// process may lease it.
var errNoApplySlot = errors.New("earlier refetches are still being applied, for example behind the swap of a " +
	"rebuild; this one is made again later")

// appendAndApply appends a refetch and applies it, if it gets a slot before its lease may expire.
func (h *SourceRefetcher) appendAndApply(ctx, within context.Context, one refetchRequest, d *events.Delivery) error {
	select {
	case h.refetcher.applySlots <- struct{}{}:
		defer func() { <-h.refetcher.applySlots }()
	case <-within.Done():
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return h.reschedule(ctx, one, retryDelay(one.attempts), one.attempts, errNoApplySlot)
	}
	err := h.checkTombstoneLimit(ctx, one, d)
	if errors.As(err, new(*tooManyTombstonesError)) {
		return h.reschedule(ctx, one, maxRetryDelay, one.attempts+1, err)
	}
	if err != nil {
		return err
	}
	receipts, err := events.Append(ctx, h.Log, []events.Delivery{*d})
	if err != nil {
		return err
	}
	if _, err := h.Applier.PublishAndApply(ctx, []int64{receipts[0][0].ID}); err != nil {
		return err
	}
	return h.finish(ctx, one, d, receipts[0][0].ID)
}

// refetchFor makes the refetch of a request. The event records the operator who requested it.
func (h *SourceRefetcher) refetchFor(ctx context.Context, one refetchRequest) (*events.Delivery, error) {
	f := h.Fetcher
	if one.requestedBy != "" {
		verification, err := manualVerification(one)
		if err != nil {
			return nil, err
		}
		f.Verification, f.manual, f.ByOperator = verification, true, true
	}
	return f.Refetch(ctx, one.key)
}

// remainingWait returns how long the refetch must still wait. Its response must begin after the
// time that the object needs, on the provider's clock, however slow the call is.
func (h *SourceRefetcher) remainingWait(one refetchRequest) time.Duration {
	if one.refetchAfter == 0 {
		return 0
	}
	begin := time.UnixMicro(one.refetchAfter).Add(time.Second + h.Source.Caller.MaxLatency() + h.Source.Reader.Lag())
	return min(max(0, begin.Sub(h.Source.Caller.Now())), maxRetryDelay) // a simulated clock may be years ahead
}

// retryDelay returns how long to wait after a number of attempts.
func retryDelay(attempts int) time.Duration {
	return min(minRetryDelay<<min(attempts, 20), maxRetryDelay)
}

const deleteRequestSQL = `
WITH gone AS (
  DELETE FROM refetch_requests WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4
  	AND lease_owner = $5
  	AND requested_at = $6 RETURNING source
)
UPDATE refetch_requests SET lease_owner = '', lease_until = '-infinity'
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND lease_owner = $5 AND NOT EXISTS (SELECT
	FROM gone)`

// deleteRequest deletes a request that is no longer needed. If another reason was added meanwhile,
// it ends the lease instead.
func (h *SourceRefetcher) deleteRequest(ctx context.Context, one refetchRequest) error {
	if _, err := h.Pool.Exec(ctx, deleteRequestSQL, h.Source.Number, one.key.Account, one.key.Type, one.key.ID,
		h.refetcher.ID, one.requestedAt); err != nil {
		return fmt.Errorf("delete refetch request: %w", err)
	}
	return nil
}

const rescheduleSQL = `
UPDATE refetch_requests SET due = clock_now() + $6::interval, lease_owner = '', lease_until = '-infinity',
	attempts = $7, error = $8
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND lease_owner = $5`

// reschedule makes a request due later and ends its lease.
func (h *SourceRefetcher) reschedule(ctx context.Context, one refetchRequest, wait time.Duration, attempts int,
	cause error) error {
	text := ""
	if cause != nil {
		text = events.SanitizeText(cause.Error())
	}
	// a MonthlyBudgetError is logged once for all requests
	if cause != nil && !errors.As(cause, new(*providerapi.MonthlyBudgetError)) {
		h.refetcher.Logger.Warn("refetch failed; it is retried", "source", h.Source.Name, "type", one.key.Type,
			"object", one.key.ID, "wait", wait, "error", cause)
	}
	if _, err := h.Pool.Exec(ctx, rescheduleSQL, h.Source.Number, one.key.Account, one.key.Type, one.key.ID,
		h.refetcher.ID, wait, attempts, text); err != nil {
		return fmt.Errorf("reschedule refetch request: %w", err)
	}
	return nil
}

// returnTimeout bounds returning the request of an interrupted refetch, because a stop waits for
// it.
const returnTimeout = time.Second

// returnRequest returns the request of a refetch that did not finish. It is due at once after a
// stop or a new configuration. After a failure on this side it is due after a quarter of the lease,
// because the call may have been made and its event appended. It does not count as an attempt. If
// returning fails, the lease expires.
func (h *SourceRefetcher) returnRequest(ctx context.Context, one refetchRequest, cause error) {
	wait, text := h.Limits.Lease/4, events.SanitizeText(cause.Error())
	if ctx.Err() != nil {
		wait, text = 0, ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
	defer cancel()
	_, _ = h.Pool.Exec(ctx, rescheduleSQL, h.Source.Number, one.key.Account, one.key.Type, one.key.ID, h.refetcher.ID,
		wait, one.attempts, text)
}

// refetchResultSQL returns whether a refetch has its outcome, whether it was older than the mirror,
// and the time after which the object needs another refetch, 0 if it needs none.
const refetchResultSQL = `
SELECT EXISTS (SELECT FROM outcomes o WHERE o.event_id = $5 AND o.run = 0 AND o.status <> 'failed'),
  EXISTS (SELECT FROM outcomes o WHERE o.event_id = $5 AND o.run = 0 AND starts_with(o.reason, $6)),
  	coalesce((SELECT o.refetch_after FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3
  	AND o.object_id = $4), 0)`

// finish deletes a request whose object has no pending refetch any more. Otherwise another refetch
// follows, with a growing delay. If that cannot find more, the request is suspended.
func (h *SourceRefetcher) finish(ctx context.Context, one refetchRequest, d *events.Delivery, event int64) error {
	var applied, olderResponse bool
	var refetchAfter int64
	if err := h.Pool.QueryRow(ctx, refetchResultSQL, h.Source.Number, one.key.Account, one.key.Type, one.key.ID, event,
		versioning.ReasonOlderVersion).Scan(&applied, &olderResponse, &refetchAfter); err != nil {
		return fmt.Errorf("read the result of a refetch: %w", err)
	}
	switch {
	case !applied:
		return h.reschedule(ctx, one, outcomePollDelay, one.attempts, nil)
	case refetchAfter == 0:
		return h.deleteRequest(ctx, one)
	case olderResponse && one.attempts >= maxOlderResponses:
		return h.suspend(ctx, one, suspension{reason: errOlderState, refetchAfter: refetchAfter, manualDone: true})
	case refetchAfter == one.refetchAfter: // the refetch was late enough, and the object is unchanged
		reason, err := h.insufficiency(d)
		if err != nil {
			return err
		}
		if reason != nil {
			return h.suspend(ctx, one, suspension{reason: reason, refetchAfter: refetchAfter, manualDone: true})
		}
	}
	return h.reschedule(ctx, one, retryDelay(one.attempts), one.attempts+1, nil)
}

// manualVerification returns the verification of a manual refetch, in the place of a delivery's
// verification result. The time makes each manual refetch a different event.
func manualVerification(one refetchRequest) ([]byte, error) {
	return json.Marshal(struct {
		Scheme      string    `json:"scheme"`
		RequestedBy string    `json:"requested_by"`
		Reason      string    `json:"reason"`
		RequestedAt time.Time `json:"requested_at"`
	}{"api", one.requestedBy, one.reason, one.requestedAt.UTC()})
}
