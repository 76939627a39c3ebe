package replay_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

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
		if diff := cmp.Diff(want, b.rows(t, `SELECT concat_ws(' ', key, rule_version, event_id, facts, destination) FROM effects WHERE forced = $1 AND run = $1 AND state = 'waiting' ORDER BY key`, run.Run)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	p := b.processor(t, nil)
	p.ReplaceRules(effects.NewRules([]*rules.Rule{{Name: "every", Source: applied.Name, Type: "thing", Key: key, Version: 1, Approval: rules.ApproveNone, Supersede: true, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}}))
	applied.Apply(t, p, events.LiveRun, b.ids)
	b.db.Exec(t, `UPDATE effects SET state = 'done', due = NULL, updated_at = clock_now() - interval '1 min' WHERE state = 'planned'`)
	var of versioning.Key
	var objects int64
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT source, account, object_type, object_id, count(*) OVER () FROM effects WHERE state = 'done'`).Scan(&of.Source, &of.Account, &of.Type, &of.ID, &objects); err != nil {
		t.Fatal(err)
	}
	run := b.ask(t, replay.Order{Mode: replay.Force})
	h := b.takesFor(t, replay.Job, time.Minute)
	writing, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	if err := writing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-carried; err != nil {
		t.Fatal(err)
	}
	if r, err := runs.Show(t.Context(), b.operator, run); err != nil || r.Counts[replay.EffectsAgain] != objects || objects < 2 {
		t.Errorf("%v, %v; want %d", r.Counts, err, objects)
	}
}
