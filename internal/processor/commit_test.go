package processor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// lockOf is the advisory lock of an object of thing.
func (b *testBundle) lockOf(key string) int64 {
	return versioning.ObjectKey(b.source, "", "thing", "obj_"+key)
}

// locked holds the lock of an object until the returned function is called.
func (b *testBundle) locked(t *testing.T, key string) (release func()) {
	t.Helper()
	tx := hold(t, b.db.Pool, `SELECT pg_advisory_xact_lock($1)`, b.lockOf(key))
	return func() {
		if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	}
}

// lockAwaited waits until a transaction waits for the lock of an object. It fails where ended says
// first that the transaction has ended.
func (b *testBundle) lockAwaited(t *testing.T, ended <-chan error) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		select {
		case err := <-ended:
			t.Fatalf("it did not wait for the object (%v)", err)
		default:
		}
		var n int
		b.scan(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, &n)
		if n == 0 {
			return errors.New("no transaction waits for an object")
		}
		return nil
	})
}

// All transactions lock their objects in one order, whatever the order of the events: else two of
// them could wait for each other.
func TestApply_eventsOfTwoObjects_locksInOneOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, last := "a", "b"
	if b.lockOf(first) > b.lockOf(last) {
		first, last = last, first
	}
	release := b.locked(t, first)
	defer release()
	applied := make(chan error, 1)
	go func() {
		batch := []stream.Event{thing(0, last), thing(1, first)}
		applied <- b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, batch)
	}()
	b.lockAwaited(t, applied)
	var free bool
	b.scan(t, fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, b.lockOf(last)), &free)
	if !free {
		t.Error("the object whose lock comes last is locked before the one whose lock comes first")
	}
	release()
	if err := <-applied; err != nil {
		t.Error(err)
	}
}

// No two transactions have one object at a time, be it only shared.
func TestApply_objectLockedShared_waits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := hold(t, b.db.Pool, `SELECT pg_advisory_xact_lock_shared($1)`, b.lockOf("a"))
	applied := make(chan error, 1)
	go func() {
		applied <- b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, []stream.Event{thing(0, "a")})
	}()
	b.lockAwaited(t, applied)
	must(t, tx.Rollback(t.Context()))
	if err := <-applied; err != nil {
		t.Error(err)
	}
}

// A change whose commit fails is not sent: the feed has one message for each revision.
func TestApply_commitFails_sendsNoChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.db.Exec(t, crashSQL)
	p := w.start(t, setting{tune: idle})
	evs := w.append(t, w.simple(5)...)
	w.db.Exec(t, `UPDATE crashing SET now = true`)
	for range 3 {
		if err := p.Apply(t.Context(), events.LiveRun, evs); !errors.Is(err, events.ErrUnavailable) {
			t.Fatalf("apply with a commit that fails: %v", err)
		}
	}
	w.db.Exec(t, `UPDATE crashing SET now = false`)
	must(t, p.Apply(t.Context(), events.LiveRun, evs))
	w.follow(t).ends(t, w)
	if n := w.changes(t); n != uint64(len(evs)) {
		t.Errorf("the feed has %d messages for %d changes", n, len(evs))
	}
}

// An event is acknowledged only after its outcome is committed.
func TestProcessor_outcomeNotCommitted_acknowledgesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	evs := w.append(t, w.simple(1)...)
	tx, err := w.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	key := versioning.ObjectKey(w.source, "", "thing", objectOf(t, evs[0]))
	execSQL(t, tx, `SELECT pg_advisory_xact_lock($1)`, key)
	w.start(t, setting{tune: idle})
	w.publish(t, evs...)
	w.lockAwaited(t, nil)
	consumer, err := w.jetStream(t).Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
	must(t, err)
	for range 20 { // an acknowledgement may take a moment to arrive
		info, err := consumer.Info(t.Context())
		must(t, err)
		if info.NumAckPending != 1 {
			t.Fatalf("%d messages wait for their acknowledgement, want 1", info.NumAckPending)
		}
	}
	must(t, tx.Rollback(t.Context()))
	w.outcomes(t, 1)
	w.drained(t)
}

// Each failed attempt waits the time that the configuration gives for it.
func TestApplyAlone_failsAgain_waitsTheNextTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	waits := []time.Duration{time.Minute, time.Hour, 24 * time.Hour}
	p := b.processor(t, &reader{try: notToday}, func(s *processor.Settings) { s.BackOff = waits })
	e := thing(0, "e")
	var got []time.Duration
	for range waits {
		must(t, p.ApplyAlone(t.Context(), events.LiveRun, e))
		_, _, _, wait := b.shown(t, e.ID)
		got = append(got, wait)
		b.due(t)
	}
	if !slices.Equal(got, waits) {
		t.Errorf("waits %v, want %v", got, waits)
	}
}

// The outbox forgets a change only once the stream has acknowledged it, however old it is.
func TestMaintain_oldChanges_keepsTheUnsent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, made_at, sent_at, sequence) VALUES
		('{1}', '{a}', '{thing}', '{unsent}', now() - interval '1 year', NULL, NULL),
		('{1}', '{a}', '{thing}', '{sent}', now() - interval '1 year', now() - interval '1 year', 1),
		('{1}', '{a}', '{thing}', '{sent late}', now() - interval '1 year', now(), 2)`)
	p := b.processor(t, sim.Provider{}, func(s *processor.Settings) { s.KeepChanges = time.Hour })
	must(t, processor.Maintained(t.Context(), p, b.db.Role(t, "maintenance")))
	got := b.db.Rows(t, `SELECT ids[1] FROM outbox ORDER BY batch`)
	if !slices.Equal(got, []string{"unsent", "sent late"}) {
		t.Errorf("the outbox has %q", got)
	}
}

// An operator's refetch request stays although the late event of a missed change arrives.
func TestGaps_closedUnderAManualRefetch_keepsTheRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.waiting(t)
	change := func(n int, before, state string, second int64) stream.Event {
		ev := says(n, "obj_1", state, second)
		ev.Body = fmt.Appendf(nil, `{"id":"k%d","object_id":"obj_1","type":"thing.updated","unit":1000000,"rank":1,`+
			`"time":%d,"previous":{"state":%q},"object":{"id":"obj_1","state":%q}}`,
			n, sim.Start+second*1_000_000, before, state)
		return ev
	}
	for _, ev := range []stream.Event{says(1, "obj_1", "A", 5), change(3, "B", "C", 30)} {
		apply(t, p, []stream.Event{ev})
	}
	if gaps := b.db.Rows(t, `SELECT object_id FROM hints WHERE gaps IS NOT NULL`); len(gaps) != 1 {
		t.Fatalf("a change that was missed leaves %q", gaps)
	}
	b.db.Exec(t, `UPDATE hints SET wanted_by = 'ada', reason = 'a customer complains'`)
	apply(t, p, []stream.Event{change(2, "A", "B", 20)})
	left := b.db.Rows(t, `SELECT wanted_by || ' ' || (gaps IS NULL) FROM hints`)
	if !slices.Equal(left, []string{"ada true"}) {
		t.Errorf("the requests are %q", left)
	}
}

// An event that was received after an operator's overwrite counts, also in the same batch.
func TestApply_overwriteBesideALaterEvent_keepsTheEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	apply(t, p, []stream.Event{says(1, "obj_1", "A", 5)})
	began := time.UnixMicro(sim.Start + 110_000_000).UTC()
	answer := []byte(`{"unit":1000000,"object":{"id":"obj_1","state":"B"}}`)
	l := provider.Look{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: "obj_1", Body: answer}, Date: began,
		Settles: &provider.Settlement{Before: began, Who: "ada", Reason: "the webhooks were wrong"}}
	body, err := l.Encode()
	must(t, err)
	overwrite := stream.Event{Source: "sim", Stored: provider.Stored{ID: 2, Key: "overwrite", Type: provider.LookType,
		Origin: events.OriginReconcile, ReceivedAt: began.Add(time.Second), Body: body}}
	apply(t, p, []stream.Event{says(3, "obj_1", "C", 300), overwrite})
	if got := b.db.Rows(t, `SELECT state ->> 'state' FROM objects`); !slices.Equal(got, []string{"C"}) {
		t.Errorf("the object is %q, want the state of the later event", got)
	}
}

// A change that the stream refuses is marked as sent only once the stream has taken it.
func TestSender_changeRefused_sendsItAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	js := w.jetStream(t)
	feed, err := js.Stream(t.Context(), stream.ChangesStream)
	must(t, err)
	takes := feed.CachedInfo().Config
	refuses := takes
	refuses.MaxMsgSize = 10
	must(t, errOf(js.UpdateStream(t.Context(), refuses)))
	p := w.start(t, setting{tune: func(s *processor.Settings) { idle(s); s.SweepAfter = 200 * time.Millisecond }})
	w.publish(t, w.append(t, w.simple(5)...)...)
	w.outcomes(t, 5)
	p.awaits(t, "postern_changes_total", "failed", 5)
	must(t, errOf(js.UpdateStream(t.Context(), takes)))
	w.allSent(t)
	if n := w.changes(t); n < 5 {
		t.Errorf("all changes are marked as sent, and the feed has %d of 5", n)
	}
}
