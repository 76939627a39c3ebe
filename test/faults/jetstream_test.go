package faults_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// jetStream connects to the server directly, without the fault proxy.
func (s *site) jetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(s.nats.URL)
	testkit.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	testkit.Must(t, err)
	return js
}

// streamFaults are the faults of JetStream. Each returns the function that ends it. For some of the
// last ones, nothing has to end them.
var streamFaults = map[string]func(*testing.T, *site) (end func()){
	"stopped":  func(t *testing.T, s *site) func() { s.nats.Stop(t); return func() { s.nats.Restart(t) } },
	"refused":  func(_ *testing.T, s *site) func() { s.stream.Cut(); return s.stream.Restore },
	"hanging":  func(_ *testing.T, s *site) func() { s.stream.Stall(); return s.stream.Restore },
	"silent":   func(_ *testing.T, s *site) func() { s.stream.StallResponses(); return s.stream.Restore },
	"slow":     func(_ *testing.T, s *site) func() { s.stream.Delay(400 * time.Millisecond); return s.stream.Restore },
	"flapping": func(_ *testing.T, s *site) func() { return flap(s.stream, 300*time.Millisecond) },
	"wiped":    func(t *testing.T, s *site) func() { s.nats.Stop(t); return func() { s.nats.Wipe(t) } },
	"stream deleted": func(t *testing.T, s *site) func() {
		testkit.Must(t, s.jetStream(t).DeleteStream(t.Context(), stream.EventsStream))
		return func() {}
	},
	"consumer deleted": func(t *testing.T, s *site) func() {
		testkit.Must(t, s.jetStream(t).DeleteConsumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer))
		return func() {}
	},
	"full and rejecting": func(t *testing.T, s *site) func() {
		js := s.jetStream(t)
		for _, name := range []string{stream.EventsStream, stream.ChangesStream} {
			at, err := js.Stream(t.Context(), name)
			testkit.Must(t, err)
			cfg := at.CachedInfo().Config
			cfg.Discard, cfg.MaxMsgs = jetstream.DiscardNew, int64(at.CachedInfo().State.Msgs)+1
			_, err = js.UpdateStream(t.Context(), cfg)
			testkit.Must(t, err)
		}
		return func() {}
	},
}

// During any fault of JetStream, deliveries are stored and acknowledged. After it, every event is
// applied once. The republisher publishes the events that the stream lacks.
func TestGateway_natsFails_storesAndAppliesLater(t *testing.T) {
	t.Parallel()
	sites := newPool(t, 3, patientTuning)
	for name, fault := range streamFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sites.take(t)
			l := s.send(t)
			l.await(t, 20, "stored", stored)
			end := fault(t, s)
			l.await(t, 60, "stored", stored)
			end()
			l.await(t, 20, "stored", stored)
			l.finish(t, s)
			s.appliedOnce(t)
		})
	}
}

// Postern rejects a stream with memory storage and reports it. Deliveries are stored, and applied
// after the stream was deleted.
func TestGateway_streamInMemory_isReported(t *testing.T) {
	t.Parallel()
	s := build(t)
	js := s.jetStream(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream.EventsStream,
		Subjects: []string{stream.EventsSubject + ".>"}, Storage: jetstream.MemoryStorage})
	testkit.Must(t, err)
	s.start(t, patientTuning)
	l := s.send(t)
	l.await(t, 20, "stored", stored)
	s.waitForLog(t, "storage type")
	testkit.Must(t, js.DeleteStream(t.Context(), stream.EventsStream))
	l.await(t, 20, "stored", stored)
	l.finish(t, s)
	s.appliedOnce(t)
}

// appliedOnce waits until all changes are sent, and checks that each event was applied once.
func (s *site) appliedOnce(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := s.db.QueryStrings(t, `SELECT count(*)::text FROM outbox WHERE sent_at IS NULL`)[0]; n != "0" {
			return fmt.Errorf("%s batches of changes are not sent", n)
		}
		return nil
	})
	s.db.WantRows(t, 0, `objects WHERE revision <> 1`)
	s.db.WantRows(t, 0, `outcomes WHERE attempts <> 1`)
}

// clock shifts the database's clock, as the schema reads it, by an interval.
func (s *site) clock(t *testing.T, off string) {
	t.Helper()
	s.db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT clock_timestamp() + interval ''`+off+`'''`)
}

// After any jump of PostgreSQL's clock, new events get ids above a reader's bound, their partitions
// exist, and all are applied.
func TestGateway_databaseClockJumps_idsStayAboveBound(t *testing.T) {
	t.Parallel()
	s := build(t)
	s.start(t, patientTuning)
	l := s.send(t)
	l.await(t, 10, "stored", stored)
	operator := s.db.Role(t, "operator")
	// Each jump ahead goes beyond those before it. No partition is created 40 days ahead.
	for _, off := range []string{"-1 hour", "0", "2 seconds", "-3 seconds", "1 hour", "0", "1 day", "-1 day", "40 days",
		"0"} {
		bound, err := events.FreezeBound(t.Context(), operator)
		testkit.Must(t, err)
		read := s.below(t, bound)
		s.clock(t, off)
		l.await(t, 10, "stored", stored)
		if n := s.below(t, bound); n != read {
			t.Errorf("%s: %s events are below a bound that a reader had frozen when there were %s", off, n, read)
		}
	}
	l.finish(t, s)
	s.appliedOnce(t)
}

// below counts the events up to an id.
func (s *site) below(t *testing.T, id int64) string {
	t.Helper()
	return s.db.QueryStrings(t, `SELECT count(*)::text FROM events WHERE id <= $1`, id)[0]
}

// A gateway whose clock is wrong rejects deliveries with a signed time and says that its clock may
// be the reason. It accepts them again when the clock is right.
func TestGateway_clockWrong_rejectsSignedTimes(t *testing.T) {
	t.Parallel()
	s := build(t)
	var wrong atomic.Int64
	s.start(t, func(tune *app.Tuning) {
		patientTuning(tune)
		tune.Now = func() time.Time { return time.Now().Add(time.Duration(wrong.Load())) }
	})
	for off, reason := range map[time.Duration]string{time.Hour: "stale_timestamp", -time.Hour: "future_timestamp"} {
		l := s.newLoad(t)
		l.one(t, "kept", 1, "stored", stored)
		wrong.Store(int64(off))
		l.one(t, "kept", 2, "refused", func(a *answer) bool { return a.status == 401 })
		l.one(t, "hub", 3, "stored", stored) // its signature has no time
		if n := s.metric(t, "postern_rejections_total", reason); n != 1 {
			t.Errorf("%v rejections for %s, want 1", n, reason)
		}
		s.store.Cut()
		l.one(t, "hub", 4, "spooled", spooled) // waits do not depend on the clock that jumps
		s.store.Restore()
		wrong.Store(0)
		l.one(t, "kept", 2, "stored or spooled", func(a *answer) bool { return a.status == 200 })
		s.waitUntilApplied(t)
		l.answers = slices.DeleteFunc(l.answers, func(a answer) bool { return a.status == 401 })
		l.check(t, s)
	}
}
