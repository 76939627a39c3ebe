package processor_test

import (
	"fmt"
	"math/rand/v2"
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]seenChange{}
	for rows.Next() {
		var key string
		var c seenChange
		if err := rows.Scan(&key, &c.Old, &c.New, &c.Deleted); err != nil {
			t.Fatal(err)
		}
		all[key] = c
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		in, err := versioning.FromObservation(obs, m.ReceivedAt)
		if err != nil {
			t.Fatal(err)
		}
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
				var order []stream.Event
				for i, e := range h.Events {
					order = append(order, message(i, e))
				}
				r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
				want, in := wantedChanges(t, order)
				all, doubts = all+len(want), doubts+in
				single, batched := setup(t), setup(t)
				one, many := single.ruled(t, everyChange(t)), batched.ruled(t, everyChange(t))
				for i := range order {
					apply(t, one, order[i:i+1])
				}
				for rest := order; len(rest) > 0; {
					n := min(1+r.IntN(15), len(rest))
					apply(t, many, append(rest[:n:n], order[r.IntN(len(order)-len(rest)+n)])) // and one of those before once more
					rest = rest[n:]
				}
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
