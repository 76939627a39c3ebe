package processor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Whatever the stream loses, every event gets its outcome, and nothing is published again that has one or still waits.
func TestAuditorHealsTheStream(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limits func(*stream.Limits)
		// lose leaves n events without outcome and out of the stream, of total in all.
		lose func(t *testing.T, w *world) (lost, total int)
	}{
		"wiped":       {nil, wiped},
		"rolled back": {nil, rolledBack},
		"full":        {func(l *stream.Limits) { l.MaxMessages = 100 }, full},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tc.limits)
			lost, total := tc.lose(t, w)
			r := newReads()
			p := w.start(t, setting{provider: r})
			w.outcomes(t, total)
			w.drained(t)
			w.passes(t, 3)
			if n := p.audited(t); n != lost {
				t.Errorf("the auditor published %d events, %d were lost", n, lost)
			}
			if n := r.total(); n > total {
				t.Errorf("%d copies of %d events were read: %d needless publishes", n, total, n-total)
			}
		})
	}
}

// processed stores, publishes and applies n events, and stops again.
func (w *world) processed(t *testing.T, n, total int) {
	t.Helper()
	w.publish(t, w.append(t, w.simple(n)...)...)
	p := w.start(t, setting{tune: func(s *processor.Settings) { s.AuditEvery, s.AuditAge = time.Hour, time.Hour }})
	w.outcomes(t, total)
	w.drained(t)
	p.stop(t)
}

func wiped(t *testing.T, w *world) (lost, total int) {
	w.processed(t, 300, 300)
	w.publish(t, w.append(t, w.simple(300)...)...)
	w.nats.Wipe(t)
	return 300, 600
}

func rolledBack(t *testing.T, w *world) (lost, total int) {
	w.processed(t, 150, 150)
	saved := w.nats.Save(t)
	w.reconnected(t)
	w.processed(t, 150, 300)
	w.publish(t, w.append(t, w.simple(200)...)...)
	w.nats.RollBack(t, saved)
	return 200, 500
}

func full(t *testing.T, w *world) (lost, total int) {
	w.publish(t, w.append(t, w.simple(500)...)...)
	return 400, 500
}

// reconnected waits until the publishing connection is back.
func (w *world) reconnected(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if !w.conn.Connected() {
			return errors.New("not connected")
		}
		_, err := w.conn.Lag(t.Context(), false)
		return err
	})
}

// With nobody to read, a backlog fills the stream to half its limit, and no further.
func TestAuditorStopsAtHalfTheLimit(t *testing.T) {
	t.Parallel()
	// Twenty passes may take long on a busy machine; what waits at the gate meanwhile is not to be handed out anew.
	w := newWorld(t, func(l *stream.Limits) { l.MaxMessages, l.AckWait = 1000, 10*time.Minute })
	total := 2000
	w.append(t, w.simple(total)...)
	w.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
		SELECT id, 0, source, 0, '', '', '', 'failed', 'not today', 1, now() - interval '1 h', now(), 1 FROM events ORDER BY id DESC LIMIT 300`)
	r := newGate()
	p := w.start(t, setting{provider: r})
	w.passes(t, 20)
	if n := p.metric(t, "postern_audited_events_total", "due"); n != 0 {
		t.Errorf("%v due failures were put on top", n)
	}
	if n := p.audited(t); n != 500 {
		t.Errorf("the auditor published %d events into a stream of 1000 that nobody reads, want 500", n)
	}
	r.open()
	w.outcomes(t, total)
	if n := r.total(); n != total {
		t.Errorf("%d copies of %d events", n, total)
	}
}

// What waits in the stream is not published again, however long it waits.
func TestWaitingEventsAreNotPublishedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	r := newGate()
	p := w.start(t, setting{provider: r, tune: func(s *processor.Settings) { s.AuditAge = 300 * time.Millisecond }})
	w.publish(t, w.append(t, w.simple(100)...)...)
	w.passes(t, 30)
	r.open()
	w.outcomes(t, 100)
	w.passes(t, 3)
	if n := p.audited(t); n != 0 {
		t.Errorf("the auditor published %d events that waited in the stream", n)
	}
}

// The checkpoint passes only events that have an outcome: what was published and lost again is found again.
func TestCheckpointPassesOnlyOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	r := newGate()
	evs := w.append(t, w.simple(50)...)
	p := w.start(t, setting{provider: r, tune: func(s *processor.Settings) { s.StopWithin = 10 * time.Millisecond }})
	p.awaits(t, "postern_audited_events_total", "missing", float64(len(evs)))
	w.passes(t, 3)
	tx := hold(t, w.db.Pool, `LOCK TABLE outcomes IN ACCESS EXCLUSIVE MODE`)
	p.cancel() // nothing that it holds is committed any more
	r.open()
	p.stop(t)
	must(t, tx.Rollback(t.Context()))
	var without, cursor int64
	w.scan(t, `SELECT coalesce(min(id), 0) FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`, &without)
	w.scan(t, `SELECT cursor FROM checkpoints WHERE job = 'auditor'`, &cursor)
	if without == 0 || cursor >= without {
		t.Fatalf("checkpoint %d, first event without outcome %d", cursor, without)
	}
	w.nats.Wipe(t)
	w.start(t, setting{})
	w.outcomes(t, len(evs))
}

// Two auditors at once only repeat each other.
func TestTwoAuditorsOnlyRepeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.append(t, w.simple(400)...)
	r := newReads()
	for range 2 { // under one name both hold the lease
		w.start(t, setting{provider: r})
	}
	w.outcomes(t, 400)
	w.drained(t)
	if n := r.total(); n > 800 {
		t.Errorf("%d copies of 400 events", n)
	}
	var grown int
	w.scan(t, `SELECT count(*) FROM objects WHERE revision <> 1`, &grown)
	if grown != 0 {
		t.Errorf("%d objects were changed twice", grown)
	}
}

// The lease goes to another process when its holder no longer renews it.
func TestLeaseMovesWhenTheHolderDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	proxy := testkit.Proxy(t, w.db.URL)
	holder := func() (name string) {
		w.scan(t, `SELECT coalesce((SELECT leased_by FROM checkpoints WHERE job = 'auditor'), '')`, &name)
		return name
	}
	w.start(t, setting{id: "/first", database: proxy.URL})
	w.passes(t, 1)
	second := w.start(t, setting{id: "/second"})
	for range 12 {
		w.passes(t, 1)
		if name := holder(); name != t.Name()+"/first" {
			t.Fatalf("the lease is %s's though its holder lives", name)
		}
	}
	proxy.Cut()
	w.append(t, w.simple(10)...)
	w.clock(t, "31 s")
	w.outcomes(t, 10)
	if name := holder(); name != t.Name()+"/second" || second.audited(t) != 10 {
		t.Errorf("the lease is %s's; the second published %d", name, second.audited(t))
	}
}

// A body that Postern would send but the server refuses travels as a claim check, so the event is applied.
func TestAuditorSendsWhatTheServerTakes(t *testing.T) {
	t.Parallel()
	w := smallWorld(t, 128<<10)
	evs := w.append(t, append(w.simple(10), filled("large", strings.Repeat("x", stream.MaxBody-1000)))...)
	if n := len(evs[10].Body); n >= stream.MaxBody || n < 250<<10 {
		t.Fatalf("the body is %d bytes long, must be just below %d", n, stream.MaxBody)
	}
	w.start(t, setting{})
	w.outcomes(t, len(evs))
	if status, reason, attempts := w.status(t, evs[10].ID); status != "applied" || attempts != 1 {
		t.Errorf("the large event is %s after %d attempts: %s", status, attempts, reason)
	}
}

// A message that no server takes holds up no other: what is missing is published, and failures that are due are tried.
func TestRefusedMessageHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := smallWorld(t, 16<<10)
	long := w.delivery(strings.Repeat("é", 3500), filled("refused", "x")) // its key, in a header, is three times as long
	must(t, errOf(events.Append(t.Context(), w.gateway, []events.Delivery{long})))
	evs := w.append(t, w.simple(20)...)
	w.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
		SELECT unnest($1::bigint[]), 0, $2, 0, '', '', '', 'failed', 'not today', 1, now() - interval '1 h', now(), 1`,
		[]int64{evs[3].ID, evs[7].ID, evs[19].ID}, w.source)
	p := w.start(t, setting{})
	w.atLeast(t, len(evs), `SELECT count(*) FROM outcomes WHERE status = 'applied'`)
	if n := p.metric(t, "postern_audited_events_total", "due"); n < 3 {
		t.Errorf("%v due failures were published", n)
	}
	var outcomes int
	if w.scan(t, `SELECT count(*) FROM outcomes`, &outcomes); outcomes != len(evs) {
		t.Errorf("%d outcomes: what was to be refused was taken", outcomes)
	}
}

// A stream that was rolled back while a message stays in hand: the lost event does not wait for that message.
func TestRolledBackWithAMessageInHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 10 * time.Minute })
	pass := w.auditPass(t)
	evs := w.append(t, w.simple(10)...)
	w.publish(t, evs[0])
	w.take(t, 1, func(stream.Event) {})
	saved := w.nats.Save(t)
	published := func() (n uint64) {
		testkit.Eventually(t, patience, func() error {
			lag, err := w.conn.Lag(t.Context(), false)
			n = lag.Last
			return err
		})
		return n
	}
	testkit.Eventually(t, patience, func() error { return pass(t.Context()) }) // until it is connected again
	if n := published(); n < uint64(len(evs)) {
		t.Fatalf("%d messages before the loss", n)
	}
	w.nats.RollBack(t, saved)
	if n := published(); n != 1 {
		t.Fatalf("%d messages after the loss", n)
	}
	// Which milliseconds a pass covers depends on when it asks; the message in hand would be waited for ten minutes long.
	testkit.Eventually(t, patience, func() error {
		if err := pass(t.Context()); err != nil {
			return err
		}
		if n := published(); n < uint64(len(evs)) {
			return fmt.Errorf("%d messages: what the stream lost is not published", n)
		}
		return nil
	})
}

// Ids stand still while the database's clock catches up with where it was: what is not published does not wait for that.
func TestClockStepsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.start(t, setting{tune: func(s *processor.Settings) { s.AuditAge = time.Second }})
	w.publish(t, w.append(t, w.simple(5)...)...)
	w.outcomes(t, 5)
	w.passes(t, 3)
	w.clock(t, "-10 min")
	w.append(t, w.simple(5)...)
	w.outcomes(t, 10)
}
