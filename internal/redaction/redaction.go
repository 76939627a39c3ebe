// Package redaction permanently clears events and the data that was derived from them. It is the
// legal exception to the append-only log. Operators and senders request it, a processor executes
// it, and a database function clears the rows and writes the audit. It never clears the audit or
// the keys of events.
package redaction

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Job is the name of redactions in the ledger of runs.
const Job = "redact"

// Params selects the data that a redaction clears.
type Params struct {
	// Events are ids of Postern; each is cleared with its whole delivery.
	Events []int64 `json:"events,omitempty"`
	// Objects are cleared with all events that were applied to them, or named them at ingest.
	Objects []Object `json:"objects,omitempty"`
	// Source is the number of the source whose log is searched, 0 for all if the matchers search
	// any place. Account, if not nil, is its account; "" is for events without one.
	Source  int32   `json:"source,omitempty"`
	Account *string `json:"account,omitempty"`
	// Matchers select events of the source by values in their bodies; one match is enough.
	Matchers []ValueMatcher `json:"finds,omitempty"`
	// Persons, if not nil, identifies other persons. Data that names another person too stays,
	// unless its type is in Include.
	Persons *PersonIdentifiers `json:"persons,omitempty"`
	Include []string           `json:"include,omitempty"`
	// All selects all events of the account.
	All bool `json:"all,omitempty"`
	// RequestedBy is the event with the sender's request.
	RequestedBy int64 `json:"requested_by,string,omitempty"`
	// Until is the event with the sender's request: data received after it stays, whatever its id.
	// 0 clears all that exists when the run begins.
	Until int64 `json:"until,string,omitempty"`
	// Description describes the request without any value.
	Description map[string]string `json:"input,omitempty"`
}

// Object identifies an object.
type Object struct {
	Source  int32  `json:"source"`
	Account string `json:"account"`
	Type    string `json:"type"`
	ID      string `json:"id"`
}

func (o Object) hash() int64 { return versioning.ObjectKey(o.Source, o.Account, o.Type, o.ID) }

// searchesBodies reports whether the bodies of the log and the states of objects have to be
// searched.
func (o *Params) searchesBodies() bool { return len(o.Matchers) > 0 || o.takesWholeAccount() }

// takesWholeAccount reports whether everything of an account is cleared.
func (o *Params) takesWholeAccount() bool { return o.All && o.Account != nil && *o.Account != "" }

// mentionsOnly reports whether all matchers search any place.
func (o *Params) mentionsOnly() bool {
	return len(o.Matchers) > 0 && !slices.ContainsFunc(o.Matchers, func(f ValueMatcher) bool { return !f.isMention() })
}

// sources returns the numbers of the sources to search.
func (o *Params) sources(ctx context.Context, db querier) ([]int32, error) {
	if o.Source != 0 {
		return []int32{o.Source}, nil
	}
	return Sources(ctx, db)
}

const sourcesSQL = `SELECT number FROM sources ORDER BY number`

// Sources returns the numbers of all sources.
func Sources(ctx context.Context, db querier) ([]int32, error) {
	return postgres.Collect(ctx, db, pgx.RowTo[int32], sourcesSQL)
}

// readsLog reports whether the log has to be read.
func (o *Params) readsLog() bool { return o.searchesBodies() || len(o.Objects) > 0 }

// filter selects the part of the log to search.
func (o *Params) filter() *events.Filter {
	return &events.Filter{Source: o.Source, Account: o.Account}
}

// complete parses the matchers of stored parameters and validates them.
func (o *Params) complete() error {
	for i := range o.Matchers {
		if err := o.Matchers[i].parsePath(); err != nil {
			return err
		}
	}
	if o.searchesBodies() && o.Source == 0 && !o.mentionsOnly() {
		return fmt.Errorf("%w: no source is named", events.ErrInvalid)
	}
	return nil
}

// Runner executes redactions.
type Runner struct {
	// Pool is connected as postern_processor.
	Pool    *pgxpool.Pool
	Applier *apply.Applier
	// Conn connects to the streams that may hold messages of redacted events; nil if there are
	// none.
	Conn *stream.Conn
}

// The counts of a run.
const (
	CountEvents     = "processed"
	CountObjects    = "objects"
	CountConflicts  = "conflicts"
	CountRejections = "rejections"
	CountExamined   = "searched"
	CountMessages   = "messages"
	CountRequests   = "requests_left"
	CountShared     = "shared_left"
	CountUnread     = "unread"
)

// How many events are redacted in one transaction, and how many are read between two checkpoints.
const (
	redactBatch = 100
	readBatch   = 500
)

// namedDone is the cursor after which only the search of the log remains.
const namedDone = 1

// Execute executes a redaction run. It is a runs.Executor. All of it may be repeated. Cleared data
// stays cleared, and data newer than the run's bound stays.
func (r *Runner) Execute(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
	var params Params
	if err := h.DecodeParams(&params); err != nil {
		return "", err
	}
	if err := params.complete(); err != nil {
		return "", runs.Permanent(err)
	}
	named := *r
	named.Applier = r.Applier.WithLogger(log)
	w := &execution{Runner: &named, params: &params, lease: h, firstExecution: h.Bound == 0}
	if w.firstExecution {
		if err := w.waitForSpools(ctx); err != nil {
			return "", err
		}
		if err := w.saveBound(ctx); err != nil {
			return "", err
		}
	}
	if err := w.prepare(ctx); err != nil {
		return "", err
	}
	for _, part := range []func(context.Context) (runs.Status, error){w.redactNamed, w.redactLog, w.redactConflicts,
		w.redactObjects, w.redactOtherTables, w.reapplyCleared, w.reapplySameVersion, w.deleteMessages, w.finish} {
		if status, err := part(ctx); err != nil || status != runs.Running {
			return status, err
		}
	}
	log.Info("redacted", "events", h.Counts[CountEvents], "objects", h.Counts[CountObjects])
	return runs.Running, nil
}

// execution is the execution of one run.
type execution struct {
	*Runner
	params *Params
	lease  *runs.Lease
	// ownDelivery are the events of the delivery that requested the redaction.
	ownDelivery  []int64
	openRequests *openRequests
	// firstExecution reports that no process has executed the run before.
	firstExecution bool
	// objectsCleared reports that objects were cleared, because of their state or with their
	// events.
	objectsCleared bool
	// requestedAt is when the request named by Until was received; nil if there is none.
	requestedAt *time.Time
}

// prepare reads the open requests.
func (w *execution) prepare(ctx context.Context) (err error) {
	if w.params.RequestedBy != 0 {
		if w.ownDelivery, err = siblings(ctx, w.Pool, []int64{w.params.RequestedBy}); err != nil {
			return err
		}
	}
	if w.requestedAt, err = receivedAt(ctx, w.Pool, w.params.Until); err != nil {
		return err
	}
	w.openRequests, err = loadOpenRequests(ctx, w.Pool)
	return err
}

// saveBound saves the current end of the log as the bound of the run. The id of a request is not a
// bound, because events received before it may have left a spool later.
func (w *execution) saveBound(ctx context.Context) error {
	bound, err := events.FreezeBound(ctx, w.Pool)
	if err != nil {
		return err
	}
	return w.lease.SetBound(ctx, bound)
}

// redactNamed redacts the named events and objects, and rejected deliveries that contain a value.
func (w *execution) redactNamed(ctx context.Context) (runs.Status, error) {
	if w.lease.Cursor >= namedDone {
		return runs.Running, nil
	}
	if err := w.redact(ctx, nil, nil, nil); err != nil { // this starts the audit, even if nothing is found
		return "", err
	}
	for _, o := range w.params.Objects {
		err := eachEventOf(ctx, w.Pool, o, w.lease.Bound, func(ids []int64) error { return w.redactFound(ctx, ids) })
		if err == nil {
			err = w.redact(ctx, nil, []Object{o}, nil)
		}
		if err == nil {
			err = w.deleteRefetch(ctx, o)
		}
		if err != nil {
			return "", err
		}
	}
	for some := range slices.Chunk(w.params.Events, redactBatch) {
		if err := w.redact(ctx, some, nil, nil); err != nil {
			return "", err
		}
	}
	err := w.clearDifferences(ctx)
	if err == nil {
		err = w.redactRejections(ctx)
	}
	// a rejection that an operator reprocessed before the search of the rejections is now in the
	// log, above the first bound
	if err == nil && w.firstExecution {
		err = w.saveBound(ctx)
	}
	if err != nil {
		return "", err
	}
	return w.lease.Advance(ctx, namedDone)
}

// redactLog searches the log, from the run's checkpoint to its bound.
func (w *execution) redactLog(ctx context.Context) (runs.Status, error) {
	for w.params.readsLog() && w.lease.Cursor < w.lease.Bound {
		ids, end, err := events.Match(ctx, w.Pool, w.params.filter(), w.lease.Cursor, w.lease.Bound)
		if err != nil {
			return "", err
		}
		found, err := w.params.namedAtIngest(ctx, w.Pool, w.lease.Cursor, end)
		if err == nil {
			err = w.redactFound(ctx, found)
		}
		if err != nil {
			return "", err
		}
		atOnce := readBatch
		if !w.params.searchesBodies() { // no body is read
			atOnce = max(len(ids), atOnce)
		}
		for some := range slices.Chunk(ids, atOnce) {
			wanted, err := w.withoutLater(ctx, some)
			if err != nil {
				return "", err
			}
			selected, err := w.params.selectEvents(ctx, w.Pool, wanted)
			if err == nil {
				err = w.redactFound(ctx, selected.found)
			}
			if err != nil {
				return "", err
			}
			w.lease.Counts[CountUnread] += int64(len(selected.unreadable))
			w.lease.Counts[CountShared] += int64(len(selected.shared))
			w.lease.Counts[CountExamined] += int64(len(wanted))
			if status, err := w.lease.Advance(ctx, some[len(some)-1]); err != nil || status != runs.Running {
				return status, err
			}
		}
		if status, err := w.lease.Advance(ctx, end); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, context.Cause(ctx)
}

// redactFound redacts events that were found, in batches.
func (w *execution) redactFound(ctx context.Context, ids []int64) error {
	ids, err := w.withoutLater(ctx, ids)
	if err != nil {
		return err
	}
	ids, excluded, err := w.openRequests.exclude(ctx, w.Pool, ids, w.params.RequestedBy)
	if err != nil {
		return err
	}
	w.lease.Counts[CountRequests] += excluded
	for some := range slices.Chunk(ids, redactBatch) {
		if err := w.redact(ctx, some, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// smallBody is the largest body, in bytes, that is read together with others.
const smallBody = 64 << 10

// selection is the result of a search: matching events, events with an unreadable body, and events
// that stay because they name another person too.
type selection struct {
	found, unreadable []int64
	shared            []events.Record
}

// selectEvents searches events. Parameters that take the whole account match all of them.
func (o *Params) selectEvents(ctx context.Context, pool *pgxpool.Pool, ids []int64) (c selection, err error) {
	switch {
	case !o.searchesBodies():
		return c, nil
	case o.takesWholeAccount():
		c.found = ids
		return c, nil
	}
	recs, err := events.Read(ctx, pool, ids, smallBody)
	if err != nil {
		return c, err
	}
	headers, err := o.readHeaders(ctx, pool, ids)
	if err != nil {
		return c, err
	}
	slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(a.ID, b.ID) })
	var last delivery
	for i := range recs {
		if recs[i].Redacted {
			continue
		}
		if last.id != recs[i].DeliveryID {
			if last, err = o.readDelivery(ctx, pool, &recs[i]); err != nil {
				return c, err
			}
		}
		hit, unreadable := o.matchEvent(&recs[i], last, headers[recs[i].ID])
		var shared bool
		if hit {
			if shared, err = o.namesOthers(ctx, pool, subjectOf(&recs[i]), last.body); err != nil {
				return c, err
			}
		}
		switch {
		case shared:
			recs[i].Body = nil
			c.shared = append(c.shared, recs[i])
		case hit:
			c.found = append(c.found, recs[i].ID)
		case unreadable:
			c.unreadable = append(c.unreadable, recs[i].ID)
		}
	}
	slices.Sort(c.found)
	slices.Sort(c.unreadable)
	return c, nil
}

// delivery is the body that several events share. It is searched once for all of them.
type delivery struct {
	id                int64
	body              []byte
	found, unreadable bool
}

// readDelivery searches the body of an event.
func (o *Params) readDelivery(ctx context.Context, pool *pgxpool.Pool, e *events.Record) (delivery, error) {
	d := delivery{id: e.DeliveryID, body: e.Body}
	if e.BodyOmitted {
		whole, err := events.Read(ctx, pool, []int64{e.ID}, events.UnlimitedBody)
		if err != nil {
			return d, err
		}
		if len(whole) > 0 { // its partition may be dropped
			d.body = whole[0].Body
		}
	}
	d.found, d.unreadable = search(o.Matchers, d.body)
	return d, nil
}

// subjectOf returns the subject of an event. Without an object, its kind is the event's type.
func subjectOf(e *events.Record) subject {
	return subject{e.Source, e.Account, cmp.Or(e.ObjectType, e.Type), e.ObjectID}
}

const headersSQL = `SELECT e.id, e.headers FROM events e WHERE e.id = ANY($1::bigint[]) AND e.headers <> '{}'`

// readHeaders returns the headers of events if a matcher searches any place.
func (o *Params) readHeaders(ctx context.Context, pool *pgxpool.Pool, ids []int64) (map[int64][]byte, error) {
	if !slices.ContainsFunc(o.Matchers, func(f ValueMatcher) bool { return f.isMention() }) {
		return nil, nil //nolint:nilnil // a map to read only
	}
	all := map[int64][]byte{}
	var id int64
	var headers []byte
	if err := postgres.ForEach(ctx, pool, headersSQL, []any{ids}, []any{&id, &headers}, func() error {
		all[id], headers = headers, nil
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	return all, nil
}

const (
	redactSQL = `SELECT cleared_events, cleared_objects, cleared_conflicts, cleared_rejections
		FROM redact_events($1, $2, $3, $4, $5, $6, $7, $8)`

	endSQL = `SELECT end_redaction($1)`
)

// redactTimeout bounds one transaction.
const redactTimeout = 30 * time.Second

// redact clears events, objects and rejections. It leaves out the delivery that requested the
// redaction, which finish clears last.
func (w *execution) redact(ctx context.Context, ids []int64, objects []Object, rejections []int64) error {
	return w.clear(ctx, without(ids, w.ownDelivery), objects, rejections,
		func(_ context.Context, _ pgx.Tx, redact func() error) error { return redact() })
}

// clear clears events, objects and rejections in one transaction, under the locks that applying
// takes. with runs in the transaction. It calls redact and may add statements before and after it.
func (w *execution) clear(ctx context.Context, ids []int64, objects []Object, rejections []int64,
	with func(ctx context.Context, tx pgx.Tx, redact func() error) error) error {
	ids, err := siblings(ctx, w.Pool, ids)
	if err != nil {
		return err
	}
	locks, err := w.Applier.LockKeys(ctx, ids)
	if err != nil {
		return err
	}
	k := keys{[]int32{}, []string{}, []string{}, []string{}}
	for _, o := range objects {
		locks = append(locks, o.hash())
		k.add(o)
	}
	var events, rows, conflicts, rejected int64
	err = postgres.InTx(ctx, w.Pool, "redact", redactTimeout, func(ctx context.Context, tx pgx.Tx) error {
		return with(ctx, tx, func() error {
			err := tx.QueryRow(ctx, redactSQL, w.lease.Run.ID, notNil(ids), notNil(locks), k.sources, k.accounts,
				k.types, k.ids, notNil(rejections)).Scan(&events, &rows, &conflicts, &rejected)
			if err != nil {
				return err
			}
			return clearEffects(ctx, tx, k, ids)
		})
	})
	if err != nil {
		return err
	}
	w.lease.Counts[CountEvents] += events
	w.lease.Counts[CountObjects] += rows
	w.lease.Counts[CountConflicts] += conflicts
	w.lease.Counts[CountRejections] += rejected
	return nil
}

func notNil(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

func collect(ctx context.Context, db querier, sql string, args ...any) ([]int64, error) {
	ids, err := postgres.Collect(ctx, db, pgx.RowTo[int64], sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read events to redact: %w", err)
	}
	return ids, nil
}
