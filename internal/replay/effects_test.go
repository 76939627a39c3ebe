package replay_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// logNotApplied is a log whose events were not applied.
func logNotApplied(t *testing.T) *testBundle {
	t.Helper()
	b := newLog(t)
	h := sim.Generate(rand.New(rand.NewPCG(41, 1)), sim.Options{Objects: 8, Changes: 8, Contents: 4, Unit: 3, Gap: 4,
		ChangeSets: 70, DuplicateEvents: 20, Deletes: 15})
	b.ids = b.log.Append(t, b.source, h.Events)
	return b
}

// applierWithRule is a processor with a rule that plans an effect for each change. Effects of a
// run need an approval.
func (b *testBundle) applierWithRule(t *testing.T, p provider.Provider) *apply.Applier {
	t.Helper()
	return b.applierWithKey(t, p, "{{ object.id }}:{{ event.key }}")
}

// applierWithKey is applierWithRule with another key.
func (b *testBundle) applierWithKey(t *testing.T, p provider.Provider, template string) *apply.Applier {
	t.Helper()
	proc := b.applier(t, p)
	proc.ReplaceRules(effects.NewRules([]*rules.Rule{ruleWithKey(t, template, rules.Scope{Change: true})}))
	return proc
}

// ruleWithKey is a rule about changes or events. Its effects of a run need an approval.
func ruleWithKey(t *testing.T, template string, about rules.Scope) *rules.Rule {
	t.Helper()
	key, err := rules.CompileText(template, about)
	must(t, err)
	return &rules.Rule{Name: "every", Source: applied.SourceName, Type: "thing", Key: key, Version: 1,
		Approval: rules.ApproveOnReplay, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}
}

func (b *testBundle) startWithRule(t *testing.T, id string, p provider.Provider) (stop func()) {
	t.Helper()
	return b.startRunner(t, id, &replay.Runner{Pool: b.pool, Applier: b.applierWithRule(t, p), Chunk: 20})
}

func (b *testBundle) effectKeys(t *testing.T) []string {
	t.Helper()
	return b.rows(t, `SELECT key FROM effects ORDER BY key`)
}

// keysAppliedLive returns the keys of the effects if all events are applied live.
func keysAppliedLive(t *testing.T) []string {
	t.Helper()
	b := logNotApplied(t)
	applied.Apply(t, b.applierWithRule(t, nil), events.LiveRun, b.ids)
	return b.effectKeys(t)
}

// In mode missing, changes that a replay makes for the first time have effects, planned by its run.
// Earlier effects are not repeated. In mode state there are none.
func TestReplay_newChanges_planEffectsByMode(t *testing.T) {
	t.Parallel()
	all := keysAppliedLive(t)
	for mode, planned := range map[replay.Mode]bool{replay.State: false, "": false, replay.Missing: true,
		replay.Force: true} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			t.Parallel()
			b := logNotApplied(t)
			live := b.applierWithRule(t, nil)
			applied.Apply(t, live, events.LiveRun, b.ids[:len(b.ids)/2])
			before := b.effectKeys(t)
			if len(before) == 0 || len(before) == len(all) {
				t.Fatalf("%d of %d effects before: the test tries nothing", len(before), len(all))
			}
			b.startWithRule(t, "one", sim.Provider{})
			run := b.replay(t, replay.Params{Mode: mode}).ID
			want := before
			if planned {
				want = all
			}
			equal(t, "-want +got", want, b.effectKeys(t))
			got := b.rows(t, `SELECT DISTINCT run || ' ' || state FROM effects ORDER BY 1`)
			if planned != (len(got) == 2) || planned && got[1] != fmt.Sprintf("%d awaiting_approval", run) {
				t.Error(got)
			}
			applied.Apply(t, live, events.LiveRun, b.ids)
			equal(t, "applied live afterwards", want, b.effectKeys(t))
		})
	}
}

// Events that failed in a replay and are retried have effects if the mode of the replay has
// effects.
func TestRetry_ofReplay_hasItsMode(t *testing.T) {
	t.Parallel()
	for mode, want := range map[replay.Mode][]string{replay.State: {}, replay.Missing: keysAppliedLive(t)} {
		b := logNotApplied(t)
		b.log.Settings.BackOff = []time.Duration{time.Hour}
		stop := b.startWithRule(t, "broken", failingProvider{})
		run := b.replay(t, replay.Params{Mode: mode}).ID
		stop()
		b.startWithRule(t, "repaired", sim.Provider{})
		retried := b.retry(t, apply.Unfinished{Run: run})
		if n := retried.Counts[replay.Processed]; n != int64(len(b.ids)) {
			t.Fatalf("mode %s: %d of %d events retried", mode, n, len(b.ids))
		}
		if diff := cmp.Diff(want, b.effectKeys(t), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("mode %s (-want +got):\n%s", mode, diff)
		}
		if got := b.rows(t, `SELECT DISTINCT run || ' ' || state FROM effects`); len(want) > 0 &&
			!cmp.Equal(got, []string{fmt.Sprintf("%d awaiting_approval", run)}) {
			t.Errorf("mode %s: %v", mode, got)
		}
	}
}

// If a rule failed for an event, no replay plans its effect after the rule is corrected. The
// corrected rule sees the object's next changes. The documentation says so.
func TestReplay_ruleFailedBefore_plansNothingNew(t *testing.T) {
	t.Parallel()
	b := logNotApplied(t)
	half := len(b.ids) / 2
	applied.Apply(t, b.applierWithKey(t, nil, "{{ object.id }}:{{ new.misspelt }}"), events.LiveRun, b.ids[:half])
	const states = `SELECT DISTINCT state FROM effects ORDER BY 1`
	equal(t, "states", []string{"needs_review"}, b.rows(t, states))
	b.db.Exec(t, `UPDATE effects SET state = 'rejected'`)
	b.startWithRule(t, "repaired", sim.Provider{})
	for _, mode := range []replay.Mode{replay.Missing, replay.Force} {
		b.replay(t, replay.Params{Mode: mode, Filter: events.Filter{IDs: b.ids[:half]}})
	}
	equal(t, "states after replays", []string{"rejected"}, b.rows(t, states))
	applied.Apply(t, b.applierWithRule(t, nil), events.LiveRun, b.ids)
	equal(t, "states after further changes", []string{"planned", "rejected"}, b.rows(t, states))
}

// In mode missing, a rule about events is evaluated only for events that had no live outcome, even
// if the rule is new. In mode state it is evaluated for none.
func TestReplay_rulesOnEvents_planByMode(t *testing.T) {
	t.Parallel()
	about := rulesOnEvents(t)
	for mode, want := range map[replay.Mode]func(live, rest int) []string{
		replay.State: func(live, _ int) []string { return []string{fmt.Sprintf("live planned %d", live)} },
		replay.Missing: func(live, rest int) []string {
			return []string{fmt.Sprintf("live planned %d", live), fmt.Sprintf("run awaiting_approval %d", rest)}
		},
	} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			t.Parallel()
			b := logNotApplied(t)
			third := len(b.ids) / 3
			applied.Apply(t, b.applier(t, nil), events.LiveRun, b.ids[:third]) // there is no rule yet
			p := b.applier(t, nil)
			p.ReplaceRules(about)
			applied.Apply(t, p, events.LiveRun, b.ids[third:2*third])
			b.startRunner(t, "one", &replay.Runner{Pool: b.pool, Applier: p, Chunk: 20})
			for range 2 {
				b.replay(t, replay.Params{Mode: mode})
			}
			got := b.rows(t, `SELECT CASE run WHEN 0 THEN 'live' ELSE 'run' END || ' ' || state || ' ' || count(*)
				FROM effects GROUP BY run, state ORDER BY run`)
			equal(t, "(-want +got)", want(third, len(b.ids)-2*third), got)
		})
	}
}

// rulesOnEvents has a rule that plans an effect for each event. Effects of a run need an approval.
func rulesOnEvents(t *testing.T) *effects.Rules {
	t.Helper()
	rule := ruleWithKey(t, "{{ event.key }}:{{ event.id }}", rules.Scope{Event: true})
	rule.On = rules.OnEvent
	return effects.NewRules([]*rules.Rule{rule})
}

// Events that a replay in mode state applied first have no effects of rules about events later,
// neither live nor by a replay with effects. Events that a rebuild has applied have them.
func TestReplay_modeState_planNoEffectsLater(t *testing.T) {
	t.Parallel()
	about := rulesOnEvents(t)
	for name, c := range map[string]struct {
		live, rebuilt bool
	}{"it arrives later": {live: true}, "it is replayed in mode missing": {},
		"it was rebuilt": {live: true, rebuilt: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := logNotApplied(t)
			p := b.applier(t, nil)
			p.ReplaceRules(about)
			b.startRunner(t, "one", &replay.Runner{Pool: b.pool, Applier: p, Chunk: 20})
			run := b.replay(t, replay.Params{Mode: replay.State}).ID
			want := 0
			if c.rebuilt {
				want = len(b.ids)
				b.db.Exec(t, `UPDATE runs SET job = 'rebuild' WHERE run = $1`, run)
			}
			if c.live {
				applied.Apply(t, p, events.LiveRun, b.ids)
			} else {
				b.replay(t, replay.Params{Mode: replay.Missing})
			}
			if n := len(b.effectKeys(t)); n != want {
				t.Errorf("%d of %d events have effects, want %d", n, len(b.ids), want)
			}
		})
	}
}

// logWithDoneEffects is a log whose events were applied, and whose effects are done.
func logWithDoneEffects(t *testing.T) *testBundle {
	t.Helper()
	b := logNotApplied(t)
	applied.Apply(t, b.applierWithRule(t, nil), events.LiveRun, b.ids)
	b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 min'`)
	return b
}

// With force, the effects of the selected events happen again with the same data and after an
// approval, once for each run. No other mode repeats them.
func TestReplay_modeForce_plansEffectsAgain(t *testing.T) {
	t.Parallel()
	b := logWithDoneEffects(t)
	half := events.Filter{IDs: b.ids[:len(b.ids)/2]}
	want := b.rows(t, `SELECT concat_ws(' ', key, rule_version, event_id, template_data, destination) FROM effects
		WHERE event_id = ANY($1) ORDER BY key`, half.IDs)
	all := len(b.effectKeys(t))
	if len(want) == 0 || len(want) == all {
		t.Fatalf("%d of %d effects: the test tries nothing", len(want), all)
	}
	params := &replay.Params{Mode: replay.Force, Filter: half}
	if p, err := replay.PreviewForce(t.Context(), b.operator, params, false); err != nil || !p.Complete ||
		p.Effects != int64(len(want)) {
		t.Errorf("%+v, %v", p, err)
	}
	b.startWithRule(t, "one", sim.Provider{})
	for _, mode := range []replay.Mode{replay.State, replay.Missing} {
		b.replay(t, replay.Params{Mode: mode, Filter: half})
	}
	for range 2 {
		run := b.replay(t, *params)
		equal(t, "-want +got", want,
			b.rows(t, `SELECT concat_ws(' ', key, rule_version, event_id, template_data, destination) FROM effects
				WHERE forced = $1 AND run = $1 AND state = 'awaiting_approval' ORDER BY key`, run.ID))
		if run.Counts[replay.EffectsReplanned] != int64(len(want)) || run.Counts[replay.EffectsNotReplanned] != 0 {
			t.Errorf("%v", run.Counts)
		}
	}
	if n := len(b.effectKeys(t)); n != all+2*len(want) {
		t.Errorf("%d effects, want %d", n, all+2*len(want))
	}
}

// A run that is killed between planning and its checkpoint plans no effect twice and counts each
// once, even if some were done meanwhile.
func TestReplay_modeForceKilled_plansEffectsOnce(t *testing.T) {
	t.Parallel()
	b := logWithDoneEffects(t)
	all := len(b.effectKeys(t))
	run := b.request(t, replay.Params{Mode: replay.Force})
	for killed := range 2 {
		h := b.takeBriefly(t, replay.Job)
		execute(t, &replay.Runner{Pool: b.pool, Applier: b.applierWithRule(t, nil), Chunk: 7}, h)
		r, err := runs.Show(t.Context(), b.operator, run)
		if err != nil || r.Counts[replay.EffectsReplanned] != int64(all) {
			t.Errorf("%d: %v, %v; want %d", killed, r.Counts, err, all)
		}
		b.db.Exec(t, `UPDATE checkpoints SET cursor = 0, lease_until = clock_now() - interval '1 s' WHERE run = $1`,
			run)
		b.db.Exec(t, `UPDATE runs SET counts = '{}', bound = NULL WHERE run = $1`, run)
		b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL WHERE forced = $1 AND event_id % 2 = 0`, run)
	}
	equal(t, "effects of each kind", []string{fmt.Sprint(all), fmt.Sprint(all)},
		b.rows(t, `SELECT count(*)::text FROM effects GROUP BY forced ORDER BY forced`))
}

// While a run plans effects of superseding rules again, other transactions cannot change the
// objects. A later change then supersedes the repeated effect.
func TestReplay_modeForce_blocksChanges(t *testing.T) {
	t.Parallel()
	b := logNotApplied(t)
	p, rule := b.applier(t, nil), ruleWithKey(t, "{{ object.id }}:{{ event.key }}", rules.Scope{Change: true})
	rule.Approval, rule.Supersede = rules.ApproveNone, true
	p.ReplaceRules(effects.NewRules([]*rules.Rule{rule}))
	applied.Apply(t, p, events.LiveRun, b.ids)
	b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 min'
		WHERE state = 'planned'`)
	var of versioning.Key
	var objects int64
	must(t, b.db.Pool.QueryRow(t.Context(),
		`SELECT source, account, object_type, object_id, count(*) OVER () FROM effects WHERE state = 'done'`).Scan(
		&of.Source, &of.Account, &of.Type, &of.ID, &objects))
	run := b.request(t, replay.Params{Mode: replay.Force})
	h := b.awaitRunFor(t, replay.Job, time.Minute)
	// the run waits where it inserts
	writing := testkit.OpenTx(t, b.db.Pool, `LOCK TABLE effects IN EXCLUSIVE MODE`)
	executed := make(chan error, 1)
	go func() {
		_, err := (&replay.Runner{Pool: b.pool, Applier: p, Chunk: replay.DefaultChunk}).Execute(t.Context(), h,
			slog.New(slog.DiscardHandler))
		executed <- err
	}()
	b.log.AwaitAtLeast(t, 1, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'effects'::regclass`)
	err := postgres.InTx(t.Context(), b.pool, "change", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1ms'`); err != nil {
			return err
		}
		return apply.LockObjects(ctx, tx, []versioning.Key{of})
	})
	if postgres.Code(err) != "55P03" {
		t.Errorf("an object was changed meanwhile: %v", err)
	}
	must(t, writing.Commit(t.Context()))
	must(t, <-executed)
	if r, err := runs.Show(t.Context(), b.operator, run); err != nil || r.Counts[replay.EffectsReplanned] != objects ||
		objects < 2 {
		t.Errorf("%v, %v; want %d", r.Counts, err, objects)
	}
}
