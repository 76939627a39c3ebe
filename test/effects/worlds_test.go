package effects_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/verify"
)

// Whatever dies, lies, comes again or is replayed, what the rules want follows once, in its order, with what was captured, where the other side honours keys; where it does not, what is once is never done
// twice. At every moment of rest the ledger says of no step that it was done that was not, nor the other way round: what nobody knows is unknown, and waits for a person.
func TestWorlds(t *testing.T) {
	t.Parallel()
	seeds := []uint64{3012} // an object in doubt was certain between, and in doubt again, within one batch: what was held was of before
	for n := range *count {
		seeds = append(seeds, *seed+uint64(n))
	}
	for _, of := range seeds {
		t.Run(fmt.Sprint("seed ", of), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, of, of%2 == 0)
			for _, name := range []string{"a", "b"} {
				w.line(name, rand.New(rand.NewPCG(of, uint64(name[0]))))
			}
			w.happens()
			w.attended()
			w.planned()
			w.followed()
			w.nothingMore()
		})
	}
}

// sound compares the ledger with the other side, at rest.
func (w *world) sound() {
	w.t.Helper()
	done, known := w.acts(), map[string]bool{}
	for _, e := range w.ledger() {
		if e.step == "" {
			continue
		}
		known[e.stepKey] = true
		acts := done[e.stepKey]
		switch {
		case e.is == "done" && (len(acts) == 0 || !slices.ContainsFunc(acts, func(a act) bool { return a.id == e.captured })):
			w.violated("%s %s of effect %d is done with %q, and the other side did %v", e.rule, e.step, e.effect, e.captured, acts)
		case e.is == "failed" && len(acts) > 0:
			w.violated("%s %s of effect %d was not done, and the other side did %v", e.rule, e.step, e.effect, acts)
		case e.is == "reserved":
			w.violated("%s %s of effect %d is reserved, and nobody has it", e.rule, e.step, e.effect)
		case e.is == "unknown" && (e.state != "review" || e.reason == ""):
			w.violated("%s %s of effect %d is unknown, and the effect is %s: %q", e.rule, e.step, e.effect, e.state, e.reason)
		}
	}
	for key, acts := range done {
		if !known[key] {
			w.violated("the other side did %v under key %s, of which the ledger knows nothing", acts, key)
		}
	}
}

// reported wants a report of postern verify that finds nothing wrong and tells of all doubts, and of all that waits for a person.
func (w *world) reported() {
	w.t.Helper()
	known, err := events.RegisterSources(w.t.Context(), w.log.Operator, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := verify.Verify(w.t.Context(), verify.Options{Pool: w.log.Operator, Known: known, Sources: w.log.Sources, Most: 3})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range r.Findings {
		if f.Kind == verify.EffectTwice || f.Kind == verify.EffectWrong {
			w.violated("%s: %+v", f.Kind, f.Items)
		}
	}
	doubts, persons := int64(0), int64(0)
	seen := map[int64]bool{}
	for _, e := range w.ledger() {
		if e.is == "unknown" {
			doubts++
		}
		if e.state == "review" && !seen[e.effect] {
			persons, seen[e.effect] = persons+1, true
		}
	}
	for _, wait := range r.Waiting {
		switch {
		case strings.HasPrefix(wait.What, "steps of which nobody knows"):
			doubts -= wait.Count
		case strings.HasPrefix(wait.What, "effects that a person must see to"):
			persons -= wait.Count
		}
	}
	if doubts != 0 || persons != 0 {
		w.violated("the report is %d doubts short, and %d effects that wait for a person: %+v", doubts, persons, r.Waiting)
	}
}

// planned compares the effects that there are with those that must be.
func (w *world) planned() {
	w.t.Helper()
	got := map[name]entry{}
	for _, e := range w.ledger() {
		got[name{e.rule, e.key, e.version}] = e
	}
	if diff := cmp.Diff(sorted(w.model.effects), sorted(got)); diff != "" {
		w.violated("effects (-wanted +planned):\n%s", diff)
	}
	for as, want := range w.model.effects {
		u, e := w.rule(as.rule), got[as]
		if e.effect == 0 || u.supersede || u.key.shared { // planned of the last change, or of any object's
			continue
		}
		if e.event != want.event || e.run != want.run || plain(w.t, []byte(e.old)) != want.old || plain(w.t, []byte(e.now)) != want.now {
			w.violated("%v is of event %d of run %d, from %s to %s; want event %d of run %d, from %s to %s", as, e.event, e.run, e.old, e.now, want.event, want.run, want.old, want.now)
		}
	}
	w.t.Logf("%d changes, %d effects wanted, %d calls, %d lies, %d deaths of runners", w.model.changes, len(w.model.effects), len(w.other.Calls()), w.lies.Load(), w.deaths.Load())
}

func sorted[V any](all map[name]V) (keys []string) {
	for as := range maps.Keys(all) {
		keys = append(keys, fmt.Sprint(as))
	}
	slices.Sort(keys)
	return keys
}

func (w *world) rule(name string) *rule {
	return w.rules[slices.IndexFunc(w.rules, func(u *rule) bool { return u.name == name })]
}

// followed compares what the other side did with what must have followed.
func (w *world) followed() {
	w.t.Helper()
	ends := map[name]string{}
	steps := map[name][]entry{}
	for _, e := range w.ledger() {
		as := name{e.rule, e.key, e.version}
		ends[as] = e.state
		if e.step != "" {
			steps[as] = append(steps[as], e)
		}
	}
	acts := w.acts()
	did := map[string]int{}
	for as, want := range w.model.effects {
		u := w.rule(as.rule)
		if end := w.end(u, as, want); !slices.Contains(end, ends[as]) {
			w.violated("%v has ended as %s, want %v", as, ends[as], end)
		}
		if ends[as] == "done" {
			w.steps(u, as, steps[as], acts)
		}
		for _, e := range steps[as] {
			did[e.stepKey]++
			if ends[as] != "done" && len(acts[e.stepKey]) > 0 {
				w.violated("%v is %s, and the other side did %v", as, ends[as], acts[e.stepKey])
			}
		}
	}
	for key, n := range did {
		if n > 1 {
			w.violated("%d steps have the key %s", n, key)
		}
	}
}

// end is how an effect may have ended.
func (w *world) end(u *rule, as name, want wanted) []string {
	waits := u.approval == "required" || u.approval == "required_on_replay" && want.run != 0
	switch {
	case want.trouble:
		return []string{"rejected"}
	case u.supersede && w.model.last[as.rule+" "+want.object] != as:
		return []string{"done", "superseded", "rejected"}
	case u.supersede && u.approval != "none": // which of its changes planned it decides
		return []string{"done", "rejected"}
	case waits && !agrees(as.key):
		return []string{"rejected"}
	}
	return []string{"done"}
}

// steps compares the steps of an effect that is done with what the other side did: each, in its order, with what the one before has captured, and once.
func (w *world) steps(u *rule, as name, got []entry, acts map[string][]act) {
	w.t.Helper()
	if len(got) != len(u.steps) {
		w.violated("%v is done with %d steps, want %d", as, len(got), len(u.steps))
		return
	}
	before, last := "", 0
	for i, s := range u.steps {
		did := acts[got[i].stepKey]
		if len(did) == 0 || len(did) > 1 && (w.other.Honours || s.kind != keyed) {
			w.violated("%v, %s (%s): the other side did %v", as, s.name, s.kind, did)
			return
		}
		for _, a := range did {
			var body struct{ Key, Before string }
			if err := json.Unmarshal([]byte(a.body), &body); err != nil {
				w.t.Fatal(err)
			}
			if a.path != "/"+u.name+"/"+s.name || body.Key != as.key || body.Before != before {
				w.violated("%v, %s: %s got %s, want what was captured before, %s", as, s.name, a.path, a.body, before)
			}
			n := 0
			if _, err := fmt.Sscan(a.id[strings.LastIndexByte(a.id, '_')+1:], &n); err != nil || n < last {
				w.violated("%v, %s was done before the step before it", as, s.name)
			}
			if a.id == got[i].captured {
				last = max(last, n)
			}
		}
		before = got[i].captured
	}
}

// nothingMore has all events delivered and replayed once more: nothing follows.
func (w *world) nothingMore() {
	w.t.Helper()
	ledger, calls := w.ledger(), len(w.other.Calls())
	changes := w.model.changes
	w.deliver(w.ids)
	w.replay(w.ids, replay.Missing)
	w.attended()
	if diff := cmp.Diff(ledger, w.ledger(), cmp.AllowUnexported(entry{})); diff != "" || len(w.other.Calls()) != calls || w.model.changes != changes {
		w.violated("delivered and replayed once more, %d calls followed, and %d changes: %s", len(w.other.Calls())-calls, w.model.changes-changes, diff)
	}
}
