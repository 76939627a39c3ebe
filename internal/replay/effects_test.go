package replay_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// unapplied is a log whose events were not applied.
func unapplied(t *testing.T) *testBundle {
	t.Helper()
	l := applied.New(t)
	b := &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.Operator, source: l.Source}
	h := sim.Generate(rand.New(rand.NewPCG(41, 1)), sim.Options{Objects: 8, Changes: 8, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70, Twins: 20, Deletes: 15})
	b.ids = l.Append(t, l.Source, h.Events)
	return b
}

// ruled is a processor with a rule by which each change has an effect, for which a run needs an approval.
func (b *testBundle) ruled(t *testing.T, p provider.Provider) *processor.Processor {
	t.Helper()
	return b.keyed(t, p, "{{ object.id }}:{{ event.key }}")
}

// keyed is ruled with another key.
func (b *testBundle) keyed(t *testing.T, p provider.Provider, template string) *processor.Processor {
	t.Helper()
	key, err := rules.CompileText(template, rules.Scope{Change: true})
	if err != nil {
		t.Fatal(err)
	}
	proc := b.processor(t, p)
	proc.ReplaceRules(effects.NewRules([]*rules.Rule{{Name: "every", Source: applied.Name, Type: "thing", Key: key, Version: 1, Approval: rules.ApproveOnReplay, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}}))
	return proc
}

func (b *testBundle) startRuled(t *testing.T, id string, p provider.Provider) (stop func()) {
	t.Helper()
	return b.carryOut(t, id, &replay.Runner{Pool: b.pool, Processor: b.ruled(t, p), Chunk: 20})
}

func (b *testBundle) keys(t *testing.T) []string {
	t.Helper()
	return b.rows(t, `SELECT key FROM effects ORDER BY key`)
}

// allLive are the keys of what follows where all events are applied as they arrive.
func allLive(t *testing.T) []string {
	t.Helper()
	b := unapplied(t)
	applied.Apply(t, b.ruled(t, nil), events.LiveRun, b.ids)
	return b.keys(t)
}

// What a replay changes for the first time has effects in mode missing, by its run, and what was there has no second one; in mode state it has none, on purpose.
func TestWhatAReplayChangesHasEffects(t *testing.T) {
	t.Parallel()
	all := allLive(t)
	for mode, planned := range map[replay.Mode]bool{replay.State: false, "": false, replay.Missing: true, replay.Force: true} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			t.Parallel()
			b := unapplied(t)
			live := b.ruled(t, nil)
			applied.Apply(t, live, events.LiveRun, b.ids[:len(b.ids)/2])
			before := b.keys(t)
			if len(before) == 0 || len(before) == len(all) {
				t.Fatalf("%d of %d effects before: nothing is tried", len(before), len(all))
			}
			b.startRuled(t, "one", sim.Provider{})
			run := b.until(t, b.ask(t, replay.Order{Mode: mode}), done).Run
			want := before
			if planned {
				want = all
			}
			if diff := cmp.Diff(want, b.keys(t)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got := b.rows(t, `SELECT DISTINCT run || ' ' || state FROM effects ORDER BY 1`); planned != (len(got) == 2) || planned && got[1] != fmt.Sprintf("%d waiting", run) {
				t.Error(got)
			}
			applied.Apply(t, live, events.LiveRun, b.ids)
			if diff := cmp.Diff(want, b.keys(t)); diff != "" {
				t.Errorf("applied live afterwards (-want +got):\n%s", diff)
			}
		})
	}
}

// What failed in a replay and is tried again has effects where the replay was asked for them.
func TestARetryOfAReplayHasItsMode(t *testing.T) {
	t.Parallel()
	for mode, want := range map[replay.Mode][]string{replay.State: {}, replay.Missing: allLive(t)} {
		b := unapplied(t)
		b.log.BackOff = []time.Duration{time.Hour}
		stop := b.startRuled(t, "broken", failing{})
		run := b.until(t, b.ask(t, replay.Order{Mode: mode}), done).Run
		stop()
		b.startRuled(t, "mended", sim.Provider{})
		retried := b.until(t, b.askRetry(t, replay.Retry{Unfinished: processor.Unfinished{Run: run}}), done)
		if n := retried.Counts[replay.Processed]; n != int64(len(b.ids)) {
			t.Fatalf("mode %s: %d of %d events tried again", mode, n, len(b.ids))
		}
		if diff := cmp.Diff(want, b.keys(t), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("mode %s (-want +got):\n%s", mode, diff)
		}
		if got := b.rows(t, `SELECT DISTINCT run || ' ' || state FROM effects`); len(want) > 0 && !cmp.Equal(got, []string{fmt.Sprintf("%d waiting", run)}) {
			t.Errorf("mode %s: %v", mode, got)
		}
	}
}

// What a rule could not say of an event is not said after it was mended, by no replay; the object's next changes are seen by the mended rule. This is what people are told.
func TestAReplayDoesNotMendARule(t *testing.T) {
	t.Parallel()
	b := unapplied(t)
	half := len(b.ids) / 2
	applied.Apply(t, b.keyed(t, nil, "{{ object.id }}:{{ new.misspelt }}"), events.LiveRun, b.ids[:half])
	const states = `SELECT DISTINCT state FROM effects ORDER BY 1`
	if got := b.rows(t, states); !cmp.Equal(got, []string{"review"}) {
		t.Fatal(got)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'rejected'`)
	b.startRuled(t, "mended", sim.Provider{})
	for _, mode := range []replay.Mode{replay.Missing, replay.Force} {
		b.until(t, b.ask(t, replay.Order{Mode: mode, Filter: events.Filter{IDs: b.ids[:half]}}), done)
	}
	if got := b.rows(t, states); !cmp.Equal(got, []string{"rejected"}) {
		t.Errorf("after replays: %v", got)
	}
	applied.Apply(t, b.ruled(t, nil), events.LiveRun, b.ids)
	if got := b.rows(t, states); !cmp.Equal(got, []string{"planned", "rejected"}) {
		t.Errorf("after further changes: %v", got)
	}
}

// A rule about each event is asked in mode missing about those that had no outcome as they arrived, and never about others, also where it is new; in mode state about none.
func TestEventsOfAReplayHaveEffects(t *testing.T) {
	t.Parallel()
	about := aboutEvents(t)
	for mode, want := range map[replay.Mode]func(live, rest int) []string{
		replay.State: func(live, _ int) []string { return []string{fmt.Sprintf("live planned %d", live)} },
		replay.Missing: func(live, rest int) []string {
			return []string{fmt.Sprintf("live planned %d", live), fmt.Sprintf("run waiting %d", rest)}
		},
	} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			t.Parallel()
			b := unapplied(t)
			third := len(b.ids) / 3
			applied.Apply(t, b.processor(t, nil), events.LiveRun, b.ids[:third]) // there is no rule yet
			p := b.processor(t, nil)
			p.ReplaceRules(about)
			applied.Apply(t, p, events.LiveRun, b.ids[third:2*third])
			b.carryOut(t, "one", &replay.Runner{Pool: b.pool, Processor: p, Chunk: 20})
			for range 2 {
				b.until(t, b.ask(t, replay.Order{Mode: mode}), done)
			}
			got := b.rows(t, `SELECT CASE run WHEN 0 THEN 'live' ELSE 'run' END || ' ' || state || ' ' || count(*) FROM effects GROUP BY run, state ORDER BY run`)
			if diff := cmp.Diff(want(third, len(b.ids)-2*third), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// aboutEvents is a rule by which each event has an effect, for which a run needs an approval.
func aboutEvents(t *testing.T) *effects.Rules {
	t.Helper()
	key, err := rules.CompileText("{{ event.key }}:{{ event.id }}", rules.Scope{Event: true})
	if err != nil {
		t.Fatal(err)
	}
	return effects.NewRules([]*rules.Rule{{Name: "told", Source: applied.Name, Type: "thing", On: rules.OnEvent, Key: key, Version: 1, Approval: rules.ApproveOnReplay, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}})
}

// What a replay in mode state applied first has no effects of rules about events when it arrives later, nor in a replay that has some; what a rebuild made anew beside the mirror has them.
func TestEventsThatAReplayPassedOverHaveNoneLater(t *testing.T) {
	t.Parallel()
	about := aboutEvents(t)
	for name, c := range map[string]struct {
		live, rebuilt bool
	}{"it arrives later": {live: true}, "it is replayed in mode missing": {}, "it was rebuilt": {live: true, rebuilt: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := unapplied(t)
			p := b.processor(t, nil)
			p.ReplaceRules(about)
			b.carryOut(t, "one", &replay.Runner{Pool: b.pool, Processor: p, Chunk: 20})
			run := b.until(t, b.ask(t, replay.Order{Mode: replay.State}), done).Run
			want := 0
			if c.rebuilt {
				want = len(b.ids)
				b.db.Exec(t, `UPDATE runs SET job = 'rebuild' WHERE run = $1`, run)
			}
			if c.live {
				applied.Apply(t, p, events.LiveRun, b.ids)
			} else {
				b.until(t, b.ask(t, replay.Order{Mode: replay.Missing}), done)
			}
			if n := len(b.keys(t)); n != want {
				t.Errorf("%d of %d events have effects, want %d", n, len(b.ids), want)
			}
		})
	}
}
