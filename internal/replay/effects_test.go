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
	l := applied.New(t)
	b := &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.OperatorPool, source: l.Source}
	h := sim.Generate(rand.New(rand.NewPCG(41, 1)), sim.Options{Objects: 8, Changes: 8, Contents: 4, Unit: 3, Gap: 4,
		ChangeSets: 70, DuplicateEvents: 20, Deletes: 15})
	b.ids = l.Append(t, l.Source, h.Events)
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
	key, err := rules.CompileText(template, rules.Scope{Change: true})
	must(t, err)
	proc := b.applier(t, p)
	proc.ReplaceRules(effects.NewRules([]*rules.Rule{{Name: "every", Source: applied.SourceName, Type: "thing",
		Key: key, Version: 1, Approval: rules.ApproveOnReplay,
		Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}}))
	return proc
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
			run := b.awaitRun(t, b.request(t, replay.Params{Mode: mode}), done).ID
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
		run := b.awaitRun(t, b.request(t, replay.Params{Mode: mode}), done).ID
		stop()
		b.startWithRule(t, "repaired", sim.Provider{})
		retried := b.awaitRun(t, b.requestRetry(t, replay.RetryParams{Unfinished: apply.Unfinished{Run: run}}), done)
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
	if got := b.rows(t, states); !cmp.Equal(got, []string{"needs_review"}) {
		t.Fatal(got)
	}
	b.db.Exec(t, `UPDATE effects SET state = 'rejected'`)
	b.startWithRule(t, "repaired", sim.Provider{})
	for _, mode := range []replay.Mode{replay.Missing, replay.Force} {
		b.awaitRun(t, b.request(t, replay.Params{Mode: mode, Filter: events.Filter{IDs: b.ids[:half]}}), done)
	}
	if got := b.rows(t, states); !cmp.Equal(got, []string{"rejected"}) {
		t.Errorf("after replays: %v", got)
	}
	applied.Apply(t, b.applierWithRule(t, nil), events.LiveRun, b.ids)
	if got := b.rows(t, states); !cmp.Equal(got, []string{"planned", "rejected"}) {
		t.Errorf("after further changes: %v", got)
	}
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
				b.awaitRun(t, b.request(t, replay.Params{Mode: mode}), done)
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
	key, err := rules.CompileText("{{ event.key }}:{{ event.id }}", rules.Scope{Event: true})
	must(t, err)
	return effects.NewRules([]*rules.Rule{{Name: "told", Source: applied.SourceName, Type: "thing", On: rules.OnEvent,
		Key: key, Version: 1, Approval: rules.ApproveOnReplay,
		Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}})
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
			run := b.awaitRun(t, b.request(t, replay.Params{Mode: replay.State}), done).ID
			want := 0
			if c.rebuilt {
				want = len(b.ids)
				b.db.Exec(t, `UPDATE runs SET job = 'rebuild' WHERE run = $1`, run)
			}
			if c.live {
				applied.Apply(t, p, events.LiveRun, b.ids)
			} else {
				b.awaitRun(t, b.request(t, replay.Params{Mode: replay.Missing}), done)
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
		b.awaitRun(t, b.request(t, replay.Params{Mode: mode, Filter: half}), done)
	}
	for range 2 {
		run := b.awaitRun(t, b.request(t, *params), done)
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
		runner := &replay.Runner{Pool: b.pool, Applier: b.applierWithRule(t, nil), Chunk: 7}
		if status, err := runner.Execute(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil ||
			status != runs.Running {
			t.Fatal(status, err)
		}
		r, err := runs.Show(t.Context(), b.operator, run)
		if err != nil || r.Counts[replay.EffectsReplanned] != int64(all) {
			t.Errorf("%d: %v, %v; want %d", killed, r.Counts, err, all)
		}
		b.db.Exec(t, `UPDATE checkpoints SET cursor = 0, lease_until = clock_now() - interval '1 s' WHERE run = $1`,
			run)
		b.db.Exec(t, `UPDATE runs SET counts = '{}', bound = NULL WHERE run = $1`, run)
		b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL WHERE forced = $1 AND event_id % 2 = 0`, run)
	}
	if got := b.rows(t, `SELECT count(*)::text FROM effects GROUP BY forced ORDER BY forced`); !cmp.Equal(got,
		[]string{fmt.Sprint(all), fmt.Sprint(all)}) {
		t.Errorf("%v, want %d of each", got, all)
	}
}

// While a run plans effects of superseding rules again, other transactions cannot change the
// objects. A later change then supersedes the repeated effect.
func TestReplay_modeForce_blocksChanges(t *testing.T) {
	t.Parallel()
	b := logNotApplied(t)
	key, err := rules.CompileText("{{ object.id }}:{{ event.key }}", rules.Scope{Change: true})
	must(t, err)
	p := b.applier(t, nil)
	p.ReplaceRules(effects.NewRules([]*rules.Rule{{Name: "every", Source: applied.SourceName, Type: "thing", Key: key,
		Version: 1, Approval: rules.ApproveNone, Supersede: true,
		Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}}))
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
	writing, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = writing.Rollback(context.Background()) }()
	// the run waits where it inserts
	testkit.ExecSQL(t, writing, `LOCK TABLE effects IN EXCLUSIVE MODE`)
	executed := make(chan error, 1)
	go func() {
		_, err := (&replay.Runner{Pool: b.pool, Applier: p, Chunk: replay.DefaultChunk}).Execute(t.Context(), h,
			slog.New(slog.DiscardHandler))
		executed <- err
	}()
	testkit.Eventually(t, time.Minute, func() error {
		n := b.rows(t, `SELECT count(*)::text FROM pg_locks WHERE NOT granted AND relation = 'effects'::regclass`)[0]
		if n != "1" {
			return fmt.Errorf("%s sessions wait to insert effects", n)
		}
		return nil
	})
	err = postgres.InTx(t.Context(), b.pool, "change", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
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
