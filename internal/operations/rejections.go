package operations

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// RejectionSelection selects rejected deliveries, by their ids or by a filter; the zero value
// selects all.
type RejectionSelection struct {
	IDs             IDs    `json:"ids,omitzero"`
	Source          string `json:"source,omitzero"`
	RejectionReason string `json:"rejection_reason,omitzero" validate:"omitempty,rejection_reason"`
	Since           Time   `json:"since,omitzero"`
	Until           Time   `json:"until,omitzero"`
	Cursor          string `json:"cursor,omitzero"`
}

// ReprocessParams select rejected deliveries to reprocess.
type ReprocessParams struct {
	RejectionSelection
	Reason string `json:"reason,omitzero"`
}

// ReprocessedRejection is a rejected delivery that was verified again, and may have been stored.
type ReprocessedRejection struct {
	ingest.Reverification
	// Stored are Postern's ids of the stored events, in the order of events; none if nothing was
	// stored.
	Stored []string `json:"stored"`
	// Note says that an event was stored before, with the same or with other content.
	Note string `json:"note,omitzero"`
}

// RejectionResults are the results for selected deliveries, the oldest first.
type RejectionResults struct {
	Items []ReprocessedRejection `json:"items"`
	// Verified is the number of items that are verified now, and Events that of their events.
	Verified int `json:"verified"`
	Events   int `json:"events"`
	// Remaining are the numbers of the other items by reason_now.
	Remaining map[string]int `json:"remaining"`
	// Next is the parameter cursor with which the next request continues; null if no selected
	// delivery is left.
	Next *string `json:"next_cursor"`
}

// Reprocessor verifies rejected deliveries again, and reprocesses them. It needs what a gateway
// has: the signing secrets and a pool with its role.
type Reprocessor struct {
	// Pool is connected as postern_gateway and has two connections. Verify does not use it.
	Pool *pgxpool.Pool
	// Endpoints returns the currently configured sources with their secrets.
	Endpoints func() []config.Endpoint
	// mu is locked while a delivery is stored, which takes two connections of Pool.
	mu sync.Mutex
}

// ErrNoReprocessor is the error of a process that cannot verify rejected deliveries again.
var ErrNoReprocessor = errors.New("this process has no signing secrets and no access of a gateway: send the request " +
	"to a gateway, to postern serve or to postern dev, or use the commands postern rejections verify and postern " +
	"rejections reprocess with --config FILE")

// RejectionView is a rejected delivery with the explanation of its verification.
type RejectionView struct {
	*ingest.RejectionDetail
	// How the current configuration verifies the delivery as of its receipt. It is left out where
	// the process has no such source, or only a part of the body is stored.
	Verification *provider.Explanation `json:"verification,omitzero"`
}

// Rejection returns one rejected delivery. endpoints are the configured sources, which may be none.
// Errors: events.ErrNotFound.
func Rejection(ctx context.Context, db postgres.DB, endpoints []config.Endpoint, id int64) (*RejectionView, error) {
	r, err := ingest.ShowRejection(ctx, db, id)
	if err != nil {
		return nil, err
	}
	v := &RejectionView{RejectionDetail: r}
	if !r.Truncated {
		v.Verification = ExplainVerification(endpoints, r.Source, r.Headers, r.Body, r.ReceivedAt.Time)
	}
	return v, nil
}

// ExplainVerification explains how the configured source verifies a stored delivery, of a rejection
// or an event, as of its time of receipt. It tries common mistakes too, so it is for deliveries
// that an operator selects. It returns nil if the source is not among the endpoints, or the
// delivery cannot be read.
func ExplainVerification(endpoints []config.Endpoint, source string, headers, body []byte,
	receivedAt time.Time) (x *provider.Explanation) {
	i := slices.IndexFunc(endpoints, func(e config.Endpoint) bool { return e.Source.Name == source })
	if i < 0 || len(endpoints[i].Source.Secrets) == 0 {
		return nil
	}
	d, err := events.DecodeDelivery(headers, body, receivedAt)
	if err != nil {
		return nil
	}
	defer func() {
		if recover() != nil { // a defect of the provider must not hide the delivery
			x = nil
		}
	}()
	x, err = provider.ExplainDelivery(endpoints[i].Provider, endpoints[i].Source, d, false)
	if err != nil {
		return nil
	}
	return x
}

const (
	// maxRejections is the maximum number of deliveries of one request.
	maxRejections = 1000
	// rejectionsTimeout is when a request starts no further delivery.
	rejectionsTimeout = 20 * time.Second
)

// Verify verifies rejected deliveries again as of their receipt, with the current configuration of
// the sources. It writes nothing. Errors: ErrNoReprocessor for a nil Reprocessor,
// events.ErrInvalid, events.ErrNotFound if only one delivery is named.
func (r *Reprocessor) Verify(ctx context.Context, pool *pgxpool.Pool, p RejectionSelection) (*RejectionResults,
	error) {
	return r.forEach(ctx, pool, p, func(*ReprocessedRejection) error { return nil })
}

// Reprocess does what Verify does, and stores the verified deliveries as the gateway would have
// stored them, each with an audit entry in its own transaction. A delivery that is stored is no
// longer rejected, so a repeated request changes nothing. After an error, the results of the
// deliveries before it are returned too. Errors: as Verify.
func (r *Reprocessor) Reprocess(ctx context.Context, pool *pgxpool.Pool, p ReprocessParams,
	by Requester) (*RejectionResults, error) {
	reason := strings.TrimSpace(p.Reason)
	if reason == "" {
		return nil, invalid("give a reason: it is stored in the audit and with each event")
	}
	if err := CheckStorable("reason", reason); err != nil {
		return nil, err
	}
	results, err := r.forEach(ctx, pool, p.RejectionSelection, func(item *ReprocessedRejection) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		receipts, err := ingest.Reprocess(ctx, r.Pool, &item.Reverification, by.Actor, reason)
		if err == nil {
			item.addReceipts(receipts)
		}
		return err
	})
	if err != nil || by.StoreResult == nil {
		return results, err
	}
	return results, postgres.InTx(ctx, pool, "store the result", changeTimeout, func(ctx context.Context,
		tx pgx.Tx) error {
		return by.StoreResult(ctx, tx, results)
	})
}

// forEach verifies the selected deliveries, and calls use for each verified one. It skips those
// that are deleted meanwhile, unless only one is named.
func (r *Reprocessor) forEach(ctx context.Context, pool *pgxpool.Pool, p RejectionSelection,
	use func(*ReprocessedRejection) error) (*RejectionResults, error) {
	if r == nil {
		return nil, ErrNoReprocessor
	}
	began, limit := time.Now(), rejectionsTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	ids, next, err := p.read(ctx, pool)
	if err != nil {
		return nil, err
	}
	endpoints, err := r.ingestEndpoints(ctx, pool)
	if err != nil {
		return nil, err
	}
	results := &RejectionResults{Items: []ReprocessedRejection{}, Remaining: map[string]int{}}
	for i, id := range ids {
		if i > 0 && time.Since(began) > limit {
			next = ids[i-1]
			break
		}
		err := results.add(ctx, pool, id, endpoints, use)
		if err != nil && (!errors.Is(err, events.ErrNotFound) || len(p.IDs) == 1) {
			return results, err
		}
	}
	if next > 0 {
		results.Next = new(events.MakeCursor(next))
	}
	return results, nil
}

func (results *RejectionResults) add(ctx context.Context, pool *pgxpool.Pool, id int64,
	endpoints map[string]ingest.Endpoint, use func(*ReprocessedRejection) error) error {
	rejection, err := ingest.ShowRejection(ctx, pool, id)
	if err != nil {
		return err
	}
	item := ReprocessedRejection{Reverification: ingest.Reverify(endpoints[rejection.Source], rejection),
		Stored: []string{}}
	if item.Verified {
		if err := use(&item); err != nil {
			return err
		}
		results.Verified++
		results.Events += len(item.Events)
	} else {
		results.Remaining[item.ReasonNow]++
	}
	item.DropBody()
	results.Items = append(results.Items, item)
	return nil
}

// read returns the ids of at most maxRejections selected deliveries in ascending order. More follow
// after next, unless it is 0.
func (p *RejectionSelection) read(ctx context.Context, pool *pgxpool.Pool) (ids []int64, next int64, err error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	if err != nil {
		return nil, 0, err
	}
	var after int64
	if err := events.ReadCursor(p.Cursor, &after); err != nil {
		return nil, 0, err
	}
	filter := ingest.RejectionFilter{Source: source, Reason: p.RejectionReason, Since: p.Since.at, Until: p.Until.at}
	switch {
	case p.IDs == nil:
		return ingest.RejectionIDs(ctx, pool, filter, after, maxRejections)
	case filter != (ingest.RejectionFilter{}):
		return nil, 0, invalid("give either ids of rejections or a filter that selects them")
	case len(p.IDs) > maxRejections:
		return nil, 0, invalid("%d ids are given, and %d are allowed: send several requests", len(p.IDs), maxRejections)
	}
	ids = slices.DeleteFunc(slices.Clone(p.IDs), func(id int64) bool { return id <= after })
	slices.Sort(ids)
	return slices.Compact(ids), 0, nil
}

// ingestEndpoints returns the configured sources by name.
func (r *Reprocessor) ingestEndpoints(ctx context.Context, pool *pgxpool.Pool) (map[string]ingest.Endpoint, error) {
	known, err := sources(ctx, pool)
	if err != nil {
		return nil, err
	}
	endpoints := map[string]ingest.Endpoint{}
	for _, e := range r.Endpoints() {
		if number, ok := known.Number[e.Source.Name]; ok { // otherwise nothing of it is stored
			endpoints[e.Source.Name] = ingest.Endpoint{Number: number, Config: e.Source, Provider: e.Provider}
		}
	}
	return endpoints, nil
}

func (item *ReprocessedRejection) addReceipts(receipts []events.Receipt) {
	for _, receipt := range receipts {
		item.Stored = append(item.Stored, strconv.FormatInt(receipt.ID, 10))
		switch {
		case receipt.Conflict:
			item.Note = "the log has the event id with other content: kept as a conflict"
		case receipt.Duplicate && item.Note == "":
			item.Note = "already in the log"
		}
	}
}
