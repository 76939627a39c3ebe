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

// heal asks for a pass.
func (w *world) heal(t *testing.T) int64 {
	t.Helper()
	heal, err := processor.Heal(t.Context(), w.db.Role(t, "operator"), "somebody", "the stream was wiped")
	must(t, err)
	return heal
}

// healed waits until a pass that was asked for has come to its end.
func (w *world) healed(t *testing.T, heal int64) *processor.HealView {
	t.Helper()
	operator := w.db.Role(t, "operator")
	var v *processor.HealView
	testkit.Eventually(t, patience, func() (err error) {
		if v, err = processor.ShowHeal(t.Context(), operator, heal); err == nil && v.EndedAt == nil {
			err = fmt.Errorf("not at its end: %s", v.Detail)
		}
		return err
	})
	return v
}

// lose takes events out of a stream that others use meanwhile.
func (w *world) lose(t *testing.T, how string) {
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

// A stream that is purged or deleted under a running processor heals when somebody asks for it, however patient the auditor is by itself, and what was published is told.
func TestHeal(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"purged", "deleted"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			r := newReads()
			p := w.start(t, setting{provider: r, tune: func(s *processor.Settings) { s.AuditEvery, s.AuditAge = time.Hour, time.Hour }})
			w.publish(t, w.append(t, w.simple(100)...)...)
			w.outcomes(t, 100)
			w.drained(t)
			w.append(t, w.simple(150)...) // nobody has published these
			w.lose(t, how)
			w.clock(t, "10 s") // so that a publish of theirs would have been given up
			v := w.healed(t, w.heal(t))
			if v.Missing != 150 || v.Due != 0 || v.PublishedAt == nil || v.Detail != "" || v.WantedBy != "somebody" || v.Reason == "" {
				t.Errorf("%+v", v)
			}
			w.outcomes(t, 250)
			if n := p.audited(t); n != 150 || r.total() != 250 {
				t.Errorf("%d events were published again, %d copies were read", n, r.total())
			}
			again := w.healed(t, w.heal(t))
			if again.Missing != 0 || again.PublishedAt != nil {
				t.Errorf("%+v", again)
			}
			d, err := processor.ReadDue(t.Context(), w.db.Role(t, "operator"))
			if err != nil || d.Auditor.Missing != 150 || d.Auditor.PublishedAt == nil || d.Auditor.EndedAt == nil || d.Auditor.Wanted != 0 || d.Auditor.Process == "" || d.Unapplied.Count != 0 {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// Imported events are in no gateway's hands, so a pass that is asked for publishes them whatever their age. Those of a gateway wait
// until their publish would have been given up; the database's clock is slow here, so that they stay young.
func TestHeal_importedEvents_arePublishedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT timestamptz ''2026-11-20'' + (clock_timestamp() - timestamptz ''2026-11-20'') / 1000000'`)
	r := newReads()
	w.start(t, setting{provider: r, tune: func(s *processor.Settings) { s.AuditEvery, s.AuditAge = time.Hour, time.Hour }})
	w.append(t, w.simple(20)...)
	w.origin = events.OriginImport
	w.append(t, w.simple(30)...)
	w.origin = events.OriginWebhook
	w.append(t, w.simple(10)...)
	if v := w.healed(t, w.heal(t)); v.Missing != 30 {
		t.Errorf("%d events were published, want the 30 that were imported", v.Missing)
	}
	w.until(t, `SELECT count(*) FROM outcomes o JOIN events e ON e.id = o.event_id WHERE e.origin = 'import'`, 30)
}

// The stream of changes that is deleted under a running processor is made again by it, and has what changed since.
func TestTheStreamOfChangesIsMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.start(t, setting{})
	js := w.jetStream(t)
	has := func(n uint64) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			s, err := js.Stream(t.Context(), stream.ChangesStream)
			if err == nil && s.CachedInfo().State.Msgs < n {
				err = fmt.Errorf("%d changes, want %d", s.CachedInfo().State.Msgs, n)
			}
			return err
		})
	}
	w.publish(t, w.append(t, w.simple(10)...)...)
	has(10)
	must(t, js.DeleteStream(t.Context(), stream.ChangesStream))
	w.publish(t, w.append(t, w.simple(20)...)...)
	has(10) // of objects that are new
}

// While the stream does not answer, as one that is deleted and made anew under its publishers may not for a moment, a pass is not at its end, and says why.
func TestHealIsNotOverUnanswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.start(t, setting{tune: func(s *processor.Settings) { s.AuditEvery, s.AuditAge = time.Hour, time.Hour }})
	js := w.jetStream(t)
	deaf, err := js.Stream(t.Context(), stream.EventsStream)
	must(t, err)
	hears := deaf.CachedInfo().Config
	hearsNot := hears
	hearsNot.Subjects = []string{"elsewhere"}
	must(t, errOf(js.UpdateStream(t.Context(), hearsNot)))
	if _, err := js.Conn().Subscribe(stream.EventsSubject+".>", func(*nats.Msg) {}); err != nil { // else the server would say that nobody hears
		t.Fatal(err)
	}
	w.append(t, w.simple(20)...)
	w.clock(t, "10 s")
	heal, operator := w.heal(t), w.db.Role(t, "operator")
	testkit.Eventually(t, patience, func() error {
		v, err := processor.ShowHeal(t.Context(), operator, heal)
		if err == nil && v.EndedAt != nil {
			t.Fatalf("at its end: %+v", v)
		}
		if err == nil && !strings.Contains(v.Detail, "20 messages had no answer") {
			err = fmt.Errorf("%+v", v)
		}
		return err
	})
	must(t, errOf(js.UpdateStream(t.Context(), hears)))
	if v := w.healed(t, heal); v.Missing != 20 || v.Detail != "" {
		t.Errorf("%+v", v)
	}
	w.outcomes(t, 20)
}

// What is asked for waits as long as what was published before is not worked off, says so, and is carried out then; nothing that waits in the stream is published again.
func TestHealWaitsForWhatIsPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.MaxMessages, l.AckWait = 1000, 10*time.Minute })
	w.append(t, w.simple(700)...)
	r := newGate()
	w.start(t, setting{provider: r, tune: func(s *processor.Settings) { s.AuditEvery, s.AuditAge = time.Hour, time.Hour }})
	w.clock(t, "10 s")
	heal := w.heal(t)
	operator := w.db.Role(t, "operator")
	testkit.Eventually(t, patience, func() error {
		v, err := processor.ShowHeal(t.Context(), operator, heal)
		if err == nil && (v.Missing != 500 || !strings.Contains(v.Detail, "messages wait for processors")) {
			err = fmt.Errorf("%+v", v)
		}
		return err
	})
	d, err := processor.ReadDue(t.Context(), operator)
	if err != nil || d.Unapplied.Count != 700 || d.Unapplied.Since == nil || d.Unapplied.Seconds < 10 || d.Auditor.Wanted != 1 || d.Auditor.Detail == "" {
		t.Errorf("%+v, %v", d, err)
	}
	r.open()
	if v := w.healed(t, heal); v.Missing != 700 {
		t.Errorf("%+v", v)
	}
	w.outcomes(t, 700)
	if n := r.total(); n != 700 {
		t.Errorf("%d copies of 700 events were read", n)
	}
	if _, err := processor.ShowHeal(t.Context(), operator, heal+1); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("a pass that nobody asked for: %v", err)
	}
}

// What an ended process has not finished the next auditor does.
func TestHealOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.append(t, w.simple(20)...)
	w.nats.Stop(t)
	first := w.start(t, setting{id: "first", tune: func(s *processor.Settings) { s.AuditEvery, s.AuditAge = time.Hour, time.Hour }})
	heal, operator := w.heal(t), w.db.Role(t, "operator")
	testkit.Eventually(t, patience, func() error {
		v, err := processor.ShowHeal(t.Context(), operator, heal)
		if err == nil && v.Detail == "" {
			err = errors.New("nothing keeps it from its end")
		}
		return err
	})
	first.stop(t)
	w.nats.Restart(t)
	w.clock(t, "10 s")
	w.start(t, setting{id: "second", tune: func(s *processor.Settings) { s.AuditEvery, s.AuditAge = time.Hour, time.Hour }})
	if v := w.healed(t, heal); v.Missing != 20 {
		t.Errorf("%+v", v)
	}
	w.outcomes(t, 20)
}

// However much is missing when the stream is back, the auditor publishes no more in a second than it may.
func TestTheAuditorKeepsItsRate(t *testing.T) {
	t.Parallel()
	const rate, total = 500, 1500
	w := newWorld(t, nil)
	w.nats.Stop(t)
	w.append(t, w.simple(total)...)
	p := w.start(t, setting{tune: func(s *processor.Settings) { s.AuditRate = rate }})
	began := time.Now()
	w.nats.Restart(t)
	w.outcomes(t, total)
	// The first chunk need not wait, and neither need what follows the last.
	if took, least := time.Since(began), time.Duration(total-400)*time.Second/rate; took < least {
		t.Errorf("%d events took %s, at %d a second at least %s are wanted", total, took, rate, least)
	}
	if n := p.audited(t); n != total {
		t.Errorf("%d events were published, %d were missing", n, total)
	}
}

// What waits for its next attempt, and what is not in the feed yet, is told with its age.
func TestDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.append(t, w.simple(3)...)
	w.db.Exec(t, `
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
		SELECT id, 0, source, 0, '', '', '', 'failed', 'not today', 1, clock_now() + (CASE row_number() OVER (ORDER BY id) WHEN 1 THEN interval '-1 h' ELSE interval '1 h' END), clock_now(), 1
		FROM events ORDER BY id LIMIT 2`)
	w.db.Exec(t,
		`INSERT INTO outbox (sources, accounts, types, ids, made_at) VALUES ('{1}', '{a}', '{t}', '{i}', clock_now() - interval '1 min')`)
	d, err := processor.ReadDue(t.Context(), w.db.Role(t, "operator"))
	must(t, err)
	if d.Unapplied.Count != 1 || d.Failed.Count != 2 || d.Retries.Count != 1 || d.Retries.Seconds < 3600 || d.Unsent.Count != 1 || d.Unsent.Seconds < 60 || d.Auditor.Process != "" || d.Auditor.Passed != nil {
		t.Errorf("%+v", d)
	}
}
