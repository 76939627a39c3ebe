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

// Processes crash, destinations fail, and events are repeated and replayed. Each effect of a rule
// still happens once, in order and with the captured values, if the destination honours keys.
// Otherwise an at-most-once step is never done twice. At rest, the ledger never calls a step done
// that was not done, or the other way round. Unknown outcomes are unknown in the ledger and wait
// for an operator.
func TestEffects_randomWorlds_happenOnce(t *testing.T) {
	t.Parallel()
	// In this world an ambiguous object becomes unambiguous and ambiguous again within one batch.
	// The effect baseline was older than that.
	seeds := []uint64{3012}
	worlds := *count
	if testing.Short() {
		worlds = min(worlds, 2)
	}
	for n := range worlds {
		seeds = append(seeds, *seed+uint64(n))
	}
	for _, of := range seeds {
		t.Run(fmt.Sprint("seed ", of), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, of, of%2 == 0)
			for _, name := range []string{"a", "b"} {
				w.startProcesses(name, rand.New(rand.NewPCG(of, uint64(name[0]))))
			}
			w.playHistory()
			w.review()
			w.checkEffects()
			w.checkCalls()
			w.checkNothingFollows()
		})
	}
}

// checkLedger compares the ledger with the destination, at rest.
func (w *world) checkLedger() {
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
			w.violated("%s %s of effect %d is done with %q, and the destination did %v", e.rule, e.step, e.effect,
				e.captured, acts)
		case e.is == "failed" && len(acts) > 0:
			w.violated("%s %s of effect %d failed, and the destination did %v", e.rule, e.step, e.effect, acts)
		case e.is == "skipped" && len(done[e.stepKey]) > 0 && e.stepKey != "":
			w.violated("%s %s of effect %d was skipped, and the destination did %v", e.rule, e.step, e.effect, acts)
		case e.is == "checking" && e.state != "needs_review":
			w.violated("%s %s of effect %d is checked by no process", e.rule, e.step, e.effect)
		case e.is == "reserved":
			w.violated("%s %s of effect %d is reserved without a lease", e.rule, e.step, e.effect)
		case e.is == "unknown" && (e.state != "needs_review" || e.reason == ""):
			w.violated("%s %s of effect %d is unknown, and the effect is %s: %q", e.rule, e.step, e.effect, e.state,
				e.reason)
		}
	}
	for key, acts := range done {
		if !known[key] {
			w.violated("the destination did %v with key %s, which the ledger does not have", acts, key)
		}
	}
}

// checkVerifyReport checks that postern verify finds no violation, and counts all unknown outcomes
// and all effects that need review.
func (w *world) checkVerifyReport() {
	w.t.Helper()
	known, err := events.RegisterSources(w.t.Context(), w.log.OperatorPool, nil)
	must(w.t, err)
	r, err := verify.Verify(w.t.Context(), verify.Options{Pool: w.log.OperatorPool, Known: known,
		Sources: w.log.Sources, MaxItems: 3})
	must(w.t, err)
	for _, f := range r.Findings {
		if f.Kind == verify.EffectTwice || f.Kind == verify.EffectWrong {
			w.violated("%s: %+v", f.Kind, f.Items)
		}
	}
	unknown, persons := int64(0), int64(0)
	seen := map[int64]bool{}
	for _, e := range w.ledger() {
		if e.is == "unknown" {
			unknown++
		}
		if e.state == "needs_review" && !seen[e.effect] {
			persons, seen[e.effect] = persons+1, true
		}
	}
	for _, wait := range r.Waiting {
		switch {
		case strings.HasPrefix(wait.Work, "steps with unknown outcome"):
			unknown -= wait.Count
		case strings.HasPrefix(wait.Work, "effects that need review"):
			persons -= wait.Count
		}
	}
	if unknown != 0 || persons != 0 {
		w.violated("the report lacks %d unknown outcomes and %d effects that need review: %+v", unknown, persons,
			r.Waiting)
	}
}

// checkEffects compares the effects of the ledger with those of the model.
func (w *world) checkEffects() {
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
		if e.effect == 0 || u.supersede || u.key.shared { // planned for the last change, or for any of several objects
			continue
		}
		if e.event != want.event || e.run != want.run || normalize(w.t, []byte(e.old)) != want.old ||
			normalize(w.t, []byte(e.now)) != want.now {
			w.violated("%v is of event %d of run %d, from %s to %s; want event %d of run %d, from %s to %s", as,
				e.event, e.run, e.old, e.now, want.event, want.run, want.old, want.now)
		}
	}
	w.t.Logf("%d changes, %d effects wanted, %d calls, %d faults, %d crashes of runners", w.model.changes,
		len(w.model.effects), len(w.dest.Calls()), w.faults.Load(), w.crashes.Load())
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

// checkCalls compares the calls of the destination with the model.
func (w *world) checkCalls() {
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
			if e.is != "skipped" { // without a request
				did[e.stepKey]++
			}
			if ends[as] != "done" && len(acts[e.stepKey]) > 0 {
				w.violated("%v is %s, and the destination did %v", as, ends[as], acts[e.stepKey])
			}
		}
	}
	for key, n := range did {
		if n > 1 {
			w.violated("%d steps have the key %s", n, key)
		}
	}
}

// end returns the allowed final states of an effect.
func (w *world) end(u *rule, as name, want wanted) []string {
	waits := u.approval == "required" || u.approval == "required_on_replay" && want.run != 0
	switch {
	case want.keyFails:
		return []string{"rejected"}
	case u.supersede && w.model.last[as.rule+" "+want.object] != as:
		return []string{"done", "superseded", "rejected"}
	case u.supersede && u.approval != "none": // depends on the change that planned it
		return []string{"done", "rejected"}
	case waits && !agrees(as.key):
		return []string{"rejected"}
	}
	return []string{"done"}
}

// steps compares the steps of a done effect with the calls: each happened once, in order, and with
// the value captured from the step before.
func (w *world) steps(u *rule, as name, got []entry, acts map[string][]act) {
	w.t.Helper()
	if len(got) != len(u.steps) {
		w.violated("%v is done with %d steps, want %d", as, len(got), len(u.steps))
		return
	}
	before, last := "", 0
	for i, s := range u.steps {
		did := acts[got[i].stepKey]
		if (got[i].is == "skipped") != s.skips {
			w.violated("%v, %s with condition %s is %s", as, s.name, s.when, got[i].is)
			return
		}
		if s.skips {
			before = ""
			continue
		}
		if len(did) == 0 || len(did) > 1 && (w.dest.HonoursKeys || s.kind != keyed) {
			w.violated("%v, %s (%s): the destination did %v", as, s.name, s.kind, did)
			return
		}
		for _, a := range did {
			var body struct{ Key, Before string }
			must(w.t, json.Unmarshal([]byte(a.body), &body))
			if a.path != "/"+u.name+"/"+s.name || body.Key != as.key || body.Before != before {
				w.violated("%v, %s: %s got %s, want the captured value %s", as, s.name, a.path, a.body, before)
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

// checkNothingFollows delivers and replays all events once more. No effect may follow.
func (w *world) checkNothingFollows() {
	w.t.Helper()
	ledger, calls := w.ledger(), len(w.dest.Calls())
	changes := w.model.changes
	w.deliver(w.ids)
	w.replay(w.ids, replay.Missing)
	w.review()
	if diff := cmp.Diff(ledger, w.ledger(), cmp.AllowUnexported(entry{})); diff != "" ||
		len(w.dest.Calls()) != calls || w.model.changes != changes {
		w.violated("after another delivery and replay %d calls followed, and %d changes: %s",
			len(w.dest.Calls())-calls, w.model.changes-changes, diff)
	}
}

// entry is a row of the ledger: an effect and one of its started steps, if any.
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
SELECT e.effect, e.rule, e.key, e.rule_version, e.state, e.reason, e.event_id, e.run, (e.template_data->'old')::text,
	(e.template_data->'new')::text,
  coalesce(s.step, ''), coalesce(s.state, ''), coalesce(s.request->'headers'->>'Idempotency-Key', ''),
  	coalesce(s.captured->>'id', '')
FROM effects e LEFT JOIN effect_steps s USING (effect) ORDER BY e.effect, s.position`)
	must(w.t, err)
	all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
		return e, row.Scan(&e.effect, &e.rule, &e.key, &e.version, &e.state, &e.reason, &e.event, &e.run, &e.old,
			&e.now, &e.step, &e.is, &e.stepKey, &e.captured)
	})
	must(w.t, err)
	return all
}

// waitUntilIdle waits until only an operator can continue, and the destination has no open request.
func (w *world) waitUntilIdle() {
	w.t.Helper()
	testkit.Eventually(w.t, *patience, func() error {
		if n := w.log.DB.QueryStrings(w.t, `SELECT state || ' ' || count(*) FROM effects
			WHERE state IN ('planned', 'running', 'failed') GROUP BY state`); len(n) > 0 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	w.dest.waitUntilIdle(w.t)
}

// act is an executed request: id is the id in its response, even if that was lost.
type act struct{ path, body, id string }

// acts returns the executed requests by the step's key.
func (w *world) acts() map[string][]act {
	all := map[string][]act{}
	for n, c := range w.dest.Calls() {
		all[c.Key] = append(all[c.Key], act{c.Path, c.Body, fmt.Sprintf("%s_%d", c.Path[1:], n+1)})
	}
	return all
}

// agrees reports whether the operator approves an effect with this key.
func agrees(key string) bool { return crc32.ChecksumIEEE([]byte(key))%4 != 0 }

// review makes an operator decide all waiting effects, until none waits.
func (w *world) review() {
	w.t.Helper()
	for round := 0; ; round++ {
		w.waitUntilIdle()
		w.checkLedger()
		w.checkVerifyReport()
		waits := w.log.DB.QueryStrings(w.t, `SELECT effect::text FROM effects
			WHERE state IN ('awaiting_approval', 'needs_review') ORDER BY effect`)
		if len(waits) == 0 {
			return
		}
		if round == 20 {
			w.t.Fatalf("these effects wait for an operator again and again: %v",
				w.log.DB.QueryStrings(w.t, `SELECT to_jsonb(e)::text FROM effects e
					WHERE state IN ('awaiting_approval', 'needs_review')`))
		}
		for _, text := range waits {
			var id int64
			if _, err := fmt.Sscan(text, &id); err != nil {
				w.t.Fatal(err)
			}
			w.decide(id)
		}
	}
}

// decide makes an operator decide one effect. For an unknown outcome the operator looks at the
// destination.
func (w *world) decide(id int64) {
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
			do = w.resolve(id, s.Step, done)
		}
	}
	w.operate(do)
}

// resolve returns the decision of an operator who has looked at the destination.
func (w *world) resolve(id int64, step string, done map[string][]act) func(context.Context, pgx.Tx) ([]effects.View,
	error) {
	said := effects.ResolveParams{Step: step}
	for _, e := range w.ledger() {
		if e.effect == id && e.step == step && len(done[e.stepKey]) > 0 {
			said.Done = true
			// Encoding text never fails.
			said.Captured, _ = json.Marshal(map[string]string{"id": done[e.stepKey][0].id})
		}
	}
	return func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Resolve(ctx, tx, id, said)
	}
}

func (w *world) operate(do func(context.Context, pgx.Tx) ([]effects.View, error)) {
	w.t.Helper()
	err := postgres.InTx(w.t.Context(), w.log.OperatorPool, "test", time.Minute,
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := do(ctx, tx)
			return err
		})
	must(w.t, err)
}

// violated reports an error with the seed of the world.
func (w *world) violated(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d: %s", w.seed, fmt.Sprintf(format, args...))
}
