package hindsight_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/hindsight"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// life is what the objects of a test live: doubles, doubts, deletes.
var life = sim.Options{Objects: 25, Changes: 10, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60, Partial: 5, Twins: 20, Late: 5_000_000, Deletes: 10, Final: true}

// told is a rule about each event.
func told(t *testing.T) *rules.Rule {
	t.Helper()
	text, err := rules.CompileText("{{ object.id }}:{{ event.id }}", rules.Scope{Event: true})
	if err != nil {
		t.Fatal(err)
	}
	r := rule(t, "{{ object.id }}", 1)
	r.Key, r.On = text, rules.OnEvent
	return r
}

// rule has a key of a template, about the objects of the simulated provider.
func rule(t *testing.T, key string, version int) *rules.Rule {
	t.Helper()
	text, err := rules.CompileText(key, rules.Scope{Change: true})
	if err != nil {
		t.Fatal(err)
	}
	return &rules.Rule{Name: "r", Source: applied.Name, Type: "thing", Key: text, Version: version, Approval: rules.ApproveNone, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}
}

// lived is a log whose events were applied under a rule, one after the other, and the time at which about half of them were stored.
func lived(t *testing.T, seed uint64, r *rules.Rule) (l *applied.Log, half time.Time) {
	t.Helper()
	l = applied.New(t)
	p := l.Processor(t, nil)
	p.ReplaceRules(effects.NewRules([]*rules.Rule{r}))
	all := sim.Generate(rand.New(rand.NewPCG(seed, 9)), life).Events
	var last time.Time
	for _, some := range [][]sim.Event{all[:len(all)/2], all[len(all)/2:]} {
		ids := slices.Sorted(slices.Values(l.Append(t, l.Source, some)))
		if half = events.Time(ids[0]); !half.After(last) {
			t.Fatal("the second half was stored with the first")
		}
		for i := range ids { // events that come at once are applied in whatever order
			applied.Apply(t, p, events.LiveRun, ids[i:i+1])
		}
		last = events.Time(ids[len(ids)-1])
	}
	return l, half
}

// look looks back, by a few objects and events at a time or by many, and returns "event key" by what the ledger has, in their order.
func look(t *testing.T, l *applied.Log, r *rules.Rule, since time.Time) map[hindsight.Ledger][]string {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), l.Operator, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[hindsight.Ledger][]string{}
	counts, err := hindsight.Plan(t.Context(), hindsight.Options{Pool: l.Operator, Known: known, Sources: l.Sources, Rule: r, Since: since, Objects: rand.IntN(4), Events: rand.IntN(4)}, func(all []hindsight.Change) error {
		for _, c := range all {
			found[c.Ledger] = append(found[c.Ledger], fmt.Sprintf("%d %s", c.Event, c.Key))
			if c.Trouble != "" || c.Source != applied.Name || c.ObjectType != "thing" || c.EventKey == "" || (c.Effect != 0) != (c.Ledger == hindsight.Had || c.Ledger == hindsight.Older || c.Ledger == hindsight.Gone) {
				t.Errorf("%+v", c)
			}
		}
		return nil
	})
	if err != nil || counts.Odd > 0 {
		t.Fatalf("%+v, %v", counts, err)
	}
	for what, all := range found {
		if counts.Changes[what] != int64(len(all)) {
			t.Errorf("%d are %s, and %d were told", counts.Changes[what], what, len(all))
		}
		slices.Sort(all)
	}
	return found
}

// ledger is what was planned of events from one on.
func ledger(t *testing.T, l *applied.Log, from int64) []string {
	t.Helper()
	return l.DB.Rows(t, fmt.Sprintf(`SELECT event_id || ' ' || key FROM effects WHERE event_id >= %d ORDER BY (event_id || ' ' || key) COLLATE "C"`, from))
}

// Looking back finds what was planned live: all of it, and nothing else; also from a time on, with what came before folded in.
func TestHindsightFindsWhatWasPlanned(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rule(t, "{{ object.id }}:{{ event.id }}", 1)
			if seed == 2 {
				r = told(t)
			}
			l, since := lived(t, seed, r)
			want := ledger(t, l, 0)
			if len(want) < 20 {
				t.Fatalf("%d effects: nothing was tried", len(want))
			}
			if diff := cmp.Diff(map[hindsight.Ledger][]string{hindsight.Had: want}, look(t, l, r, time.Time{})); diff != "" {
				t.Errorf("(-planned +found): %s", diff)
			}
			later := ledger(t, l, events.FirstID(since))
			if diff := cmp.Diff(map[hindsight.Ledger][]string{hindsight.Had: later}, look(t, l, r, since)); diff != "" || len(later) == 0 || len(later) == len(want) {
				t.Errorf("since %s, %d of %d (-planned +found): %s", since, len(later), len(want), diff)
			}
			newer := *r
			newer.Version = 2
			if diff := cmp.Diff(map[hindsight.Ledger][]string{hindsight.Older: want}, look(t, l, &newer, time.Time{})); diff != "" {
				t.Errorf("under another version (-planned +found): %s", diff)
			}
			l.DB.Exec(t, `INSERT INTO effects (key, rule_version, forced, rule, source, account, object_type, object_id, event_id, run, facts, state, destination, planned_at, updated_at)
				SELECT key, 2, 7, rule, source, account, object_type, object_id, event_id, 7, facts, 'done', destination, planned_at, updated_at FROM effects`)
			if diff := cmp.Diff(map[hindsight.Ledger][]string{hindsight.Older: want}, look(t, l, &newer, time.Time{})); diff != "" {
				t.Errorf("under a version that they were forced by (-planned +found): %s", diff)
			}
			l.DB.Exec(t, `DELETE FROM effects`)
			if diff := cmp.Diff(map[hindsight.Ledger][]string{hindsight.New: want}, look(t, l, r, time.Time{})); diff != "" {
				t.Errorf("of an empty ledger (-planned +found): %s", diff)
			}
			if found := look(t, l, r, time.Now().Add(time.Hour)); len(found) > 0 {
				t.Errorf("of a time to come: %v", found)
			}
		})
	}
}

// However many events some objects have, what follows from them is in memory a batch at a time.
func TestHindsightByBatches(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	p := l.Processor(t, nil)
	like := life
	like.Objects = 150
	ids := l.Append(t, l.Source, sim.Generate(rand.New(rand.NewPCG(3, 9)), like).Events)
	applied.Apply(t, p, events.LiveRun, ids)
	known, err := events.RegisterSources(t.Context(), l.Operator, nil)
	if err != nil {
		t.Fatal(err)
	}
	batch, most, all := processor.DefaultSettings.Batch, 0, 0
	_, err = hindsight.Plan(t.Context(), hindsight.Options{Pool: l.Operator, Known: known, Sources: l.Sources, Rule: told(t)}, func(some []hindsight.Change) error {
		most, all = max(most, len(some)), all+len(some)
		return nil
	})
	if err != nil || most > batch || all <= batch {
		t.Errorf("%d changes, up to %d at once; %v", all, most, err)
	}
}

// What windows of the past would have had is not made up: it is refused.
func TestHindsightOfASchedule(t *testing.T) {
	t.Parallel()
	r := rule(t, "{{ object.id }}", 1)
	r.On = rules.OnSchedule
	if _, err := hindsight.Plan(t.Context(), hindsight.Options{Rule: r}, nil); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "rule r is on a schedule") {
		t.Error(err)
	}
}

// A key that names the object alone is new once for each object, and the one that it takes the place of is gone once.
func TestHindsightOfOneKeyForAnObject(t *testing.T) {
	t.Parallel()
	r := rule(t, "once:{{ object.id }}", 1)
	l, _ := lived(t, 7, r)
	objects := len(ledger(t, l, 0))
	found := look(t, l, rule(t, "another:{{ object.id }}", 1), time.Time{})
	if len(found[hindsight.New]) != objects || len(found[hindsight.Twice]) == 0 || len(found[hindsight.Gone]) != objects || len(found) != 3 {
		t.Errorf("of %d objects: %v", objects, found)
	}
	if found := look(t, l, r, time.Time{}); len(found) != 1 || len(found[hindsight.Had]) <= objects {
		t.Errorf("%v", found)
	}
}

// A source that is not configured here cannot be read, which is told; one that has sent nothing has changed nothing.
func TestHindsightOfUnknownSources(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	known, err := events.RegisterSources(t.Context(), l.Operator, nil)
	if err != nil {
		t.Fatal(err)
	}
	o := hindsight.Options{Pool: l.Operator, Known: known, Rule: rule(t, "{{ object.id }}", 1)}
	if _, err := hindsight.Plan(t.Context(), o, nil); err == nil {
		t.Error("a source that is not configured was read")
	}
	o.Rule.Source = "silent"
	if n, err := hindsight.Plan(t.Context(), o, nil); err != nil || len(n.Changes) > 0 {
		t.Errorf("%+v, %v", n, err)
	}
}
