package processor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// requestRepublish requests a pass of the republisher.
func (w *world) requestRepublish(t *testing.T) int64 {
	t.Helper()
	id, err := processor.RequestRepublish(t.Context(), w.OperatorPool, "somebody", "the stream was wiped")
	must(t, err)
	return id
}

// awaitRepublish waits until a requested pass has ended.
func (w *world) awaitRepublish(t *testing.T, id int64) *processor.RepublishView {
	t.Helper()
	return w.awaitRequest(t, id, func(v *processor.RepublishView) bool { return v.EndedAt != nil })
}

// awaitRequest waits until a requested pass is in a state.
func (w *world) awaitRequest(t *testing.T, id int64,
	isReached func(*processor.RepublishView) bool) (v *processor.RepublishView) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() (err error) {
		if v, err = processor.ShowRepublish(t.Context(), w.OperatorPool, id); err == nil && !isReached(v) {
			err = fmt.Errorf("%+v", v)
		}
		return err
	})
	return v
}

// loseStream removes events from a stream while clients use it.
func (w *world) loseStream(t *testing.T, how string) {
	t.Helper()
	js := w.jetStream(t)
	if how == "deleted" {
		must(t, js.DeleteStream(t.Context(), stream.EventsStream))
		return
	}
	s, err := js.Stream(t.Context(), stream.EventsStream)
	must(t, err)
	must(t, s.Purge(t.Context()))
}

// A stream is purged or deleted under a running processor. A requested pass publishes the missing
// events, even if the republisher's own interval is long, and reports their number.
func TestRequestRepublish_streamLost_publishesMissing(t *testing.T) {
	t.Parallel()
	for _, loss := range []string{"purged", "deleted"} {
		t.Run(loss, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			r := newReadCounter()
			p := w.start(t, processorOptions{provider: r, tune: noBackgroundWork})
			w.publish(t, w.append(t, w.newObjects(100)...)...)
			w.awaitOutcomes(t, 100)
			w.awaitDrained(t)
			w.append(t, w.newObjects(150)...) // these are not published
			w.loseStream(t, loss)
			w.setClock(t, "10 s") // so that a gateway would have given up their publish
			v := w.awaitRepublish(t, w.requestRepublish(t))
			if v.Missing != 150 || v.Due != 0 || v.PublishedAt == nil || v.Detail != "" ||
				v.RequestedBy != "somebody" || v.Reason == "" {
				t.Errorf("%+v", v)
			}
			w.awaitOutcomes(t, 250)
			if n := p.republished(t); n != 150 || r.total() != 250 {
				t.Errorf("%d events were published again, %d copies were read", n, r.total())
			}
			second := w.awaitRepublish(t, w.requestRepublish(t))
			if second.Missing != 0 || second.PublishedAt != nil {
				t.Errorf("%+v", second)
			}
			d, err := processor.ReadPendingWork(t.Context(), w.OperatorPool)
			if err != nil || d.Republisher.Missing != 150 || d.Republisher.PublishedAt == nil ||
				d.Republisher.EndedAt == nil || d.Republisher.Requested != 0 ||
				d.Republisher.Process == "" || d.Unapplied.Count != 0 {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// A requested pass publishes imported events of any age, because no gateway publishes them. Events
// from a gateway wait for the timeout of a publish. The database's clock is slow here, so that they
// stay young.
func TestRequestRepublish_importedEvents_publishesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.DB.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT timestamptz ''2026-11-20'' + (clock_timestamp() - timestamptz ''2026-11-20'') / 1000000'`)
	r := newReadCounter()
	w.start(t, processorOptions{provider: r, tune: noBackgroundWork})
	w.append(t, w.newObjects(20)...)
	w.Origin = events.OriginImport
	w.append(t, w.newObjects(30)...)
	w.Origin = events.OriginWebhook
	w.append(t, w.newObjects(10)...)
	if v := w.awaitRepublish(t, w.requestRepublish(t)); v.Missing != 30 {
		t.Errorf("%d events were published, want the 30 that were imported", v.Missing)
	}
	w.awaitCount(t, `SELECT count(*) FROM outcomes o JOIN events e ON e.id = o.event_id WHERE e.origin = 'import'`, 30)
}

// A running processor creates a deleted stream of changes again and publishes later changes to it.
func TestProcessor_changesStreamDeleted_createsItAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.start(t, processorOptions{})
	js := w.jetStream(t)
	awaitChanges := func(n uint64) {
		t.Helper()
		testkit.Eventually(t, maxWait, func() error {
			s, err := js.Stream(t.Context(), stream.ChangesStream)
			if err == nil && s.CachedInfo().State.Msgs < n {
				err = fmt.Errorf("%d changes, want %d", s.CachedInfo().State.Msgs, n)
			}
			return err
		})
	}
	w.publish(t, w.append(t, w.newObjects(10)...)...)
	awaitChanges(10)
	must(t, js.DeleteStream(t.Context(), stream.ChangesStream))
	w.publish(t, w.append(t, w.newObjects(20)...)...)
	awaitChanges(10) // the objects of these are new
}

// While the stream does not respond, for example just after it was deleted and created again, a
// pass does not end and says why.
func TestRequestRepublish_streamDoesNotRespond_doesNotEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.start(t, processorOptions{tune: noBackgroundWork})
	js := w.jetStream(t)
	eventsStream, err := js.Stream(t.Context(), stream.EventsStream)
	must(t, err)
	original := eventsStream.CachedInfo().Config
	otherSubject := original
	otherSubject.Subjects = []string{"elsewhere"}
	must(t, errOf(js.UpdateStream(t.Context(), otherSubject)))
	// otherwise the server would report that there are no subscribers
	if _, err := js.Conn().Subscribe(stream.EventsSubject+".>", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	w.append(t, w.newObjects(20)...)
	w.setClock(t, "10 s")
	id := w.requestRepublish(t)
	v := w.awaitRequest(t, id, func(v *processor.RepublishView) bool {
		return v.EndedAt != nil || strings.Contains(v.Detail, "the stream did not respond to 20 messages")
	})
	if v.EndedAt != nil {
		t.Fatalf("ended: %+v", v)
	}
	must(t, errOf(js.UpdateStream(t.Context(), original)))
	if v = w.awaitRepublish(t, id); v.Missing != 20 || v.Detail != "" {
		t.Errorf("%+v", v)
	}
	w.awaitOutcomes(t, 20)
}

// A requested pass waits while earlier messages are pending, says so, and runs afterwards. It
// publishes no event that waits in the stream.
func TestRequestRepublish_previousMessagesPending_waits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.MaxMessages, l.AckWait = 1000, 10*time.Minute })
	w.append(t, w.newObjects(700)...)
	r := newGatedCounter()
	w.start(t, processorOptions{provider: r, tune: noBackgroundWork})
	w.setClock(t, "10 s")
	id := w.requestRepublish(t)
	w.awaitRequest(t, id, func(v *processor.RepublishView) bool {
		return v.Missing == 500 && strings.Contains(v.Detail, "messages wait for processors")
	})
	d, err := processor.ReadPendingWork(t.Context(), w.OperatorPool)
	if err != nil || d.Unapplied.Count != 700 || d.Unapplied.Since == nil || d.Unapplied.Seconds < 10 ||
		d.Republisher.Requested != 1 || d.Republisher.Detail == "" {
		t.Errorf("%+v, %v", d, err)
	}
	r.open()
	if v := w.awaitRepublish(t, id); v.Missing != 700 {
		t.Errorf("%+v", v)
	}
	w.awaitOutcomes(t, 700)
	if n := r.total(); n != 700 {
		t.Errorf("%d copies of 700 events were read", n)
	}
	if _, err := processor.ShowRepublish(t.Context(), w.OperatorPool, id+1); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("a pass that was not requested: %v", err)
	}
}

// If the process ends before a requested pass has ended, the next republisher finishes it.
func TestRequestRepublish_processEnds_nextOneFinishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.append(t, w.newObjects(20)...)
	w.nats.Stop(t)
	first := w.start(t, processorOptions{id: "first", tune: noBackgroundWork})
	id := w.requestRepublish(t)
	w.awaitRequest(t, id, func(v *processor.RepublishView) bool { return v.Detail != "" }) // it cannot end
	first.stop(t)
	w.nats.Restart(t)
	w.setClock(t, "10 s")
	w.start(t, processorOptions{id: "second", tune: noBackgroundWork})
	if v := w.awaitRepublish(t, id); v.Missing != 20 {
		t.Errorf("%+v", v)
	}
	w.awaitOutcomes(t, 20)
}

// However many events are missing when the stream is available again, the republisher does not
// exceed its rate.
func TestRepublisher_manyMissing_keepsRate(t *testing.T) {
	t.Parallel()
	const rate, total = 500, 1500
	w := newWorld(t, nil)
	w.nats.Stop(t)
	w.append(t, w.newObjects(total)...)
	p := w.start(t, processorOptions{tune: func(s *processor.Settings) { s.RepublishRate = rate }})
	began := time.Now()
	w.nats.Restart(t)
	w.awaitOutcomes(t, total)
	// The first chunk does not wait, and nothing waits after the last one.
	if took, least := time.Since(began), time.Duration(total-400)*time.Second/rate; took < least {
		t.Errorf("%d events took %s, at %d a second they need at least %s", total, took, rate, least)
	}
	if n := p.republished(t); n != total {
		t.Errorf("%d events were published, %d were missing", n, total)
	}
}

// Events that wait for their next attempt, and changes that are not in the feed yet, are counted
// with their age.
func TestReadPendingWork_eventsAndChanges_countsWithAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.append(t, w.newObjects(3)...)
	w.DB.Exec(t, `
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts,
			due, at, rule_version)
		SELECT id, 0, source, 0, '', '', '', 'failed', 'not today', 1,
			clock_now() + (CASE row_number() OVER (ORDER BY id) WHEN 1 THEN interval '-1 h' ELSE interval '1 h' END),
			clock_now(), 1
		FROM events ORDER BY id LIMIT 2`)
	w.DB.Exec(t,
		`INSERT INTO outbox (sources, accounts, types, ids, created_at) VALUES ('{1}', '{a}', '{t}', '{i}',
			clock_now() - interval '1 min')`)
	d, err := processor.ReadPendingWork(t.Context(), w.OperatorPool)
	must(t, err)
	if d.Unapplied.Count != 1 || d.Failed.Count != 2 || d.Retries.Count != 1 || d.Retries.Seconds < 3600 ||
		d.Unsent.Count != 1 || d.Unsent.Seconds < 60 || d.Republisher.Process != "" ||
		d.Republisher.AppliedUntil != nil {
		t.Errorf("%+v", d)
	}
}
