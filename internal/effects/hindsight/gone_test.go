package hindsight_test

import (
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
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// when gives a rule a condition.
func when(t *testing.T, r *rules.Rule, text string) *rules.Rule {
	t.Helper()
	c, err := rules.Compile(text, rules.Scope{Change: true}, true)
	if err != nil {
		t.Fatal(err)
	}
	r.When = c
	return r
}

// gone are the effects that a rule would not have wanted.
func gone(t *testing.T, l *applied.Log, r *rules.Rule) (all []hindsight.Change) {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), l.Operator, nil)
	if err != nil {
		t.Fatal(err)
	}
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
