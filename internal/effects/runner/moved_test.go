package runner_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

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
	if err := b.compensate(t, false); err != nil {
		t.Fatal(err)
	}
	stop := b.run(t, "a", b.pool)
	if got, v := b.settled(t), b.show(t); got["review"] != 1 || !strings.Contains(v.Reason, "was done by destination sink, and there, where its rule sends it now, cannot undo that") || !strings.Contains(v.Next, "postern effects retry 1 is safe") {
		t.Errorf("%v: %s; %s", got, v.Reason, v.Next)
	}
	stop()
	if len(here.asked()) != 0 || len(there.asked()) != 0 {
		t.Errorf("%v here, %v there", here.asked(), there.asked())
	}
	b.rules.Named("follow").Steps[0].Destination = "sink"
	if err := b.retry(t); err != nil {
		t.Fatal(err)
	}
	b.run(t, "b", b.pool)
	if got := b.settled(t); got["done"] != 1 || len(here.asked()) != 1 || len(there.asked()) != 0 {
		t.Errorf("%v: %v here, %v there", got, here.asked(), there.asked())
	}
}
