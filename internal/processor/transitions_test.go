package processor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// everyChange is a rule by which each change of an object has an effect of its own.
func everyChange(t *testing.T) *rules.Rule {
	t.Helper()
	key, err := rules.CompileText("{{ object.id }}:{{ event.id }}", rules.Scope{Change: true})
	must(t, err)
	return &rules.Rule{Name: "every", Source: "sim", Type: "thing", Key: key, Version: 1, Approval: rules.ApproveNone, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}
}

// ruled is a processor with rules.
func (b *testBundle) ruled(t *testing.T, all ...*rules.Rule) *processor.Processor {
	t.Helper()
	p := b.processor(t, sim.Provider{}, nil)
	p.ReplaceRules(effects.NewRules(all))
	return p
}

// seenChange is what a rule saw: the exact states before and after.
type seenChange struct{ Old, New, Deleted string }

// changes are those that the ledger has, by key.
func (b *testBundle) changes(t *testing.T) map[string]seenChange {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT key, coalesce((facts->'old')::text, ''), coalesce((facts->'new')::text, ''), facts->'object'->>'deleted' FROM effects WHERE state = 'planned'`)
	must(t, err)
	defer rows.Close()
	all := map[string]seenChange{}
	for rows.Next() {
		var key string
		var c seenChange
		must(t, rows.Scan(&key, &c.Old, &c.New, &c.Deleted))
		all[key] = c
	}
	must(t, rows.Err())
	return all
}

// wantedChanges is what rules must see of messages that are applied in an order: each time an object is certain of another state than before. It counts what was ambiguous between.
func wantedChanges(t *testing.T, order []stream.Event) (keys map[string]bool, doubts int) {
	t.Helper()
	keys = map[string]bool{}
	rows, certain, known := map[string]*versioning.Row{}, map[string]versioning.Hash{}, map[int64]bool{}
	for _, m := range order {
		if known[m.ID] {
			continue
		}
		known[m.ID] = true
		obs, err := (sim.Provider{}).Observe(nil, &m.Stored)
		must(t, err)
		in, err := versioning.FromObservation(obs, m.ReceivedAt)
		must(t, err)
		row := rows[obs.ObjectID]
		if row == nil {
			fresh := versioning.NewRow()
			row = &fresh
			rows[obs.ObjectID] = row
		}
		versioning.Apply(row, in)
		switch before, was := certain[obs.ObjectID]; {
		case row.Version == versioning.NoVersion:
		case row.Ambiguous:
			doubts++
		case !was || before != row.State.Exact:
			keys[fmt.Sprintf("%s:%d", obs.ObjectID, m.ID)] = true
			certain[obs.ObjectID] = row.State.Exact
		}
	}
	return keys, doubts
}

// However events are put into batches and doubled, rules see the same changes: from one certain state to the next, in the order of arrival.
func TestRulesSeeEachChangeOfWhatIsCertain(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, doubts := 0, 0
			for seed := range uint64(4) {
				h := sim.Generate(rand.New(rand.NewPCG(seed, 3)), options)
				r := rand.New(rand.NewPCG(seed, 4))
				order := inAnyOrder(h, r)
				want, in := wantedChanges(t, order)
				all, doubts = all+len(want), doubts+in
				single, batched := setup(t), setup(t)
				one, many := single.ruled(t, everyChange(t)), batched.ruled(t, everyChange(t))
				for i := range order {
					apply(t, one, order[i:i+1])
				}
				inBatches(t, many, order, r)
				got := single.changes(t)
				if diff := cmp.Diff(got, batched.changes(t)); diff != "" {
					t.Errorf("seed %d (-one by one +in batches):\n%s", seed, diff)
				}
				seen := map[string]bool{}
				for key := range got {
					seen[key] = true
				}
				if diff := cmp.Diff(want, seen); diff != "" {
					t.Errorf("seed %d (-wanted +seen):\n%s", seed, diff)
				}
				var held, ambiguous int
				batched.scan(t, `SELECT (SELECT count(*) FROM effect_holds), (SELECT count(*) FROM objects WHERE ambiguous)`, &held, &ambiguous)
				if held != ambiguous {
					t.Errorf("seed %d: of %d ambiguous objects %d are held", seed, ambiguous, held)
				}
			}
			if all == 0 || doubts == 0 && name != "own version" && name != "integers" {
				t.Errorf("%d changes, %d doubts: nothing was tried", all, doubts)
			}
		})
	}
}

// What was certain before a doubt is what rules see, also where an earlier doubt ended while there were no rules.
func TestAStaleHoldIsReplaced(t *testing.T) {
	t.Parallel()
	const certainly, ambiguous, held = `SELECT coalesce(min(state::text), '') FROM objects WHERE NOT ambiguous`, `SELECT count(*) FROM objects WHERE ambiguous`, `SELECT coalesce(min(state::text), '') FROM effect_holds`
	for seed := range uint64(40) {
		options := kinds["event time"]
		options.Objects = 1
		h := sim.Generate(rand.New(rand.NewPCG(seed, 3)), options)
		b := setup(t)
		p := b.ruled(t, everyChange(t))
		next := 0
		until := func(doubts int) (before string) {
			for n := -1; n != doubts && next < len(h.Events); next++ {
				b.scan(t, certainly, &before)
				apply(t, p, []stream.Event{message(next, h.Events[next])})
				b.scan(t, ambiguous, &n)
			}
			return before
		}
		until(1)
		p.ReplaceRules(effects.NewRules(nil))
		until(0)
		p.ReplaceRules(effects.NewRules([]*rules.Rule{everyChange(t)}))
		var stale, now string
		var doubts int
		b.scan(t, held, &stale)
		certain := until(1)
		b.scan(t, held, &now)
		if b.scan(t, ambiguous, &doubts); doubts == 0 || stale == "" || stale == certain {
			continue // nothing was tried
		}
		if now != certain {
			t.Errorf("seed %d: held is %s, certain was %s", seed, now, certain)
		}
		return
	}
	t.Error("no life had two such doubts")
}

// everyEvent is a rule by which each event has an effect of its own.
func everyEvent(t *testing.T) *rules.Rule {
	t.Helper()
	key, err := rules.CompileText("told:{{ object.id }}:{{ event.id }}", rules.Scope{Event: true})
	must(t, err)
	return &rules.Rule{Name: "told", Source: "sim", Type: "thing", On: rules.OnEvent, Key: key, Version: 1, Approval: rules.ApproveNone, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}
}

// However events are put into batches and doubled, each that was applied, or found to be stale, has its effect, with the state that it tells itself; a rule about changes beside it sees what it sees.
func TestRulesAreAskedAboutEachEvent(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(7, 4))
			h := sim.Generate(rand.New(rand.NewPCG(7, 3)), options)
			order := inAnyOrder(h, r)
			b := setup(t)
			inBatches(t, b.ruled(t, everyEvent(t), everyChange(t)), order, r)
			want := map[string]string{} // the state that each event tells
			for _, m := range order {
				obs, err := (sim.Provider{}).Observe(nil, &m.Stored)
				if err != nil || obs.Ignored != "" {
					t.Fatal(obs.Ignored, err)
				}
				key := fmt.Sprintf("told:%s:%d", obs.ObjectID, m.ID)
				if want[key] = "null"; obs.Partial == "" && obs.State != nil {
					want[key] = "a state"
				}
			}
			got := map[string]string{}
			for _, row := range b.db.Rows(t, `SELECT key || ' ' || CASE WHEN facts->'new' = 'null' THEN 'null' ELSE 'a state' END
				FROM effects WHERE rule = 'told' AND state = 'planned' AND NOT facts ? 'old' AND facts->'event'->>'id' = event_id::text`) {
				key, state, _ := strings.Cut(row, " ")
				got[key] = state
			}
			equal(t, "effects", want, got)
			var stale, changes int
			b.scan(t, `SELECT (SELECT count(*) FROM outcomes WHERE status = 'stale'),
				(SELECT count(*) FROM effects WHERE rule = 'every')`, &stale, &changes)
			if wanted, _ := wantedChanges(t, order); changes != len(wanted) || stale == 0 {
				t.Errorf("%d changes have effects, want %d; %d events were stale", changes, len(wanted), stale)
			}
		})
	}
}

// A rule that cannot say what it wants is trouble that a person sees. Its event is applied all the same, and so is another rule.
func TestTroubleOfARuleIsNotItsEvents(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct{ when, key, trouble string }{
		"half a letter":      {`true`, `x:{{ "Zoë"[:3] }}`, "UTF-8"},
		"NUL":                {`true`, `x:{{ fromBase64("AA==") }}`, "NUL"},
		"NUL in the trouble": {`date(fromBase64("AA==")) == nil`, `x`, "invalid date"},
		"half in a trouble":  {`date("Zoë"[:3]) == nil`, `x`, "invalid date"},
		"a long trouble":     {`date(repeat("x", 100000)) == nil`, `x`, "…"},
		"too much work":      {`all(1..90000, len(repeat("x", 90000)) > 0)`, `x`, "too much work"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			rule, healthy := everyChange(t), everyChange(t)
			var err error
			if rule.When, err = rules.Compile(broken.when, rules.Scope{Change: true}, true); err != nil {
				t.Fatal(err)
			}
			if rule.Key, err = rules.CompileText(broken.key, rules.Scope{Change: true}); err != nil {
				t.Fatal(err)
			}
			healthy.Name = "healthy"
			p := b.ruled(t, rule, healthy)
			m := message(0, sim.Generate(rand.New(rand.NewPCG(1, 3)), kinds["own version"]).Events[0])
			apply(t, p, []stream.Event{m})
			got := b.db.Rows(t, `SELECT concat_ws(' ', rule, state) FROM effects ORDER BY rule`)
			equal(t, "effects", []string{"every review", "healthy planned"}, got)
			reasons := b.db.Rows(t, `SELECT reason FROM effects WHERE rule = 'every'`)
			if len(reasons) != 1 || !strings.Contains(reasons[0], broken.trouble) || len(reasons[0]) > 600 {
				t.Errorf("%q, want one about %s", reasons, broken.trouble)
			}
			if objects := b.db.Rows(t, `SELECT object_id FROM objects`); len(objects) != 1 {
				t.Errorf("objects %q", objects)
			}
		})
	}
}
