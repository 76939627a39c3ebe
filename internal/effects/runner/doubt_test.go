package runner_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// to sends what the rule wants to another side that answers as it is told.
func (b *bundle) to(t *testing.T, answers ...scriptedAnswer) *scripted {
	t.Helper()
	other := &scripted{answers: answers}
	server := httptest.NewServer(other)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	b.reach[0].URL = server.URL
	return other
}

// doubted leaves step mail of effect 1 in doubt, since an attempt so long ago.
func (b *bundle) doubted(t *testing.T, ago string) {
	t.Helper()
	b.plan(t, 1, 1)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at, ended_at, known_since)
		VALUES (1, 'mail', 0, 'unknown', 'sink', '', 2, clock_now() - interval '1 h', clock_now(), clock_now() - $1::interval)`, ago)
	b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 2`)
}

// A step in doubt is sent again as long as the other side knows its key; after that a person says what happened.
func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	const again = "done by itself"
	for name, c := range map[string]struct {
		ago   string
		set   func(*bundle)
		state string
	}{
		"known":                      {"23 h", func(*bundle) {}, again},
		"forgotten":                  {"24 h", func(*bundle) {}, "review unknown person"},
		"kept for longer":            {"30 h", func(b *bundle) { b.reach[0].KeysKept = 48 * time.Hour }, again},
		"a method that may be again": {"30 h", func(b *bundle) { put(b, "") }, again},
		"a method with a key":        {"30 h", func(b *bundle) { put(b, "Idempotency-Key") }, "review unknown person"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, `[{name: mail, to: sink, path: "/mail"}]`)
			c.set(b)
			other := b.to(t, scriptedAnswer{status: 200})
			b.doubted(t, c.ago)
			b.run(t, "a", b.pool)
			b.settled(t)
			if c.state == again {
				if calls := len(other.asked()); calls != 1 || b.show(t).State != effects.Done {
					t.Errorf("%d calls: %+v", calls, b.show(t))
				}
				return
			}
			if got := b.db.Rows(t, `SELECT concat_ws(' ', e.state, s.state, s.doubt) FROM effects e JOIN effect_steps s USING (effect)`)[0]; got != c.state || len(other.asked()) != 0 {
				t.Fatalf("%s, %d calls", got, len(other.asked()))
			}
			if v := b.show(t); !strings.Contains(v.Reason, "keys_kept") || !strings.Contains(v.Next, "postern effects resolve 1 --step mail") {
				t.Errorf("%s; %s", v.Reason, v.Next)
			}
			refused(t, b.retry(t), "say what happened")
			must(t, b.resolve(t, effects.Word{Step: "mail"}))
			if b.settled(t); len(other.asked()) != 1 || b.show(t).State != effects.Done {
				t.Errorf("%d calls after a person said that it was not done", len(other.asked()))
			}
		})
	}
}

// put makes the step of the rule a PUT, with its key in a header or without one.
func put(b *bundle, header string) {
	do := &b.rules.Named("follow").Steps[0].Do
	do.Method, do.KeyHeader = http.MethodPut, header
}

// A doubt is as old as the first attempt that may have been done, however often it is sent again; what was not done begins anew.
func TestADoubtIsAsOldAsItsFirstAttempt(t *testing.T) {
	t.Parallel()
	b := attended(t, `[{name: mail, to: sink, path: "/mail", retry: {first: 10ms, longest: 20ms, attempts: 1000}}]`)
	b.to(t, scriptedAnswer{status: 500})
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	const aged = `SELECT concat_ws(' ', state, known_since < reserved_at) FROM effect_steps WHERE attempts > 1 AND state <> 'reserved'`
	b.becomes(t, aged, "unknown t")
	b.db.Exec(t, `UPDATE effect_steps SET known_since = known_since - interval '25 h'`)
	if got := b.settled(t); got["review"] != 1 {
		t.Error(got)
	}
	stop()

	b.db.Exec(t, `UPDATE effect_steps SET state = 'failed', attempts = 1, known_since = clock_now() - interval '25 h'`)
	b.db.Exec(t, `UPDATE effects SET state = 'planned', due = clock_now(), attempts = 0`)
	b.run(t, "b", b.pool)
	b.becomes(t, `SELECT concat_ws(' ', state, known_since > clock_now() - interval '1 h') FROM effect_steps WHERE attempts > 1 AND state <> 'reserved'`, "unknown t")
}

// A step in doubt that was begun before the ledger kept since when is as old as its effect, unless it was tried once.
func TestADoubtOfBeforeItsAgeWasKept(t *testing.T) {
	t.Parallel()
	for attempts, want := range map[int]string{1: "done", 15: "review"} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			t.Parallel()
			b := attended(t, `[{name: mail, to: sink, path: "/mail", retry: {first: 10ms, longest: 20ms, age: 200h}}]`)
			other := b.to(t, scriptedAnswer{status: 500}, scriptedAnswer{status: 200})
			b.plan(t, 1, 1)
			b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = $1, planned_at = clock_now() - interval '5 d'`, attempts)
			b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at, ended_at)
				VALUES (1, 'mail', 0, 'unknown', 'sink', '', $1, clock_now() - interval '10 min', clock_now())`, attempts)
			b.run(t, "a", b.pool)
			if got := b.settled(t); got[want] != 1 || want == "review" && len(other.asked()) != 0 {
				t.Errorf("%v after %d calls: %s", got, len(other.asked()), b.show(t).Reason)
			}
		})
	}
}

// becomes waits until a query has one row, which says so.
func (b *bundle) becomes(t *testing.T, query, want string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if got := b.db.Rows(t, query); len(got) != 1 || got[0] != want {
			return fmt.Errorf("is %q, want %q: %v", got, want, b.states(t))
		}
		return nil
	})
}

// Whoever waited for a person has all tries once the person has said something: the age of retries counts from there.
func TestAgeCountsFromAPersonsWord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, is string
		say      func(*testing.T, *bundle) error
	}{
		"approve": {"/customers", `UPDATE effects SET state = 'waiting', due = NULL`, func(t *testing.T, b *bundle) error { return b.approve(t, 1) }},
		"retry":   {"/customers", `UPDATE effects SET state = 'review', due = NULL`, func(t *testing.T, b *bundle) error { return b.retry(t) }},
		"resolve": {"/invoices", `WITH s AS (INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) VALUES (1, 'customer', 0, 'unknown', 'sink', '', 1, clock_now()))
			UPDATE effects SET state = 'review', due = NULL`, func(t *testing.T, b *bundle) error {
			return b.resolve(t, effects.Word{Step: "customer", Done: true, Captured: []byte(`{"id": 1}`)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, twoSteps)
			b.faulty(c.path, sink.FailsFirst, sink.FailsFirst)
			b.plan(t, 1, 1)
			b.db.Exec(t, c.is)
			b.db.Exec(t, `UPDATE effects SET planned_at = planned_at - interval '30 d'`)
			b.run(t, "a", b.pool)
			must(t, c.say(t, b))
			if got := b.settled(t); got["done"] != 1 {
				t.Errorf("%v: %s", got, b.show(t).Reason)
			}
		})
	}
}

// What a person has tried again is asked for no earlier than it would be by itself: before that has settled, the attempt may act still.
func TestAPersonsRetryWaitsBeforeItAsks(t *testing.T) {
	t.Parallel()
	b := attended(t, `[{name: mail, to: sink, path: "/mail", once: true, check: {path: "/did", done: answer.status == 200, settles: 2s}, retry: {first: 10ms, longest: 20ms}}]`)
	asked := make(chan time.Time, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		asked <- time.Now()
	}))
	t.Cleanup(server.Close)
	b.reach[0].URL = server.URL
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	testkit.Eventually(t, patience, func() error {
		if s := b.show(t).State; s != effects.Failed && s != effects.Done {
			return errors.New(string(s))
		}
		return nil
	})
	must(t, b.retry(t))
	at := <-asked
	b.settled(t)
	if v := b.show(t); v.State != effects.Done || at.Sub(v.Steps[0].ReservedAt.Time) < 2*time.Second {
		t.Errorf("asked %s after the attempt began: %+v", at.Sub(v.Steps[0].ReservedAt.Time), v)
	}
}

// A doubt is cleared up as the rule said by which the step was sent, whatever the rule is by now: what only a person resolves is not sent again, nor what names no key.
func TestADoubtOutlivesItsRule(t *testing.T) {
	t.Parallel()
	key := rules.StepKey("follow:1", 1, 0, "mail", false)
	keyless := `{"method": "POST", "path": "/mail", "headers": {}}`
	named := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {"Idempotency-Key": %q}}`, key)
	ok, lost := []int{200}, []int{500, 200}
	within := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {}, "body": "{\"ref\": %s}"}`, `\"`+key+`\"`)
	const person = "review unknown person"
	for name, c := range map[string]struct {
		doubt, request, rule string
		want                 string
		calls                string
		answers              []int
		// is is the step's state, unknown where empty; ago is how old the doubt is, an hour where empty.
		is, ago string
	}{
		"a person's, and a rule with keys":                    {"person", keyless, keyedStep, person, "", ok, "", ""},
		"a person's, with a key":                              {"person", named, keyedStep, person, "", ok, "", ""},
		"a person's, and a rule with a check":                 {"person", keyless, checkedStep, person, "", ok, "", ""},
		"asked for, and no check any more":                    {"check", named, keyedStep, person, "", ok, "", ""},
		"asked for, and is":                                   {"check", keyless, checkedStep, "done done check", "GET /did", ok, "", ""},
		"no key was sent":                                     {"key", keyless, keyedStep, person, "", ok, "", ""},
		"another step's key was sent":                         {"key", strings.ReplaceAll(named, key, "postern-0"), keyedStep, person, "", ok, "", ""},
		"the key was sent":                                    {"key", named, keyedStep, "done done key", "POST /mail", ok, "", ""},
		"the key was sent within the body":                    {"key", within, keyedStep, "done done key", "POST /mail", ok, "", ""},
		"what may be sent at any time":                        {"key", strings.Replace(keyless, "POST", "PUT", 1), keyedStep, "done done key", "PUT /mail", ok, "", ""},
		"asked for, and is not done":                          {"check", keyless, checkedStep, "done done check", "GET /did, POST /mail", []int{404, 200}, "", ""},
		"asked for, and is once by now":                       {"check", keyless, askedStep, person, "GET /did", []int{404}, "", ""},
		"a key, and a check that looks for what was not sent": {"key", named, checkedStep, "done done key", "POST /mail", ok, "", ""},
		"a key in doubt again, and such a check":              {"key", named, checkedStep, "done done key", "POST /mail, POST /mail", []int{500, 200}, "", ""},
		"no key, and such a check":                            {"key", keyless, checkedStep, person, "", ok, "", ""},
		"a key, and is once and asked for: done":              {"key", named, askedStep, "done done key", "GET /did", ok, "", ""},
		"a key, and is once and asked for: not done":          {"key", named, askedStep, person, "GET /did", []int{404}, "", ""},
		"a key, and a person's by now":                        {"key", named, onceStep, person, "", ok, "", ""},
		"a key that may be forgotten, and such a check":       {"key", named, checkedStep, person, "", []int{404, 200}, "", "30 h"},
		"not done, under a key, and such a check":             {"key", named, checkedStep, "done done key", "POST /mail, POST /mail", lost, "failed", ""},
		"not done, a person's, and a check":                   {"person", named, checkedStep, person, "POST /mail", lost, "failed", ""},
		"not done, asked for, and is":                         {"check", named, checkedStep, "done done check", "POST /mail, GET /did", lost, "failed", ""},
		"not done, and is made anew":                          {"key", "null", checkedStep, "done done check", "POST /mail, GET /did", lost, "failed", ""},
		"under way at a crash, a person's, and has a key now": {"person", keyless, keyedStep, person, "", ok, "reserved", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, c.rule)
			other := b.to(t, statuses(c.answers)...)
			b.doubted(t, cmp.Or(c.ago, "1 h"))
			b.db.Exec(t, `UPDATE effect_steps SET state = $1, doubt = $2, request = $3, ended_at = reserved_at`,
				cmp.Or(c.is, "unknown"), c.doubt, c.request)
			if c.is == "reserved" {
				b.db.Exec(t, `UPDATE effect_steps SET ended_at = NULL`)
				b.db.Exec(t, `UPDATE effects SET state = 'running', due = NULL, claims = 1, taken_by = 'dead', taken_until = clock_now()`)
			}
			b.run(t, "a", b.pool)
			b.settled(t)
			b.became(t, c.want, other, c.calls)
			if reason := b.show(t).Reason; c.ago != "" && !strings.Contains(reason, "keys_kept") {
				t.Error(reason)
			}
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

// moved has step mail of effect 1 in doubt at sink, and its rule send it to there by now, which is another side.
func moved(t *testing.T, steps, request, doubt string) (b *bundle, here, there *scripted) {
	t.Helper()
	b = attended(t, steps)
	here, there = b.to(t, scriptedAnswer{status: 404}), &scripted{answers: []scriptedAnswer{{status: 200, body: `{"id": 1}`}}}
	server := httptest.NewServer(there)
	t.Cleanup(server.Close)
	elsewhere := b.reach[0]
	elsewhere.Name, elsewhere.URL = "there", server.URL
	b.reach = append(slices.Clone(b.reach), elsewhere)
	b.doubted(t, "1 h")
	b.db.Exec(t, `UPDATE effect_steps SET doubt = $1, request = $2, ended_at = reserved_at`, doubt, request)
	s := &b.rules.Named("follow").Steps[0]
	s.Destination = "there"
	if s.Check != nil {
		s.Check.Destination = "there"
	}
	return b, here, there
}

// What may have been done by one side is neither sent to another, which cannot know it, nor is that one asked: also where it would be a harmless repetition at the first, and where the first is not configured any more.
func TestADoubtDoesNotMove(t *testing.T) {
	t.Parallel()
	named := fmt.Sprintf(`{"method": "POST", "path": "/mail", "headers": {"Idempotency-Key": %q}}`, rules.StepKey("follow:1", 1, 0, "mail", false))
	const person = "review unknown person, none here, none there"
	for name, c := range map[string]struct {
		steps, request, doubt string
		set                   func(*bundle)
		want                  string
	}{
		"under a key":          {keyedStep, named, "key", nil, person},
		"put":                  {keyedStep, strings.Replace(named, "POST", "PUT", 1), "key", func(b *bundle) { put(b, "") }, person},
		"asked for":            {checkedStep, named, "check", nil, person},
		"asked for at one":     {checkedStep, named, "check", func(b *bundle) { b.rules.Named("follow").Steps[0].Check.Destination = "sink" }, person},
		"the first is removed": {keyedStep, named, "key", func(b *bundle) { b.reach = b.reach[1:] }, person},
		"of another account": {keyedStep, named, "key", func(b *bundle) {
			b.reach[0].URL = b.reach[1].URL
			b.reach[1].Headers = http.Header{"Authorization": {"Bearer another"}}
		}, person},
		"another name of one side": {keyedStep, named, "key", func(b *bundle) { b.reach[0].URL = b.reach[1].URL }, "done done key, none here, POST /mail there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, here, there := moved(t, c.steps, c.request, c.doubt)
			if c.set != nil {
				c.set(b)
			}
			b.run(t, "a", b.pool)
			b.settled(t)
			got := b.db.Rows(t, `SELECT concat_ws(' ', e.state, s.state, s.doubt) FROM effects e JOIN effect_steps s USING (effect)`)[0]
			for where, other := range map[string]*scripted{"here": here, "there": there} {
				calls := strings.Join(other.asked(), " ")
				if calls == "" {
					calls = "none"
				}
				if !strings.Contains(c.want, ", "+calls+" "+where) {
					t.Errorf("%s: %s", where, calls)
				}
			}
			if !strings.HasPrefix(c.want, got+",") {
				t.Errorf("is %s, want %s: %s", got, c.want, b.show(t).Reason)
			}
			if c.want == person && !strings.Contains(b.show(t).Reason, "it was sent to destination sink, of which there, where its rule sends it now, cannot know") {
				t.Error(b.show(t).Reason)
			}
		})
	}
}

// What is known not to have been done goes where its rule says by now.
func TestWhatWasNotDoneMoves(t *testing.T) {
	t.Parallel()
	b, here, there := moved(t, keyedStep, "null", "key")
	b.db.Exec(t, `UPDATE effect_steps SET state = 'failed', request = NULL`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 || len(here.asked()) != 0 || len(there.asked()) != 1 {
		t.Errorf("%v, %v, %v", got, here.asked(), there.asked())
	}
}

// What one side has done no other one undoes, which may have nothing of the kind, or another thing of that name.
func TestWhatWasDoneIsUndoneThere(t *testing.T) {
	t.Parallel()
	b, here, there := moved(t, onceLast, "null", "key")
	b.db.Exec(t, `UPDATE effect_steps SET state = 'done', step = 'customer', undoable = true, captured = '{"id": "c_1"}'`)
	b.db.Exec(t, `UPDATE effects SET state = 'rejected', due = NULL`)
	must(t, b.compensate(t, false))
	stop := b.run(t, "a", b.pool)
	if got, v := b.settled(t), b.show(t); got["review"] != 1 || !strings.Contains(v.Reason, "was done by destination sink, and there, where its rule sends it now, cannot undo that") || !strings.Contains(v.Next, "postern effects retry 1 is safe") {
		t.Errorf("%v: %s; %s", got, v.Reason, v.Next)
	}
	stop()
	if len(here.asked()) != 0 || len(there.asked()) != 0 {
		t.Errorf("%v here, %v there", here.asked(), there.asked())
	}
	b.rules.Named("follow").Steps[0].Destination = "sink"
	must(t, b.retry(t))
	b.run(t, "b", b.pool)
	if got := b.settled(t); got["done"] != 1 || len(here.asked()) != 1 || len(there.asked()) != 0 {
		t.Errorf("%v: %v here, %v there", got, here.asked(), there.asked())
	}
}
