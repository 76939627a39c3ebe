package processor_test

import (
	"errors"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A change whose commit fails is not sent: the feed has one message for each revision.
func TestApply_commitFails_sendsNoChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.DB.Exec(t, crashSQL)
	p := w.start(t, processorOptions{tune: noBackgroundWork})
	evs := w.append(t, w.newObjects(5)...)
	w.DB.Exec(t, `UPDATE crashing SET now = true`)
	for range 3 {
		if err := p.Apply(t.Context(), events.LiveRun, evs); !errors.Is(err, events.ErrUnavailable) {
			t.Fatalf("apply with a commit that fails: %v", err)
		}
	}
	w.DB.Exec(t, `UPDATE crashing SET now = false`)
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
	tx := testkit.OpenTx(t, w.DB.Pool, `SELECT pg_advisory_xact_lock($1)`,
		versioning.ObjectKey(w.Source, "", "thing", objectID(t, evs[0])))
	w.start(t, processorOptions{tune: noBackgroundWork})
	w.publish(t, evs...)
	w.AwaitLockWait(t, nil)
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

// The outbox keeps a change until the stream has acknowledged it, however old it is.
func TestMaintain_oldChanges_keepsUnsent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.DB.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at, sent_at, sequence, numbered) VALUES
		('{1}', '{a}', '{thing}', '{unsent}', now() - interval '1 year', NULL, NULL, true),
		('{1}', '{a}', '{thing}', '{sent}', now() - interval '1 year', now() - interval '1 year', 1, true),
		('{1}', '{a}', '{thing}', '{sent late}', now() - interval '1 year', now(), 2, true)`)
	p := b.processor(t, sim.Provider{}, func(s *processor.Settings) { s.ChangeRetention = time.Hour })
	must(t, processor.MaintainOnce(t.Context(), p, b.DB.Role(t, "maintenance")))
	equal(t, "the outbox", []string{"unsent", "sent late"},
		b.DB.QueryStrings(t, `SELECT ids[1] FROM outbox ORDER BY batch`))
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
