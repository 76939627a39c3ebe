package backtest_test

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

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/backtest"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// defaultLife describes the objects of a test, with duplicates, ambiguities and deletes.
var defaultLife = sim.Options{Objects: 25, Changes: 10, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60,
	Partial: 5, DuplicateEvents: 20, MaxDelay: 5_000_000, Deletes: 10, FinalDeletes: true}

// eachEventRule is a rule with one effect for each event.
func eachEventRule(t *testing.T) *rules.Rule {
	t.Helper()
	text, err := rules.CompileText("{{ object.id }}:{{ event.id }}", rules.Scope{Event: true})
	must(t, err)
	r := rule(t, "{{ object.id }}", 1)
	r.Key, r.On = text, rules.OnEvent
	return r
}

// rule returns a rule with a key template, about the objects of the simulated provider.
func rule(t *testing.T, key string, version int) *rules.Rule {
	t.Helper()
	text, err := rules.CompileText(key, rules.Scope{Change: true})
	must(t, err)
	return &rules.Rule{Name: "r", Source: applied.SourceName, Type: "thing", Key: text, Version: version,
		Approval: rules.ApproveNone, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}
}

// newLog returns a log whose events were applied under a rule, one after the other, and the time at
// which about half of them were stored.
func newLog(t *testing.T, seed uint64, r *rules.Rule) (l *applied.Log, half time.Time) {
	t.Helper()
	l = applied.New(t)
	p := l.Applier(t, nil)
	p.ReplaceRules(effects.NewRules([]*rules.Rule{r}))
	all := sim.Generate(rand.New(rand.NewPCG(seed, 9)), defaultLife).Events
	var last time.Time
	for _, some := range [][]sim.Event{all[:len(all)/2], all[len(all)/2:]} {
		ids := slices.Sorted(slices.Values(l.Append(t, l.Source, some)))
		if half = events.Time(ids[0]); !half.After(last) {
			t.Fatal("the second half was stored with the first")
		}
		for i := range ids { // concurrent events are applied in any order
			applied.Apply(t, p, events.LiveRun, ids[i:i+1])
		}
		last = events.Time(ids[len(ids)-1])
	}
	return l, half
}

// options are those of a backtest of a rule.
func options(t *testing.T, l *applied.Log, r *rules.Rule) backtest.Options {
	t.Helper()
	registered, err := events.RegisterSources(t.Context(), l.OperatorPool, nil)
	must(t, err)
	return backtest.Options{Pool: l.OperatorPool, RegisteredSources: registered, Sources: l.Sources, Rule: r}
}

// runBacktest runs a backtest in small batches or in large ones. It returns "event key" by what the
// ledger has, in order.
func runBacktest(t *testing.T, l *applied.Log, r *rules.Rule, since time.Time) found {
	t.Helper()
	all := found{}
	o := options(t, l, r)
	o.Since, o.ObjectsPerBatch, o.EventsPerRead = since, rand.IntN(4), rand.IntN(4)
	counts, err := backtest.Run(t.Context(), o, func(some []backtest.Change) error {
		for _, c := range some {
			all[c.Ledger] = append(all[c.Ledger], fmt.Sprintf("%d %s", c.Event, c.Key))
			if c.Failure != "" || c.Source != applied.SourceName || c.ObjectType != "thing" || c.EventKey == "" ||
				(c.Effect != 0) != (c.Ledger == backtest.Existing || c.Ledger == backtest.OtherVersion ||
					c.Ledger == backtest.Gone) {
				t.Errorf("%+v", c)
			}
		}
		return nil
	})
	if err != nil || counts.Anomalies > 0 {
		t.Fatalf("%+v, %v", counts, err)
	}
	for what, lines := range all {
		if counts.Changes[what] != int64(len(lines)) {
			t.Errorf("%d are %s, and %d were visited", counts.Changes[what], what, len(lines))
		}
		slices.Sort(lines)
	}
	return all
}

// found are effects as "event key", by what the ledger has.
type found = map[backtest.Ledger][]string

// wantFound compares the result of a backtest.
func wantFound(t *testing.T, what string, l *applied.Log, r *rules.Rule, since time.Time, want found) {
	t.Helper()
	testkit.Equal(t, what, want, runBacktest(t, l, r, since))
}

// ledger returns the effects that were planned, for events from an id on.
func ledger(t *testing.T, l *applied.Log, from int64) []string {
	t.Helper()
	return l.DB.QueryStrings(t, fmt.Sprintf(`SELECT event_id || ' ' || key FROM effects WHERE event_id >= %d
		ORDER BY (event_id || ' ' || key) COLLATE "C"`, from))
}

// A backtest of the same rule finds exactly the effects that were planned live. With a start time
// it still reduces earlier events.
func TestRun_sameRule_findsThePlannedEffects(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rule(t, "{{ object.id }}:{{ event.id }}", 1)
			if seed == 2 {
				r = eachEventRule(t)
			}
			l, since := newLog(t, seed, r)
			want := ledger(t, l, 0)
			if len(want) < 20 {
				t.Fatalf("%d effects: the test is empty", len(want))
			}
			wantFound(t, "the same rule", l, r, time.Time{}, found{backtest.Existing: want})
			later := ledger(t, l, events.FirstID(since))
			if len(later) == 0 || len(later) == len(want) {
				t.Fatalf("%d of %d effects since %s: the test is empty", len(later), len(want), since)
			}
			wantFound(t, "since a start time", l, r, since, found{backtest.Existing: later})
			newer := *r
			newer.Version = 2
			wantFound(t, "another version", l, &newer, time.Time{}, found{backtest.OtherVersion: want})
			l.DB.Exec(t, `INSERT INTO effects (key, rule_version, forced, rule, source, account, object_type, object_id,
				event_id, run, template_data, state, destination, planned_at, updated_at)
				SELECT key, 2, 7, rule, source, account, object_type, object_id, event_id, 7, template_data, 'done',
					destination, planned_at, updated_at FROM effects`)
			wantFound(t, "a version that only forced effects have", l, &newer, time.Time{},
				found{backtest.OtherVersion: want})
			l.DB.Exec(t, `DELETE FROM effects`)
			wantFound(t, "an empty ledger", l, r, time.Time{}, found{backtest.New: want})
			wantFound(t, "a start time in the future", l, r, time.Now().Add(time.Hour), found{})
		})
	}
}

// However many events some objects have, only one batch of changes is in memory.
func TestRun_manyEvents_useBoundedBatches(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	p := l.Applier(t, nil)
	like := defaultLife
	like.Objects = 150
	ids := l.Append(t, l.Source, sim.Generate(rand.New(rand.NewPCG(3, 9)), like).Events)
	applied.Apply(t, p, events.LiveRun, ids)
	batch, most, all := apply.DefaultSettings.Batch, 0, 0
	_, err := backtest.Run(t.Context(), options(t, l, eachEventRule(t)), func(some []backtest.Change) error {
		most, all = max(most, len(some)), all+len(some)
		return nil
	})
	if err != nil || most > batch || all <= batch {
		t.Errorf("%d changes, up to %d at once; %v", all, most, err)
	}
}

// Past windows cannot be evaluated, so that a rule on a schedule is rejected.
func TestRun_ruleOnSchedule_isRejected(t *testing.T) {
	t.Parallel()
	r := rule(t, "{{ object.id }}", 1)
	r.On = rules.OnSchedule
	if _, err := backtest.Run(t.Context(), backtest.Options{Rule: r}, nil); !errors.Is(err, events.ErrInvalid) ||
		!strings.Contains(err.Error(), "rule r is on a schedule") {
		t.Error(err)
	}
}

// A key that contains only the object is new once for each object. The effect of the old key is
// reported once.
func TestRun_keyPerObject_isNewOnce(t *testing.T) {
	t.Parallel()
	r := rule(t, "once:{{ object.id }}", 1)
	l, _ := newLog(t, 7, r)
	objects := len(ledger(t, l, 0))
	found := runBacktest(t, l, rule(t, "another:{{ object.id }}", 1), time.Time{})
	if len(found[backtest.New]) != objects || len(found[backtest.RepeatedKey]) == 0 ||
		len(found[backtest.Gone]) != objects || len(found) != 3 {
		t.Errorf("of %d objects: %v", objects, found)
	}
	if found := runBacktest(t, l, r, time.Time{}); len(found) != 1 || len(found[backtest.Existing]) <= objects {
		t.Errorf("%v", found)
	}
}

// A source that is not configured here cannot be read, and the backtest fails. A source without
// events has no changes.
func TestRun_unconfiguredSource_isRejected(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	o := options(t, l, rule(t, "{{ object.id }}", 1))
	o.Sources = nil
	if _, err := backtest.Run(t.Context(), o, nil); err == nil {
		t.Error("a source that is not configured was read")
	}
	o.Rule.Source = "silent"
	if n, err := backtest.Run(t.Context(), o, nil); err != nil || len(n.Changes) > 0 {
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

// withCondition sets the condition of a rule.
func withCondition(t *testing.T, r *rules.Rule, text string) *rules.Rule {
	t.Helper()
	c, err := rules.Compile(text, rules.Scope{Change: true}, true)
	must(t, err)
	r.When = c
	return r
}

// notWanted returns the effects that a rule does not want.
func notWanted(t *testing.T, l *applied.Log, r *rules.Rule) (all []backtest.Change) {
	t.Helper()
	_, err := backtest.Run(t.Context(), options(t, l, r), func(some []backtest.Change) error {
		all = append(all, slices.DeleteFunc(slices.Clone(some),
			func(c backtest.Change) bool { return c.Ledger != backtest.Gone })...)
		return nil
	})
	must(t, err)
	return all
}

// splitByParity splits lines by even and odd object numbers.
func splitByParity(lines []string) (even, odd []string) {
	for _, line := range lines {
		if digit := line[strings.LastIndexByte(line, ':')-1]; digit%2 == 0 {
			even = append(even, line)
		} else {
			odd = append(odd, line)
		}
	}
	return even, odd
}

// Effects that a narrower condition does not want are reported, for changes since the start time,
// whether the version was raised or not. Effects that it wants are not.
func TestRun_narrowerRule_listsUnwantedEffects(t *testing.T) {
	t.Parallel()
	const key = "{{ object.id }}:{{ event.id }}"
	l, since := newLog(t, 3, rule(t, key, 1))
	for _, of := range []struct {
		from    time.Time
		version int
		stays   backtest.Ledger
	}{{time.Time{}, 1, backtest.Existing}, {time.Time{}, 2, backtest.OtherVersion}, {since, 2, backtest.OtherVersion}} {
		first := int64(1)
		if !of.from.IsZero() {
			first = events.FirstID(of.from)
		}
		even, odd := splitByParity(ledger(t, l, first))
		if len(even) == 0 || len(odd) == 0 {
			t.Fatalf("%d and %d effects: the test is empty", len(even), len(odd))
		}
		narrow := withCondition(t, rule(t, key, of.version), `object.id matches "[02468]$"`)
		wantFound(t, fmt.Sprintf("since %s, version %d", of.from, of.version), l, narrow, of.from,
			found{of.stays: even, backtest.Gone: odd})
	}
}

// A changed key is new, and the effect of the old key is reported once, under its newest version.
// Forced effects, effects of schedules and collisions are not reported.
func TestRun_otherKey_listsOldEffectsOnce(t *testing.T) {
	t.Parallel()
	l, since := newLog(t, 4, rule(t, "{{ object.id }}:{{ event.id }}", 1))
	all, later := ledger(t, l, 0), ledger(t, l, events.FirstID(since))
	const entry = `INSERT INTO effects (key, rule_version, forced, rule, source, account, object_type, object_id,
		event_id, run, template_data, state, destination, planned_at, updated_at)
		SELECT %s, %s, %s, %s, source, account, object_type, object_id, %s, run, template_data, 'done', destination,
			planned_at, updated_at FROM effects WHERE rule_version = 1 AND forced = 0 AND rule = 'r' AND event_id <> 0
			AND key NOT LIKE 'r:trouble:%%'`
	for _, as := range [][5]string{
		{"key", "2", "0", "rule", "event_id"},
		{"key", "3", "7", "rule", "event_id"},
		{"'window ' || key", "1", "0", "rule", "0"},
		{"'r:trouble:' || event_id || ':9'", "1", "0", "rule", "event_id"},
		{"'other ' || key", "1", "0", "'other'", "event_id"},
	} {
		l.DB.Exec(t, fmt.Sprintf(entry, as[0], as[1], as[2], as[3], as[4]))
	}
	changed := rule(t, "v3 {{ object.id }}:{{ event.id }}", 3)
	got := runBacktest(t, l, changed, time.Time{})
	testkit.Equal(t, "not wanted", all, got[backtest.Gone])
	if len(got[backtest.New]) != len(all) || len(got) != 2 {
		t.Errorf("%d are new: %v", len(got[backtest.New]), got)
	}
	testkit.Equal(t, "not wanted since a start time", later, runBacktest(t, l, changed, since)[backtest.Gone])
	for _, c := range notWanted(t, l, changed) {
		if c.LedgerVersion != 2 || c.RuleVersion != 3 || c.State != effects.Done {
			t.Errorf("%+v", c)
		}
	}
}

// A key that several objects share is reported only if none of them wants it, however far apart
// they are read.
func TestRun_sharedKey_isWantedByAnyObject(t *testing.T) {
	t.Parallel()
	r := rule(t, "shared", 1)
	l, _ := newLog(t, 5, r)
	by := strings.Fields(l.DB.QueryStrings(t, `SELECT object_id || ' ' || event_id FROM effects`)[0])
	other := l.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE object_id <> '`+by[0]+
		`' ORDER BY object_id DESC LIMIT 1`)[0]
	if found := runBacktest(t, l, withCondition(t, rule(t, "shared", 2), fmt.Sprintf("object.id == %q && old == nil",
		other)), time.Time{}); len(found[backtest.Gone]) > 0 || len(found[backtest.OtherVersion]) != 1 {
		t.Errorf("%v", found)
	}
	if found := runBacktest(t, l, withCondition(t, rule(t, "shared", 2), "false"), time.Time{}); len(found) != 1 ||
		!cmp.Equal(found[backtest.Gone], []string{by[1] + " shared"}) {
		t.Errorf("%v", found)
	}
}

// If the original application of an event cannot be repeated, its effects are not reported: events
// that a replay applied, redacted events, and events that are not in the log any more.
func TestRun_unknownHistory_isNotReported(t *testing.T) {
	t.Parallel()
	l, _ := newLog(t, 6, rule(t, "{{ object.id }}:{{ event.id }}", 1))
	all := l.DB.QueryStrings(t, `SELECT event_id::text FROM effects ORDER BY event_id`)
	l.DB.Exec(t, `UPDATE outcomes SET run = 9 WHERE event_id = `+all[1])
	l.DB.Exec(t, `UPDATE outcomes SET status = 'dead', version = NULL WHERE event_id = `+all[2])
	l.DB.Exec(t, `INSERT INTO redacted_events (event, run, at) VALUES (`+all[3]+`, 9, now())`)
	l.DB.Exec(t, `SET session_replication_role = replica; DELETE FROM events WHERE id = `+all[4]+
		`; RESET session_replication_role`)
	var reported []string
	for _, c := range notWanted(t, l, withCondition(t, rule(t, "{{ object.id }}:{{ event.id }}", 2), "false")) {
		reported = append(reported, strconv.FormatInt(c.Event, 10))
	}
	slices.Sort(reported)
	testkit.Equal(t, "not wanted", slices.Concat(all[:1], all[5:]), reported)
}
