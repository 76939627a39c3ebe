package processor_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Whatever the stream loses, every event gets its outcome. No event is published again that has an
// outcome or still waits in the stream.
func TestRepublisher_streamLosesEvents_publishesEachOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limits func(*stream.Limits)
		// lose leaves some events without an outcome and outside of the stream. It returns
		// their number and the number of all events.
		lose func(t *testing.T, w *world) (lost, total int)
	}{
		"wiped":       {nil, wipeStream},
		"rolled back": {nil, rollBackStream},
		"full":        {func(l *stream.Limits) { l.MaxMessages = 100 }, overfillStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tc.limits)
			lost, total := tc.lose(t, w)
			r := newReadCounter()
			p := w.start(t, processorOptions{provider: r})
			w.awaitOutcomes(t, total)
			w.awaitDrained(t)
			w.awaitPasses(t, 3)
			if n := p.republished(t); n != lost {
				t.Errorf("the republisher published %d events, %d were lost", n, lost)
			}
			if n := r.total(); n > total {
				t.Errorf("%d copies of %d events were read: %d were published without need", n, total, n-total)
			}
		})
	}
}

// processEvents stores, publishes and applies n events, and stops the processor.
func (w *world) processEvents(t *testing.T, n, total int) {
	t.Helper()
	w.publish(t, w.append(t, w.newObjects(n)...)...)
	p := w.start(t, processorOptions{tune: noBackgroundWork})
	w.awaitOutcomes(t, total)
	w.awaitDrained(t)
	p.stop(t)
}

func wipeStream(t *testing.T, w *world) (lost, total int) {
	w.processEvents(t, 300, 300)
	w.publish(t, w.append(t, w.newObjects(300)...)...)
	w.nats.Wipe(t)
	return 300, 600
}

func rollBackStream(t *testing.T, w *world) (lost, total int) {
	w.processEvents(t, 150, 150)
	saved := w.nats.SaveStore(t)
	w.awaitReconnect(t)
	w.processEvents(t, 150, 300)
	w.publish(t, w.append(t, w.newObjects(200)...)...)
	w.nats.RestoreStore(t, saved)
	return 200, 500
}

func overfillStream(t *testing.T, w *world) (lost, total int) {
	w.publish(t, w.append(t, w.newObjects(500)...)...)
	return 400, 500
}

// Without a consumer, a backlog fills the stream to half of its limit, and no further.
func TestRepublisher_streamHalfFull_stops(t *testing.T) {
	t.Parallel()
	// Twenty passes may take long on a busy machine. Messages that wait at the gate must not be
	// redelivered meanwhile.
	w := newWorld(t, func(l *stream.Limits) { l.MaxMessages, l.AckWait = 1000, 10*time.Minute })
	total := 2000
	w.append(t, w.newObjects(total)...)
	w.DB.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, due, at, rule_version)
		SELECT id, 0, source, 0, '', '', '', 'failed', 'not today', 1, now() - interval '1 h', now(), 1 FROM events
			ORDER BY id DESC LIMIT 300`)
	r := newGatedCounter()
	p := w.start(t, processorOptions{provider: r})
	w.awaitPasses(t, 20)
	if n := p.metric(t, "postern_republisher_events_total", "due"); n != 0 {
		t.Errorf("%v due failures were published beyond the limit", n)
	}
	if n := p.republished(t); n != 500 {
		t.Errorf("the republisher published %d events into a stream of 1000 without a consumer, want 500", n)
	}
	r.open()
	w.awaitOutcomes(t, total)
	if n := r.total(); n != total {
		t.Errorf("%d copies of %d events", n, total)
	}
}

// A message that waits in the stream is not published again, however long it waits.
func TestRepublisher_eventWaitsInStream_isNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	w.publish(t, w.append(t, w.newObjects(100)...)...) // before the republisher could find them missing
	r := newGatedCounter()
	p := w.start(t, processorOptions{provider: r,
		tune: func(s *processor.Settings) { s.RepublishMinAge = 300 * time.Millisecond }})
	w.awaitPasses(t, 30)
	r.open()
	w.awaitOutcomes(t, 100)
	w.awaitPasses(t, 3)
	if n := p.republished(t); n != 0 {
		t.Errorf("the republisher published %d events that waited in the stream", n)
	}
}

// The cursor passes only events that have an outcome: an event that was published and lost is found
// again.
func TestRepublisher_cursor_passesOnlyEventsWithOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	r := newGatedCounter()
	evs := w.append(t, w.newObjects(50)...)
	p := w.start(t, processorOptions{provider: r,
		tune: func(s *processor.Settings) { s.StopTimeout = 10 * time.Millisecond }})
	p.awaitMetric(t, "postern_republisher_events_total", "missing", float64(len(evs)))
	w.awaitPasses(t, 3)
	tx := testkit.OpenTx(t, w.DB.Pool, `LOCK TABLE outcomes IN ACCESS EXCLUSIVE MODE`)
	p.cancel() // nothing that is in progress is committed any more
	r.open()
	p.stop(t)
	must(t, tx.Rollback(t.Context()))
	var without, cursor int64
	w.Scan(t, `SELECT coalesce(min(id), 0) FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o
		WHERE o.event_id = e.id)`, &without)
	w.Scan(t, `SELECT cursor FROM checkpoints WHERE job = 'republisher'`, &cursor)
	if without == 0 || cursor >= without {
		t.Fatalf("cursor %d, first event without outcome %d", cursor, without)
	}
	w.nats.Wipe(t)
	w.start(t, processorOptions{})
	w.awaitOutcomes(t, len(evs))
}

// A pass moves the cursor past young events that have an outcome, and publishes no young event.
func TestRepublisher_youngEvents_cursorPassesThoseWithOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	evs := w.append(t, w.newObjects(10)...)
	slices.SortFunc(evs, func(a, b stream.Event) int { return cmp.Compare(a.ID, b.ID) })
	o := w.options(t, sim.Provider{})
	quickSettings(&o.Settings)
	o.Settings.RepublishMinAge = time.Hour
	o.Conn, o.Limits = w.connect(t, w.nats.URL), w.limits
	pass := processor.RepublishPass(newProcessor(t, o))
	for _, c := range []struct {
		with int
		want int64
	}{{0, evs[0].ID - 1}, {7, evs[7].ID - 1}, {10, evs[9].ID}} {
		w.DB.Exec(t, `DELETE FROM checkpoints; DELETE FROM outcomes`)
		w.DB.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
			reason, attempts, at, rule_version)
			SELECT id, 0, source, 0, '', '', '', 'applied', '', 1, now(), 1 FROM events ORDER BY id LIMIT $1`, c.with)
		must(t, pass(t.Context()))
		var cursor int64
		w.Scan(t, `SELECT cursor FROM checkpoints WHERE job = 'republisher'`, &cursor)
		testkit.Equal(t, fmt.Sprintf("the cursor where %d events have an outcome", c.with), c.want, cursor)
	}
	// a pass does not move it back
	w.DB.Exec(t, `UPDATE checkpoints SET cursor = cursor + 5`)
	must(t, pass(t.Context()))
	var cursor int64
	w.Scan(t, `SELECT cursor FROM checkpoints`, &cursor)
	testkit.Equal(t, "the cursor after another pass", evs[9].ID+5, cursor)
	lag, err := o.Conn.Lag(t.Context(), true)
	must(t, err)
	testkit.Equal(t, "messages", 0, int(lag.Messages))
	// an older event without an outcome holds it back
	w.DB.Exec(t, `SELECT ensure_partitions(clock_ms() - 86400000, clock_ms()); DELETE FROM checkpoints;
		WITH made AS (SELECT (clock_ms() - 7200000) << 20 AS id)
		INSERT INTO events SELECT (jsonb_populate_record(e, jsonb_build_object('id', m.id, 'event_id', m.id))).*
		FROM events e, made m WHERE e.id = (SELECT max(id) FROM events)`)
	must(t, pass(t.Context()))
	var old int64
	w.Scan(t, `SELECT min(id), (SELECT cursor FROM checkpoints) FROM events`, &old, &cursor)
	testkit.Equal(t, "the cursor before an old event without an outcome", old-1, cursor)
}

// Two republishers at once only publish events twice.
func TestRepublisher_twoAtOnce_changeObjectsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.append(t, w.newObjects(400)...)
	r := newReadCounter()
	for range 2 { // with the same name both get the lease
		w.start(t, processorOptions{provider: r})
	}
	w.awaitOutcomes(t, 400)
	w.awaitDrained(t)
	if n := r.total(); n > 800 {
		t.Errorf("%d copies of 400 events", n)
	}
	var grown int
	w.Scan(t, `SELECT count(*) FROM objects WHERE revision <> 1`, &grown)
	if grown != 0 {
		t.Errorf("%d objects were changed twice", grown)
	}
}

// The lease moves to another process when its owner does not renew it.
func TestRepublisher_leaseOwnerDies_leaseMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	proxy := testkit.Proxy(t, w.DB.URL)
	leaseOwner := func() (name string) {
		w.Scan(t, `SELECT coalesce((SELECT lease_owner FROM checkpoints WHERE job = 'republisher'), '')`, &name)
		return name
	}
	w.start(t, processorOptions{id: "/first", database: proxy.URL})
	w.awaitPasses(t, 1)
	second := w.start(t, processorOptions{id: "/second"})
	for range 12 {
		w.awaitPasses(t, 1)
		if name := leaseOwner(); name != t.Name()+"/first" {
			t.Fatalf("the lease belongs to %s although its owner lives", name)
		}
	}
	proxy.Cut()
	w.append(t, w.newObjects(10)...)
	w.setClock(t, "31 s")
	w.awaitOutcomes(t, 10)
	if name := leaseOwner(); name != t.Name()+"/second" || second.republished(t) != 10 {
		t.Errorf("the lease belongs to %s; the second process published %d", name, second.republished(t))
	}
}

// If the server rejects the size of a body that Postern would send, the message goes without the
// body, and the event is applied.
func TestRepublisher_bodyTooLargeForServer_isApplied(t *testing.T) {
	t.Parallel()
	w := newWorldWithMaxPayload(t, 128<<10)
	evs := w.append(t, append(w.newObjects(10), eventWithText("large", strings.Repeat("x", stream.MaxBody-1000)))...)
	if n := len(evs[10].Body); n >= stream.MaxBody || n < 250<<10 {
		t.Fatalf("the body is %d bytes long, must be just below %d", n, stream.MaxBody)
	}
	w.start(t, processorOptions{})
	w.awaitOutcomes(t, len(evs))
	if status, reason, attempts := w.OutcomeOf(t, evs[10].ID); status != "applied" || attempts != 1 {
		t.Errorf("the large event is %s after %d attempts: %s", status, attempts, reason)
	}
}

// A message that no server accepts does not stop others: missing events are published, and due
// failures are retried.
func TestRepublisher_messageRejected_publishesOthers(t *testing.T) {
	t.Parallel()
	w := newWorldWithMaxPayload(t, 16<<10)
	// its key, in a header, is three times as long
	long := w.Delivery(w.Source, strings.Repeat("é", 3500), eventWithText("refused", "x"))
	_, err := events.Append(t.Context(), w.DB.Pool, []events.Delivery{long})
	must(t, err)
	evs := w.append(t, w.newObjects(20)...)
	w.DB.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, due, at, rule_version)
		SELECT unnest($1::bigint[]), 0, $2, 0, '', '', '', 'failed', 'not today', 1, now() - interval '1 h', now(), 1`,
		[]int64{evs[3].ID, evs[7].ID, evs[19].ID}, w.Source)
	p := w.start(t, processorOptions{})
	w.AwaitAtLeast(t, len(evs), `SELECT count(*) FROM outcomes WHERE status = 'applied'`)
	if n := p.metric(t, "postern_republisher_events_total", "due"); n < 3 {
		t.Errorf("%v due failures were published", n)
	}
	var outcomes int
	if w.Scan(t, `SELECT count(*) FROM outcomes`, &outcomes); outcomes != len(evs) {
		t.Errorf("%d outcomes: the event that should be rejected was accepted", outcomes)
	}
}

// The stream is restored to an older state while a message is in progress: the lost events do not
// wait for that message.
func TestRepublisher_rollBackWithMessageInProgress_publishesLostEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	pass := w.republishPass(t)
	evs := w.append(t, w.newObjects(10)...)
	w.publish(t, evs[0])
	w.consumeWithoutAck(t, 1, func(stream.Event) {})
	saved := w.nats.SaveStore(t)
	published := func() (n uint64) {
		testkit.Eventually(t, maxWait, func() error {
			lag, err := w.conn.Lag(t.Context(), false)
			n = lag.LastSequence
			return err
		})
		return n
	}
	testkit.Eventually(t, maxWait, func() error { return pass(t.Context()) }) // until it is connected again
	if n := published(); n < uint64(len(evs)) {
		t.Fatalf("%d messages before the loss", n)
	}
	w.nats.RestoreStore(t, saved)
	if n := published(); n != 1 {
		t.Fatalf("%d messages after the loss", n)
	}
	// The events of a pass depend on its time. Waiting for the message in progress would take ten
	// minutes.
	testkit.Eventually(t, maxWait, func() error {
		if err := pass(t.Context()); err != nil {
			return err
		}
		if n := published(); n < uint64(len(evs)) {
			return fmt.Errorf("%d messages: the lost events are not published", n)
		}
		return nil
	})
}

// Ids do not advance while the database's clock catches up after it went back. Unpublished events
// do not wait for that.
func TestRepublisher_databaseClockStepsBack_publishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.start(t, processorOptions{tune: func(s *processor.Settings) { s.RepublishMinAge = time.Second }})
	w.publish(t, w.append(t, w.newObjects(5)...)...)
	w.awaitOutcomes(t, 5)
	w.awaitPasses(t, 3)
	w.setClock(t, "-10 min")
	w.append(t, w.newObjects(5)...)
	w.awaitOutcomes(t, 10)
}

// The republisher publishes events of a source that it does not know under the source's name, so
// that a processor that knows it can apply them.
func TestRepublisher_sourceAddedLater_publishesUnderItsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	pass := w.republishPass(t)
	stored := w.AppendEvents(t, w.AddSource(t, "newer"), w.newObjects(3))
	must(t, pass(t.Context()))
	w.consumeWithoutAck(t, len(stored), func(e stream.Event) {
		if e.Source != "newer" {
			t.Errorf("event %d was published under source %q", e.ID, e.Source)
		}
	})
}

// republishPass returns the pass function of a processor that does nothing else.
func (w *world) republishPass(t *testing.T) func(context.Context) error {
	t.Helper()
	o := w.options(t, sim.Provider{})
	quickSettings(&o.Settings)
	o.Conn, o.Limits = w.connect(t, w.nats.URL), w.limits
	return processor.RepublishPass(newProcessor(t, o))
}
