package verify_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/verify"
)

func TestNothingIsWrong(t *testing.T) {
	t.Parallel()
	empty(t).clean(t)
	b := setup(t)
	r := b.clean(t)
	n := int64(len(b.ids))
	if r.Looked["events"] != n || r.Looked["keys"] != n || r.Looked["outcomes"] != n || len(r.Waiting) != 1 || r.At.IsZero() {
		t.Errorf("%d events: %+v", n, r)
	}
}

// Each way in which log, keys and outcomes can disagree is found, counted, and named with the event.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind   verify.Kind
		sql    string
		detail string
	}{
		"no key":                   {verify.EventWithoutKey, `DELETE FROM event_keys WHERE id = $1`, "no key"},
		"no event":                 {verify.KeyWithoutEvent, `WITH o AS (DELETE FROM outcomes WHERE event_id = $1) DELETE FROM events WHERE id = $1`, "is not in events_"},
		"another key":              {verify.KeyDiffers, `UPDATE event_keys SET key = '\x00112233445566778899aabbccddeeff' WHERE id = $1`, "the key is 0011"},
		"another fingerprint":      {verify.KeyDiffers, `UPDATE event_keys SET fingerprint = '\x00112233445566778899aabbccddeeff' WHERE id = $1`, "fingerprint is 0011"},
		"another source":           {verify.KeyDiffers, `UPDATE event_keys SET source = 77 WHERE id = $1`, "source number 77"},
		"passed without outcome":   {verify.EventWithoutOutcome, `DELETE FROM outcomes WHERE event_id = $1`, "checkpoint is"},
		"a key of a day not there": {verify.KeyWithoutEvent, `INSERT INTO event_keys (source, key, id, fingerprint) SELECT source, '\x01', 77, fingerprint FROM event_keys WHERE id = $1`, "retention dropped none"},
		"an outcome of no event": {verify.OutcomeWithoutEvent, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
			SELECT event_id + 77777, 0, source, 0, '', '', '', 'ignored', '', 1, now(), 1 FROM outcomes WHERE event_id = $1`, "its outcome is ignored"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.ids[len(b.ids)/2]
			b.damage(t, c.sql, id)
			o := b.options(t)
			o.Sources = nil // that objects lack the event as well is for others to find
			item := found(t, run(t, o), c.kind, 1)
			if !strings.Contains(item.Detail, c.detail) || item.Event != id && !strings.Contains(name, "of ") || item.Event == 0 {
				t.Errorf("event %d: %+v", id, item)
			}
			if mended := item.Mend != ""; mended == (c.kind == verify.KeyDiffers) { // of two that differ nobody knows the wrong one
				t.Errorf("what mends it: %+v", item)
			}
		})
	}
}

// A day that retention has dropped may be there again, empty, after a clock went back: what it held is missed by nobody. One that is only about to be dropped is missed.
func TestADroppedDayThatIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		b := setup(t)
		id := b.ids[len(b.ids)/2]
		b.damage(t, `WITH e AS (DELETE FROM events WHERE id = $1) INSERT INTO retired (name, lo, hi, folded_to, events, bytes, run, ready_at, dropped_at, updated_at)
			SELECT 'events_' || to_char(event_time($1) AT TIME ZONE 'UTC', 'YYYYMMDD'), $1, $1 + 1, $1, 1, 1, 1, now(), CASE WHEN $2 THEN now() END, now()`, id, dropped)
		o := b.options(t)
		o.Sources = nil
		if r := run(t, o); (len(r.Findings) == 0) != dropped {
			t.Errorf("dropped %t: %+v", dropped, r.Findings)
		}
	}
}

// Of many only the first are named, and all are counted.
func TestManyOfAKind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.damage(t, `DELETE FROM event_keys`)
	if r := b.verify(t); b.finds(t, verify.EventWithoutKey, int64(len(b.ids))).Event != b.ids[0] || len(r.Findings[0].Items) != 3 {
		t.Errorf("%+v", r)
	}
}

// The statement that a violation comes with mends it.
func TestKeysAreMadeAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.damage(t, `DELETE FROM event_keys WHERE id = $1`, b.ids[5])
	b.exec(t, b.finds(t, verify.EventWithoutKey, 1).Mend)
	b.clean(t)
}

// ... and so does that which sets the auditor back.
func TestTheAuditorIsSetBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.damage(t, `DELETE FROM outcomes WHERE event_id = $1`, b.ids[5])
	o := b.options(t)
	o.Sources = nil
	b.exec(t, found(t, run(t, o), verify.EventWithoutOutcome, 1).Mend)
	if r := run(t, o); len(r.Findings) != 0 || len(r.Waiting) != 2 || r.Waiting[0].Count != 1 {
		t.Errorf("%+v", r)
	}
	applied.Apply(t, b.proc, events.LiveRun, b.ids[5:6]) // as the auditor has it done
	b.clean(t)
}

// What is under way is told, and is a violation only when it is too old.
func TestWaiting(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `UPDATE outbox SET sent_at = now(), sequence = 1`)
	late := sim.Generate(rand.New(rand.NewPCG(3, 4)), sim.Options{Objects: 3, Changes: 1, Contents: 3, Unit: 1, Gap: 10}).Events
	b.log.Append(t, b.log.Source, late)
	if r := b.clean(t); len(r.Waiting) != 1 || r.Waiting[0].Count != int64(len(late)) || r.Waiting[0].Seconds > 600 {
		t.Errorf("%+v", r.Waiting)
	}
	o := b.options(t)
	o.Wait = time.Nanosecond
	if item := found(t, run(t, o), verify.WaitsTooLong, 1); !strings.Contains(item.Detail, "without an outcome") {
		t.Errorf("%+v", item)
	}
	b.exec(t, `UPDATE outcomes SET status = 'failed', due = now() + interval '1 hour' WHERE event_id = $1`, b.ids[0])
	b.exec(t, `UPDATE outcomes SET status = 'failed', due = now() - interval '10 minutes' WHERE event_id = $1`, b.ids[1])
	b.exec(t, `UPDATE outbox SET sent_at = NULL, sequence = NULL`)
	if r := b.clean(t); len(r.Waiting) != 4 || r.Waiting[2].Seconds < 600 {
		t.Errorf("%+v", r.Waiting)
	}
	o.Wait = 5 * time.Minute
	found(t, run(t, o), verify.WaitsTooLong, 1)
}

// While it looks, others append and apply: of each event it sees all that belongs together or nothing.
func TestBesideWriters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	evs := sim.Generate(rand.New(rand.NewPCG(5, 6)), sim.Options{Objects: 40, Changes: 6, Contents: 3, Unit: 1, Gap: 10}).Events
	done, first := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i, e := range evs {
			if i == len(evs)/2 {
				<-first
			}
			applied.Apply(t, b.proc, events.LiveRun, b.log.Append(t, b.log.Source, []sim.Event{e}))
		}
	}()
	for looked := 0; ; looked++ {
		b.clean(t)
		if looked == 0 {
			close(first)
		}
		select {
		case <-done:
			if r := b.clean(t); r.Looked["events"] != int64(len(b.ids)+len(evs)) {
				t.Errorf("%+v", r)
			}
			return
		default:
		}
	}
}
