package effects_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/verify"
)

// Whatever dies, lies, comes again or is replayed, what the rules want follows once, in its order,
// with what was captured, where the other side honours keys; where it does not, what is once is
// never done twice. At every moment of rest the ledger says of no step that it was done that was
// not, nor the other way round: what nobody knows is unknown, and waits for a person.
func TestWorlds(t *testing.T) {
	t.Parallel()
	// an object in doubt was certain between, and in doubt again, within one batch: what was held
	// was of before
	seeds := []uint64{3012}
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
		case e.is == "done" && (len(acts) == 0 ||
			!slices.ContainsFunc(acts, func(a act) bool { return a.id == e.captured })):
			w.violated("%s %s of effect %d is done with %q, and the other side did %v", e.rule, e.step, e.effect,
				e.captured, acts)
		case e.is == "failed" && len(acts) > 0:
			w.violated("%s %s of effect %d was not done, and the other side did %v", e.rule, e.step, e.effect, acts)
		case e.is == "reserved":
			w.violated("%s %s of effect %d is reserved, and nobody has it", e.rule, e.step, e.effect)
		case e.is == "unknown" && (e.state != "review" || e.reason == ""):
			w.violated("%s %s of effect %d is unknown, and the effect is %s: %q", e.rule, e.step, e.effect, e.state,
				e.reason)
		}
	}
	for key, acts := range done {
		if !known[key] {
			w.violated("the other side did %v under key %s, of which the ledger knows nothing", acts, key)
		}
	}
}

// reported wants a report of postern verify that finds nothing wrong and tells of all doubts, and
// of all that waits for a person.
func (w *world) reported() {
	w.t.Helper()
	known, err := events.RegisterSources(w.t.Context(), w.log.OperatorPool, nil)
	must(w.t, err)
	r, err := verify.Verify(w.t.Context(), verify.Options{Pool: w.log.OperatorPool, Known: known,
		Sources:  w.log.Sources,
		MaxItems: 3})
	must(w.t, err)
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
		case strings.HasPrefix(wait.What, "steps with unknown outcome"):
			doubts -= wait.Count
		case strings.HasPrefix(wait.What, "effects that need review"):
			persons -= wait.Count
		}
	}
	if doubts != 0 || persons != 0 {
		w.violated("the report is %d doubts short, and %d effects that wait for a person: %+v", doubts, persons,
			r.Waiting)
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
		if e.event != want.event || e.run != want.run || plain(w.t, []byte(e.old)) != want.old ||
			plain(w.t, []byte(e.now)) != want.now {
			w.violated("%v is of event %d of run %d, from %s to %s; want event %d of run %d, from %s to %s", as,
				e.event, e.run, e.old, e.now, want.event, want.run, want.old, want.now)
		}
	}
	w.t.Logf("%d changes, %d effects wanted, %d calls, %d lies, %d deaths of runners", w.model.changes,
		len(w.model.effects), len(w.other.Calls()), w.lies.Load(), w.deaths.Load())
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

// steps compares the steps of an effect that is done with what the other side did: each, in its
// order, with what the one before has captured, and once.
func (w *world) steps(u *rule, as name, got []entry, acts map[string][]act) {
	w.t.Helper()
	if len(got) != len(u.steps) {
		w.violated("%v is done with %d steps, want %d", as, len(got), len(u.steps))
		return
	}
	before, last := "", 0
	for i, s := range u.steps {
		did := acts[got[i].stepKey]
		if len(did) == 0 || len(did) > 1 && (w.other.HonoursKeys || s.kind != keyed) {
			w.violated("%v, %s (%s): the other side did %v", as, s.name, s.kind, did)
			return
		}
		for _, a := range did {
			var body struct{ Key, Before string }
			must(w.t, json.Unmarshal([]byte(a.body), &body))
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
	if diff := cmp.Diff(ledger, w.ledger(), cmp.AllowUnexported(entry{})); diff != "" ||
		len(w.other.Calls()) != calls || w.model.changes != changes {
		w.violated("delivered and replayed once more, %d calls followed, and %d changes: %s",
			len(w.other.Calls())-calls, w.model.changes-changes, diff)
	}
}

// entry is a line of the ledger: an effect, and one of its steps, if one was begun.
type entry struct {
	effect            int64
	rule, key         string
	version           int
	state, reason     string
	event, run        int64
	old, now          string
	step, is          string
	stepKey, captured string
}

func (w *world) ledger() (all []entry) {
	w.t.Helper()
	rows, err := w.log.DB.Pool.Query(w.t.Context(), `
SELECT e.effect, e.rule, e.key, e.rule_version, e.state, e.reason, e.event_id, e.run, (e.facts->'old')::text,
	(e.facts->'new')::text,
  coalesce(s.step, ''), coalesce(s.state, ''), coalesce(s.request->'headers'->>'Idempotency-Key', ''),
  	coalesce(s.captured->>'id', '')
FROM effects e LEFT JOIN effect_steps s USING (effect) ORDER BY e.effect, s.place`)
	must(w.t, err)
	all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
		return e, row.Scan(&e.effect, &e.rule, &e.key, &e.version, &e.state, &e.reason, &e.event, &e.run, &e.old,
			&e.now, &e.step, &e.is, &e.stepKey, &e.captured)
	})
	must(w.t, err)
	return all
}

// settled waits until nothing is to be done any more without a person, and the other side does
// nothing.
func (w *world) settled() {
	w.t.Helper()
	testkit.Eventually(w.t, *patience, func() error {
		if n := w.log.DB.QueryStrings(w.t, `SELECT state || ' ' || count(*) FROM effects
			WHERE state IN ('planned', 'running',
			'failed') GROUP BY state`); len(n) > 0 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	w.other.idle(w.t)
}

// act is what the other side has done of a step: what it answered, or would have.
type act struct{ path, body, id string }

// acts are what the other side has done, by the step's key.
func (w *world) acts() map[string][]act {
	all := map[string][]act{}
	for n, c := range w.other.Calls() {
		all[c.Key] = append(all[c.Key], act{c.Path, c.Body, fmt.Sprintf("%s_%d", c.Path[1:], n+1)})
	}
	return all
}

// agrees says whether a person lets something happen that waits.
func agrees(key string) bool { return crc32.ChecksumIEEE([]byte(key))%4 != 0 }

// attended has a person see to all that waits for one, until nothing does.
func (w *world) attended() {
	w.t.Helper()
	for round := 0; ; round++ {
		w.settled()
		w.sound()
		w.reported()
		waits := w.log.DB.QueryStrings(w.t, `SELECT effect::text FROM effects WHERE state IN ('waiting', 'review')
			ORDER BY effect`)
		if len(waits) == 0 {
			return
		}
		if round == 20 {
			w.t.Fatalf("these wait for a person again and again: %v",
				w.log.DB.QueryStrings(w.t, `SELECT to_jsonb(e)::text FROM effects e
					WHERE state IN ('waiting', 'review')`))
		}
		for _, text := range waits {
			var id int64
			if _, err := fmt.Sscan(text, &id); err != nil {
				w.t.Fatal(err)
			}
			w.see(id)
		}
	}
}

// see has a person see to an effect, who looks at the other side where it is in doubt.
func (w *world) see(id int64) {
	w.t.Helper()
	all, err := effects.Show(w.t.Context(), w.log.OperatorPool, id)
	must(w.t, err)
	v, done := all[0], w.acts()
	do := func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Retry(ctx, tx, id) }
	switch {
	case v.State == effects.AwaitingApproval && agrees(v.Key):
		do = func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Approve(ctx, tx, id) }
	case v.State == effects.AwaitingApproval, len(v.Steps) == 0:
		do = func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Reject(ctx, tx, "no", id) }
	}
	for _, s := range v.Steps {
		if s.State == effects.Unknown && s.Recovery == effects.RecoverByOperator {
			do = w.word(id, s.Step, done)
		}
	}
	w.person(do)
}

// word is what a person says of a step who has looked.
func (w *world) word(id int64, step string, done map[string][]act) func(context.Context, pgx.Tx) ([]effects.View,
	error) {
	said := effects.ResolveParams{Step: step}
	for _, e := range w.ledger() {
		if e.effect == id && e.step == step && len(done[e.stepKey]) > 0 {
			said.Done = true
			// a text can always be written
			said.Captured, _ = json.Marshal(map[string]string{"id": done[e.stepKey][0].id})
		}
	}
	return func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Resolve(ctx, tx, id, said)
	}
}

func (w *world) person(do func(context.Context, pgx.Tx) ([]effects.View, error)) {
	w.t.Helper()
	err := postgres.InTx(w.t.Context(), w.log.OperatorPool, "test", time.Minute,
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := do(ctx, tx)
			return err
		})
	must(w.t, err)
}

// violated fails a world once for each thing that is wrong, with its seed.
func (w *world) violated(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d: %s", w.seed, fmt.Sprintf(format, args...))
}
