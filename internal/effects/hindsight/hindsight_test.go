package hindsight_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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
	must(t, err)
	r := rule(t, "{{ object.id }}", 1)
	r.Key, r.On = text, rules.OnEvent
	return r
}

// rule has a key of a template, about the objects of the simulated provider.
func rule(t *testing.T, key string, version int) *rules.Rule {
	t.Helper()
	text, err := rules.CompileText(key, rules.Scope{Change: true})
	must(t, err)
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
	must(t, err)
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
	must(t, err)
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
	must(t, err)
	o := hindsight.Options{Pool: l.Operator, Known: known, Rule: rule(t, "{{ object.id }}", 1)}
	if _, err := hindsight.Plan(t.Context(), o, nil); err == nil {
		t.Error("a source that is not configured was read")
	}
	o.Rule.Source = "silent"
	if n, err := hindsight.Plan(t.Context(), o, nil); err != nil || len(n.Changes) > 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

// must ends the test where there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// when gives a rule a condition.
func when(t *testing.T, r *rules.Rule, text string) *rules.Rule {
	t.Helper()
	c, err := rules.Compile(text, rules.Scope{Change: true}, true)
	must(t, err)
	r.When = c
	return r
}

// gone are the effects that a rule would not have wanted.
func gone(t *testing.T, l *applied.Log, r *rules.Rule) (all []hindsight.Change) {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), l.Operator, nil)
	must(t, err)
	if _, err := hindsight.Plan(t.Context(), hindsight.Options{Pool: l.Operator, Known: known, Sources: l.Sources, Rule: r}, func(some []hindsight.Change) error {
		for _, c := range some {
			if c.Ledger == hindsight.Gone {
				all = append(all, c)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// halves are lines about objects of even and of odd numbers.
func halves(lines []string) (even, odd []string) {
	for _, line := range lines {
		if digit := line[strings.LastIndexByte(line, ':')-1]; digit%2 == 0 {
			even = append(even, line)
		} else {
			odd = append(odd, line)
		}
	}
	return even, odd
}

// What a narrower condition would not want any more is told, of changes since then, whether the version was raised or not; what is wanted still is not.
func TestHindsightOfANarrowerRule(t *testing.T) {
	t.Parallel()
	const key = "{{ object.id }}:{{ event.id }}"
	l, since := lived(t, 3, rule(t, key, 1))
	for _, of := range []struct {
		from    time.Time
		version int
		stays   hindsight.Ledger
	}{{time.Time{}, 1, hindsight.Had}, {time.Time{}, 2, hindsight.Older}, {since, 2, hindsight.Older}} {
		first := int64(1)
		if !of.from.IsZero() {
			first = events.FirstID(of.from)
		}
		even, odd := halves(ledger(t, l, first))
		if len(even) == 0 || len(odd) == 0 {
			t.Fatalf("%d and %d effects: nothing was tried", len(even), len(odd))
		}
		narrow := when(t, rule(t, key, of.version), `object.id matches "[02468]$"`)
		if diff := cmp.Diff(map[hindsight.Ledger][]string{of.stays: even, hindsight.Gone: odd}, look(t, l, narrow, of.from)); diff != "" {
			t.Errorf("since %s, version %d (-want +found): %s", of.from, of.version, diff)
		}
	}
}

// A key that is another now is new, and the old one gone: once, under its newest version, without what a person had forced, what a schedule planned and what stands for a collision.
func TestHindsightOfAnotherKey(t *testing.T) {
	t.Parallel()
	l, since := lived(t, 4, rule(t, "{{ object.id }}:{{ event.id }}", 1))
	all, later := ledger(t, l, 0), ledger(t, l, events.FirstID(since))
	const entry = `INSERT INTO effects (key, rule_version, forced, rule, source, account, object_type, object_id, event_id, run, facts, state, destination, planned_at, updated_at)
		SELECT %s, %s, %s, %s, source, account, object_type, object_id, %s, run, facts, 'done', destination, planned_at, updated_at FROM effects WHERE rule_version = 1 AND forced = 0 AND rule = 'r' AND event_id <> 0 AND key NOT LIKE 'r:trouble:%%'`
	for _, as := range [][5]string{
		{"key", "2", "0", "rule", "event_id"},
		{"key", "3", "7", "rule", "event_id"},
		{"'window ' || key", "1", "0", "rule", "0"},
		{"'r:trouble:' || event_id || ':9'", "1", "0", "rule", "event_id"},
		{"'other ' || key", "1", "0", "'other'", "event_id"},
	} {
		l.DB.Exec(t, fmt.Sprintf(entry, as[0], as[1], as[2], as[3], as[4]))
	}
	found := look(t, l, rule(t, "v3 {{ object.id }}:{{ event.id }}", 3), time.Time{})
	if diff := cmp.Diff(all, found[hindsight.Gone]); diff != "" || len(found[hindsight.New]) != len(all) || len(found) != 2 {
		t.Errorf("%d are new (-planned +gone): %s", len(found[hindsight.New]), diff)
	}
	if diff := cmp.Diff(later, look(t, l, rule(t, "v3 {{ object.id }}:{{ event.id }}", 3), since)[hindsight.Gone]); diff != "" {
		t.Errorf("since %s (-planned +gone): %s", since, diff)
	}
	for _, c := range gone(t, l, rule(t, "v3 {{ object.id }}:{{ event.id }}", 3)) {
		if c.HasVersion != 2 || c.RuleVersion != 3 || c.State != effects.Done {
			t.Errorf("%+v", c)
		}
	}
}

// A key that several objects share is gone only where none of them would have it, however far apart they are read.
func TestHindsightOfASharedKey(t *testing.T) {
	t.Parallel()
	r := rule(t, "shared", 1)
	l, _ := lived(t, 5, r)
	by := strings.Fields(l.DB.Rows(t, `SELECT object_id || ' ' || event_id FROM effects`)[0])
	other := l.DB.Rows(t, `SELECT object_id FROM objects WHERE object_id <> '`+by[0]+`' ORDER BY object_id DESC LIMIT 1`)[0]
	if found := look(t, l, when(t, rule(t, "shared", 2), fmt.Sprintf("object.id == %q && old == nil", other)), time.Time{}); len(found[hindsight.Gone]) > 0 || len(found[hindsight.Older]) != 1 {
		t.Errorf("%v", found)
	}
	if found := look(t, l, when(t, rule(t, "shared", 2), "false"), time.Time{}); len(found) != 1 || !cmp.Equal(found[hindsight.Gone], []string{by[1] + " shared"}) {
		t.Errorf("%v", found)
	}
}

// Of what cannot be folded as it arrived nobody says that the rule would not have wanted it: what a replay applied, what is redacted, what is not in the log any more.
func TestHindsightOfWhatCannotBeTold(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	p := l.Processor(t, nil)
	old := rule(t, "{{ object.id }}:{{ event.id }}", 1)
	p.ReplaceRules(effects.NewRules([]*rules.Rule{old}))
	ids := slices.Sorted(slices.Values(l.Append(t, l.Source, sim.Generate(rand.New(rand.NewPCG(6, 9)), life).Events)))
	for i := range ids {
		applied.Apply(t, p, events.LiveRun, ids[i:i+1])
	}
	all := l.DB.Rows(t, `SELECT event_id::text FROM effects ORDER BY event_id`)
	l.DB.Exec(t, `UPDATE outcomes SET run = 9 WHERE event_id = `+all[1])
	l.DB.Exec(t, `UPDATE outcomes SET status = 'dead', version = NULL WHERE event_id = `+all[2])
	l.DB.Exec(t, `INSERT INTO redacted (event, run, at) VALUES (`+all[3]+`, 9, now())`)
	l.DB.Exec(t, `SET session_replication_role = replica; DELETE FROM events WHERE id = `+all[4]+`; RESET session_replication_role`)
	var told []string
	for _, c := range gone(t, l, when(t, rule(t, "{{ object.id }}:{{ event.id }}", 2), "false")) {
		told = append(told, strconv.FormatInt(c.Event, 10))
	}
	slices.Sort(told)
	if diff := cmp.Diff(slices.Concat(all[:1], all[5:]), told); diff != "" {
		t.Errorf("(-want +gone): %s", diff)
	}
}
