package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
)

const acquireLeaseSQL = `
INSERT INTO checkpoints AS c (job, run, cursor, lease_owner, lease_until, updated_at)
VALUES ($1, 0, 0, $2, clock_now() + $3::interval, clock_now())
ON CONFLICT (job, run) DO UPDATE SET lease_owner = $2, lease_until = clock_now() + $3::interval,
	updated_at = clock_now()
WHERE c.lease_owner = $2 OR c.lease_until < clock_now()
RETURNING cursor`

const releaseLeaseSQL = `UPDATE checkpoints SET lease_until = clock_now() WHERE job = $1 AND run = 0
	AND lease_owner = $2`

const advanceCursorSQL = `
UPDATE checkpoints SET cursor = $3, lease_until = clock_now() + $4::interval, updated_at = clock_now()
WHERE job = $1 AND run = 0 AND lease_owner = $2`

// republisher publishes again the events that the stream lost: those without an outcome, and
// failures that are due.
type republisher struct {
	p *Processor
	// published is the last sequence of the previous pass. The next pass starts when the consumer
	// has acknowledged all up to it.
	published uint64
	// capacity is how many messages may be published before the stream reaches RepublishMaxFill, as
	// of the last read of its lag. A full stream would drop messages, which would be lost again.
	capacity int
	// streamCreated identifies the stream that published belongs to.
	streamCreated time.Time
	// publishedByCause counts the messages that this pass has published.
	publishedByCause map[string]int64
	// unacknowledged counts the messages of this pass for which the stream sent no response.
	unacknowledged int
	// nextPublish is the earliest time for the next chunk.
	nextPublish time.Time
	// watchdog ends a pass that makes no progress. Each step resets it.
	watchdog *time.Timer
}

// stepTimeout bounds a step of a pass, because a connection may be lost without an error.
const stepTimeout = time.Minute

// passWithTimeout runs a pass that ends when one of its steps takes too long.
func (a *republisher) passWithTimeout(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.watchdog = time.AfterFunc(stepTimeout,
		func() { cancel(fmt.Errorf("a step has not ended within %s", stepTimeout)) })
	defer a.watchdog.Stop()
	return a.pass(ctx)
}

// run makes passes until ctx ends. It logs the first of consecutive failures and tries again at the
// next tick.
func (a *republisher) run(ctx context.Context) error {
	tick, poll := time.NewTicker(a.p.Settings.RepublishInterval), time.NewTicker(requestPollInterval)
	defer tick.Stop()
	defer poll.Stop()
	failing := false
	for {
		err := a.passWithTimeout(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			a.p.Logger.Warn("republisher's pass not finished; it starts again", "error", err)
		}
		failing = err != nil
		if !a.awaitNextPass(ctx, tick.C, poll.C) {
			releaseCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			// if this fails, the lease expires
			_, _ = a.p.Pool.Exec(releaseCtx, releaseLeaseSQL, apply.RepublisherJob, a.p.ID)
			return nil
		}
	}
}

// pass runs one pass of the republisher, if this process gets the lease.
func (a *republisher) pass(ctx context.Context) error {
	var cursor int64
	err := a.p.Pool.QueryRow(ctx, acquireLeaseSQL, apply.RepublisherJob, a.p.ID,
		a.p.Settings.RepublishLease).Scan(&cursor)
	if errors.Is(err, pgx.ErrNoRows) {
		a.p.metrics.republishBehind.Set(0)
		return nil // another process is the republisher
	}
	if err != nil {
		return fmt.Errorf("acquire the republisher's lease: %w", err)
	}
	requested, err := a.requestedPasses(ctx)
	if err != nil {
		return err
	}
	a.publishedByCause, a.unacknowledged = map[string]int64{}, 0
	stopReason, err := a.republish(ctx, cursor, len(requested) > 0)
	// messages without a response: the stream was created again, or the connection was lost
	if stopReason == "" && a.unacknowledged > 0 {
		stopReason = fmt.Sprintf("the stream did not respond to %d messages: the next pass publishes those "+
			"without an outcome. %s", a.unacknowledged, noAckAdvice)
	}
	if err == nil && stopReason == "" {
		a.p.metrics.lastPass.SetToCurrentTime()
	}
	return errors.Join(err, a.recordPass(ctx, requested, stopReason, err))
}

// republish publishes events that are missing or due, unless messages of the previous pass are
// still pending. stopReason says why it did not reach the end.
func (a *republisher) republish(ctx context.Context, cursor int64, requested bool) (stopReason string, err error) {
	lag, err := a.p.Conn.Lag(ctx, true)
	if err != nil {
		return "", err
	}
	if !lag.StreamCreated.Equal(a.streamCreated) || lag.LastSequence < a.published {
		// a new stream counts from 1 again, a restored one from its old position
		a.streamCreated, a.published = lag.StreamCreated, 0
	}
	if lag.Messages > 0 && lag.AckFloor < a.published {
		return fmt.Sprintf("messages of the republisher's previous pass are still pending: %d messages wait for "+
			"processors", lag.Messages), nil
	}
	if a.capacity = lag.Capacity(a.p.Settings.RepublishMaxFill); a.capacity == 0 {
		return streamFullReason(lag), nil
	}
	frozen, err := a.freeze(ctx)
	if err != nil {
		return "", err
	}
	bound, err := a.republishBound(ctx, frozen, lag, requested)
	if err != nil {
		return "", err
	}
	until := bound
	if requested {
		until = max(frozen, bound)
	}
	complete, stopReason, err := a.publishMissing(ctx, cursor, bound, until)
	if err == nil && stopReason == "" {
		stopReason, err = a.publishDue(ctx)
	}
	if err != nil || stopReason != "" || !complete {
		return stopReason, err
	}
	return a.moveCursorPastYoung(ctx, max(cursor, until), frozen)
}

// streamFullReason returns the reason for ending a pass when the stream has no capacity.
func streamFullReason(lag stream.Lag) string {
	return fmt.Sprintf("the stream is as full as the republisher may make it: %d messages wait for processors",
		lag.Messages)
}

// leaseLostReason is the reason for ending a pass when this process has lost the lease.
const leaseLostReason = "another process has become the republisher"

// republishBound returns the greatest id that may be published again. The event must be older than
// the minimum age plus the age of the oldest pending message, because a younger event is probably
// in the stream. After the database's clock went back, ids do not advance until it has caught up,
// so they tell no age: then every committed event may be published. For a requested pass the
// minimum age is the timeout of a publish.
func (a *republisher) republishBound(ctx context.Context, frozen int64, lag stream.Lag, requested bool) (int64, error) {
	var now time.Time
	if err := a.p.Pool.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	if events.Time(frozen).Sub(now) > time.Second {
		return frozen, nil
	}
	age := a.p.Settings.RepublishMinAge
	if requested {
		age = min(age, stream.PublishTimeout)
	}
	return events.FirstID(events.Time(frozen).Add(-age-lag.OldestAge)) - 1, nil
}

// freezeTimeout bounds the wait for appends that hold back the bound. A later pass tries again.
const freezeTimeout = 20 * time.Second

func (a *republisher) freeze(ctx context.Context) (int64, error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "freeze the republisher's bound", freezeTimeout)
	defer cancel()
	return events.FreezeBound(ctx, a.p.Pool)
}

const withOutcomeSQL = `SELECT event_id FROM outcomes WHERE run = 0 AND event_id = ANY($1::bigint[])`

// compareChunk is how many ids are compared with their outcomes at once.
const compareChunk = 5000

// publishMissing walks from the cursor to until and publishes events that have no outcome. Above
// the bound it publishes only imported events, because no gateway publishes those. The cursor moves
// past an event only when the event has an outcome; publishing does not move it. complete says that
// all events have an outcome. stopReason says why the pass must end: the stream is full enough, or
// another process has the lease.
func (a *republisher) publishMissing(ctx context.Context, cursor, bound, until int64) (complete bool,
	stopReason string, err error) {
	checkpoint, allHaveOutcome := cursor, true
	for at := cursor; at < until; {
		ids, missing, err := a.compare(ctx, at, until)
		if err != nil {
			return false, "", err
		}
		if len(ids) == 0 {
			break
		}
		at = ids[len(ids)-1]
		if allHaveOutcome {
			if allHaveOutcome = len(missing) == 0; allHaveOutcome {
				checkpoint = at
			} else {
				checkpoint = missing[0] - 1
				a.p.metrics.republishBehind.Set(time.Since(events.Time(missing[0])).Seconds())
			}
		}
		if stopReason, err := a.moveCursor(ctx, checkpoint); err != nil || stopReason != "" {
			return false, stopReason, err
		}
		if missing, err = a.excludeInPublication(ctx, missing, bound); err != nil {
			return false, "", err
		}
		if stopReason, err := a.publish(ctx, missing, false); err != nil || stopReason != "" {
			return false, stopReason, err
		}
	}
	if allHaveOutcome {
		a.p.metrics.republishBehind.Set(0)
	}
	return allHaveOutcome, "", nil
}

// moveCursorPastYoung moves the cursor from after, up to which all events have an outcome, to the
// first event without an outcome, or to until. Readers of pending work begin at the cursor, and so
// read few rows.
func (a *republisher) moveCursorPastYoung(ctx context.Context, after, until int64) (stopReason string, err error) {
	for {
		ids, missing, err := a.compare(ctx, after, until)
		if err != nil || len(ids) == 0 {
			return "", err
		}
		if after = ids[len(ids)-1]; len(missing) > 0 {
			after = missing[0] - 1
		}
		stopReason, err := a.moveCursor(ctx, after)
		if err != nil || stopReason != "" || len(missing) > 0 || len(ids) < compareChunk {
			return stopReason, err
		}
	}
}

// compare returns the next ids of the log after an id, and those of them without an outcome.
func (a *republisher) compare(ctx context.Context, after, until int64) (ids, missing []int64, err error) {
	a.watchdog.Reset(stepTimeout)
	if ids, err = events.IDsAfter(ctx, a.p.Pool, after, until, compareChunk); err != nil {
		return nil, nil, err
	}
	missing, err = a.withoutOutcome(ctx, ids)
	return ids, missing, err
}

// moveCursor moves the cursor and renews the lease. stopReason says that another process has it.
func (a *republisher) moveCursor(ctx context.Context, cursor int64) (stopReason string, err error) {
	leased, err := a.p.Pool.Exec(ctx, advanceCursorSQL, apply.RepublisherJob, a.p.ID, cursor,
		a.p.Settings.RepublishLease)
	if err != nil {
		return "", fmt.Errorf("move the republisher's cursor: %w", err)
	}
	if leased.RowsAffected() == 0 {
		return leaseLostReason, nil
	}
	return "", nil
}

const importedSQL = `SELECT id FROM events WHERE id = ANY($1::bigint[]) AND origin = 'import'`

// excludeInPublication drops events above the bound that a gateway may be publishing now.
func (a *republisher) excludeInPublication(ctx context.Context, ids []int64, bound int64) ([]int64, error) {
	firstYoung := slices.IndexFunc(ids, func(id int64) bool { return id > bound })
	if firstYoung < 0 {
		return ids, nil
	}
	imported, err := postgres.Collect(ctx, a.p.Pool, pgx.RowTo[int64], importedSQL, ids[firstYoung:])
	if err != nil {
		return nil, fmt.Errorf("find imported events: %w", err)
	}
	slices.Sort(imported)
	return append(slices.Clip(ids[:firstYoung]), imported...), nil
}

func (a *republisher) withoutOutcome(ctx context.Context, ids []int64) ([]int64, error) {
	have, err := postgres.Collect(ctx, a.p.Pool, pgx.RowTo[int64], withOutcomeSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	slices.Sort(have)
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool {
		_, found := slices.BinarySearch(have, id)
		return found
	}), nil
}

const dueSQL = `SELECT event_id FROM outcomes WHERE status = 'failed' AND run = 0 AND due <= $1 ORDER BY due LIMIT $2`

// publishDue publishes failures that are due. Each is then applied as a single event.
func (a *republisher) publishDue(ctx context.Context) (stopReason string, err error) {
	var now time.Time
	if err := a.p.Pool.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return "", fmt.Errorf("read the clock: %w", err)
	}
	ids, err := postgres.Collect(ctx, a.p.Pool, pgx.RowTo[int64], dueSQL, now, compareChunk)
	if err != nil {
		return "", fmt.Errorf("read due failures: %w", err)
	}
	return a.publish(ctx, ids, true)
}

// Causes of publishing an event again.
const (
	causeMissing = "missing"
	causeDue     = "due"
)

// publishChunk is how many events are read and published between two reads of the stream's lag.
const publishChunk = 200

// publish puts each event into the stream again, at the configured rate. stopReason says why the
// pass must end before all are published.
func (a *republisher) publish(ctx context.Context, ids []int64, retry bool) (stopReason string, err error) {
	cause := map[bool]string{false: causeMissing, true: causeDue}[retry]
	for rest := ids; len(rest) > 0; {
		a.watchdog.Reset(stepTimeout)
		n := min(publishChunk, a.capacity, len(rest))
		if stopReason, err := a.waitForRate(ctx, n); err != nil || stopReason != "" {
			return stopReason, err
		}
		evs, err := a.p.Events(ctx, rest[:n], stream.MaxBody)
		if err != nil {
			return "", err
		}
		// normally the table of sources has every source of an event
		evs = slices.DeleteFunc(evs, func(e stream.Event) bool { return e.Source == "" })
		for i := range evs {
			evs[i].Retry = retry
		}
		if err := a.send(ctx, evs, cause); err != nil {
			return "", err
		}
		rest = rest[n:]
		lag, err := a.p.Conn.Lag(ctx, false)
		if err != nil {
			return "", err
		}
		if a.capacity = lag.Capacity(a.p.Settings.RepublishMaxFill); a.capacity == 0 {
			return streamFullReason(lag), nil
		}
	}
	if len(ids) > 0 {
		a.p.Logger.Info("republisher published events", "events", len(ids), "cause", cause)
	}
	return "", nil
}

// noAckAdvice helps with a stream that answers queries but acknowledges no publish. A NATS server
// (2.15.2) whose disk was full writes nothing more, even when there is space again.
const noAckAdvice = "If this goes on and the disk of the NATS server was full: free space and restart that server"

// send publishes a chunk. One message that the stream rejects does not stop the others or the due
// failures. A lost connection or stream ends the pass.
func (a *republisher) send(ctx context.Context, evs []stream.Event, cause string) (err error) {
	sent := 0
	for i, ack := range a.p.Conn.PublishEvents(ctx, evs) {
		if ack.Err != nil {
			err = fmt.Errorf("publish event %d again: %w", evs[i].ID, ack.Err)
			if stream.IsOutcomeUnknown(ack.Err) {
				a.unacknowledged++
			}
			continue
		}
		sent++
		a.published = max(a.published, ack.Sequence)
		a.publishedByCause[cause]++
		a.p.metrics.republished.WithLabelValues(cause).Inc()
	}
	if err == nil || stream.IsNotFound(err) || !a.p.Conn.Connected() {
		return err
	}
	if stream.IsStreamFull(err) {
		return a.p.restoreStreams(ctx, err)
	}
	attrs := []any{"sent", sent, "of", len(evs), "error", err}
	if sent == 0 && stream.IsOutcomeUnknown(err) {
		attrs = append(attrs, "advice", noAckAdvice)
	}
	a.p.Logger.Warn("some events not published again; the next pass tries again", attrs...)
	return ctx.Err()
}
