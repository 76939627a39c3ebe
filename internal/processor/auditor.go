package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/stream"
)

const auditorJob = "auditor"

const leaseSQL = `
INSERT INTO checkpoints AS c (job, run, cursor, leased_by, leased_until, updated_at)
VALUES ($1, 0, 0, $2, clock_now() + $3::interval, clock_now())
ON CONFLICT (job, run) DO UPDATE SET leased_by = $2, leased_until = clock_now() + $3::interval, updated_at = clock_now()
WHERE c.leased_by = $2 OR c.leased_until < clock_now()
RETURNING cursor`

const releaseSQL = `UPDATE checkpoints SET leased_until = clock_now() WHERE job = $1 AND run = 0 AND leased_by = $2`

const advanceSQL = `
UPDATE checkpoints SET cursor = $3, leased_until = clock_now() + $4::interval, updated_at = clock_now()
WHERE job = $1 AND run = 0 AND leased_by = $2`

// auditor publishes again what the stream lost: events without an outcome, and failures that are due.
type auditor struct {
	p *Processor
	// published is the last sequence of the pass before; the next starts when the consumer has acknowledged past it.
	published uint64
	// room is how many messages may be published before the stream is full enough, as of the last look at the lag: what the
	// auditor itself pushed out of the stream would only be lost once more.
	room int
	// stream is the stream that published belongs to.
	stream time.Time
	// sent is how many this pass has published, by cause.
	sent map[string]int64
	// unanswered is how many messages of this pass the stream has said nothing about.
	unanswered int
	// clear is when the next chunk may be published.
	clear time.Time
	// moving ends a pass that does not get on; each step winds it up again.
	moving *time.Timer
}

// stepWithin is how long a step of a pass may take: a connection may be lost without a word.
const stepWithin = time.Minute

// bounded is a pass that ends when a step of it does not.
func (a *auditor) bounded(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.moving = time.AfterFunc(stepWithin, func() { cancel(fmt.Errorf("a step has not ended within %s", stepWithin)) })
	defer a.moving.Stop()
	return a.pass(ctx)
}

// run audits until ctx ends; trouble is logged once per spell and tried again at the next tick.
func (a *auditor) run(ctx context.Context) error {
	tick, ask := time.NewTicker(a.p.Settings.AuditEvery), time.NewTicker(askEvery)
	defer tick.Stop()
	defer ask.Stop()
	troubled := false
	for {
		err := a.bounded(ctx)
		if err != nil && !troubled && ctx.Err() == nil {
			a.p.Logger.Warn("auditor's pass not finished; it starts again", "error", err)
		}
		troubled = err != nil
		if !a.await(ctx, tick.C, ask.C) {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = a.p.Pool.Exec(stop, releaseSQL, auditorJob, a.p.ID) // else the lease ends by itself
			return nil
		}
	}
}

// pass is one round of the auditor, if this process holds the lease.
func (a *auditor) pass(ctx context.Context) error {
	var cursor int64
	err := a.p.Pool.QueryRow(ctx, leaseSQL, auditorJob, a.p.ID, a.p.Settings.AuditLease).Scan(&cursor)
	if errors.Is(err, pgx.ErrNoRows) {
		a.p.metrics.behind.Set(0)
		return nil // another process is the auditor
	}
	if err != nil {
		return fmt.Errorf("take the auditor's lease: %w", err)
	}
	wanted, err := a.wanted(ctx)
	if err != nil {
		return err
	}
	a.sent, a.unanswered = map[string]int64{}, 0
	held, err := a.audit(ctx, cursor, len(wanted) > 0)
	if held == "" && a.unanswered > 0 { // the stream was being made anew, or the connection was lost for a moment
		held = fmt.Sprintf("%d messages had no answer from the stream: the next pass publishes what has no outcome by then. %s", a.unanswered, mute)
	}
	if err == nil && held == "" {
		a.p.metrics.passed.SetToCurrentTime()
	}
	return errors.Join(err, a.record(ctx, wanted, held, err))
}

// audit publishes what is missing or due, unless the pass before is not worked off; held says why it has not come to the end.
func (a *auditor) audit(ctx context.Context, cursor int64, wanted bool) (held string, err error) {
	lag, err := a.p.Conn.Lag(ctx, true)
	if err != nil {
		return "", err
	}
	if !lag.Stream.Equal(a.stream) || lag.Last < a.published {
		a.stream, a.published = lag.Stream, 0 // a new stream counts from 1 again, one rolled back from where it was
	}
	if lag.Messages > 0 && lag.AckFloor < a.published {
		return fmt.Sprintf("what the auditor published before is not worked off: %d messages wait for processors", lag.Messages), nil
	}
	if a.room = lag.Room(a.p.Settings.AuditShare); a.room == 0 {
		return full(lag), nil
	}
	frozen, err := a.freeze(ctx)
	if err != nil {
		return "", err
	}
	bound, err := a.bound(ctx, frozen, lag, wanted)
	if err != nil {
		return "", err
	}
	until := bound
	if wanted {
		until = max(frozen, bound)
	}
	if held, err := a.missing(ctx, cursor, bound, until); err != nil || held != "" {
		return held, err
	}
	return a.due(ctx)
}

// full is why a pass ends before its end: what it pushed out of the stream would only be lost once more.
func full(lag stream.Lag) string {
	return fmt.Sprintf("the stream has as much as the auditor puts into it: %d messages wait for processors", lag.Messages)
}

// anothers is why a pass ends before its end.
const anothers = "another process has become the auditor"

// bound is the greatest id that may be published again: older than the age, and by as much older than the oldest message that
// still waits, since what is younger is likely in the stream. Where the database's clock went back, ids stand still until it
// has caught up and tell no age: then all that is complete may go, again and again rather than never.
// Where somebody wants a pass now, the age is that at which a publish is given up.
func (a *auditor) bound(ctx context.Context, frozen int64, lag stream.Lag, wanted bool) (int64, error) {
	var now time.Time
	if err := a.p.Pool.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	if events.Time(frozen).Sub(now) > time.Second {
		return frozen, nil
	}
	age := a.p.Settings.AuditAge
	if wanted {
		age = min(age, stream.PublishTimeout)
	}
	return events.FirstID(events.Time(frozen).Add(-age-lag.OldestAge)) - 1, nil
}

// freezeWithin bounds the wait for appends that hold the bound back; a later pass tries again.
const freezeWithin = 20 * time.Second

func (a *auditor) freeze(ctx context.Context) (int64, error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "freeze the auditor's bound", freezeWithin)
	defer cancel()
	return events.FreezeBound(ctx, a.p.Pool)
}

const withOutcomeSQL = `SELECT event_id FROM outcomes WHERE run = 0 AND event_id = ANY($1::bigint[])`

// auditChunk is how many ids are compared with their outcomes at once.
const auditChunk = 5000

// missing walks from the checkpoint to until and publishes what has no outcome: up to the bound all events, behind it those
// that were imported, since no gateway publishes them. The checkpoint passes only events that have an outcome: publishing moves
// nothing. held says why the pass must end: the stream is full enough, or the lease is another's.
func (a *auditor) missing(ctx context.Context, cursor, bound, until int64) (held string, err error) {
	checkpoint, clean := cursor, true
	for at := cursor; at < until; {
		a.moving.Reset(stepWithin)
		ids, err := events.After(ctx, a.p.Pool, at, until, auditChunk)
		if err != nil {
			return "", err
		}
		if len(ids) == 0 {
			break
		}
		missing, err := a.withoutOutcome(ctx, ids)
		if err != nil {
			return "", err
		}
		at = ids[len(ids)-1]
		if clean {
			if clean = len(missing) == 0; clean {
				checkpoint = at
			} else {
				checkpoint = missing[0] - 1
				a.p.metrics.behind.Set(time.Since(events.Time(missing[0])).Seconds())
			}
		}
		leased, err := a.p.Pool.Exec(ctx, advanceSQL, auditorJob, a.p.ID, checkpoint, a.p.Settings.AuditLease)
		if err != nil {
			return "", fmt.Errorf("move the auditor's checkpoint: %w", err)
		}
		if leased.RowsAffected() == 0 {
			return anothers, nil
		}
		if missing, err = a.unpublished(ctx, missing, bound); err != nil {
			return "", err
		}
		if held, err := a.publish(ctx, missing, false); err != nil || held != "" {
			return held, err
		}
	}
	if clean {
		a.p.metrics.behind.Set(0)
	}
	return "", nil
}

const importedSQL = `SELECT id FROM events WHERE id = ANY($1::bigint[]) AND origin = 'import'`

// unpublished leaves out events above the bound that a gateway may be publishing.
func (a *auditor) unpublished(ctx context.Context, ids []int64, bound int64) ([]int64, error) {
	young := slices.IndexFunc(ids, func(id int64) bool { return id > bound })
	if young < 0 {
		return ids, nil
	}
	rows, err := a.p.Pool.Query(ctx, importedSQL, ids[young:])
	if err != nil {
		return nil, fmt.Errorf("look for imported events: %w", err)
	}
	imported, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("look for imported events: %w", err)
	}
	slices.Sort(imported)
	return append(slices.Clip(ids[:young]), imported...), nil
}

func (a *auditor) withoutOutcome(ctx context.Context, ids []int64) ([]int64, error) {
	rows, err := a.p.Pool.Query(ctx, withOutcomeSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	have := make(map[int64]bool, len(ids))
	var id int64
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { have[id] = true; return nil }); err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	var missing []int64
	for _, id := range ids {
		if !have[id] {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

const dueSQL = `SELECT event_id FROM outcomes WHERE status = 'failed' AND run = 0 AND due <= $1 ORDER BY due LIMIT $2`

// due publishes failures whose time has come, to be tried alone.
func (a *auditor) due(ctx context.Context) (held string, err error) {
	var now time.Time
	if err := a.p.Pool.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return "", fmt.Errorf("read the clock: %w", err)
	}
	rows, err := a.p.Pool.Query(ctx, dueSQL, now, auditChunk)
	if err != nil {
		return "", fmt.Errorf("read due failures: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return "", fmt.Errorf("read due failures: %w", err)
	}
	return a.publish(ctx, ids, true)
}

// Why an event is published again.
const (
	causeMissing = "missing"
	causeDue     = "due"
)

// publishChunk is how many events are read and published between two looks at the lag.
const publishChunk = 200

// publish puts events into the stream again, each once and at most so many a second; held says why this pass must end before all are.
func (a *auditor) publish(ctx context.Context, ids []int64, retry bool) (held string, err error) {
	cause := map[bool]string{false: causeMissing, true: causeDue}[retry]
	for rest := ids; len(rest) > 0; {
		a.moving.Reset(stepWithin)
		n := min(publishChunk, a.room, len(rest))
		if held, err := a.pace(ctx, n); err != nil || held != "" {
			return held, err
		}
		recs, err := events.Read(ctx, a.p.Pool, rest[:n], stream.MaxBody)
		if err != nil {
			return "", err
		}
		evs := make([]stream.Event, len(recs))
		for i := range recs {
			evs[i] = a.p.sourceEvent(&recs[i])
			evs[i].Retry = retry
		}
		if evs, err = a.named(ctx, evs, recs); err != nil {
			return "", err
		}
		if err := a.send(ctx, evs, cause); err != nil {
			return "", err
		}
		rest = rest[n:]
		lag, err := a.p.Conn.Lag(ctx, false)
		if err != nil {
			return "", err
		}
		if a.room = lag.Room(a.p.Settings.AuditShare); a.room == 0 {
			return full(lag), nil
		}
	}
	if len(ids) > 0 {
		a.p.Logger.Info("auditor published events again", "events", len(ids), "cause", cause)
	}
	return "", nil
}

// named leaves out events whose source has no name, which cannot be published; each event's source is in the table.
func (a *auditor) named(ctx context.Context, evs []stream.Event, recs []events.Record) ([]stream.Event, error) {
	for i := range evs {
		if evs[i].Source != "" {
			continue
		}
		if err := a.p.sources.refresh(ctx, a.p.Pool); err != nil {
			return nil, err
		}
		evs[i].Source = a.p.sources.name(recs[i].Source)
	}
	return slices.DeleteFunc(evs, func(e stream.Event) bool { return e.Source == "" }), nil
}

// mute is what to do about a stream that can be asked about and answers no publish: a server whose disk was full writes nothing more, also once there is room (2.15.2).
const mute = "If that goes on: where the disk of the NATS server was full, make room and restart that server"

// send publishes a chunk. A message that the stream refuses must not hold up the others, nor the failures that are due; a lost
// connection or stream ends the pass.
func (a *auditor) send(ctx context.Context, evs []stream.Event, cause string) (err error) {
	sent := 0
	for i, ack := range a.p.Conn.PublishEvents(ctx, evs) {
		if ack.Err != nil {
			err = fmt.Errorf("publish event %d again: %w", evs[i].ID, ack.Err)
			if stream.Unanswered(ack.Err) {
				a.unanswered++
			}
			continue
		}
		sent++
		a.published = max(a.published, ack.Sequence)
		a.sent[cause]++
		a.p.metrics.audited.WithLabelValues(cause).Inc()
	}
	if err == nil || stream.Gone(err) || !a.p.Conn.Connected() {
		return err
	}
	if stream.Refuses(err) {
		return a.p.setBack(ctx, err)
	}
	said := []any{"sent", sent, "of", len(evs), "error", err}
	if sent == 0 && stream.Unanswered(err) {
		said = append(said, "advice", mute)
	}
	a.p.Logger.Warn("some events not published again; the next pass tries", said...)
	return ctx.Err()
}
