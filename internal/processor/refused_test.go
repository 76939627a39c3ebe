package processor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

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
	if _, err := events.Append(t.Context(), w.gateway, []events.Delivery{long}); err != nil {
		t.Fatal(err)
	}
	evs := w.append(t, w.simple(20)...)
	_, err := w.db.Pool.Exec(t.Context(), `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
		SELECT unnest($1::bigint[]), 0, $2, 0, '', '', '', 'failed', 'not today', 1, now() - interval '1 h', now(), 1`,
		[]int64{evs[3].ID, evs[7].ID, evs[19].ID}, w.source)
	if err != nil {
		t.Fatal(err)
	}
	p := w.start(t, setting{})
	testkit.Eventually(t, patience, func() error {
		var applied int
		if w.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'applied'`, &applied); applied < len(evs) {
			return fmt.Errorf("%d of %d neighbours are applied", applied, len(evs))
		}
		return nil
	})
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
