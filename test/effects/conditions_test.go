package effects_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/applied"
)

// conditionPoints is the number of points between leasing and finishing an effect of the next test.
const conditionPoints = 84

// A process crashes at every point of an effect with conditions and a check before the first
// attempt. The rule is edited meanwhile so that each condition is the opposite. The next process
// keeps every decision after which something may have been sent. What the destination had before is
// found, and nothing is done twice.
func TestRunner_crashAtEveryPoint_conditionsDecidedOnce(t *testing.T) {
	t.Parallel()
	w := &world{t: t, log: applied.New(t), dest: newTestDestination(t), timeout: "2s", margin: time.Second}
	w.dest.HonoursKeys = false
	before := map[string]int{}
	for n := range conditionPoints / crashEvery() {
		to := fmt.Sprint("to_", n)
		w.rules = append(w.rules, &rule{name: fmt.Sprint("rule_", n), when: conditions[0], key: keys[0],
			approval: "none", steps: []step{{name: "asked", to: to, kind: searched, when: `new.id == "obj"`},
				{name: "skipped", to: to, kind: checked, when: `steps.asked.id == nil`},
				{name: "sent", to: to, kind: checked, when: `steps.skipped.id == nil && steps.asked.id != nil`}}})
		w.destinations = append(w.destinations, to)
		if n%2 == 0 {
			path := fmt.Sprintf("/rule_%d/asked", n)
			before[path] = 1
			w.dest.execute(t, path, `{"of": "obj"}`)
		}
	}
	w.model = newModel(w.rules)
	w.planEffects()
	w.crashEach()
	early := len(w.log.DB.QueryStrings(t, `SELECT effect::text FROM effects WHERE state = 'done'`))
	for _, u := range w.rules {
		for i := range u.steps {
			u.steps[i].when = "not (" + u.steps[i].when + ")"
		}
	}
	w.startAll([]*crasher{neverCrashes()})
	w.review()
	acts := map[string]int{}
	for _, c := range w.dest.Calls() {
		acts[c.Path]++
	}
	ends := map[string]int{}
	for _, line := range w.log.DB.QueryStrings(t, `SELECT concat_ws(' ', '/' || e.rule || '/' || s.step, e.state ||
		'/' || s.state || CASE WHEN s.attempts > 0 THEN '/sent' ELSE '' END, s.reason) FROM effects e
		JOIN effect_steps s USING (effect)`) {
		path, rest, _ := strings.Cut(line, " ")
		end, reason, _ := strings.Cut(rest, " ")
		_, name, _ := strings.Cut(path[1:], "/")
		ends[name+" "+end]++
		want := before[path]
		if strings.HasSuffix(end, "/sent") {
			want++
		}
		if acts[path] != want || (end == "done/done") != strings.HasPrefix(reason, "found at the destination") {
			t.Errorf("%s: done %d times, want %d", line, acts[path], want)
		}
	}
	t.Logf("%d processes crashed, %d of them after all was done: %v", len(w.rules), early, ends)
	for _, end := range []string{"asked done/done", "asked done/done/sent", "asked done/skipped",
		"skipped done/skipped", "skipped done/done/sent", "sent done/done/sent"} {
		if ends[end] == 0 {
			t.Errorf("no step has ended as %s", end)
		}
	}
	if early == 0 {
		t.Error("no process finished its effect: there are more points")
	}
}

// execute executes a request at the destination, as another system does.
func (o *testDestination) execute(t *testing.T, path, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, o.Sink.URL+path, strings.NewReader(body))
	must(t, err)
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	must(t, res.Body.Close())
}
