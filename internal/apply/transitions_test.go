package apply_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// applierWithRules is an applier with rules.
func (b *testBundle) applierWithRules(t *testing.T, all ...*rules.Rule) *apply.Applier {
	t.Helper()
	p := b.Applier(t, nil)
	p.ReplaceRules(effects.NewRules(all))
	return p
}

// seenChange is a change that a rule saw: the states before and after.
type seenChange struct{ Old, New, Deleted string }

// changes returns the changes in the ledger of effects, by key.
func (b *testBundle) changes(t *testing.T) map[string]seenChange {
	t.Helper()
	rows, err := b.DB.Pool.Query(t.Context(), `SELECT key, coalesce((template_data->'old')::text, ''),
		coalesce((template_data->'new')::text, ''), template_data->'object'->>'deleted' FROM effects
			WHERE state = 'planned'`)
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

// expectedChanges returns the changes that rules must see of messages applied in an order: each
// change from one certain state of an object to another. It counts the ambiguous states in between.
func expectedChanges(t *testing.T, order []stream.Event) (keys map[string]bool, ambiguous int) {
	t.Helper()
	keys = map[string]bool{}
	rows, certain, known := map[string]*versioning.Row{}, map[string]versioning.Hash{}, map[int64]bool{}
	for _, m := range order {
		if known[m.ID] {
			continue
		}
		known[m.ID] = true
		obs, err := (sim.Provider{}).Observe(nil, &m.StoredEvent)
		must(t, err)
		in, err := versioning.InputFromObservation(obs, m.ReceivedAt)
		must(t, err)
		row := rows[obs.ObjectID]
		if row == nil {
			newRow := versioning.NewRow()
			row = &newRow
			rows[obs.ObjectID] = row
		}
		versioning.Apply(row, in)
		switch before, was := certain[obs.ObjectID]; {
		case row.Version == versioning.NoVersion:
		case row.Ambiguous:
			ambiguous++
		case !was || before != row.State.ExactHash:
			keys[fmt.Sprintf("%s:%d", obs.ObjectID, m.ID)] = true
			certain[obs.ObjectID] = row.State.ExactHash
		}
	}
	return keys, ambiguous
}

// However events are batched and repeated, rules see the same changes, from one certain state to
// the next, in the order of arrival.
func TestRules_anyBatching_seeEachCertainChange(t *testing.T) {
	t.Parallel()
	for name, options := range applied.ProviderKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, ambiguities := 0, 0
			for seed := range uint64(4) {
				h := sim.Generate(rand.New(rand.NewPCG(seed, 3)), options)
				r := rand.New(rand.NewPCG(seed, 4))
				order := shuffledMessages(h, r)
				want, in := expectedChanges(t, order)
				all, ambiguities = all+len(want), ambiguities+in
				single, batched := setup(t), setup(t)
				one, many := single.applierWithRules(t, applied.RuleOnChanges(t)),
					batched.applierWithRules(t, applied.RuleOnChanges(t))
				for i := range order {
					applyBatch(t, one, order[i:i+1])
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
				var baselines, ambiguous int
				batched.Scan(t, `SELECT (SELECT count(*) FROM effect_baselines), (SELECT count(*) FROM objects
					WHERE ambiguous)`, &baselines, &ambiguous)
				if baselines != ambiguous {
					t.Errorf("seed %d: %d ambiguous objects, %d baselines", seed, ambiguous, baselines)
				}
			}
			if all == 0 || ambiguities == 0 && name != "own version" && name != "integers" {
				t.Errorf("%d changes, %d ambiguous states: the test tries nothing", all, ambiguities)
			}
		})
	}
}

// Rules see the last certain state before an ambiguity, even if an earlier ambiguity ended while
// there were no rules.
func TestRules_outdatedBaseline_isReplaced(t *testing.T) {
	t.Parallel()
	const certainState, ambiguous, baseline = `SELECT coalesce(min(state::text), '') FROM objects WHERE NOT ambiguous`,
		`SELECT count(*) FROM objects WHERE ambiguous`, `SELECT coalesce(min(state::text), '') FROM effect_baselines`
	for seed := range uint64(40) {
		options := applied.ProviderKinds["event time"]
		options.Objects = 1
		h := sim.Generate(rand.New(rand.NewPCG(seed, 3)), options)
		b := setup(t)
		p := b.applierWithRules(t, applied.RuleOnChanges(t))
		next := 0
		until := func(ambiguities int) (before string) {
			for n := -1; n != ambiguities && next < len(h.Events); next++ {
				b.Scan(t, certainState, &before)
				applyBatch(t, p, []stream.Event{applied.Message(next, h.Events[next])})
				b.Scan(t, ambiguous, &n)
			}
			return before
		}
		until(1)
		p.ReplaceRules(effects.NewRules(nil))
		until(0)
		p.ReplaceRules(effects.NewRules([]*rules.Rule{applied.RuleOnChanges(t)}))
		var stale, now string
		var ambiguities int
		b.Scan(t, baseline, &stale)
		certain := until(1)
		b.Scan(t, baseline, &now)
		if b.Scan(t, ambiguous, &ambiguities); ambiguities == 0 || stale == "" || stale == certain {
			continue // not a case for this test
		}
		if now != certain {
			t.Errorf("seed %d: the baseline is %s, the last certain state was %s", seed, now, certain)
		}
		return
	}
	t.Error("no history had two such ambiguities")
}

// ruleOnEvents is a rule that plans an effect for each event.
func ruleOnEvents(t *testing.T) *rules.Rule {
	t.Helper()
	key, err := rules.CompileText("told:{{ object.id }}:{{ event.id }}", rules.Scope{Event: true})
	must(t, err)
	return &rules.Rule{Name: "told", Source: "sim", Type: "thing", On: rules.OnEvent, Key: key, Version: 1,
		Approval: rules.ApproveNone, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}
}

// However events are batched and repeated, each event that was applied or stale has its effect,
// with the state that it carries. A rule about changes sees the same changes as without this rule.
func TestRules_onEvent_planForEachEvent(t *testing.T) {
	t.Parallel()
	for name, options := range applied.ProviderKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(7, 4))
			h := sim.Generate(rand.New(rand.NewPCG(7, 3)), options)
			order := shuffledMessages(h, r)
			b := setup(t)
			inBatches(t, b.applierWithRules(t, ruleOnEvents(t), applied.RuleOnChanges(t)), order, r)
			want := map[string]string{} // the state that each event carries
			for _, m := range order {
				obs, err := (sim.Provider{}).Observe(nil, &m.StoredEvent)
				if err != nil || obs.Ignored != "" {
					t.Fatal(obs.Ignored, err)
				}
				key := fmt.Sprintf("told:%s:%d", obs.ObjectID, m.ID)
				if want[key] = "null"; obs.Partial == "" && obs.State != nil {
					want[key] = "a state"
				}
			}
			got := map[string]string{}
			for _, row := range b.DB.QueryStrings(t, `SELECT key || ' ' || CASE
				WHEN template_data->'new' = 'null' THEN 'null'
				ELSE 'a state' END
				FROM effects WHERE rule = 'told' AND state = 'planned' AND NOT template_data ? 'old'
					AND template_data->'event'->>'id' = event_id::text`) {
				key, state, _ := strings.Cut(row, " ")
				got[key] = state
			}
			equal(t, "effects", want, got)
			var stale, changes int
			b.Scan(t, `SELECT (SELECT count(*) FROM outcomes WHERE status = 'stale'),
				(SELECT count(*) FROM effects WHERE rule = 'every')`, &stale, &changes)
			if wanted, _ := expectedChanges(t, order); changes != len(wanted) || stale == 0 {
				t.Errorf("%d changes have effects, want %d; %d events were stale", changes, len(wanted), stale)
			}
		})
	}
}

// If a rule fails, an operator sees it. The event is applied nevertheless, and another rule plans
// its effect.
func TestRules_ruleFails_eventIsApplied(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct{ when, key, failure string }{
		"half a letter":                {`true`, `x:{{ "Zoë"[:3] }}`, "UTF-8"},
		"NUL":                          {`true`, `x:{{ fromBase64("AA==") }}`, "NUL"},
		"NUL in the failure":           {`date(fromBase64("AA==")) == nil`, `x`, "invalid date"},
		"half a letter in the failure": {`date("Zoë"[:3]) == nil`, `x`, "invalid date"},
		"a long failure":               {`date(repeat("x", 100000)) == nil`, `x`, "…"},
		"too much work":                {`all(1..90000, len(repeat("x", 90000)) > 0)`, `x`, "too much work"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			rule, healthy := applied.RuleOnChanges(t), applied.RuleOnChanges(t)
			var err error
			if rule.When, err = rules.Compile(broken.when, rules.Scope{Change: true}, true); err != nil {
				t.Fatal(err)
			}
			if rule.Key, err = rules.CompileText(broken.key, rules.Scope{Change: true}); err != nil {
				t.Fatal(err)
			}
			healthy.Name = "healthy"
			p := b.applierWithRules(t, rule, healthy)
			m := applied.Message(0, sim.Generate(rand.New(rand.NewPCG(1, 3)),
				applied.ProviderKinds["own version"]).Events[0])
			applyBatch(t, p, []stream.Event{m})
			got := b.DB.QueryStrings(t, `SELECT concat_ws(' ', rule, state) FROM effects ORDER BY rule`)
			equal(t, "effects", []string{"every needs_review", "healthy planned"}, got)
			reasons := b.DB.QueryStrings(t, `SELECT reason FROM effects WHERE rule = 'every'`)
			if len(reasons) != 1 || !strings.Contains(reasons[0], broken.failure) || len(reasons[0]) > 600 {
				t.Errorf("%q, want one about %s", reasons, broken.failure)
			}
			if objects := b.DB.QueryStrings(t, `SELECT object_id FROM objects`); len(objects) != 1 {
				t.Errorf("objects %q", objects)
			}
		})
	}
}
