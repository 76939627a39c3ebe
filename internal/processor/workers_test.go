package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// noBackgroundWork keeps the resend and the regular passes of the republisher out of a test.
func noBackgroundWork(s *processor.Settings) {
	s.RepublishInterval, s.RepublishMinAge, s.ResendAfter = time.Hour, time.Hour, time.Hour
}

// A message that is redelivered while its first delivery is in progress leaves one outcome and
// changes its object once.
func TestProcessor_redeliveredWhileInProgress_appliesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 300 * time.Millisecond })
	r := newGatedCounter()
	for range 2 {
		w.start(t, processorOptions{provider: r, tune: noBackgroundWork})
	}
	w.publish(t, w.append(t, w.newObjects(20)...)...)
	consumer, err := w.jetStream(t).Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
	must(t, err)
	testkit.Eventually(t, maxWait, func() error {
		info, err := consumer.Info(t.Context())
		if err == nil && info.NumRedelivered < 10 {
			err = fmt.Errorf("%d messages were redelivered", info.NumRedelivered)
		}
		return err
	})
	r.open()
	w.awaitOutcomes(t, 20)
	w.awaitDrained(t)
	var grown, applied int
	w.Scan(t, `SELECT (SELECT count(*) FROM objects WHERE revision <> 1), (SELECT count(*) FROM outcomes
		WHERE status = 'applied' AND attempts = 1)`, &grown, &applied)
	if grown != 0 || applied != 20 {
		t.Errorf("%d objects changed twice, %d events applied once, want 0 and 20", grown, applied)
	}
}

// consumeWithoutAck reads n messages like a processor, passes each to use, acknowledges none and
// ends, like a process that dies.
func (w *world) consumeWithoutAck(t *testing.T, n int, use func(stream.Event)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	err := w.conn.Consume(ctx, n, func(m stream.Message) error {
		use(m.Event)
		if n--; n == 0 {
			cancel()
		}
		return nil
	}, func(err error) { t.Error(err) })
	if err != nil || n > 0 {
		t.Fatalf("%d messages were not delivered: %v", n, err)
	}
}

// A crash after the commit repeats only the acknowledgement. A crash before it repeats the work.
func TestProcessor_crashBeforeAck_keepsCommittedOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 500 * time.Millisecond })
	evs := w.append(t, w.newObjects(40)...)
	last := evs[19].ID
	w.publish(t, evs...)
	crashed := w.processor(t, nil, nil)
	w.consumeWithoutAck(t, 40, func(e stream.Event) {
		if e.ID > last {
			return // a crash before the commit of this one
		}
		if err := crashed.Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
			t.Error(err)
		}
	})
	const committedSQL = `SELECT o::text FROM outcomes o WHERE event_id <= $1 ORDER BY event_id`
	before := w.DB.QueryStrings(t, committedSQL, last)
	w.start(t, processorOptions{tune: noBackgroundWork})
	w.awaitOutcomes(t, 40)
	w.awaitDrained(t)
	equal(t, "committed outcomes", before, w.DB.QueryStrings(t, committedSQL, last))
}

// While the database is unavailable, messages in progress are requeued. After its return all are
// applied, and no attempt was counted.
func TestProcessor_databaseUnavailable_requeuesAndAppliesLater(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*testkit.FaultProxy){"cut": (*testkit.FaultProxy).Cut,
		"stalled": (*testkit.FaultProxy).Stall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			proxy := testkit.Proxy(t, w.DB.URL)
			p := w.start(t, processorOptions{database: proxy.URL, tune: func(s *processor.Settings) {
				noBackgroundWork(s)
				s.ApplyTimeout, s.Batch = 500*time.Millisecond, 20
			}})
			w.publish(t, w.append(t, w.newObjects(100)...)...)
			w.awaitOutcomes(t, 100)
			fault(proxy)
			w.publish(t, w.append(t, w.newObjects(300)...)...)
			p.awaitMetric(t, "postern_messages_requeued_total", "", 1)
			proxy.Restore()
			w.awaitOutcomes(t, 400)
			w.awaitDrained(t)
			var lostAttempts int
			if w.Scan(t, `SELECT count(*) FROM outcomes WHERE attempts <> 1`, &lostAttempts); lostAttempts > 0 {
				t.Errorf("%d events lost attempts", lostAttempts)
			}
		})
	}
}

// A processor that lost its database blocks no message for another processor: it requeues and stops
// pulling.
func TestProcessor_ownDatabaseLost_otherProcessorApplies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	proxy := testkit.Proxy(t, w.DB.URL)
	w.start(t, processorOptions{id: "/cut off", database: proxy.URL, tune: noBackgroundWork})
	w.publish(t, w.append(t, w.newObjects(100)...)...)
	w.awaitOutcomes(t, 100)
	proxy.Cut()
	w.start(t, processorOptions{id: "/well", tune: noBackgroundWork})
	w.publish(t, w.append(t, w.newObjects(1000)...)...)
	w.awaitOutcomes(t, 1100)
	w.awaitDrained(t)
}

// A processor that stops finishes messages within the soft limit and requeues the rest, including
// those that it has prefetched. Another processor need not wait for the broker's redelivery.
func TestProcessor_stop_requeuesTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	evs := w.append(t, w.newObjects(500)...)
	w.publish(t, evs...)
	locks, err := w.DB.Pool.Begin(t.Context())
	must(t, err)
	for _, e := range evs { // applying waits for these objects
		key := versioning.ObjectKey(w.Source, "", "thing", objectID(t, e))
		execSQL(t, locks, `SELECT pg_advisory_xact_lock($1)`, key)
	}
	p := w.start(t, processorOptions{id: "/stops", tune: func(s *processor.Settings) {
		noBackgroundWork(s)
		s.Batch, s.StopTimeout = 20, 200*time.Millisecond
	}})
	w.AwaitAtLeast(t, 2,
		`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid
			FROM pg_database WHERE datname = current_database())`)
	p.stop(t)
	must(t, locks.Rollback(t.Context()))
	if n := p.metric(t, "postern_messages_requeued_total", ""); n == 0 {
		t.Error("nothing was requeued")
	}
	w.start(t, processorOptions{id: "/goes on", tune: noBackgroundWork})
	w.awaitOutcomes(t, len(evs))
	w.awaitDrained(t)
}

func objectID(t *testing.T, e stream.Event) string {
	t.Helper()
	o, err := (sim.Provider{}).Observe(nil, &e.StoredEvent)
	must(t, err)
	return o.ObjectID
}

// A stop may cancel a pull whose goroutine still delivers messages. Workers that have ended may
// accept them or not; the stream redelivers these messages.
func TestWorkers_messageAfterEnd_isNotProcessed(t *testing.T) {
	t.Parallel()
	delivered, processed := processor.DeliverAfterEnd(t.Context(), 100)
	if delivered != 101 || processed != 1 {
		t.Errorf("%d delivered, %d processed", delivered, processed)
	}
}

// awaitCount waits until a query returns a number.
func (w *world) awaitCount(t *testing.T, sql string, want int) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
		var n int
		if w.Scan(t, sql, &n); n != want {
			return fmt.Errorf("%s: %d, want %d", sql, n, want)
		}
		return nil
	})
}
