package verify_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/verify"
)

func TestVerify_soundData_noViolations(t *testing.T) {
	t.Parallel()
	empty(t).clean(t)
	b := setup(t)
	r := b.clean(t)
	n := int64(len(b.ids))
	if r.Checked["events"] != n || r.Checked["keys"] != n || r.Checked["outcomes"] != n || len(r.Waiting) != 1 ||
		r.At.IsZero() {
		t.Errorf("%d events: %+v", n, r)
	}
}

// Every difference between log, keys and outcomes is found, counted and named with the event.
func TestVerify_damagedLog_namesEvent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind   verify.Kind
		sql    string
		detail string
	}{
		"no key": {verify.EventWithoutKey, `DELETE FROM event_keys WHERE id = $1`, "no key"},
		"no event": {verify.KeyWithoutEvent, `WITH o AS (DELETE FROM outcomes
			WHERE event_id = $1) DELETE FROM events WHERE id = $1`, "is not in events_"},
		"another key": {verify.KeyDiffers, `UPDATE event_keys SET key =
			'\x00112233445566778899aabbccddeeff' WHERE id = $1`, "the key is 0011"},
		"another fingerprint": {verify.KeyDiffers, `UPDATE event_keys SET fingerprint =
			'\x00112233445566778899aabbccddeeff' WHERE id = $1`, "fingerprint is 0011"},
		"another source": {verify.KeyDiffers, `UPDATE event_keys SET source = 77 WHERE id = $1`,
			"source number 77"},
		"passed without outcome": {verify.EventWithoutOutcome, `DELETE FROM outcomes WHERE event_id = $1`,
			"checkpoint is"},
		"a key of a day not there": {verify.KeyWithoutEvent, `INSERT INTO event_keys (source, key, id, fingerprint)
			SELECT source, '\x01', 77, fingerprint FROM event_keys WHERE id = $1`, "retention dropped none"},
		"an outcome of no event": {verify.OutcomeWithoutEvent, `INSERT INTO outcomes (event_id, run, source, object,
			account, object_type, object_id, status, reason, attempts, at, rule_version)
			SELECT event_id + 77777, 0, source, 0, '', '', '', 'ignored', '', 1, now(), 1 FROM outcomes
				WHERE event_id = $1`, "its outcome is ignored"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.ids[len(b.ids)/2]
			b.damage(t, c.sql, id)
			item := found(t, b.verifyLog(t), c.kind, 1)
			if !strings.Contains(item.Detail, c.detail) || item.Event != id && !strings.Contains(name, "of ") ||
				item.Event == 0 {
				t.Errorf("event %d: %+v", id, item)
			}
			// if two differ, the wrong one is unknown
			if hasRepair := item.Repair != ""; hasRepair == (c.kind == verify.KeyDiffers) {
				t.Errorf("repair: %+v", item)
			}
		})
	}
}

// A dropped partition may exist again, empty, after the clock was set back: its events are not
// missing. Events of a partition that is only about to be dropped are missing.
func TestVerify_droppedPartitionCreatedAgain_isNoViolation(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		b := setup(t)
		id := b.ids[len(b.ids)/2]
		b.damage(t, `WITH e AS (DELETE FROM events WHERE id = $1) INSERT INTO dropped_partitions (name, id_from, id_to,
			retained_to, events,
			bytes, run, ready_at, dropped_at, updated_at)
			SELECT 'events_' || to_char(event_time($1) AT TIME ZONE 'UTC', 'YYYYMMDD'), $1, $1 + 1, $1, 1, 1, 1, now(),
				CASE WHEN $2 THEN now() END, now()`, id, dropped)
		if r := b.verifyLog(t); (len(r.Findings) == 0) != dropped {
			t.Errorf("dropped %t: %+v", dropped, r.Findings)
		}
	}
}

// Only the first violations are listed, and all are counted.
func TestVerify_manyViolations_listsFirstAndCountsAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.damage(t, `DELETE FROM event_keys`)
	if r := b.verify(t); b.finds(t, verify.EventWithoutKey, int64(len(b.ids))).Event != b.ids[0] ||
		len(r.Findings[0].Items) != 3 {
		t.Errorf("%+v", r)
	}
}

// The repair statement of a violation repairs it: it inserts a key again, and sets the
// republisher's checkpoint back.
func TestVerify_repairStatements_repair(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.damage(t, `DELETE FROM event_keys WHERE id = $1`, b.ids[5])
	b.exec(t, b.finds(t, verify.EventWithoutKey, 1).Repair)
	b.clean(t)
	b.damage(t, `DELETE FROM outcomes WHERE event_id = $1`, b.ids[5])
	b.exec(t, found(t, b.verifyLog(t), verify.EventWithoutOutcome, 1).Repair)
	if r := b.verifyLog(t); len(r.Findings) != 0 || len(r.Waiting) != 2 || r.Waiting[0].Count != 1 {
		t.Errorf("%+v", r)
	}
	applied.Apply(t, b.proc, events.LiveRun, b.ids[5:6]) // as the republisher does
	b.clean(t)
}

// Unfinished work is reported, and is a violation only when it is too old.
func TestVerify_unfinishedWork_violationOnlyWhenOld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `UPDATE outbox SET sent_at = now(), sequence = 1`)
	late := sim.Generate(rand.New(rand.NewPCG(3, 4)), sim.Options{Objects: 3, Changes: 1, Contents: 3, Unit: 1,
		Gap: 10}).Events
	b.log.Append(t, b.log.Source, late)
	if r := b.clean(t); len(r.Waiting) != 1 || r.Waiting[0].Count != int64(len(late)) || r.Waiting[0].Seconds > 600 {
		t.Errorf("%+v", r.Waiting)
	}
	o := b.options(t)
	o.MaxWait = time.Nanosecond
	if item := found(t, run(t, o), verify.WaitsTooLong, 1); !strings.Contains(item.Detail, "without an outcome") {
		t.Errorf("%+v", item)
	}
	b.exec(t, `UPDATE outcomes SET status = 'failed', due = now() + interval '1 hour' WHERE event_id = $1`, b.ids[0])
	b.exec(t, `UPDATE outcomes SET status = 'failed', due = now() - interval '10 minutes' WHERE event_id = $1`,
		b.ids[1])
	b.exec(t, `UPDATE outbox SET sent_at = NULL, sequence = NULL`)
	if r := b.clean(t); len(r.Waiting) != 4 || r.Waiting[2].Seconds < 600 {
		t.Errorf("%+v", r.Waiting)
	}
	o.MaxWait = 5 * time.Minute
	found(t, run(t, o), verify.WaitsTooLong, 1)
}

// Concurrent writers append and apply during the verification: it sees everything of an event or
// nothing.
func TestVerify_concurrentWriters_noViolations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	evs := sim.Generate(rand.New(rand.NewPCG(5, 6)), sim.Options{Objects: 40, Changes: 6, Contents: 3, Unit: 1,
		Gap: 10}).Events
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
	for checks := 0; ; checks++ {
		b.clean(t)
		if checks == 0 {
			close(first)
		}
		select {
		case <-done:
			if r := b.clean(t); r.Checked["events"] != int64(len(b.ids)+len(evs)) {
				t.Errorf("%+v", r)
			}
			return
		default:
		}
	}
}

// Every kind of damage to a body is found and named. Other checks find that the object differs too.
func TestVerify_damagedBodies_namesEvent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind verify.Kind
		sql  string
	}{
		"body": {verify.FingerprintDiffers, `UPDATE events SET body = set_byte(body, 3, get_byte(body, 3) # 1)
			WHERE id = $1`},
		"fingerprint": {verify.FingerprintDiffers, `WITH k AS (UPDATE event_keys
			SET fingerprint = '\x00112233445566778899aabbccddeeff' WHERE id = $1) UPDATE events
				SET fingerprint = '\x00112233445566778899aabbccddeeff' WHERE id = $1`},
		"no body":  {verify.BodyMissing, `UPDATE events SET body = NULL WHERE id = $1`},
		"redacted": {verify.RedactionUndone, `INSERT INTO redacted_events (event, run, at) VALUES ($1, 1, now())`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.damage(t, c.sql, b.ids[7])
			r := b.verify(t)
			if len(r.Findings) == 2 && r.Findings[1].Kind == verify.ObjectDiffers {
				r.Findings = r.Findings[:1]
			}
			if item := found(t, r, c.kind, 1); item.Event != b.ids[7] {
				t.Errorf("event %d: %+v", b.ids[7], item)
			}
		})
	}
}

// The body of a delivery with several events is stored with the first of them, and may be too large
// to be read with others.
func TestVerify_deliveryOfSeveralEvents_findsBody(t *testing.T) {
	t.Parallel()
	b := empty(t)
	e := at("obj_1", 1)
	e.Body = bytes.Replace(e.Body, []byte(`"object":{`), fmt.Appendf(nil, `"object":{"text":%q,`,
		strings.Repeat("some text ", 4000)), 1)
	d := events.Delivery{Source: b.log.Source, ReceivedAt: e.ReceivedAt, Origin: events.OriginWebhook,
		Headers: []byte(`{}`), Verification: []byte(`{}`), Body: e.Body}
	for _, key := range []string{"a", "b", "c"} {
		d.Events = append(d.Events, provider.Event{Key: key, Type: "thing", ObjectType: "thing", ObjectID: "obj_1",
			Fingerprint: provider.BodyFingerprint(e.Body)})
	}
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{d})
	testkit.Must(t, err)
	for _, r := range receipts[0] {
		applied.Apply(t, b.proc, events.LiveRun, []int64{r.ID})
	}
	if r := b.clean(t); r.Checked["bodies"] != 3 {
		t.Errorf("%+v", r.Checked)
	}
	b.damage(t, `UPDATE events SET body = set_byte(body, length(body) - 9, 7) WHERE body IS NOT NULL`)
	if r := b.verify(t); r.Findings[0].Kind != verify.FingerprintDiffers || r.Findings[0].Count != 3 {
		t.Errorf("%+v", r.Findings)
	}
	b.damage(t, `UPDATE events SET body = NULL WHERE body IS NOT NULL`)
	if r := b.verify(t); r.Findings[0].Kind != verify.BodyMissing || r.Findings[0].Count != 3 {
		t.Errorf("%+v", r.Findings)
	}
}

// signed stores a signed delivery of Stripe's. The source depends on the number of calls.
func (b *testBundle) signed(t *testing.T, number int32, src *provider.Source, n int) int64 {
	t.Helper()
	p := stripe.Stripe{}
	s, err := p.MakeVariant(p.Samples()[0], n, time.Now(), true)
	testkit.Must(t, err)
	d, err := p.Sign(src, s, time.Now())
	testkit.Must(t, err)
	d.ReceivedAt = time.Now()
	v, err := p.Verify(src, d)
	testkit.Must(t, err)
	named, err := p.Identify(src, d)
	testkit.Must(t, err)
	proof, err := json.Marshal(v)
	testkit.Must(t, err)
	receipts, err := events.Append(t.Context(), b.db.Pool,
		[]events.Delivery{{Source: number, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook,
			Headers: events.AppendHeaders(nil, p.Headers(), d), Verification: proof, Body: d.Body, Events: named}})
	testkit.Must(t, err)
	return receipts[0][0].ID
}

// Stored deliveries are verified again as of their receipt, however old they are, with the secret
// that verified them.
func TestVerify_signatures_asOfReceipt(t *testing.T) {
	t.Parallel()
	b := empty(t)
	number := b.log.AddSource(t, "shop")
	src := &provider.Source{Name: "shop",
		Secrets: []provider.Secret{{Name: "main", Value: []byte("whsec_0123456789abcdef0123456789abcdef")}}}
	b.log.Sources["shop"] = apply.Source{Number: number, Config: src, Provider: stripe.Stripe{}}
	var ids []int64
	for i := range 5 {
		ids = append(ids, b.signed(t, number, src, i))
	}
	o := b.options(t)
	o.Signatures = true
	if r := run(t, o); len(r.Findings) != 0 || r.Checked["signatures"] != 5 || r.Checked["bodies"] != 5 {
		t.Errorf("%+v", r)
	}
	b.damage(t, `UPDATE events SET received_at = received_at - interval '1 day' WHERE id = $1`, ids[2])
	if item := found(t, run(t, o), verify.SignatureWrong, 1); item.Event != ids[2] ||
		!strings.Contains(item.Detail, `secret "main"`) {
		t.Errorf("%+v", item)
	}
	if r := b.clean(t); r.Checked["signatures"] != 0 {
		t.Errorf("signatures were checked without a request: %+v", r.Checked)
	}
	src.Secrets[0].Value = bytes.ToUpper(src.Secrets[0].Value)
	src.Keys = nil
	found(t, run(t, o), verify.SignatureWrong, 5)
	src.Secrets[0].Name = "another"
	if r := run(t, o); len(r.Findings) != 0 || len(r.Notes) != 1 ||
		!strings.HasPrefix(r.Notes[0], "5 deliveries of source shop were not verified again") {
		t.Errorf("%+v", r)
	}
}

// ledger stores valid effects in every state, with matching steps.
func ledger(t *testing.T) *testBundle {
	t.Helper()
	b := setup(t)
	b.exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state,
			compensating, destination, due, lease_owner, lease_until, planned_at, updated_at)
		SELECT 'mail:' || n, 1, 'mail', $1, '', 'thing', n::text, 7, 0, state, compensating, 'post', CASE
			WHEN state IN ('planned', 'failed') THEN now() END,
		  CASE WHEN state = 'running' THEN 'a' ELSE '' END, CASE WHEN state = 'running' THEN now() + interval '1 min'
		  	END, now() - interval '3 days', now() - interval '2 days'
		FROM (VALUES (1, 'awaiting_approval', false), (2, 'planned', false), (3, 'running', false),
			(4, 'failed', false),
			(5, 'needs_review', false), (6, 'done', false), (7, 'done', true), (8, 'rejected', false),
			(9, 'superseded', false),
		  (10, 'expired', false)) AS d(n, state, compensating)`, b.log.Source)
	b.exec(t, `
		INSERT INTO effect_steps (effect, step, undo, position, state, destination, fingerprint, attempts, reserved_at,
			ended_at)
		SELECT e.effect, step, undo, 0, d.state, 'post', '', 1, now() - interval '1 day', now() - interval '1 day'
		FROM effects e JOIN (VALUES (2, 'a', false, 'done'), (3, 'a', false, 'done'), (3, 'b', false, 'reserved'),
			(4, 'a', false, 'failed'), (5, 'a', false, 'unknown'), (6, 'a', false, 'done'), (7, 'a', false, 'done'),
		  (7, 'a', true, 'done'), (7, 'b', false, 'failed'), (8, 'a', false, 'unknown')) AS d(n, step, undo, state) ON
		  	e.key = 'mail:' || d.n`)
	return b
}

// A valid ledger has no violation, and effects that wait for operators are reported.
func TestVerify_effects_reportsWaiting(t *testing.T) {
	t.Parallel()
	r := ledger(t).clean(t)
	if r.Checked["effects"] != 10 {
		t.Errorf("%v", r.Checked)
	}
	var reported []string
	for _, w := range r.Waiting {
		if what, _, _ := strings.Cut(w.Work, " ("); w.Count > 0 {
			reported = append(reported, what)
		}
	}
	for _, want := range []string{"effects that are due", "steps with unknown outcome",
		"effects that need review", "effects that await approval"} {
		if !strings.Contains(strings.Join(reported, "|"), want) {
			t.Errorf("%q is not reported: %q", want, reported)
		}
	}
	for _, w := range r.Waiting {
		if strings.HasPrefix(w.Work, "steps with unknown") && (w.Count != 1 || w.Seconds < 80_000) {
			t.Errorf("%+v", w)
		}
	}
	b := setup(t)
	b.exec(t, `INSERT INTO effect_window_waits SELECT 'weekly', $1, '', 'thing', n::text, now() - interval '3 h',
		now() - interval '2 h' FROM generate_series(1, 3) n`, b.log.Source)
	r = b.clean(t)
	if !slices.ContainsFunc(r.Waiting, func(w verify.Wait) bool {
		return w.Count == 3 && w.Seconds > 7_000 && strings.HasPrefix(w.Work, "ambiguous objects")
	}) {
		t.Errorf("%+v", r.Waiting)
	}
	if n := r.Checked["effects"]; n != 0 {
		t.Errorf("%d effects, want none", n)
	}
}

// Every kind of damage to the ledger of effects is found and named.
func TestVerify_damagedEffects_namesEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind  verify.Kind
		sql   string
		names string
	}{
		"done with unknown step": {verify.EffectWrong, `UPDATE effect_steps SET state = 'unknown'
			WHERE effect = (SELECT effect FROM effects WHERE key = 'mail:6')`,
			"step a is unknown, and the effect is done"},
		"reserved for ever": {verify.EffectWrong, `UPDATE effect_steps SET state = 'reserved' WHERE state = 'failed'
			AND effect = (SELECT effect FROM effects WHERE key = 'mail:4')`,
			"step a is reserved, and the effect is failed"},
		"without owner": {verify.EffectWrong, `UPDATE effects SET lease_owner = '' WHERE state = 'running'`,
			"nobody has taken it"},
		"started without approval": {verify.EffectWrong, `UPDATE effects SET state = 'awaiting_approval'
			WHERE key = 'mail:6'`,
			"step a is done, and the effect is awaiting_approval"},
		"started and expired": {verify.EffectWrong, `UPDATE effects SET state = 'expired' WHERE key = 'mail:6'`,
			"step a is done, and the effect is expired"},
		"never due": {verify.EffectWrong, `ALTER TABLE effects DROP CONSTRAINT effects_check; UPDATE effects
			SET due = NULL WHERE state = 'planned'`, "it is planned, and never due"},
		"undone, never done": {verify.EffectWrong, `UPDATE effect_steps SET state = 'failed' WHERE NOT undo
			AND step = 'a' AND effect = (SELECT effect FROM effects WHERE key = 'mail:7')`,
			"step a is undone, and was not done"},
		"twice": {verify.EffectTwice, `DROP INDEX effects_key; UPDATE effects SET key = 'mail:6'
			WHERE key = 'mail:8'`, "both have key mail:6, version 1"},
		"without event": {verify.EffectWrong, `UPDATE effects SET event_id = 0, template_data = '{"new": {}}'
			WHERE key = 'mail:6'`, "it is of no event, and of no window of a schedule"},
		"too late": {verify.WaitsTooLong, `UPDATE effects SET due = now() - interval '2 hours'
			WHERE state = 'planned'`, "effects that are due: 2, the oldest for 2h0m0s; the limit is 1h0m0s"},
		"rule not configured": {verify.WaitsTooLong, `UPDATE effects SET due = clock_timestamp(),
			reason = 'its rule is not configured, so it waits' WHERE key = 'mail:2'`,
			"effects whose rule or destination is not configured: 1, the oldest for 72h0m0s; the limit is 1h0m0s"},
		"lease expired": {verify.WaitsTooLong, `UPDATE effects SET lease_until = now() - interval '2 hours'
			WHERE state = 'running'`, "effects whose process has ended: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := ledger(t)
			for statement := range strings.SplitSeq(c.sql, "; ") {
				b.exec(t, statement)
			}
			if item := b.finds(t, c.kind, 1); !strings.Contains(item.Detail, c.names) || item.Repair == "" {
				t.Errorf("%+v", item)
			}
		})
	}
}
