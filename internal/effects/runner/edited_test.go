package runner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// A doubt is cleared up as the rule said by which the step was sent, whatever the rule is by now: what only a person resolves is not sent again, nor what names no key.
func TestADoubtOutlivesItsRule(t *testing.T) {
	t.Parallel()
	key := rules.StepKey("follow:1", 1, 0, "mail", false)
	keyless := `{"method": "POST", "path": "/mail", "headers": {}}`
	named := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {"Idempotency-Key": %q}}`, key)
	within := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {}, "body": "{\"ref\": %s}"}`, `\"`+key+`\"`)
	const person = "review unknown person"
	for name, c := range map[string]struct {
		doubt, request, rule string
		want                 string
		calls                string
	}{
		"a person's, and a rule with keys":    {"person", keyless, keyedStep, person, ""},
		"a person's, with a key":              {"person", named, keyedStep, person, ""},
		"a person's, and a rule with a check": {"person", keyless, checkedStep, person, ""},
		"asked for, and no check any more":    {"check", named, keyedStep, person, ""},
		"asked for, and is":                   {"check", keyless, checkedStep, "done done check", "GET /did"},
		"no key was sent":                     {"key", keyless, keyedStep, person, ""},
		"another step's key was sent":         {"key", strings.ReplaceAll(named, key, "postern-0"), keyedStep, person, ""},
		"the key was sent":                    {"key", named, keyedStep, "done done key", "POST /mail"},
		"the key was sent within the body":    {"key", within, keyedStep, "done done key", "POST /mail"},
		"what may be sent at any time":        {"key", strings.Replace(keyless, "POST", "PUT", 1), keyedStep, "done done key", "PUT /mail"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, c.rule)
			other := b.to(t, scriptedAnswer{status: 200, body: `{"id": 1}`})
			b.doubted(t, "1 h")
			b.db.Exec(t, `UPDATE effect_steps SET doubt = $1, request = $2, ended_at = reserved_at`, c.doubt, c.request)
			b.run(t, "a", b.pool)
			b.settled(t)
			if got := b.db.Rows(t, `SELECT concat_ws(' ', e.state, s.state, s.doubt) FROM effects e JOIN effect_steps s USING (effect)`)[0]; got != c.want {
				t.Errorf("is %s, want %s: %s", got, c.want, b.show(t).Reason)
			}
			if got := strings.Join(other.asked(), ", "); got != c.calls {
				t.Errorf("calls %q, want %q", got, c.calls)
			}
			if c.want == person {
				refused(t, b.retry(t), "say what happened")
			}
		})
	}
}

// What a process under way left in doubt by a rule that is once is not sent again by one with keys.
func TestACrashOutlivesItsRule(t *testing.T) {
	t.Parallel()
	b := attended(t, keyedStep)
	other := b.to(t, scriptedAnswer{status: 200, body: `{"id": 1}`})
	b.plan(t, 1, 1)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, request, fingerprint, doubt, attempts, reserved_at, known_since)
		VALUES (1, 'mail', 0, 'reserved', 'sink', '{"method": "POST", "path": "/mail", "headers": {}}', '', 'person', 1, clock_now(), clock_now())`)
	b.db.Exec(t, `UPDATE effects SET state = 'running', due = NULL, attempts = 1, claims = 1, tried_since = clock_now(), taken_by = 'dead', taken_until = clock_now()`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != 1 || len(other.asked()) != 0 {
		t.Errorf("%v, %v", got, other.asked())
	}
	if got := b.db.Rows(t, `SELECT concat_ws(' ', state, doubt) FROM effect_steps`)[0]; got != "unknown person" {
		t.Error(got)
	}
}
