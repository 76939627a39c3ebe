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

// lockOf is the advisory lock of an object.
func (b *testBundle) lockOf(key string) int64 {
	return versioning.ObjectKey(b.source, "", "thing", "obj_"+key)
}

// lockObject holds the lock of an object until the returned function is called.
func (b *testBundle) lockObject(t *testing.T, key string) (release func()) {
	t.Helper()
	tx := openTx(t, b.db.Pool, `SELECT pg_advisory_xact_lock($1)`, b.lockOf(key))
	return func() {
		if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	}
}

// awaitLockWait waits until a transaction waits for the lock of an object. It fails if ended
// reports first that the transaction has ended.
func (b *testBundle) awaitLockWait(t *testing.T, ended <-chan error) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
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

// All transactions lock their objects in one order, whatever the order of the events. Otherwise two
// of them could wait for each other.
func TestApply_eventsOfTwoObjects_locksInOneOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, last := "a", "b"
	if b.lockOf(first) > b.lockOf(last) {
		first, last = last, first
	}
	release := b.lockObject(t, first)
	defer release()
	applied := make(chan error, 1)
	go func() {
		batch := []stream.Event{thingEvent(0, last), thingEvent(1, first)}
		applied <- b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, batch)
	}()
	b.awaitLockWait(t, applied)
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

// No two transactions apply to one object at the same time, not even with a shared lock.
func TestApply_objectLockedShared_waits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := openTx(t, b.db.Pool, `SELECT pg_advisory_xact_lock_shared($1)`, b.lockOf("a"))
	applied := make(chan error, 1)
	go func() {
		applied <- b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun,
			[]stream.Event{thingEvent(0, "a")})
	}()
	b.awaitLockWait(t, applied)
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
	p := w.start(t, processorOptions{tune: noBackgroundWork})
	evs := w.append(t, w.newObjects(5)...)
	w.db.Exec(t, `UPDATE crashing SET now = true`)
	for range 3 {
		if err := p.Apply(t.Context(), events.LiveRun, evs); !errors.Is(err, events.ErrUnavailable) {
			t.Fatalf("apply with a commit that fails: %v", err)
		}
	}
	w.db.Exec(t, `UPDATE crashing SET now = false`)
	must(t, p.Apply(t.Context(), events.LiveRun, evs))
	w.newFollower(t).awaitMirror(t, w)
	if n := w.changeCount(t); n != uint64(len(evs)) {
		t.Errorf("the feed has %d messages for %d changes", n, len(evs))
	}
}

// An event is acknowledged only after its outcome is committed.
func TestProcessor_outcomeNotCommitted_acknowledgesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	evs := w.append(t, w.newObjects(1)...)
	tx, err := w.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	key := versioning.ObjectKey(w.source, "", "thing", objectID(t, evs[0]))
	execSQL(t, tx, `SELECT pg_advisory_xact_lock($1)`, key)
	w.start(t, processorOptions{tune: noBackgroundWork})
	w.publish(t, evs...)
	w.awaitLockWait(t, nil)
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
	w.awaitOutcomes(t, 1)
	w.awaitDrained(t)
}

// Each failed attempt waits the time that the configuration gives for it.
func TestApplySingle_failsAgain_waitsNextInterval(t *testing.T) {
	t.Parallel()
	b := setup(t)
	waits := []time.Duration{time.Minute, time.Hour, 24 * time.Hour}
	p := b.processor(t, &countingProvider{before: failTemporarily}, func(s *processor.Settings) { s.BackOff = waits })
	e := thingEvent(0, "e")
	var got []time.Duration
	for range waits {
		must(t, p.ApplySingle(t.Context(), events.LiveRun, e))
		_, _, _, wait := b.mirrorOutcome(t, e.ID)
		got = append(got, wait)
		b.makeDue(t)
	}
	if !slices.Equal(got, waits) {
		t.Errorf("waits %v, want %v", got, waits)
	}
}

// The outbox keeps a change until the stream has acknowledged it, however old it is.
func TestMaintain_oldChanges_keepsUnsent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at, sent_at, sequence) VALUES
		('{1}', '{a}', '{thing}', '{unsent}', now() - interval '1 year', NULL, NULL),
		('{1}', '{a}', '{thing}', '{sent}', now() - interval '1 year', now() - interval '1 year', 1),
		('{1}', '{a}', '{thing}', '{sent late}', now() - interval '1 year', now(), 2)`)
	p := b.processor(t, sim.Provider{}, func(s *processor.Settings) { s.ChangeRetention = time.Hour })
	must(t, processor.MaintainOnce(t.Context(), p, b.db.Role(t, "maintenance")))
	got := b.db.QueryStrings(t, `SELECT ids[1] FROM outbox ORDER BY batch`)
	if !slices.Equal(got, []string{"unsent", "sent late"}) {
		t.Errorf("the outbox has %q", got)
	}
}

// An operator's refetch request stays although the late event of a missed change arrives.
func TestMissedChanges_closedDuringManualRefetch_keepsRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.refetchingAllButOne(t)
	change := func(n int, before, state string, second int64) stream.Event {
		ev := stateEvent(n, "obj_1", state, second)
		ev.Body = fmt.Appendf(nil, `{"id":"k%d","object_id":"obj_1","type":"thing.updated","unit":1000000,"rank":1,`+
			`"time":%d,"previous":{"state":%q},"object":{"id":"obj_1","state":%q}}`,
			n, sim.Start+second*1_000_000, before, state)
		return ev
	}
	for _, ev := range []stream.Event{stateEvent(1, "obj_1", "A", 5), change(3, "B", "C", 30)} {
		applyBatch(t, p, []stream.Event{ev})
	}
	if requests := b.db.QueryStrings(t, `SELECT object_id FROM refetch_requests WHERE missed_changes IS NOT NULL`); len(
		requests) != 1 {
		t.Fatalf("a missed change leaves %q", requests)
	}
	b.db.Exec(t, `UPDATE refetch_requests SET requested_by = 'ada', reason = 'a customer complains'`)
	applyBatch(t, p, []stream.Event{change(2, "A", "B", 20)})
	left := b.db.QueryStrings(t, `SELECT requested_by || ' ' || (missed_changes IS NULL) FROM refetch_requests`)
	if !slices.Equal(left, []string{"ada true"}) {
		t.Errorf("the requests are %q", left)
	}
}

// An event that was received after an operator's overwrite counts, also in the same batch.
func TestApply_overwriteWithLaterEvent_keepsEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	applyBatch(t, p, []stream.Event{stateEvent(1, "obj_1", "A", 5)})
	began := time.UnixMicro(sim.Start + 110_000_000).UTC()
	response := []byte(`{"unit":1000000,"object":{"id":"obj_1","state":"B"}}`)
	refetch := provider.Refetch{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: "obj_1", Body: response},
		Date: began, Overwrite: &provider.Overwrite{Before: began, Actor: "ada", Reason: "the webhooks were wrong"}}
	body, err := refetch.Encode()
	must(t, err)
	overwrite := stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: 2, Key: "overwrite",
		Type: provider.RefetchType, Origin: events.OriginReconcile, ReceivedAt: began.Add(time.Second), Body: body}}
	applyBatch(t, p, []stream.Event{stateEvent(3, "obj_1", "C", 300), overwrite})
	if got := b.db.QueryStrings(t, `SELECT state ->> 'state' FROM objects`); !slices.Equal(got, []string{"C"}) {
		t.Errorf("the object is %q, want the state of the later event", got)
	}
}

// A change that the stream rejects is marked as sent only after the stream has accepted it.
func TestSender_changeRejected_sendsItAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	js := w.jetStream(t)
	feed, err := js.Stream(t.Context(), stream.ChangesStream)
	must(t, err)
	accepting := feed.CachedInfo().Config
	rejecting := accepting
	rejecting.MaxMsgSize = 10
	must(t, errOf(js.UpdateStream(t.Context(), rejecting)))
	p := w.start(t, processorOptions{tune: func(s *processor.Settings) {
		noBackgroundWork(s)
		s.ResendAfter = 200 * time.Millisecond
	}})
	w.publish(t, w.append(t, w.newObjects(5)...)...)
	w.awaitOutcomes(t, 5)
	p.awaitMetric(t, "postern_changes_total", "failed", 5)
	must(t, errOf(js.UpdateStream(t.Context(), accepting)))
	w.awaitAllSent(t)
	if n := w.changeCount(t); n < 5 {
		t.Errorf("all changes are marked as sent, and the feed has %d of 5", n)
	}
}
