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

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
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
	must(t, err)
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
			equal(t, "-want +got", want, b.keys(t))
			if got := b.rows(t, `SELECT DISTINCT run || ' ' || state FROM effects ORDER BY 1`); planned != (len(got) == 2) || planned && got[1] != fmt.Sprintf("%d waiting", run) {
				t.Error(got)
			}
			applied.Apply(t, live, events.LiveRun, b.ids)
			equal(t, "applied live afterwards", want, b.keys(t))
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
			equal(t, "(-want +got)", want(third, len(b.ids)-2*third), got)
		})
	}
}

// aboutEvents is a rule by which each event has an effect, for which a run needs an approval.
func aboutEvents(t *testing.T) *effects.Rules {
	t.Helper()
	key, err := rules.CompileText("{{ event.key }}:{{ event.id }}", rules.Scope{Event: true})
	must(t, err)
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

// followed is a log all of whose events were applied, and whose effects are done.
func followed(t *testing.T) *testBundle {
	t.Helper()
	b := unapplied(t)
	applied.Apply(t, b.ruled(t, nil), events.LiveRun, b.ids)
	b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 min'`)
	return b
}

// With force what had followed from the chosen events happens again, with what it was planned with and an approval, once for each run; with no other mode it does.
func TestForce(t *testing.T) {
	t.Parallel()
	b := followed(t)
	half := events.Filter{IDs: b.ids[:len(b.ids)/2]}
	want := b.rows(t, `SELECT concat_ws(' ', key, rule_version, event_id, facts, destination) FROM effects WHERE event_id = ANY($1) ORDER BY key`, half.IDs)
	all := len(b.keys(t))
	if len(want) == 0 || len(want) == all {
		t.Fatalf("%d of %d effects: nothing is tried", len(want), all)
	}
	order := &replay.Order{Mode: replay.Force, Filter: half}
	if p, err := replay.PreviewAgain(t.Context(), b.operator, order, false); err != nil || !p.Exact || p.Effects != int64(len(want)) {
		t.Errorf("%+v, %v", p, err)
	}
	b.startRuled(t, "one", sim.Provider{})
	for _, mode := range []replay.Mode{replay.State, replay.Missing} {
		b.until(t, b.ask(t, replay.Order{Mode: mode, Filter: half}), done)
	}
	for range 2 {
		run := b.until(t, b.ask(t, *order), done)
		equal(t, "-want +got", want,
			b.rows(t, `SELECT concat_ws(' ', key, rule_version, event_id, facts, destination) FROM effects WHERE forced = $1 AND run = $1 AND state = 'waiting' ORDER BY key`, run.Run))
		if run.Counts[replay.EffectsAgain] != int64(len(want)) || run.Counts[replay.EffectsLeft] != 0 {
			t.Errorf("%v", run.Counts)
		}
	}
	if n := len(b.keys(t)); n != all+2*len(want) {
		t.Errorf("%d effects, want %d", n, all+2*len(want))
	}
}

// A run that is killed between planning and its checkpoint plans nothing twice, and counts each once, though some of them were done meanwhile.
func TestForceIsOnceForEachRun(t *testing.T) {
	t.Parallel()
	b := followed(t)
	all := len(b.keys(t))
	run := b.ask(t, replay.Order{Mode: replay.Force})
	for killed := range 2 {
		h := b.takes(t, replay.Job)
		carry := &replay.Runner{Pool: b.pool, Processor: b.ruled(t, nil), Chunk: 7}
		if status, err := carry.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
			t.Fatal(status, err)
		}
		r, err := runs.Show(t.Context(), b.operator, run)
		if err != nil || r.Counts[replay.EffectsAgain] != int64(all) {
			t.Errorf("%d: %v, %v; want %d", killed, r.Counts, err, all)
		}
		b.db.Exec(t, `UPDATE checkpoints SET cursor = 0, leased_until = clock_now() - interval '1 s' WHERE run = $1`, run)
		b.db.Exec(t, `UPDATE runs SET counts = '{}', bound = NULL WHERE run = $1`, run)
		b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL WHERE forced = $1 AND event_id % 2 = 0`, run)
	}
	if got := b.rows(t, `SELECT count(*)::text FROM effects GROUP BY forced ORDER BY forced`); !cmp.Equal(got, []string{fmt.Sprint(all), fmt.Sprint(all)}) {
		t.Errorf("%v, want %d of each", got, all)
	}
}

// While a run plans what rules that supersede have had, nobody changes the objects: what a change wants comes after, and takes the place of what was forced, and not beside it.
func TestForceHoldsUpChanges(t *testing.T) {
	t.Parallel()
	b := unapplied(t)
	key, err := rules.CompileText("{{ object.id }}:{{ event.key }}", rules.Scope{Change: true})
	must(t, err)
	p := b.processor(t, nil)
	p.ReplaceRules(effects.NewRules([]*rules.Rule{{Name: "every", Source: applied.Name, Type: "thing", Key: key, Version: 1, Approval: rules.ApproveNone, Supersede: true, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}}))
	applied.Apply(t, p, events.LiveRun, b.ids)
	b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 min' WHERE state = 'planned'`)
	var of versioning.Key
	var objects int64
	must(t,
		b.db.Pool.QueryRow(t.Context(),
			`SELECT source, account, object_type, object_id, count(*) OVER () FROM effects WHERE state = 'done'`).Scan(&of.Source, &of.Account, &of.Type, &of.ID, &objects))
	run := b.ask(t, replay.Order{Mode: replay.Force})
	h := b.takesFor(t, replay.Job, time.Minute)
	writing, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = writing.Rollback(context.Background()) }()
	if _, err := writing.Exec(t.Context(), `LOCK TABLE effects IN EXCLUSIVE MODE`); err != nil { // the run stands still where it enters
		t.Fatal(err)
	}
	carried := make(chan error, 1)
	go func() {
		_, err := (&replay.Runner{Pool: b.pool, Processor: p, Chunk: replay.DefaultChunk}).Carry(t.Context(), h, slog.New(slog.DiscardHandler))
		carried <- err
	}()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.rows(t, `SELECT count(*)::text FROM pg_locks WHERE NOT granted AND relation = 'effects'::regclass`)[0]; n != "1" {
			return fmt.Errorf("%s wait to enter effects", n)
		}
		return nil
	})
	err = postgres.InTx(t.Context(), b.pool, "change", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1ms'`); err != nil {
			return err
		}
		return processor.LockObjects(ctx, tx, []versioning.Key{of})
	})
	if postgres.Code(err) != "55P03" {
		t.Errorf("an object was changed meanwhile: %v", err)
	}
	must(t, writing.Commit(t.Context()))
	must(t, <-carried)
	if r, err := runs.Show(t.Context(), b.operator, run); err != nil || r.Counts[replay.EffectsAgain] != objects || objects < 2 {
		t.Errorf("%v, %v; want %d", r.Counts, err, objects)
	}
}
