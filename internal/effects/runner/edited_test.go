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
	ok := []int{200}
	within := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {}, "body": "{\"ref\": %s}"}`, `\"`+key+`\"`)
	const person = "review unknown person"
	for name, c := range map[string]struct {
		doubt, request, rule string
		want                 string
		calls                string
		answers              []int
	}{
		"a person's, and a rule with keys":                    {"person", keyless, keyedStep, person, "", ok},
		"a person's, with a key":                              {"person", named, keyedStep, person, "", ok},
		"a person's, and a rule with a check":                 {"person", keyless, checkedStep, person, "", ok},
		"asked for, and no check any more":                    {"check", named, keyedStep, person, "", ok},
		"asked for, and is":                                   {"check", keyless, checkedStep, "done done check", "GET /did", ok},
		"no key was sent":                                     {"key", keyless, keyedStep, person, "", ok},
		"another step's key was sent":                         {"key", strings.ReplaceAll(named, key, "postern-0"), keyedStep, person, "", ok},
		"the key was sent":                                    {"key", named, keyedStep, "done done key", "POST /mail", ok},
		"the key was sent within the body":                    {"key", within, keyedStep, "done done key", "POST /mail", ok},
		"what may be sent at any time":                        {"key", strings.Replace(keyless, "POST", "PUT", 1), keyedStep, "done done key", "PUT /mail", ok},
		"asked for, and is not done":                          {"check", keyless, checkedStep, "done done check", "GET /did, POST /mail", []int{404, 200}},
		"asked for, and is once by now":                       {"check", keyless, askedStep, person, "GET /did", []int{404}},
		"a key, and a check that looks for what was not sent": {"key", named, checkedStep, "done done key", "POST /mail", ok},
		"a key in doubt again, and such a check":              {"key", named, checkedStep, "done done key", "POST /mail, POST /mail", []int{500, 200}},
		"no key, and such a check":                            {"key", keyless, checkedStep, person, "", ok},
		"a key, and is once and asked for: done":              {"key", named, askedStep, "done done key", "GET /did", ok},
		"a key, and is once and asked for: not done":          {"key", named, askedStep, person, "GET /did", []int{404}},
		"a key, and a person's by now":                        {"key", named, onceStep, person, "", ok},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, c.rule)
			other := b.to(t, statuses(c.answers)...)
			b.doubted(t, "1 h")
			b.db.Exec(t, `UPDATE effect_steps SET doubt = $1, request = $2, ended_at = reserved_at`, c.doubt, c.request)
			b.run(t, "a", b.pool)
			b.settled(t)
			b.became(t, c.want, other, c.calls)
			if c.want == person {
				refused(t, b.retry(t), "say what happened")
			}
		})
	}
}

// became checks what effect 1 and its step are by now, and which calls came of it.
func (b *bundle) became(t *testing.T, want string, other *scripted, calls string) {
	t.Helper()
	if got := b.db.Rows(t, `SELECT concat_ws(' ', e.state, s.state, s.doubt) FROM effects e JOIN effect_steps s USING (effect)`)[0]; got != want {
		t.Errorf("is %s, want %s: %s", got, want, b.show(t).Reason)
	}
	if got := strings.Join(other.asked(), ", "); got != calls {
		t.Errorf("calls %q, want %q", got, calls)
	}
}

// statuses are answers with such statuses, which have what is to be captured.
func statuses(all []int) (answers []scriptedAnswer) {
	for _, status := range all {
		answers = append(answers, scriptedAnswer{status: status, body: `{"id": 1}`})
	}
	return answers
}

// A key that may be forgotten is none for a check of later either: nothing is sent for its no.
func TestALaterCheckRemembersNoKey(t *testing.T) {
	t.Parallel()
	b := attended(t, checkedStep)
	other := b.to(t, statuses([]int{404, 200})...)
	b.doubted(t, "30 h")
	b.db.Exec(t, `UPDATE effect_steps SET doubt = 'key', request = $1`, fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {"Idempotency-Key": %q}}`, rules.StepKey("follow:1", 1, 0, "mail", false)))
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != 1 || len(other.asked()) != 0 || !strings.Contains(b.show(t).Reason, "keys_kept") {
		t.Errorf("%v, %v: %s", got, other.asked(), b.show(t).Reason)
	}
}

// What was not done, and is sent as it was made, is cleared up as the rule said that it was made by: a check of later may look for what is not in it.
func TestWhatIsSentAsItWasIsNotAskedFor(t *testing.T) {
	t.Parallel()
	named := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {"Idempotency-Key": %q}}`, rules.StepKey("follow:1", 1, 0, "mail", false))
	for name, c := range map[string]struct {
		doubt, request string
		want, calls    string
	}{
		"under a key":            {"key", named, "done done key", "POST /mail, POST /mail"},
		"which nobody repeats":   {"person", named, "review unknown person", "POST /mail"},
		"it was to be asked for": {"check", named, "done done check", "POST /mail, GET /did"},
		"it is made anew":        {"key", "null", "done done check", "POST /mail, GET /did"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, checkedStep)
			other := b.to(t, statuses([]int{500, 200})...)
			b.doubted(t, "1 h")
			b.db.Exec(t, `UPDATE effect_steps SET state = 'failed', doubt = $1, request = $2`, c.doubt, c.request)
			b.run(t, "a", b.pool)
			b.settled(t)
			b.became(t, c.want, other, c.calls)
		})
	}
}

// A step that was sent by a rule that is once is not sent again for a no when its rule is not once any more.
func TestOnceOutlivesItsRule(t *testing.T) {
	t.Parallel()
	b := attended(t, strings.Replace(askedStep, "300ms", "1h", 1))
	other := b.to(t, statuses([]int{500, 404, 200})...)
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	b.becomes(t, `SELECT concat_ws(' ', e.state, s.state, s.doubt, s.once) FROM effects e JOIN effect_steps s USING (effect) WHERE s.state <> 'reserved'`, "failed unknown check t")
	stop()
	s := &b.rules.Named("follow").Steps[0]
	s.Once, s.Check.Again = false, true
	b.db.Exec(t, `UPDATE effect_steps SET reserved_at = reserved_at - interval '2 h', ended_at = ended_at - interval '2 h'`)
	b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	b.run(t, "b", b.pool)
	b.settled(t)
	if got, v := strings.Join(other.asked(), ", "), b.show(t); got != "POST /mail, GET /did" || v.State != "review" || v.Steps[0].Doubt != "person" {
		t.Errorf("%s: %s, %+v", got, v.Reason, v.Steps)
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
