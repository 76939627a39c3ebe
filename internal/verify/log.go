package verify

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
)

// pageRows is how many rows of the log, of keys and of outcomes are read at once.
const pageRows = 10_000

type (
	// stored is an event as far as its key is concerned.
	stored struct {
		id          int64
		source      int32
		key         string
		fingerprint []byte
	}
	// kept is a row of event_keys.
	kept struct {
		id                  int64
		source              int32
		digest, fingerprint []byte
	}
	// live is an outcome of run 0.
	live struct {
		id     int64
		source int32
		status string
		due    *time.Time
	}
)

const (
	storedSQL = `SELECT id, source, event_id, fingerprint FROM events WHERE id > $1 ORDER BY id LIMIT $2`

	// keptSQL sorts all keys: no index tells their order by id, and one would cost every append.
	keptSQL = `SELECT id, source, key, fingerprint FROM event_keys ORDER BY id`

	liveSQL = `SELECT event_id, source, status, due FROM outcomes WHERE run = 0 AND event_id > $1 ORDER BY event_id LIMIT $2`

	auditedSQL = `SELECT coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = 'auditor' AND c.run = 0), 0)`
)

func readStored(tx pgx.Tx) *ordered[stored] {
	return &ordered[stored]{id: func(r *stored) int64 { return r.id }, next: func(ctx context.Context, after int64) ([]stored, error) {
		return page(ctx, tx, func(row pgx.CollectableRow) (r stored, err error) {
			return r, row.Scan(&r.id, &r.source, &r.key, &r.fingerprint)
		}, "events", storedSQL, after, pageRows)
	}}
}

// readKept reads through a cursor, so that the keys are sorted once and on the server.
func readKept(ctx context.Context, tx pgx.Tx) (*ordered[kept], error) {
	if _, err := tx.Exec(ctx, "DECLARE verify_keys NO SCROLL CURSOR FOR "+keptSQL); err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return &ordered[kept]{id: func(r *kept) int64 { return r.id }, next: func(ctx context.Context, _ int64) ([]kept, error) {
		return page(ctx, tx, func(row pgx.CollectableRow) (r kept, err error) {
			return r, row.Scan(&r.id, &r.source, &r.digest, &r.fingerprint)
		}, "keys", fmt.Sprint("FETCH ", pageRows, " FROM verify_keys"))
	}}, nil
}

func readLive(tx pgx.Tx) *ordered[live] {
	return &ordered[live]{id: func(r *live) int64 { return r.id }, next: func(ctx context.Context, after int64) ([]live, error) {
		return page(ctx, tx, func(row pgx.CollectableRow) (r live, err error) {
			return r, row.Scan(&r.id, &r.source, &r.status, &r.due)
		}, "outcomes", liveSQL, after, pageRows)
	}}
}

func page[T any](ctx context.Context, tx pgx.Tx, scan func(pgx.CollectableRow) (T, error), what, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	all, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return all, nil
}

// walk goes through events, keys and outcomes side by side.
type walk struct {
	*work
	events   *ordered[stored]
	keys     *ordered[kept]
	outcomes *ordered[live]
	days     *days
	// audited is how far each event has an outcome, as the auditor says.
	audited int64
	// unapplied have no outcome yet, failed wait for the next attempt.
	unapplied, failed waiting
	overdue           waiting
	// each is given the events in their order.
	each func(ctx context.Context, id int64) error
}

// waiting is how many of a kind wait, and since when the oldest.
type waiting struct {
	count int64
	since time.Time
}

func (w *waiting) add(since time.Time) {
	if w.count++; w.count == 1 || since.Before(w.since) {
		w.since = since
	}
}

// log compares the log with keys and outcomes, on three connections.
func (w *work) log(ctx context.Context, each func(ctx context.Context, id int64) error) (err error) {
	txs := w.view.txs
	l := &walk{work: w, events: readStored(txs[0]), outcomes: readLive(txs[2]), each: each}
	if l.keys, err = readKept(ctx, txs[1]); err != nil {
		return err
	}
	if l.days, err = readDays(ctx, txs[0]); err != nil {
		return err
	}
	if err := txs[0].QueryRow(ctx, auditedSQL).Scan(&l.audited); err != nil {
		return fmt.Errorf("read the auditor's checkpoint: %w", err)
	}
	for n := int64(1); ; n++ {
		id, ok, err := l.least(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := l.one(ctx, id); err != nil {
			return err
		}
		if n%pageRows == 0 {
			w.tell("events", w.tally.look("events", 0))
		}
	}
	const mend = "start a processor that reaches NATS: its auditor publishes them again"
	w.wait("events without an outcome yet", l.unapplied, mend)
	w.wait("failed events that wait for their next attempt", l.failed, "")
	w.wait("failed events whose next attempt is due", l.overdue, mend)
	return nil
}

// least is the least id that any of the three has next.
func (l *walk) least(ctx context.Context) (id int64, ok bool, err error) {
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

// one compares what there is of an id.
func (l *walk) one(ctx context.Context, id int64) error {
	e, err := l.events.at(ctx, id)
	if err != nil {
		return err
	}
	if e != nil {
		l.tally.look("events", 1)
	}
	if err := l.keysOf(ctx, id, e); err != nil {
		return err
	}
	o, err := l.outcomes.at(ctx, id)
	if err != nil {
		return err
	}
	if o != nil {
		l.tally.look("outcomes", 1)
	}
	l.outcome(id, e, o)
	if e == nil {
		return nil
	}
	return l.each(ctx, id)
}

// keysOf compares an event with its key; there may be more than one key only by mistake.
func (l *walk) keysOf(ctx context.Context, id int64, e *stored) error {
	for n := 0; ; n++ {
		k, err := l.keys.at(ctx, id)
		if err != nil {
			return err
		}
		if k == nil && n == 0 && e != nil {
			item := l.item(e, "no key leads to it")
			item.Mend = fmt.Sprintf("INSERT INTO postern.event_keys (source, key, id, fingerprint) SELECT source, substr(sha256(convert_to(event_id, 'UTF8')), 1, 16), id, fingerprint FROM postern.events WHERE id = %d", id)
			l.tally.add(EventWithoutKey, item)
		}
		if k == nil {
			return nil
		}
		l.tally.look("keys", 1)
		if e == nil {
			if why := l.days.lacks(id); why != "" {
				source := l.source(k.source)
				l.tally.add(KeyWithoutEvent, Item{Event: id, Source: source, Detail: fmt.Sprintf("key %x: %s", k.digest, why), Mend: reread(source)})
			}
			continue
		}
		if why := differs(e, k); why != "" {
			l.tally.add(KeyDiffers, l.item(e, why))
		}
	}
}

// reread is the command that brings the objects of lost events back to what the provider has, where no backup brings back the events.
func reread(source string) string { return "postern reconcile " + source + " --objects --full" }

// differs says in what an event and its key do not agree.
func differs(e *stored, k *kept) string {
	digest := events.KeyDigest(e.key)
	switch {
	case e.source != k.source:
		return fmt.Sprintf("the key is of source number %d, the event of %d", k.source, e.source)
	case !bytes.Equal(digest[:], k.digest):
		return fmt.Sprintf("the key is %x, that of the event's name %x", k.digest, digest)
	case !bytes.Equal(e.fingerprint, k.fingerprint):
		return fmt.Sprintf("the key's fingerprint is %x, the event's %x", k.fingerprint, e.fingerprint)
	}
	return ""
}

// outcome compares an event with its outcome.
func (l *walk) outcome(id int64, e *stored, o *live) {
	switch {
	case e == nil && o != nil:
		if why := l.days.lacks(id); why != "" {
			source := l.source(o.source)
			l.tally.add(OutcomeWithoutEvent, Item{Event: id, Source: source, Detail: "its outcome is " + o.status + ": " + why, Mend: reread(source)})
		}
	case e == nil:
	case o == nil && id <= l.audited:
		item := l.item(e, fmt.Sprintf("the auditor's checkpoint is %d", l.audited))
		item.Mend = fmt.Sprintf("UPDATE postern.checkpoints SET cursor = least(cursor, %d) WHERE job = 'auditor' AND run = 0", id-1)
		l.tally.add(EventWithoutOutcome, item)
	case o == nil:
		l.unapplied.add(events.Time(id))
	case o.status == "failed" && o.due != nil && o.due.Before(l.view.at):
		l.overdue.add(*o.due)
	case o.status == "failed":
		l.failed.add(events.Time(id))
	}
}

func (l *walk) item(e *stored, detail string) Item {
	return Item{Event: e.id, Source: l.source(e.source), Detail: detail}
}
