package processor_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// everyEvent is a rule by which each event has an effect of its own.
func everyEvent(t *testing.T) *rules.Rule {
	t.Helper()
	key, err := rules.CompileText("told:{{ object.id }}:{{ event.id }}", rules.Scope{Event: true})
	if err != nil {
		t.Fatal(err)
	}
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
			var order []stream.Event
			for i, e := range h.Events {
				order = append(order, message(i, e))
			}
			r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			b := setup(t)
			p := b.ruled(t, everyEvent(t), everyChange(t))
			for rest := order; len(rest) > 0; {
				n := min(1+r.IntN(15), len(rest))
				apply(t, p, append(rest[:n:n], order[r.IntN(len(order)-len(rest)+n)])) // and one of those before once more
				rest = rest[n:]
			}
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
			got, stale := map[string]string{}, 0
			rows, err := b.db.Pool.Query(t.Context(), `SELECT key, CASE WHEN facts->'new' = 'null' THEN 'null' ELSE 'a state' END FROM effects
				WHERE rule = 'told' AND state = 'planned' AND NOT facts ? 'old' AND facts->'event'->>'id' = event_id::text`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var key, state string
				if err := rows.Scan(&key, &state); err != nil {
					t.Fatal(err)
				}
				got[key] = state
			}
			if diff := cmp.Diff(want, got); diff != "" || rows.Err() != nil {
				t.Errorf("%v (-told +planned):\n%s", rows.Err(), diff)
			}
			b.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'stale'`, &stale)
			if stale == 0 {
				t.Error("no event was stale: nothing was tried")
			}
			wanted, _ := wantedChanges(t, order)
			var changes int
			if b.scan(t, `SELECT count(*) FROM effects WHERE rule = 'every'`, &changes); changes != len(wanted) {
				t.Errorf("%d changes have effects, want %d", changes, len(wanted))
			}
		})
	}
}
