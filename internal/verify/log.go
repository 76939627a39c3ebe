package verify

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// pageRows is how many rows of events, keys and outcomes are read at once.
const pageRows = 10_000

type (
	// eventRow are the columns of an event that its key must match.
	eventRow struct {
		id          int64
		source      int32
		key         string
		fingerprint []byte
	}
	// keyRow is a row of event_keys.
	keyRow struct {
		id                  int64
		source              int32
		digest, fingerprint []byte
	}
	// outcomeRow is a live outcome.
	outcomeRow struct {
		id     int64
		source int32
		status string
		due    *time.Time
	}
)

const (
	eventsSQL = `SELECT id, source, event_id, fingerprint FROM events WHERE id > $1 ORDER BY id LIMIT $2`

	// keysSQL sorts all keys. No index has them in the order of ids, and such an index would slow
	// down every append.
	keysSQL = `SELECT id, source, key, fingerprint FROM event_keys ORDER BY id`

	outcomesSQL = `SELECT event_id, source, status, due FROM outcomes WHERE run = 0 AND event_id > $1 ORDER BY event_id
		LIMIT $2`

	republishedUpToSQL = `SELECT coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = 'republisher'
		AND c.run = 0),
		0)`
)

func readEvents(tx pgx.Tx) *pagedRows[eventRow] {
	return &pagedRows[eventRow]{id: func(r *eventRow) int64 { return r.id },
		next: func(ctx context.Context, after int64) ([]eventRow, error) {
			return readPage(ctx, tx, func(row pgx.CollectableRow) (r eventRow, err error) {
				return r, row.Scan(&r.id, &r.source, &r.key, &r.fingerprint)
			}, "events", eventsSQL, after, pageRows)
		}}
}

// readKeys reads through a cursor, so that the server sorts the keys once.
func readKeys(ctx context.Context, tx pgx.Tx) (*pagedRows[keyRow], error) {
	if _, err := tx.Exec(ctx, "DECLARE verify_keys NO SCROLL CURSOR FOR "+keysSQL); err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return &pagedRows[keyRow]{id: func(r *keyRow) int64 { return r.id },
		next: func(ctx context.Context, _ int64) ([]keyRow,
			error) {
			return readPage(ctx, tx, func(row pgx.CollectableRow) (r keyRow, err error) {
				return r, row.Scan(&r.id, &r.source, &r.digest, &r.fingerprint)
			}, "keys", fmt.Sprint("FETCH ", pageRows, " FROM verify_keys"))
		}}, nil
}

func readOutcomes(tx pgx.Tx) *pagedRows[outcomeRow] {
	return &pagedRows[outcomeRow]{id: func(r *outcomeRow) int64 { return r.id },
		next: func(ctx context.Context, after int64) ([]outcomeRow,
			error) {
			return readPage(ctx, tx, func(row pgx.CollectableRow) (r outcomeRow, err error) {
				return r, row.Scan(&r.id, &r.source, &r.status, &r.due)
			}, "outcomes", outcomesSQL, after, pageRows)
		}}
}

func readPage[T any](ctx context.Context, tx pgx.Tx, scan func(pgx.CollectableRow) (T, error), what, sql string,
	args ...any) ([]T, error) {
	all, err := postgres.Collect(ctx, tx, scan, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return all, nil
}

// logWalk reads events, keys and outcomes in parallel, in the order of ids.
type logWalk struct {
	*verification
	events     *pagedRows[eventRow]
	keys       *pagedRows[keyRow]
	outcomes   *pagedRows[outcomeRow]
	partitions *partitions
	// republishedUpTo is the id up to which every event has an outcome, according to the
	// republisher.
	republishedUpTo int64
	// unapplied events have no outcome yet. failed events wait for the next attempt.
	unapplied, failed waitCount
	overdue           waitCount
	// onEvent gets the events in the order of ids.
	onEvent func(ctx context.Context, id int64) error
}

// waitCount is the number of waiting items and the time of the oldest one.
type waitCount struct {
	count int64
	since time.Time
}

func (w *waitCount) add(since time.Time) {
	if w.count++; w.count == 1 || since.Before(w.since) {
		w.since = since
	}
}

// checkLog compares the log with keys and outcomes over three connections.
func (w *verification) checkLog(ctx context.Context, each func(ctx context.Context, id int64) error) (err error) {
	txs := w.snapshot.txs
	l := &logWalk{verification: w, events: readEvents(txs[0]), outcomes: readOutcomes(txs[2]), onEvent: each}
	if l.keys, err = readKeys(ctx, txs[1]); err != nil {
		return err
	}
	if l.partitions, err = readPartitions(ctx, txs[0]); err != nil {
		return err
	}
	if err := txs[0].QueryRow(ctx, republishedUpToSQL).Scan(&l.republishedUpTo); err != nil {
		return fmt.Errorf("read the republisher's checkpoint: %w", err)
	}
	for n := int64(1); ; n++ {
		id, ok, err := l.nextID(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := l.checkID(ctx, id); err != nil {
			return err
		}
		if n%pageRows == 0 {
			w.progress("events", w.results.countChecked("events", 0))
		}
	}
	const repair = "start a processor that reaches NATS: its republisher publishes them again"
	w.reportWaiting("events without an outcome yet", l.unapplied, repair)
	w.reportWaiting("failed events that wait for their next attempt", l.failed, "")
	w.reportWaiting("failed events whose next attempt is due", l.overdue, repair)
	return nil
}

// nextID returns the lowest id that any of the three has next.
func (l *logWalk) nextID(ctx context.Context) (id int64, ok bool, err error) {
	take := func(n int64) {
		if !ok || n < id {
			id, ok = n, true
		}
	}
	e, err := l.events.peek(ctx)
	if err != nil {
		return 0, false, err
	}
	if e != nil {
		take(e.id)
	}
	k, err := l.keys.peek(ctx)
	if err != nil {
		return 0, false, err
	}
	if k != nil {
		take(k.id)
	}
	o, err := l.outcomes.peek(ctx)
	if err != nil {
		return 0, false, err
	}
	if o != nil {
		take(o.id)
	}
	return id, ok, nil
}

// checkID compares event, keys and outcome of an id.
func (l *logWalk) checkID(ctx context.Context, id int64) error {
	e, err := l.events.take(ctx, id)
	if err != nil {
		return err
	}
	if e != nil {
		l.results.countChecked("events", 1)
	}
	if err := l.checkKeys(ctx, id, e); err != nil {
		return err
	}
	o, err := l.outcomes.take(ctx, id)
	if err != nil {
		return err
	}
	if o != nil {
		l.results.countChecked("outcomes", 1)
	}
	l.checkOutcome(id, e, o)
	if e == nil {
		return nil
	}
	return l.onEvent(ctx, id)
}

// checkKeys compares an event with its key. More than one key is an error in the data.
func (l *logWalk) checkKeys(ctx context.Context, id int64, e *eventRow) error {
	for n := 0; ; n++ {
		k, err := l.keys.take(ctx, id)
		if err != nil {
			return err
		}
		if k == nil && n == 0 && e != nil {
			item := l.item(e, "it has no key")
			item.Repair = fmt.Sprintf("INSERT INTO postern.event_keys (source, key, id, fingerprint) SELECT source, "+
				"substr(sha256(convert_to(event_id, 'UTF8')), 1, 16), id, "+
				"fingerprint FROM postern.events WHERE id = %d", id)
			l.results.add(EventWithoutKey, item)
		}
		if k == nil {
			return nil
		}
		l.results.countChecked("keys", 1)
		if e == nil {
			if why := l.partitions.whyMissing(id); why != "" {
				source := l.sourceName(k.source)
				l.results.add(KeyWithoutEvent,
					Item{Event: id, Source: source, Detail: fmt.Sprintf("key %x: %s", k.digest, why),
						Repair: reconcileCommand(source)})
			}
			continue
		}
		if why := keyDifference(e, k); why != "" {
			l.results.add(KeyDiffers, l.item(e, why))
		}
	}
}

// reconcileCommand is the command that restores the objects of lost events from the provider, if no
// backup restores the events.
func reconcileCommand(source string) string {
	return "postern reconcile " + source + " --objects --full"
}

// keyDifference describes the first difference between an event and its key; "" if there is none.
func keyDifference(e *eventRow, k *keyRow) string {
	digest := events.KeyDigest(e.key)
	switch {
	case e.source != k.source:
		return fmt.Sprintf("the key has source number %d, the event %d", k.source, e.source)
	case !bytes.Equal(digest[:], k.digest):
		return fmt.Sprintf("the key is %x, but that of the event id is %x", k.digest, digest)
	case !bytes.Equal(e.fingerprint, k.fingerprint):
		return fmt.Sprintf("the key's fingerprint is %x, the event's %x", k.fingerprint, e.fingerprint)
	}
	return ""
}

// checkOutcome compares an event with its outcome.
func (l *logWalk) checkOutcome(id int64, e *eventRow, o *outcomeRow) {
	switch {
	case e == nil && o != nil:
		if why := l.partitions.whyMissing(id); why != "" {
			source := l.sourceName(o.source)
			l.results.add(OutcomeWithoutEvent, Item{Event: id, Source: source, Detail: "its outcome is " + o.status +
				": " + why, Repair: reconcileCommand(source)})
		}
	case e == nil:
	case o == nil && id <= l.republishedUpTo:
		item := l.item(e, fmt.Sprintf("the republisher's checkpoint is %d", l.republishedUpTo))
		item.Repair = fmt.Sprintf(
			"UPDATE postern.checkpoints SET cursor = least(cursor, %d) WHERE job = 'republisher' AND run = 0", id-1)
		l.results.add(EventWithoutOutcome, item)
	case o == nil:
		l.unapplied.add(events.Time(id))
	case o.status == "failed" && o.due != nil && o.due.Before(l.snapshot.at):
		l.overdue.add(*o.due)
	case o.status == "failed":
		l.failed.add(events.Time(id))
	}
}

func (l *logWalk) item(e *eventRow, detail string) Item {
	return Item{Event: e.id, Source: l.sourceName(e.source), Detail: detail}
}
