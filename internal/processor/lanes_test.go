package processor_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

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
	must(t, err)
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

// A crash after the commit repeats only the acknowledgement; a crash before it repeats the work.
func TestCrashBeforeAcknowledging(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 500 * time.Millisecond })
	evs := w.append(t, w.simple(40)...)
	last := evs[19].ID
	w.publish(t, evs...)
	crashed := w.processor(t, sim.Provider{}, nil)
	w.take(t, 40, func(e stream.Event) {
		if e.ID > last {
			return // this one crashes before its commit
		}
		if err := crashed.Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
			t.Error(err)
		}
	})
	const committed = `SELECT o::text FROM outcomes o WHERE event_id <= $1 ORDER BY event_id`
	before := w.db.Rows(t, committed, last)
	w.start(t, setting{tune: idle})
	w.outcomes(t, 40)
	w.drained(t)
	equal(t, "committed outcomes", before, w.db.Rows(t, committed, last))
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
			p.awaits(t, "postern_messages_handed_back_total", "", 1)
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

// Stopping, a processor finishes what it can within the soft limit and hands the rest back, what it fetched ahead included:
// another need not wait until the broker misses the messages.
func TestStopHandsBackTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	evs := w.append(t, w.simple(500)...)
	w.publish(t, evs...)
	held, err := w.db.Pool.Begin(t.Context())
	must(t, err)
	for _, e := range evs { // whoever applies waits for these objects
		key := versioning.ObjectKey(w.source, "", "thing", objectOf(t, e))
		execSQL(t, held, `SELECT pg_advisory_xact_lock($1)`, key)
	}
	p := w.start(t, setting{id: "/stops", tune: func(s *processor.Settings) { idle(s); s.Batch, s.StopWithin = 20, 200*time.Millisecond }})
	w.atLeast(t, 2,
		`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	p.stop(t)
	must(t, held.Rollback(t.Context()))
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
	must(t, err)
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

// While a source is swapped its live events wait, which is trouble of our own and costs them no attempt.
func TestWaitingForASwapCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, func(s *processor.Settings) { s.ApplyTimeout = 300 * time.Millisecond })
	h := sim.Generate(rand.New(rand.NewPCG(1, 1)), kinds["event time"])
	tx := hold(t, b.db.Pool, `SELECT pg_advisory_xact_lock($1, $2)`, versioning.SourceLock, b.source)
	first, second := message(0, h.Events[0]), message(1, h.Events[1])
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{first}); !errors.Is(err, events.ErrUnavailable) {
		t.Errorf("beside a swap: %v", err)
	}
	if err := p.ApplyAlone(t.Context(), events.LiveRun, second); !errors.Is(err, events.ErrUnavailable) {
		t.Errorf("alone beside a swap: %v", err)
	}
	must(t, tx.Rollback(t.Context()))
	for _, apply := range []func() error{
		func() error { return p.Apply(t.Context(), events.LiveRun, []stream.Event{first}) },
		func() error { return p.ApplyAlone(t.Context(), events.LiveRun, second) },
	} {
		if err := apply(); err != nil {
			t.Error(err)
		}
	}
	var outcomes, attempts int
	b.scan(t, `SELECT count(*) FROM outcomes WHERE status <> 'failed'`, &outcomes)
	b.scan(t, `SELECT max(attempts) FROM outcomes`, &attempts)
	if outcomes != 2 || attempts != 1 {
		t.Errorf("%d outcomes, after %d attempts", outcomes, attempts)
	}
}

// While one source is swapped the events of others go on, in the same batches; those of the swapped one are handed back without an attempt or a doubt,
// however often, and the database does not count as away.
func TestSwapHoldsUpItsSourceOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	l := w.start(t, setting{tune: func(s *processor.Settings) { idle(s); s.Lanes = 2 }})
	swapped, sources := w.source, map[string]processor.Source{}
	known, err := events.RegisterSources(t.Context(), w.pool, map[string]string{"other": "sim", "third": "sim"})
	must(t, err)
	for _, name := range []string{"sim", "other", "third"} {
		number := known.Number[name]
		if name == "sim" {
			number = swapped
		}
		sources[name] = source(name, number)
	}
	l.Replace(sources)
	of := func(name string, n int) []stream.Event {
		w.source = sources[name].Number
		evs := w.append(t, w.simple(n)...)
		for i := range evs {
			evs[i].Source = name
		}
		return evs
	}
	tx, err := w.db.Pool.Begin(t.Context())
	must(t, err)
	for _, name := range []string{"sim", "third"} {
		execSQL(t, tx, `SELECT pg_advisory_xact_lock($1, $2)`, versioning.SourceLock, sources[name].Number)
	}
	held := append(of("sim", 20), of("third", 5)...)
	all := append(append([]stream.Event{}, held[:12]...), of("other", 20)...)
	mixed := w.processor(t, sim.Provider{}, nil)
	mixed.Replace(sources)
	var met *processor.SwapError
	if err := mixed.Apply(t.Context(), events.LiveRun, append(of("other", 3), held[10:]...)); !errors.As(err, &met) || len(met.Sources) != 2 {
		t.Errorf("a mixed batch: %v", err)
	}
	w.publish(t, append(all, held[12:]...)...)
	w.until(t, `SELECT count(*) FROM outcomes`, 23)
	l.awaits(t, "postern_messages_handed_back_total", "", 4*25+1)
	w.publish(t, of("other", 20)...)
	w.until(t, `SELECT count(*) FROM outcomes`, 43)
	must(t, tx.Rollback(t.Context()))
	w.until(t, `SELECT count(*) FROM outcomes`, 68)
	w.until(t, `SELECT count(*) FROM outcomes WHERE attempts > 1 OR status = 'failed'`, 0)
	w.until(t, `SELECT count(*) FROM checkpoints WHERE job = 'probe'`, 0)
}

// until waits until a number is as wanted.
func (w *world) until(t *testing.T, sql string, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		var n int
		if w.scan(t, sql, &n); n != want {
			return fmt.Errorf("%s: %d, want %d", sql, n, want)
		}
		return nil
	})
}

// A session that froze in a transaction, an object's lock in hand, is ended by the server, and the object's events go on.
func TestFrozenSessionLosesItsLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	frozen, err := b.pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = frozen.Rollback(t.Context()) }()
	var limit string
	if err := frozen.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&limit); err != nil || limit != "15s" {
		t.Fatalf("a session of ours may stay idle in a transaction for %q (%v)", limit, err)
	}
	// The same with a limit that nobody waits for.
	execSQL(t, frozen, `SET LOCAL idle_in_transaction_session_timeout = '200ms'`)
	execSQL(t, frozen, `SELECT pg_advisory_xact_lock($1)`, versioning.ObjectKey(b.source, "", "thing", "obj_e"))
	e := thing(0, "e")
	must(t, b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, []stream.Event{e}))
	if status, _, _ := b.status(t, e.ID); status != "applied" {
		t.Errorf("behind a frozen session: %s", status)
	}
}
