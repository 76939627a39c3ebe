package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/effects"
)

// effects plans five: 1 and 2 wait for a person, 3 has a step in doubt, 4 one that came to nothing, 5 is done.
func (b *testBundle) effects(t *testing.T) {
	t.Helper()
	b.db.Exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, facts, state, destination, planned_at, updated_at)
		SELECT 'mail:' || n, 1, 'mail', $1, '', 'customer', 'cus_' || n, 7, 0, '{"event": {"key": "evt_1", "type": "customer.updated", "origin": "webhook"}}', state, 'post', '2026-01-02T03:04:05Z', '2026-01-02T03:04:05Z'
		FROM unnest('{waiting,waiting,review,review,done}'::text[]) WITH ORDINALITY AS d(state, n)`, b.known.Number["stripe"])
	b.db.Exec(t, `
		INSERT INTO effect_steps (effect, step, place, state, destination, request, fingerprint, attempts, reserved_at, ended_at, status, captured, error, doubt, undoable)
		SELECT n, 'mail', 0, state, 'post', '{"method": "POST", "path": "/mail"}', '\x01', 1, '2026-01-02T03:04:06Z', '2026-01-02T03:04:07Z', 200, '{"id": "m_1"}', error, 'person', false
		FROM (VALUES (3, 'unknown', E'no answer: \x1b[31m'), (4, 'failed', 'status 422'), (5, 'done', '')) AS d(n, state, error)`)
}

func TestEffectsListAndShow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "effects", "list").want(t, 0, "No effects.", "")
	b.effects(t)
	for args, found := range map[string]bool{"": true, "--state review": true, "--state done": false, "--rule mail --source stripe --type customer --object cus_3": true, "--object-id cus_4": false, "--key mail:3": true, "--since 2026-01-03": false} {
		r := b.run(t, append([]string{"effects", "list"}, strings.Fields(args)...)...)
		if r.status != 0 || strings.Contains(r.out, "customer cus_3") != found {
			t.Errorf("%s: %+v", args, r)
		}
	}
	b.run(t, "effects", "list", "--state", "lost").want(t, 2, "", "known are waiting, planned")
	r := b.run(t, "effects", "show", "3")
	for _, text := range []string{"mail:3", "7, evt_1, customer.updated, webhook", "POST /mail", `{"id": "m_1"}`, "SHA-256 01", "no answer: ·[31m", "the event, as it was applied",
		"\nNext\nnobody knows whether step mail was done; look there, then postern effects resolve 3 --step mail --done, or --not-done\n"} {
		r.want(t, 0, text, "")
	}
	if strings.Contains(r.out, "\x1b") {
		t.Errorf("control characters reach the terminal: %q", r.out)
	}
	var v effects.View
	if r := b.run(t, "effects", "show", "5", "-o", "json"); json.Unmarshal([]byte(r.out), &v) != nil || v.State != effects.Done || len(v.Steps) != 1 || v.Next != "nothing: all its steps are done" {
		t.Errorf("%+v", r)
	}
	b.db.Exec(t, `UPDATE effects SET event_id = 0, facts = '{"window": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}}' WHERE effect = 5`)
	r = b.run(t, "effects", "show", "5")
	for _, text := range []string{"the schedule of its rule", "from 2026-01-01T00:00:00Z to 2026-01-02T00:00:00Z"} {
		r.want(t, 0, text, "")
	}
	if strings.Contains(r.out, "event") {
		t.Errorf("a schedule has no event: %s", r.out)
	}
	b.run(t, "effects", "show", "99").want(t, 3, "", "effect 99: not found")
}

func TestEffectsAreChanged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.effects(t)
	for _, c := range []struct {
		args      string
		status    int
		out, errs string
	}{
		{"approve", 2, "", "postern effects approve takes ID, got 0"},
		{"approve x --reason why", 2, "", `"x" is no id`},
		{"approve 1", 2, "", "say why with --reason"},
		{"approve 1 5 --reason why", 2, "", "effect 5: it is done, so there is nothing to approve"},
		{"approve 1 --reason why", 0, "Effect 1 is planned: a processor takes its next step by itself.", ""},
		{"reject 2 --reason why", 0, "Effect 2 is rejected: a person rejected it.", ""},
		{"resolve 3 4 --reason why", 2, "", "takes ID, got 2"},
		{"resolve 3 --done --reason why", 2, "", "--step"},
		{"resolve 3 --step mail --reason why", 2, "", "--done or --not-done"},
		{"resolve 3 --step mail --done --not-done --reason why", 2, "", "--done or --not-done"},
		{"resolve 3 --step mail --done --captured [] --reason why", 2, "", "no JSON object"},
		{"retry 3 4 --reason why", 2, "", "resolve 3 --step mail"},
		{`resolve 3 --step mail --done --captured {"id":"m_2"} --reason why`, 0, "Effect 3 is planned: a processor takes its next step by itself.", ""},
		{"retry 4 --reason why -o json", 0, `"state":"planned"`, ""},
		{"compensate 5 --reason why", 2, "", "no compensate for mail"},
		{"compensate 5 --partial --reason why", 0, "Effect 5 is planned", ""},
	} {
		b.run(t, append([]string{"effects"}, strings.Fields(c.args)...)...).want(t, c.status, c.out, c.errs)
	}
	got := b.db.Rows(t, `SELECT concat_ws(' ', effect, e.state, undoing, s.state, captured->>'id', request IS NULL) FROM effects e LEFT JOIN effect_steps s USING (effect) ORDER BY effect`)
	want := "1 planned f t|2 rejected f t|3 planned f done m_2 f|4 planned f failed m_1 t|5 planned t done m_1 f"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}
