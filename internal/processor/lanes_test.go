package processor_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// idle keeps the auditor and the sweep out of a test.
func idle(s *processor.Settings) {
	s.AuditEvery, s.AuditAge, s.SweepAfter = time.Hour, time.Hour, time.Hour
}

// A message that comes again while its first copy is still in hand leaves one outcome and changes its object once.
func TestRedeliveredWhileInHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 300 * time.Millisecond })
	r := newGate()
	for range 2 {
		w.start(t, setting{provider: r, tune: idle})
	}
	w.publish(t, w.append(t, w.simple(20)...)...)
	consumer, err := w.jetStream(t).Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() error {
		info, err := consumer.Info(t.Context())
		if err == nil && info.NumRedelivered < 10 {
			err = fmt.Errorf("%d messages were delivered again", info.NumRedelivered)
		}
		return err
	})
	r.open()
	w.outcomes(t, 20)
	w.drained(t)
	var grown, applied int
	w.scan(t, `SELECT (SELECT count(*) FROM objects WHERE revision <> 1), (SELECT count(*) FROM outcomes WHERE status = 'applied' AND attempts = 1)`, &grown, &applied)
	if grown != 0 || applied != 20 {
		t.Errorf("%d objects changed twice, %d events applied once, want 0 and 20", grown, applied)
	}
}

// take reads n messages as a processor does, hands each to use, acknowledges none and ends, like a process that dies then.
func (w *world) take(t *testing.T, n int, use func(stream.Event)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := w.conn.Consume(ctx, n, func(m stream.Message) error {
		use(m.Event)
		if n--; n == 0 {
			cancel()
		}
		return nil
	}, func(err error) { t.Error(err) })
	if err != nil || n > 0 {
		t.Fatalf("%d messages were not taken: %v", n, err)
	}
}

const outcomesText = `SELECT coalesce(string_agg(o::text, E'\n' ORDER BY event_id), '') FROM outcomes o WHERE event_id <= $1`

// A crash after the commit repeats only the acknowledgement; a crash before it repeats the work.
func TestCrashBeforeAcknowledging(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 500 * time.Millisecond })
	committed := w.append(t, w.simple(20)...)
	w.append(t, w.simple(20)...)
	last := committed[len(committed)-1].ID
	all := w.append(t)
	w.publish(t, append(all, w.stored(t)...)...)
	crashed := w.processor(t, sim.Provider{}, nil)
	w.take(t, 40, func(e stream.Event) {
		if e.ID > last {
			return // this one crashes before its commit
		}
		if err := crashed.Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
			t.Error(err)
		}
	})
	text := func() (s string) {
		if err := w.db.Pool.QueryRow(t.Context(), outcomesText, last).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := text()
	w.start(t, setting{tune: idle})
	w.outcomes(t, 40)
	w.drained(t)
	if diff := cmp.Diff(before, text()); diff != "" {
		t.Errorf("committed outcomes were changed by the redelivery (-before +after):\n%s", diff)
	}
}

// stored are all events of the log as the stream carries them.
func (w *world) stored(t *testing.T) []stream.Event {
	t.Helper()
	ids, err := events.After(t.Context(), w.pool, 0, 1<<62, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	recs, err := events.Read(t.Context(), w.pool, ids, events.AnyBody)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]stream.Event, len(recs))
	for i, r := range recs {
		out[i] = stream.Event{Stored: r.Stored, Source: "sim", ObjectType: r.ObjectType, ObjectID: r.ObjectID}
	}
	return out
}

// With the database away what is in hand is handed back; after its return everything is applied, and no attempt was burned.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*testkit.FaultProxy){"cut": (*testkit.FaultProxy).Cut, "stalled": (*testkit.FaultProxy).Stall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			proxy := testkit.Proxy(t, w.db.URL)
			p := w.start(t, setting{database: proxy.URL, tune: func(s *processor.Settings) {
				idle(s)
				s.ApplyTimeout, s.Batch = 500*time.Millisecond, 20
			}})
			w.publish(t, w.append(t, w.simple(100)...)...)
			w.outcomes(t, 100)
			fault(proxy)
			w.publish(t, w.append(t, w.simple(300)...)...)
			testkit.Eventually(t, patience, func() error {
				if n := p.metric(t, "postern_messages_handed_back_total", ""); n == 0 {
					return errors.New("nothing handed back")
				}
				return nil
			})
			proxy.Restore()
			w.outcomes(t, 400)
			w.drained(t)
			var burned int
			if w.scan(t, `SELECT count(*) FROM outcomes WHERE attempts <> 1`, &burned); burned > 0 {
				t.Errorf("%d events burned attempts", burned)
			}
		})
	}
}

// A processor that lost its database keeps nothing from another that has one: it hands back and pulls no more.
func TestProcessorWithoutDatabaseLeavesTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	proxy := testkit.Proxy(t, w.db.URL)
	w.start(t, setting{id: "/cut off", database: proxy.URL, tune: idle})
	w.publish(t, w.append(t, w.simple(100)...)...)
	w.outcomes(t, 100)
	proxy.Cut()
	w.start(t, setting{id: "/well", tune: idle})
	w.publish(t, w.append(t, w.simple(1000)...)...)
	w.outcomes(t, 1100)
	w.drained(t)
}

// The server dies and comes back while events are appended, published and applied: every event gets its outcome.
func TestServerRestartsMidRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = time.Second })
	for i := range 2 {
		w.start(t, setting{id: fmt.Sprint("/", i), tune: func(s *processor.Settings) { s.AuditAge = 200 * time.Millisecond }})
	}
	var wg sync.WaitGroup
	const rounds, each = 30, 20
	restarts := make(chan struct{}, rounds)
	wg.Go(func() {
		defer close(restarts)
		for i := range rounds {
			w.conn.PublishEvents(t.Context(), w.append(t, w.simple(each)...)) // what fails is the auditor's
			if i%10 == 5 {
				restarts <- struct{}{}
			}
		}
	})
	for range restarts {
		w.nats.Restart(t)
	}
	wg.Wait()
	w.outcomes(t, rounds*each)
}

// Stopping, a processor finishes what it can within the soft limit and hands the rest back, what it fetched ahead included:
// another need not wait until the broker misses the messages.
func TestStopHandsBackTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	evs := w.append(t, w.simple(500)...)
	w.publish(t, evs...)
	held, err := w.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range evs { // whoever applies waits for these objects
		key := versioning.ObjectKey(w.source, "", "thing", objectOf(t, e))
		if _, err := held.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1)`, key); err != nil {
			t.Fatal(err)
		}
	}
	p := w.start(t, setting{id: "/stops", tune: func(s *processor.Settings) { idle(s); s.Batch, s.StopWithin = 20, 200*time.Millisecond }})
	testkit.Eventually(t, patience, func() error {
		var waiting int
		w.scan(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, &waiting)
		if waiting < 2 {
			return fmt.Errorf("%d lanes wait", waiting)
		}
		return nil
	})
	p.stop(t)
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := p.metric(t, "postern_messages_handed_back_total", ""); n == 0 {
		t.Error("nothing was handed back")
	}
	w.start(t, setting{id: "/goes on", tune: idle})
	w.outcomes(t, len(evs))
	w.drained(t)
}

func objectOf(t *testing.T, e stream.Event) string {
	t.Helper()
	o, err := (sim.Provider{}).Observe(nil, &e.Stored)
	if err != nil {
		t.Fatal(err)
	}
	return o.ObjectID
}

// A stop that gives up a pulling, whose process stood still in the middle of it, leaves somebody who may hand messages over still: lanes that have ended take them or do not, and those come again by themselves.
func TestLanesThatEndedAreHandedMessages(t *testing.T) {
	t.Parallel()
	taken, worked := processor.HandLate(t.Context(), 100)
	if taken != 101 || worked != 1 {
		t.Errorf("%d taken, of which %d worked on", taken, worked)
	}
}
