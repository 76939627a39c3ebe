// Package redaction clears events, and what was made of them, for good: the law's exception to the append-only log. A person says what; a function of the
// database clears it and keeps the audit; a running processor carries it out.
package redaction

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Job is what redactions are called in the ledger of runs.
const Job = "redact"

// Order is what a redaction is asked to clear.
type Order struct {
	// Events are our ids; each goes with all of its delivery.
	Events []int64 `json:"events,omitempty"`
	// Objects go with all events that were applied to them, or named them at the door.
	Objects []Object `json:"objects,omitempty"`
	// Source is the number of the source whose log is looked through, 0 for all where the finds look anywhere; Account, where it is not nil, its tenant, "" for what has none.
	Source  int32   `json:"source,omitempty"`
	Account *string `json:"account,omitempty"`
	// Finds choose events of the source by values in their bodies; any of them will do.
	Finds []Find `json:"finds,omitempty"`
	// People, if not nil, tell who shares an event or object with the person who is looked for: what names such a person too is
	// left, unless its type is one of Include.
	People  *People  `json:"people,omitempty"`
	Include []string `json:"include,omitempty"`
	// All takes all events of the account.
	All bool `json:"all,omitempty"`
	// RequestedBy is the event by which the sender asked for it.
	RequestedBy int64 `json:"requested_by,string,omitempty"`
	// Until is the event by which a sender asked: what was received after it stays, whatever its id is. 0: all goes that is there when the run begins.
	Until int64 `json:"until,string,omitempty"`
	// Words say what was asked for, without any value.
	Words map[string]string `json:"words,omitempty"`
}

// Object names an object.
type Object struct {
	Source  int32  `json:"source"`
	Account string `json:"account"`
	Type    string `json:"type"`
	ID      string `json:"id"`
}

func (o Object) hash() int64 { return versioning.ObjectKey(o.Source, o.Account, o.Type, o.ID) }

// scans tells whether the bodies of the log must be looked through, and what objects show.
func (o *Order) scans() bool { return len(o.Finds) > 0 || o.wholly() }

// wholly tells whether all of an account goes.
func (o *Order) wholly() bool { return o.All && o.Account != nil && *o.Account != "" }

// mentions tells whether all finds look anywhere.
func (o *Order) mentions() bool {
	return len(o.Finds) > 0 && !slices.ContainsFunc(o.Finds, func(f Find) bool { return !f.mention() })
}

// sources are the numbers of the sources that are looked through.
func (o *Order) sources(ctx context.Context, db querier) ([]int32, error) {
	if o.Source != 0 {
		return []int32{o.Source}, nil
	}
	return Sources(ctx, db)
}

const sourcesSQL = `SELECT number FROM sources ORDER BY number`

// Sources returns the numbers of all sources.
func Sources(ctx context.Context, db querier) ([]int32, error) {
	rows, err := db.Query(ctx, sourcesSQL)
	if err != nil {
		return nil, fmt.Errorf("read sources: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[int32])
}

// walks tells whether the log must be walked at all.
func (o *Order) walks() bool { return o.scans() || len(o.Objects) > 0 }

// filter chooses the part of the log to look through.
func (o *Order) filter() *events.Filter {
	return &events.Filter{Source: o.Source, Account: o.Account}
}

// read completes an order that was stored.
func (o *Order) read() error {
	for i := range o.Finds {
		if err := o.Finds[i].read(); err != nil {
			return err
		}
	}
	if o.scans() && o.Source == 0 && !o.mentions() {
		return fmt.Errorf("%w: no source is named", events.ErrInvalid)
	}
	return nil
}

// Runner carries out redactions.
type Runner struct {
	// Pool is connected as postern_processor.
	Pool      *pgxpool.Pool
	Processor *processor.Processor
	// Conn leads to the streams that may hold messages of what is redacted; nil: there are none.
	Conn *stream.Conn
}

// What a run counts.
const (
	CountEvents     = "processed"
	CountObjects    = "objects"
	CountConflicts  = "conflicts"
	CountRejections = "rejections"
	CountSeen       = "looked_at"
	CountMessages   = "messages"
	CountRequests   = "requests_left"
	CountShared     = "shared_left"
	CountUnread     = "unread"
)

// How many events are redacted in one transaction, and looked at between two checkpoints.
const (
	redactAtOnce = 100
	lookAtOnce   = 500
)

// begun is the cursor behind which only the walk through the log is left.
const begun = 1

// Carry is a runs.Carry. All of it may be repeated: what is cleared stays cleared, and what is newer than the run's bound is not touched.
func (r *Runner) Carry(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
	var order Order
	asked := json.NewDecoder(bytes.NewReader(h.Asked))
	asked.DisallowUnknownFields()
	if err := asked.Decode(&order); err != nil {
		return "", runs.Refuse(fmt.Errorf("read what was asked for: %w", err))
	}
	if err := order.read(); err != nil {
		return "", runs.Refuse(err)
	}
	w := &work{Runner: r, order: &order, hold: h, first: h.Bound == 0}
	if w.first {
		if err := w.drained(ctx); err != nil {
			return "", err
		}
		if err := w.bound(ctx, h.Freeze); err != nil {
			return "", err
		}
	}
	if err := w.prepare(ctx); err != nil {
		return "", err
	}
	for _, part := range []func(context.Context) (runs.Status, error){w.named, w.walk, w.differing, w.shown, w.elsewhere, w.covered, w.again, w.feeds, w.finish} {
		if status, err := part(ctx); err != nil || status != runs.Running {
			return status, err
		}
	}
	log.Info("redacted", "events", h.Counts[CountEvents], "objects", h.Counts[CountObjects])
	return runs.Running, nil
}

// work is a run that is carried out.
type work struct {
	*Runner
	order *Order
	hold  *runs.Hold
	// own is the delivery that asked for it; the requests of others are left alone.
	own    []int64
	others *others
	// first: nobody has had the run before.
	first bool
	// cleared: objects were cleared for what they showed, or with their events.
	cleared bool
	// askedAt is when the request was received that Until names; nil: there is none.
	askedAt *time.Time
}

// prepare reads which requests there may be.
func (w *work) prepare(ctx context.Context) (err error) {
	if w.order.RequestedBy != 0 {
		if w.own, err = siblings(ctx, w.Pool, []int64{w.order.RequestedBy}); err != nil {
			return err
		}
	}
	if w.askedAt, err = receivedAt(ctx, w.Pool, w.order.Until); err != nil {
		return err
	}
	w.others, err = requestsOfOthers(ctx, w.Pool)
	return err
}

// bound keeps up to where the log is cleared: what there is now. What was received before a request may have come out of a spool after it, so its id is no bound.
func (w *work) bound(ctx context.Context, keep func(context.Context, int64) error) error {
	bound, err := events.FreezeBound(ctx, w.Pool)
	if err != nil {
		return err
	}
	return keep(ctx, bound)
}

// named redacts what is named: events, objects with their events, refused deliveries that have a value.
func (w *work) named(ctx context.Context) (runs.Status, error) {
	if w.hold.Cursor >= begun {
		return runs.Running, nil
	}
	if err := w.redact(ctx, nil, nil, nil); err != nil { // the audit begins, also where nothing is found
		return "", err
	}
	for _, o := range w.order.Objects {
		err := eachOf(ctx, w.Pool, o, w.hold.Bound, func(ids []int64) error { return w.each(ctx, ids) })
		if err == nil {
			err = w.redact(ctx, nil, []Object{o}, nil)
		}
		if err == nil {
			err = w.dropRefetch(ctx, o)
		}
		if err != nil {
			return "", err
		}
	}
	for some := range slices.Chunk(w.order.Events, redactAtOnce) {
		if err := w.redact(ctx, some, nil, nil); err != nil {
			return "", err
		}
	}
	err := w.differences(ctx)
	if err == nil {
		err = w.refused(ctx)
	}
	if err == nil && w.first { // what a person released before it was looked for among the refused is in the log now, above the first bound
		err = w.bound(ctx, w.hold.Extend)
	}
	if err != nil {
		return "", err
	}
	return w.hold.Advance(ctx, begun)
}

// walk looks through the log, from the run's checkpoint to its bound.
func (w *work) walk(ctx context.Context) (runs.Status, error) {
	for w.order.walks() && w.hold.Cursor < w.hold.Bound {
		ids, end, err := events.Match(ctx, w.Pool, w.order.filter(), w.hold.Cursor, w.hold.Bound)
		if err != nil {
			return "", err
		}
		found, err := w.order.atDoor(ctx, w.Pool, w.hold.Cursor, end)
		if err == nil {
			err = w.each(ctx, found)
		}
		if err != nil {
			return "", err
		}
		atOnce := lookAtOnce
		if !w.order.scans() { // no body is read
			atOnce = max(len(ids), atOnce)
		}
		for some := range slices.Chunk(ids, atOnce) {
			meant, err := w.meant(ctx, some)
			if err != nil {
				return "", err
			}
			chosen, err := w.order.choose(ctx, w.Pool, meant)
			if err == nil {
				err = w.each(ctx, chosen.found)
			}
			if err != nil {
				return "", err
			}
			w.hold.Counts[CountUnread] += int64(len(chosen.unread))
			w.hold.Counts[CountShared] += int64(len(chosen.shared))
			w.hold.Counts[CountSeen] += int64(len(meant))
			if status, err := w.hold.Advance(ctx, some[len(some)-1]); err != nil || status != runs.Running {
				return status, err
			}
		}
		if status, err := w.hold.Advance(ctx, end); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, context.Cause(ctx)
}

// each redacts events that were found, some at a time.
func (w *work) each(ctx context.Context, ids []int64) error {
	ids, err := w.meant(ctx, ids)
	if err != nil {
		return err
	}
	ids, spared, err := w.others.spare(ctx, w.Pool, ids, w.order.RequestedBy)
	if err != nil {
		return err
	}
	w.hold.Counts[CountRequests] += spared
	for some := range slices.Chunk(ids, redactAtOnce) {
		if err := w.redact(ctx, some, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// smallBody is how large a body may be, in bytes, to be read with others.
const smallBody = 64 << 10

// chosen are events that were looked at: those that have a value the order looks for, those whose body cannot be read, and
// those that are left since they name another person too.
type chosen struct {
	found, unread []int64
	shared        []events.Record
}

// choose looks at events. An order that takes all finds all.
func (o *Order) choose(ctx context.Context, pool *pgxpool.Pool, ids []int64) (c chosen, err error) {
	switch {
	case !o.scans():
		return c, nil
	case o.wholly():
		c.found = ids
		return c, nil
	}
	recs, err := events.Read(ctx, pool, ids, smallBody)
	if err != nil {
		return c, err
	}
	headers, err := o.headers(ctx, pool, ids)
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
			if last, err = o.deliveryOf(ctx, pool, &recs[i]); err != nil {
				return c, err
			}
		}
		hit, blind := o.inEvent(&recs[i], last, headers[recs[i].ID])
		var shared bool
		if hit {
			if shared, err = o.shared(ctx, pool, subjectOf(&recs[i]), last.body); err != nil {
				return c, err
			}
		}
		switch {
		case shared:
			recs[i].Body = nil
			c.shared = append(c.shared, recs[i])
		case hit:
			c.found = append(c.found, recs[i].ID)
		case blind:
			c.unread = append(c.unread, recs[i].ID)
		}
	}
	slices.Sort(c.found)
	slices.Sort(c.unread)
	return c, nil
}

// delivery is a body that its events share, which is searched once for all of them.
type delivery struct {
	id            int64
	body          []byte
	found, unread bool
}

// deliveryOf looks for values in the body of an event.
func (o *Order) deliveryOf(ctx context.Context, pool *pgxpool.Pool, e *events.Record) (delivery, error) {
	d := delivery{id: e.DeliveryID, body: e.Body}
	if e.BodyLeftOut {
		whole, err := events.Read(ctx, pool, []int64{e.ID}, events.AnyBody)
		if err != nil {
			return d, err
		}
		if len(whole) > 0 { // retention was not faster
			d.body = whole[0].Body
		}
	}
	d.found, d.unread = search(o.Finds, d.body)
	return d, nil
}

// subjectOf is what an event is about. What names no object is of the event's type.
func subjectOf(e *events.Record) subject {
	return subject{e.Source, e.Account, cmp.Or(e.ObjectType, e.Type), e.ObjectID}
}

const headersSQL = `SELECT e.id, e.headers FROM events e WHERE e.id = ANY($1::bigint[]) AND e.headers <> '{}'`

// headers are those of events, where the order looks anywhere.
func (o *Order) headers(ctx context.Context, pool *pgxpool.Pool, ids []int64) (map[int64][]byte, error) {
	if !slices.ContainsFunc(o.Finds, func(f Find) bool { return f.mention() }) {
		return nil, nil //nolint:nilnil // a map to read only
	}
	rows, err := pool.Query(ctx, headersSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	all := map[int64][]byte{}
	var id int64
	var headers []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &headers}, func() error {
		all[id], headers = headers, nil
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	return all, nil
}

const (
	redactSQL = `SELECT cleared_events, cleared_objects, cleared_conflicts, cleared_rejections FROM redact_events($1, $2, $3, $4, $5, $6, $7, $8)`

	endSQL = `SELECT end_redaction($1)`
)

// redactWithin bounds one transaction.
const redactWithin = 30 * time.Second

// redact clears all but the delivery that asked for it, which goes last.
func (w *work) redact(ctx context.Context, ids []int64, objects []Object, rejections []int64) error {
	return w.clear(ctx, without(ids, w.own), objects, rejections, func(_ context.Context, _ pgx.Tx, redact func() error) error { return redact() })
}

// clear clears events, rows of objects and rejections in one transaction, under the locks that applying takes, with what else is to be done in that.
func (w *work) clear(ctx context.Context, ids []int64, objects []Object, rejections []int64, with func(ctx context.Context, tx pgx.Tx, redact func() error) error) error {
	ids, err := siblings(ctx, w.Pool, ids)
	if err != nil {
		return err
	}
	locks, err := w.Processor.Locks(ctx, ids)
	if err != nil {
		return err
	}
	k := keys{[]int32{}, []string{}, []string{}, []string{}}
	for _, o := range objects {
		locks = append(locks, o.hash())
		k.add(o)
	}
	var events, rows, conflicts, refused int64
	err = postgres.InTx(ctx, w.Pool, "redact", redactWithin, func(ctx context.Context, tx pgx.Tx) error {
		return with(ctx, tx, func() error {
			err := tx.QueryRow(ctx, redactSQL, w.hold.Run.Run, notNil(ids), notNil(locks), k.sources, k.accounts, k.types, k.ids, notNil(rejections)).Scan(&events, &rows, &conflicts, &refused)
			if err != nil {
				return err
			}
			if err := dropEffects(ctx, tx, k, ids); err != nil {
				return err
			}
			return dropDrifts(ctx, tx, k, ids)
		})
	})
	if err != nil {
		return err
	}
	w.hold.Counts[CountEvents] += events
	w.hold.Counts[CountObjects] += rows
	w.hold.Counts[CountConflicts] += conflicts
	w.hold.Counts[CountRejections] += refused
	return nil
}

func notNil(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

func collect(ctx context.Context, db querier, sql string, args ...any) ([]int64, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil {
		var ids []int64
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err == nil {
			return ids, nil
		}
	}
	return nil, fmt.Errorf("read events to redact: %w", errors.Join(err))
}
