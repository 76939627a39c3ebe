package refetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/versioning"
)

// errNoFetchUntilChange is the reason of a request that is suspended because the API has no call.
var errNoFetchUntilChange = fmt.Errorf("%w: no refetch is possible, so none is tried until the configuration or the "+
	"release changes; the object's next event removes the ambiguity", ErrNoFetch)

// maxOlderResponses is after how many attempts a refetch is suspended because the API still returns
// an older version than the mirror has. The waits between them add up to some eight minutes. A
// replica of the provider lags less than that.
const maxOlderResponses = 8

// errOlderState is the reason of a request that is suspended after maxOlderResponses.
var errOlderState = fmt.Errorf("%s than the mirror has, in %d attempts: the provider may have been restored from a "+
	"backup. Compare both, and run postern objects overwrite to overwrite the object from the API",
	versioning.ReasonOlderVersion, maxOlderResponses)

// suspendReason returns why no refetch is possible until something changes, nil if another attempt
// may succeed.
func suspendReason(err error) error {
	switch {
	case errors.Is(err, ErrNoFetch):
		return errNoFetchUntilChange
	case IsOtherObject(err):
		return fmt.Errorf("%w; no refetch is tried until a processor starts, or an operator requests one; the "+
			"object's next event removes the ambiguity", err)
	}
	return nil
}

// IsOtherObject reports whether the API returned another object than the requested one.
func IsOtherObject(err error) bool {
	var dead *provider.Dead
	return errors.As(err, &dead) && dead.WrongObject
}

// insufficiency returns why a refetch has too little data to remove an ambiguity, nil if it has
// enough. A version number says nothing about a deleted object, and a response may be truncated.
// Another refetch would return the same.
func (f *Fetcher) insufficiency(d *events.Delivery) (reason, err error) {
	refetched, err := provider.DecodeRefetch(d.Body)
	if err != nil {
		return nil, err
	}
	obs, err := f.Source.Reader.Snapshot(f.Source.Config, &refetched.Snapshot)
	if err != nil || obs.Partial == "" {
		return nil, f.MaskError(err)
	}
	return fmt.Errorf("the API does not return the object's whole state: %s; no refetch is tried until the object is "+
		"ambiguous again, a processor starts, or an operator requests one", f.Source.API.Mask(obs.Partial)), nil
}

// suspension is why a request is suspended, and what its object needs so far. A later refetchAfter
// of the object makes the request due. manualDone: the manual refetch was made.
type suspension struct {
	reason       error
	refetchAfter int64
	manualDone   bool
}

// suspendSQL suspends a request. If another reason was added meanwhile, which $8 shows, it stays
// due.
const suspendSQL = `
UPDATE refetch_requests SET due = CASE WHEN requested_at = $8 THEN 'infinity' ELSE due END, lease_owner = '',
	lease_until = '-infinity',
	attempts = attempts + 1, error = $6, start_after = $7,
  requested_by = CASE WHEN requested_at = $8 AND $9 THEN '' ELSE requested_by END, reason = CASE WHEN requested_at = $8
  	AND $9 THEN 'ambiguous' ELSE reason END
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND lease_owner = $5`

// suspend suspends a request for as long as the source's configuration is the same. The API has no
// call that resolves it, or returns another object, or too little of it.
func (h *SourceRefetcher) suspend(ctx context.Context, one refetchRequest, p suspension) error {
	h.refetcher.Logger.Warn("refetch not possible; suspended", "source", h.Source.Name, "type", one.key.Type, "object",
		one.key.ID, "error", p.reason)
	if _, err := h.Pool.Exec(ctx, suspendSQL, h.Source.Number, one.key.Account, one.key.Type, one.key.ID,
		h.refetcher.ID,
		events.SanitizeText(p.reason.Error()), p.refetchAfter, one.requestedAt, p.manualDone); err != nil {
		return fmt.Errorf("suspend refetch request: %w", err)
	}
	return nil
}

const listSuspendedSQL = `
SELECT h.account, h.object_type, h.object_id FROM refetch_requests h
WHERE h.source = $1 AND h.due = 'infinity' AND (h.account, h.object_type, h.object_id) > ($2, $3, $4)
ORDER BY h.account, h.object_type, h.object_id LIMIT $5`

const resumeSQL = `
UPDATE refetch_requests h SET due = clock_now() FROM unnest($2::text[], $3::text[], $4::text[]) AS w(account,
	object_type,
	object_id)
WHERE h.source = $1 AND h.account = w.account AND h.object_type = w.object_type AND h.object_id = w.object_id
	AND h.due = 'infinity'`

// resumeBudgetWaitsSQL makes requests due that wait for calls, because more calls may be allowed by
// now.
const resumeBudgetWaitsSQL = `UPDATE refetch_requests h SET due = clock_now() WHERE h.source = $1
	AND h.due > (SELECT clock_now())
	AND h.due < 'infinity' AND starts_with(h.error, $2)`

// resumeRequests makes those requests due that wait for calls, and those suspended ones for which
// the source now has a call.
func (h *SourceRefetcher) resumeRequests(ctx context.Context) error {
	if _, err := h.Pool.Exec(ctx, resumeBudgetWaitsSQL, h.Source.Number, providerapi.MonthlyBudgetMessage); err != nil {
		return fmt.Errorf("resume requests that wait for calls: %w", err)
	}
	var from versioning.Key
	for {
		rows, err := h.Pool.Query(ctx, listSuspendedSQL, h.Source.Number, from.Account, from.Type, from.ID,
			pendingBatch)
		if err != nil {
			return fmt.Errorf("read suspended requests: %w", err)
		}
		n := 0
		var accounts, types, ids []string
		_, err = pgx.ForEachRow(rows, []any{&from.Account, &from.Type, &from.ID}, func() error {
			n++
			_, ok := h.Source.Reader.Fetch(h.Source.Config, h.Source.API, from.Account, from.Type, from.ID)
			// the call depends on known data, which may be more by now
			if _, tries := h.Source.Reader.(provider.Locator); ok || tries {
				accounts, types, ids = append(accounts, from.Account), append(types, from.Type), append(ids, from.ID)
			}
			return nil
		})
		if err == nil && len(ids) > 0 {
			_, err = h.Pool.Exec(ctx, resumeSQL, h.Source.Number, accounts, types, ids)
		}
		if err != nil {
			return fmt.Errorf("resume suspended requests: %w", err)
		}
		if n < pendingBatch {
			return nil
		}
	}
}

// deleteSuspendedSQL deletes suspended requests, a batch at a time in key order, whose objects have
// no pending refetch any more or are not in the mirror. It keeps requests for missed changes and
// late events, which only a refetch or the events resolve. It also keeps manual refetches that were
// not made yet; suspendSQL removes the requester of those that were made.
const deleteSuspendedSQL = `
WITH page AS MATERIALIZED (
  SELECT h.account, h.object_type, h.object_id FROM refetch_requests h
  WHERE h.source = $1 AND h.due = 'infinity' AND (h.account, h.object_type, h.object_id) > ($2, $3, $4)
  ORDER BY h.account, h.object_type, h.object_id LIMIT $5
), gone AS (
  DELETE FROM refetch_requests h USING page p
  WHERE h.source = $1 AND h.account = p.account AND h.object_type = p.object_type AND h.object_id = p.object_id
  	AND h.due = 'infinity' AND h.requested_by = '' AND h.missed_changes IS NULL
    AND NOT EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = p.account
    	AND o.object_type = p.object_type AND o.object_id = p.object_id AND o.refetch_after <> 0)
)
SELECT p.account, p.object_type, p.object_id FROM page p ORDER BY p.account DESC, p.object_type DESC, p.object_id DESC
	LIMIT 1`

func (h *SourceRefetcher) deleteSuspended(ctx context.Context) error {
	err := h.Pool.QueryRow(ctx, deleteSuspendedSQL, h.Source.Number, h.suspendedCursor.Account, h.suspendedCursor.Type,
		h.suspendedCursor.ID,
		pendingBatch).Scan(&h.suspendedCursor.Account, &h.suspendedCursor.Type, &h.suspendedCursor.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		h.suspendedCursor, err = versioning.Key{}, nil
	}
	if err != nil {
		return fmt.Errorf("delete suspended requests: %w", err)
	}
	return nil
}
