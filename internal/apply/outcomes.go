package apply

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

const outcomesSQL = `
SELECT event_id, status, attempts, due > clock_now(), reason FROM outcomes WHERE run = $1
	AND event_id = ANY($2::bigint[])`

// markFinished marks events that have a final outcome, or a failed one that is not due: they are
// only acknowledged. An event whose attempt was reserved before this try is still open.
func (a *Applier) markFinished(ctx context.Context, tx pgx.Tx, to Target, batch []*event) error {
	byID := make(map[int64]*event, len(batch))
	for _, e := range batch {
		byID[e.ev.ID] = e
	}
	params := postgres.NewParams(tx.Conn(), postgres.Statement{Name: "postern_outcomes", SQL: outcomesSQL})
	defer params.Release()
	params.Int64(to.Run)
	params.Array(pgtype.Int8OID, len(batch), func(i int) { params.Int64(batch[i].ev.ID) })
	_, err := params.Run(ctx, func(outcome postgres.Row) error {
		e := byID[outcome.Int64(0)]
		e.attempts, e.previousReason = int(outcome.Int64(2)), outcome.Text(4)
		status := versioning.Status(outcome.Text(1))
		e.finished, e.hasFinalOutcome = to.isFinished(e, status, outcome.Bool(3)), !to.unfinished(status)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read outcomes of %d events: %w", len(batch), err)
	}
	return nil
}

// maxSingleAttempts is how often a run tries a single event that may have ended the process. It is
// more than 1, because another event may have been the cause.
const maxSingleAttempts = 3

// unfinished reports whether an outcome with this status may be replaced.
func (to Target) unfinished(status versioning.Status) bool {
	return status == versioning.Failed || status == versioning.Dead && to.RetryRun != 0
}

// isFinished reports whether an event with this stored status is only acknowledged. later says that
// the outcome is not due yet.
func (to Target) isFinished(e *event, status versioning.Status, later bool) bool {
	switch {
	case !to.unfinished(status):
		return true
	case e.reserved > 0:
		return e.reserved != e.attempts
	case e.reserving && to.Run != events.LiveRun && to.RetryRun == 0 &&
		strings.HasPrefix(e.previousReason, reservedReason),
		e.reserving && to.RetryRun != 0 && strings.HasPrefix(e.previousReason, to.reservation()):
		return e.attempts >= maxSingleAttempts
	case to.RetryRun != 0:
		e.attempts = 0
		return false
	}
	return later
}

// recordSQL never replaces a final outcome: it replaces only failed outcomes, and dead ones when an
// operator retries them.
const recordSQL = `
INSERT INTO outcomes AS o (event_id, run, source, object, account, object_type, object_id, status, reason, version,
	decided_by, attempts, due, at, rule_version)
SELECT d.event_id, $1, d.source, d.object, d.account, d.object_type, d.object_id, d.status, d.reason, d.version,
	d.decided_by, d.attempts,
  now.at + d.wait, now.at, $2
FROM unnest($3::bigint[], $4::int[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
	$11::jsonb[], $12::jsonb[], $13::int[], $14::interval[])
  AS d(event_id, source, object, account, object_type, object_id, status, reason, version, decided_by, attempts, wait),
  (SELECT clock_now() AS at) now
ON CONFLICT (event_id, run) DO UPDATE SET
  source = excluded.source, object = excluded.object, account = excluded.account, object_type = excluded.object_type,
  	object_id = excluded.object_id,
  status = excluded.status, reason = excluded.reason, version = excluded.version, decided_by = excluded.decided_by,
  	attempts = excluded.attempts,
  due = excluded.due, at = excluded.at, rule_version = excluded.rule_version
WHERE o.status = 'failed' OR o.status = 'dead' AND $15`

// record writes the outcomes of the events that are not finished. A failed one gets its due time,
// or becomes dead after the last attempt.
func (a *Applier) record(ctx context.Context, tx pgx.Tx, to Target, batch []*event) error {
	open := make([]numberedAttempt, 0, len(batch))
	for _, e := range batch {
		if !e.finished {
			n, wait := a.attempt(e)
			open = append(open, numberedAttempt{e, n, wait})
		}
	}
	if len(open) == 0 {
		return nil
	}
	params := recordParams(tx.Conn(), to, open)
	defer params.Release()
	n, err := params.Run(ctx, nil)
	if err == nil && n != int64(len(open)) {
		// Another transaction, such as a redaction, wrote a final outcome after this one read it.
		// The transaction runs again and reads it.
		err = &pgconn.PgError{Severity: "ERROR", Code: "40001",
			Message: fmt.Sprintf("%d outcomes were recorded by another transaction", int64(len(open))-n)}
	}
	if err != nil {
		return fmt.Errorf("record %d outcomes: %w", len(open), err)
	}
	return nil
}

// numberedAttempt is an event with the number of its attempt and, after a failure, the wait before
// the next one.
type numberedAttempt struct {
	*event
	n    int
	wait *time.Duration
}

func recordParams(conn *pgx.Conn, to Target, open []numberedAttempt) *postgres.Params {
	p, n := postgres.NewParams(conn, postgres.Statement{Name: "postern_record", SQL: recordSQL}), len(open)
	p.Int64(to.Run)
	p.Int32(versioning.RuleVersion)
	p.Array(pgtype.Int8OID, n, func(i int) { p.Int64(open[i].ev.ID) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(open[i].key.Source) })
	p.Array(pgtype.Int8OID, n, func(i int) {
		object := open[i].lockKey
		if object == open[i].ev.ID {
			object = 0
		}
		p.Int64(object)
	})
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(events.SanitizeText(open[i].key.Account)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(events.SanitizeText(open[i].key.Type)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(events.SanitizeText(open[i].key.ID)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(string(open[i].outcome.status)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(events.SanitizeText(cut(open[i].outcome.reason, 2000))) })
	p.Array(pgtype.JSONBOID, n, func(i int) { addVersion(p, open[i].outcome.version) })
	p.Array(pgtype.JSONBOID, n, func(i int) { addVersion(p, open[i].outcome.decidedBy) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(int32(open[i].n)) })
	p.Array(pgtype.IntervalOID, n, func(i int) {
		if open[i].wait != nil {
			p.Interval(*open[i].wait)
		} else {
			p.Null()
		}
	})
	p.Bool(to.RetryRun != 0)
	return p
}

func addVersion(p *postgres.Params, v *versioning.Version) {
	if v == nil {
		p.Null()
		return
	}
	b, _ := v.MarshalJSON() // integers and a bool always marshal
	p.JSON(b)
}

// configRetryDelay is the wait of an event that only a configuration change can help. No attempt is
// counted.
const configRetryDelay = time.Minute

// attempt returns the number of this attempt and, after a failure, the wait before the next one.
// After the last attempt it turns the failed outcome into a dead one. A reservation is an attempt
// that is not made yet, so it becomes dead only when no attempt remains.
func (a *Applier) attempt(e *event) (n int, wait *time.Duration) {
	n = e.attempts + 1
	if e.reserved > 0 {
		n = e.reserved
	}
	last := len(a.Settings.BackOff) + 1
	switch {
	case e.outcome.status != versioning.Failed:
		return n, nil
	case e.configFailure:
		w := configRetryDelay
		return n - 1, &w
	case n < last || e.reserving && n == last:
		w := configRetryDelay
		if last > 1 {
			w = a.Settings.BackOff[min(n, last-1)-1]
		}
		return n, &w
	case e.reserving:
		n--
	}
	e.outcome.status = versioning.Dead
	e.outcome.reason = fmt.Sprintf("given up after %d attempts: %s", n, e.outcome.reason)
	return n, nil
}

const (
	reservedReason = "tried alone; the attempt has not ended yet, or it ended the process"
	previousPrefix = "; before that: "
)

// reservation returns the reason of a reserved attempt. For a retry it contains the run, to
// distinguish its reservations from the outcomes that it retries.
func (to Target) reservation() string {
	if to.RetryRun == 0 {
		return reservedReason
	}
	return fmt.Sprintf("%s (run %d)", reservedReason, to.RetryRun)
}

// ApplySingle tries an event that may end the process. It commits the attempt as failed before the
// try, so that an event that never lets a transaction end still runs out of attempts.
func (a *Applier) ApplySingle(ctx context.Context, run int64, ev stream.Event) error {
	return a.applySingle(ctx, Target{Run: run}, ev)
}

func (a *Applier) applySingle(ctx context.Context, to Target, ev stream.Event) error {
	one := []stream.Event{ev}
	if err := a.refreshUnknownSources(ctx, one); err != nil {
		return err
	}
	n, err := a.reserve(ctx, to, &ev)
	if err != nil || n == 0 {
		return unavailable(err)
	}
	if err = a.fetchBodies(ctx, a.Pool, one); err == nil {
		e := a.read(&one[0])
		e.reserved = n
		if to.excludes(e) { // the attempt is recorded already, so an outcome must be recorded too
			e.outcome = &outcome{status: versioning.Ignored, reason: "the event is of another type than this run " +
				"applies"}
		}
		err = a.applyBatch(ctx, to, []*event{e})
	}
	if err != nil {
		a.returnAttempt(ctx, to, ev.ID, n)
	}
	return err
}

// reserve commits the next attempt of an event as failed and returns its number, or 0 if there is
// nothing to try.
func (a *Applier) reserve(ctx context.Context, to Target, ev *stream.Event) (n int, err error) {
	var e *event
	err = postgres.InTx(ctx, a.Pool, "reserve attempt", a.Settings.ApplyTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			e = &event{ev: ev, lockKey: ev.ID, key: versioning.Key{Source: a.sources.number(ev.Source)},
				reserving: true}
			if err := to.guard(ctx, tx); err != nil {
				return err
			}
			if err := lock(ctx, tx, to.table(), []*event{e}, false); err != nil {
				return err
			}
			if err := a.markFinished(ctx, tx, to, []*event{e}); err != nil {
				return err
			}
			e.outcome = &outcome{status: versioning.Failed, reason: to.reservation()}
			before := e.previousReason
			if strings.HasPrefix(before, reservedReason) {
				_, before, _ = strings.Cut(before, previousPrefix)
			}
			if before != "" {
				e.outcome.reason += previousPrefix + before
			}
			if err := a.record(ctx, tx, to, []*event{e}); err != nil {
				return err
			}
			n = e.attempts + 1
			if e.finished || e.outcome.status == versioning.Dead {
				n = 0
			}
			return nil
		})
	if err == nil {
		to.countFinal(e)
	}
	return n, err
}

const returnAttemptSQL = `
UPDATE outcomes SET attempts = attempts - 1, due = clock_now() WHERE event_id = $1 AND run = $2 AND status = 'failed'
	AND attempts = $3`

// returnAttempt takes back an attempt that an infrastructure failure has prevented. If this fails
// too, the attempt is lost.
func (a *Applier) returnAttempt(ctx context.Context, to Target, event int64, n int) {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "take an attempt back", 2*time.Second)
	defer cancel()
	if _, err := a.Pool.Exec(ctx, returnAttemptSQL, event, to.Run, n); err != nil {
		a.Logger.Warn("attempt not taken back", "event", event, "error", err)
	}
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", events.ErrUnavailable, err)
}

// cut shortens s to about n bytes at the border of a rune.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
