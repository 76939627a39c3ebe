package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/backtest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
	mails "github.com/postern-gateway/postern/internal/testkit/sink"
)

// effects inserts five effects: 1 and 2 await approval, 3 has a step with unknown outcome, 4 has
// failed, 5 is done.
func (b *testBundle) effects(t *testing.T) {
	t.Helper()
	b.db.Exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
			template_data,
			state, destination, planned_at, updated_at)
		SELECT 'mail:' || n, 1, 'mail', $1, '', 'customer', 'cus_' || n, 7, 0,
			'{"event": {"key": "evt_1", "type": "customer.updated", "origin": "webhook"}}', state, 'post',
			'2026-01-02T03:04:05Z', '2026-01-02T03:04:05Z'
		FROM unnest('{awaiting_approval,awaiting_approval,needs_review,needs_review,done}'::text[]) WITH ORDINALITY AS
			d(state, n)`,
		b.known.Number["stripe"])
	b.db.Exec(t, `
		INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint, attempts,
			reserved_at,
			ended_at, status, captured, error, resolved_by, undoable)
		SELECT n, 'mail', 0, state, 'post', '{"method": "POST", "path": "/mail"}', '\x01', 1, '2026-01-02T03:04:06Z',
			'2026-01-02T03:04:07Z', 200, '{"id": "m_1"}', error, 'operator', false
		FROM (VALUES (3, 'unknown', E'no answer: \x1b[31m'), (4, 'failed', 'status 422'), (5, 'done', '')) AS d(n,
			state, error)`)
}

func TestEffects_listAndShow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "effects list", 0, "No effects.", "")
	b.effects(t)
	for args, found := range map[string]bool{"": true, "--state needs_review": true, "--state done": false,
		"--rule mail --source stripe --type customer --object cus_3": true, "--object-id cus_4": false,
		"--key mail:3": true, "--since 2026-01-03": false} {
		r := b.run(t, append([]string{"effects", "list"}, strings.Fields(args)...)...)
		if r.status != 0 || strings.Contains(r.out, "customer cus_3") != found {
			t.Errorf("%s: %+v", args, r)
		}
	}
	b.want(t, "effects list --state lost", 2, "", "use one of awaiting_approval, planned")
	r := b.run(t, "effects", "show", "3")
	r.contains(t, "mail:3", "7, evt_1, customer.updated, webhook", "POST /mail", `{"id": "m_1"}`,
		"SHA-256 01", "no answer: ·[31m", "the event when it was applied",
		"\nNext\nit is unknown whether step mail was executed; check at the destination, then run postern "+
			"effects resolve 3 --step mail --done, or --not-done\n")
	if strings.Contains(r.out, "\x1b") {
		t.Errorf("control characters reach the terminal: %q", r.out)
	}
	var v effects.View
	if r := b.run(t, "effects", "show", "5", "-o", "json"); json.Unmarshal([]byte(r.out), &v) != nil ||
		v.State != effects.Done || len(v.Steps) != 1 || v.AllowedActions != "nothing to do: all its steps are done" {
		t.Errorf("%+v", r)
	}
	b.db.Exec(t, `UPDATE effects SET event_id = 0,
		template_data = '{"window": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}}'
			WHERE effect = 5`)
	r = b.run(t, "effects", "show", "5")
	r.contains(t, "the schedule of its rule", "from 2026-01-01T00:00:00Z to 2026-01-02T00:00:00Z")
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts,
		reserved_at, ended_at, reason) VALUES (5, 'extra', 1, 'skipped', 'post', '', 0, now(), now(), 'its condition')`)
	skipped := b.run(t, "effects", "show", "5")
	skipped.contains(t, "Step extra\n", "reason       its condition",
		"not possible: its rule has no compensate",
		"all its steps are done, except extra, whose condition was false")
	if strings.Contains(r.out, "event") {
		t.Errorf("a schedule has no event: %s", r.out)
	}
	b.want(t, "effects show 99", 3, "", "effect 99: not found")
}

func TestEffects_changeCommands_changeState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.effects(t)
	for _, c := range []struct {
		args      string
		status    int
		out, errs string
	}{
		{"approve", 2, "", "postern effects approve takes ID..., got 0"},
		{"approve x --reason why", 2, "", `"x" is not an id: postern effects list shows them`},
		{"approve 1", 2, "", "give a reason with --reason"},
		{"approve 1 --reason why", 0, "Effect 1 is planned: a processor executes its next step automatically.", ""},
		{"reject 2 --reason why", 0, "Effect 2 is rejected: an operator rejected it.", ""},
		{"resolve 3 4 --reason why", 2, "", "takes ID, got 2"},
		{"resolve 3 --done --reason why", 2, "", "--step"},
		{"resolve 3 --step mail --reason why", 2, "", "--done or --not-done"},
		{"resolve 3 --step mail --done --not-done --reason why", 2, "", "--done or --not-done"},
		{`resolve 3 --step mail --done --captured {"id":"m_2"} --reason why`, 0,
			"Effect 3 is planned: a processor executes its next step automatically.", ""},
		{"retry 4 --reason why -o json", 0, `"state":"planned"`, ""},
		{"compensate 5 --partial --reason why", 0, "Effect 5 is planned", ""},
	} {
		b.run(t, append([]string{"effects"}, strings.Fields(c.args)...)...).want(t, c.status, c.out, c.errs)
	}
	got := b.db.QueryStrings(t, `SELECT concat_ws(' ', effect, e.state, compensating, s.state, captured->>'id',
		request IS NULL)
		FROM effects e LEFT JOIN effect_steps s USING (effect) ORDER BY effect`)
	want := "1 planned f t|2 rejected f t|3 planned f done m_2 f|4 planned f failed m_1 t|5 planned t done m_1 f"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}

// invoice stores and applies an event about a Stripe invoice.
func (b *testBundle) invoice(t *testing.T, n int, id, status string) {
	t.Helper()
	at := time.Now().Add(-time.Hour).Add(time.Duration(n) * time.Minute)
	body := fmt.Sprintf(`{"id":"evt_%d","object":"event","type":"invoice.updated","created":%d,`+
		`"data":{"object":{"id":%q,"object":"invoice","status":%q}}}`, n, at.Unix(), id, status)
	stored := b.store(t, "stripe", body, provider.Event{Key: fmt.Sprint("evt_", n), Type: "invoice.updated",
		ObjectType: "invoice", ObjectID: id, OccurredAt: at})
	_, err := b.applier(t, stripe.Stripe{}).ApplyStored(t.Context(), apply.Target{}, []int64{stored}, false)
	testkit.Must(t, err)
}

// A rule is evaluated on past changes, and nothing is written.
func TestEffectsBacktest_comparesPastChangesWithLedger(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := fmt.Sprintf(`
database: {url: %q}
sources:
  stripe: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  mail: {url: "https://mail.example"}
effects:
  receipt:
    source: stripe
    type: invoice
    when: new.status == "paid" && changed("status")
    key: "receipt:{{ new.id }}"
    rule_version: 2
    steps: [{name: send, to: mail, path: "/mail"}]
`, b.db.URL)
	file := writeFile(t, "postern.yaml", text)
	plan := func(args ...string) result {
		return execute(t.Context(), "", append([]string{"--config", file, "effects", "backtest"}, args...)...)
	}
	plan("--rule", "receipt", "--since", "1d").want(t, 0, "No change since then",
		"under version 2: 0 new, 0 known, 0 known under another version, 0 with the key of an earlier change, 0 gone\n")
	for n, status := range []string{"open", "paid", "open", "paid"} {
		b.invoice(t, n, "in_1", status)
	}
	b.invoice(t, 4, "in_2", "paid")
	b.invoice(t, 5, "in_3", "paid")
	b.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		state, destination, planned_at, updated_at)
		SELECT key, version, 'receipt', $1, '', 'invoice', 'x', 7, 0, 'done', 'mail', now(), now()
			FROM (VALUES ('receipt:in_2', 2), ('receipt:in_3', 1)) AS d(key, version)`,
		b.known.Number["stripe"])
	r := plan("--rule", "receipt", "--since", "1d")
	r.want(t, 0, "receipt:in_2  invoice in_2",
		"under version 2: 1 new, 1 known, 1 known under another version, 1 with the key of an earlier change, 0 gone\n")
	r.want(t, 0, "effect 2, v1, done", "")
	var all []backtest.Change
	if r := plan("--rule", "receipt", "--since", "1d", "-o", "json"); json.Unmarshal([]byte(r.out), &all) != nil ||
		len(all) != 4 || all[0].Ledger != backtest.New || all[0].EventKey != "evt_1" || all[0].Key != "receipt:in_1" {
		t.Errorf("%+v", r)
	}
	b.db.WantRows(t, 2, "effects") // a dry run writes nothing
	plan("--rule", "receipt").want(t, 2, "", "--since")

	// This file leaves the database to a dev instance.
	beside := writeFile(t, "postern.yaml", strings.Replace(text, fmt.Sprintf("database: {url: %q}", b.db.URL), "", 1))
	execute(t.Context(), "", "--config", beside, "--dir", b.dir, "effects", "backtest", "--rule", "receipt", "--since",
		"1d").want(t, 0, "receipt:in_2", "")
	execute(t.Context(), "", "--config", beside, "effects", "backtest", "--rule", "receipt", "--since", "1d").want(t, 1,
		"", "or name a dev instance with --dir DIR")
	plan("--rule", "other", "--since", "1d").want(t, 2, "", `there is no rule "other"`)
	plan("--rule", "receipt", "--since", "soon").want(t, 2, "", "an RFC 3339 time")
}

// A test alert is sent like a real one, and the command reports whether it was accepted.
func TestNotifyTest_sendsTestAlert(t *testing.T) {
	t.Parallel()
	b, server := setup(t), mails.NewMailServer(t)
	text := fmt.Sprintf(`
destinations:
  post: {smtp: {host: 127.0.0.1, port: %d, tls: none, from: postern@shop.example}, allow: [127.0.0.1]}
  dead: {url: "http://127.0.0.1:1", allow: [127.0.0.1], key: {value: key-of-dead}}
notify:
  oncall: {to: post, mail: jo@example.com}
  nobody: {to: dead}
`, server.Port)
	file := writeFile(t, "postern.yaml", text)
	b.run(t, "notify", "test", "oncall", "--config", file).want(t, 0, "Sent to post.", "")
	b.run(t, "notify", "test", "nobody", "--config", file).want(t, 1, "", "destination dead: ")
	b.run(t, "notify", "test", "someone", "--config", file).want(t, 2, "",
		"there is no notify.someone in this configuration, which has: nobody, oncall")
	if taken := server.Accepted(); len(taken) != 1 ||
		!strings.Contains(taken[0].Message, "Subject: Postern: this is a test, and nothing has happened\r\n") {
		t.Errorf("%+v", taken)
	}
}
