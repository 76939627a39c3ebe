package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Who has lost the run just before it clears or copies does neither.
func TestWhoHasLostTheRunNeitherClearsNorCopies(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"clear", "copy"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 71)
			b := setup(t)
			b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events))
			b.exec(t, `INSERT INTO bases SELECT * FROM objects`)
			b.exec(t, `INSERT INTO staged SELECT * FROM objects`)
			run := b.ask(t, rebuild.Order{Source: b.source})
			h := taken(t, b.pool, "slow", time.Minute, rebuild.Job)
			var before []string
			rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, nil), Settings: quick()}
			rebuild.Step(rebuilds, func(name string) error {
				if name == lost {
					b.exec(t, `UPDATE checkpoints SET leased_by = 'next' WHERE run = $1`, run)
					before = b.table(t, whole, "staged")
				}
				return nil
			})
			if _, err := rebuilds.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); !errors.Is(err, runs.ErrLost) {
				t.Errorf("%v", err)
			}
			if diff := cmp.Diff(before, b.table(t, whole, "staged")); diff != "" || (len(before) == 0) != (lost == "copy") {
				t.Errorf("%d rows before: %s", len(before), diff)
			}
		})
	}
}

// waits waits until somebody waits for what a transaction holds.
func (b *testBundle) waits(t *testing.T, tx pgx.Tx) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		var n int
		err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, tx.Conn().PgConn().PID()).Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("nobody waits")
		}
		return err
	})
}

// Whoever clears staged rows does so under the lock of the source's staged rows: what another allows itself under it is not cleared by who has asked before.
func TestClearingIsLocked(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"tidy", "rebuild"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 72)
			b := setup(t)
			b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events))
			b.exec(t, `INSERT INTO staged SELECT * FROM objects`)
			all := len(b.table(t, whole, "staged"))
			tx := hold(t, b.db.Pool, `SELECT pg_advisory_xact_lock($1, $2)`, rebuild.StagedLock, b.source)
			var end func() error
			if who == "tidy" {
				tidied := make(chan error, 1)
				go func() { tidied <- rebuild.TidyOnce(t.Context(), b.pool) }()
				end = func() error { return <-tidied }
			} else {
				b.start(t, "one", nil, quick())
				run := b.ask(t, rebuild.Order{Source: b.source})
				end = func() error { b.until(t, run, staged); return nil }
			}
			b.waits(t, tx)
			if n := len(b.table(t, whole, "staged")); n != all {
				t.Errorf("%d rows are left of %d", n, all)
			}
			if who == "tidy" { // what it asked before it waited holds no more
				b.ask(t, rebuild.Order{Source: b.source})
			}
			must(t, tx.Rollback(t.Context()))
			if err := end(); err != nil {
				t.Error(err)
			}
			if n := len(b.table(t, whole, "staged")); who == "tidy" && n != all {
				t.Errorf("of an open rebuild %d rows are left of %d", n, all)
			}
		})
	}
}

// Between the lock of a swap and its end no event of the source is applied, whichever way it comes; one of another source is.
func TestNothingIsAppliedBesideASwap(t *testing.T) {
	t.Parallel()
	r := seeded(t, 73)
	b := setup(t)
	other := b.add(t, "second")
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["own version"]).Events))
	late := b.append(t, r, b.source, renamed(sim.Generate(r, kinds["own version"]).Events, "late_"))
	beside := b.append(t, r, other, sim.Generate(r, kinds["own version"]).Events)
	p := b.processor(t, nil)
	replayed := make(chan error, 1)
	rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, nil), Settings: quick()}
	var once sync.Once
	rebuild.Step(rebuilds, func(name string) error {
		if name != "locked" {
			return nil
		}
		once.Do(func() {
			var met *processor.SwapError
			if err := p.Apply(t.Context(), events.LiveRun, b.messages(t, late[:10])); !errors.As(err, &met) {
				t.Errorf("a live batch: %v", err)
			}
			go func() {
				_, err := p.ApplyStored(t.Context(), processor.Target{Run: 1000}, late[10:20], false)
				replayed <- err
			}()
			testkit.Eventually(t, patience, func() error {
				if b.number(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1 AND objid = $2 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
					int64(versioning.SourceLock), int64(b.source)) == 0 {
					return errors.New("the replay does not wait")
				}
				return nil
			})
			if _, err := p.ApplyStored(t.Context(), processor.Target{}, beside, false); err != nil {
				t.Errorf("another source: %v", err)
			}
			b.counts(t, 0, `SELECT count(*) FROM outcomes WHERE event_id = ANY($1) AND run IN (0, 1000)`, late)
		})
		return nil
	})
	b.carry(t, "one", rebuilds)
	b.rebuilt(t, b.source)
	if err := <-replayed; err != nil {
		t.Error(err)
	}
	b.live(t, r, late)
	b.shows(t, b.fold(t, nil, 2000))
}

// messages are stored events as the stream carries them.
func (b *testBundle) messages(t *testing.T, ids []int64) []stream.Event {
	t.Helper()
	recs, err := events.Read(t.Context(), b.pool, ids, events.AnyBody)
	must(t, err)
	evs := make([]stream.Event, len(recs))
	for i := range recs {
		evs[i] = stream.Event{Stored: recs[i].Stored, Source: "sim", ObjectType: recs[i].ObjectType, ObjectID: recs[i].ObjectID}
	}
	if len(evs) != len(ids) {
		t.Fatal(fmt.Sprint(len(evs), " events are stored"))
	}
	return evs
}

// sized is a pool of the processor's role of so many connections.
func (b *testBundle) sized(t *testing.T, n int32) *pgxpool.Pool {
	t.Helper()
	cfg := b.pool.Config().Copy()
	cfg.MaxConns = n
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Lanes that hold all connections of their pool while they wait for a swap do not hold it up: it catches up over connections of its own, at the first try.
func TestSwapBesideAsManyLanesAsConnections(t *testing.T) {
	t.Parallel()
	r := seeded(t, 41)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events)
	live := b.sized(t, 4)
	s := processor.DefaultSettings
	s.Lanes = 4
	p, err := processor.New(processor.Options{Pool: live, Settings: s, ID: "p", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Sources: b.sources})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var lanes sync.WaitGroup
	t.Cleanup(func() { cancel(); lanes.Wait() })
	var attempts atomic.Int64
	runner := func(pool *pgxpool.Pool) *rebuild.Runner {
		rebuilds := &rebuild.Runner{Pool: pool, Processor: p.On(pool), Settings: rebuild.DefaultSettings}
		rebuild.Step(rebuilds, func(name string) error {
			switch name {
			case "lock": // something to catch up with
				b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events)
				return nil
			case "locked":
			default:
				return nil
			}
			attempts.Add(1)
			for i := range s.Lanes { // they wait for the lock that the swap has now
				lanes.Go(func() { _, _ = p.ApplyStored(ctx, processor.Target{Run: 1000 + int64(i)}, ids[:20], false) })
			}
			testkit.Eventually(t, patience, func() error {
				if live.Stat().AcquiredConns() < int32(s.Lanes) {
					return context.DeadlineExceeded
				}
				return nil
			})
			return nil
		})
		return rebuilds
	}
	own := b.sized(t, int32(s.Lanes)+2)
	carried := runs.NewRunner(runs.Options{Pool: own, ID: "one", Logger: slog.New(slog.DiscardHandler), Jobs: map[string]runs.Carry{rebuild.Job: runner(own).Carry},
		Settings: runs.Settings{Poll: 10 * time.Millisecond, Lease: 30 * time.Second, Slots: 1}})
	lanes.Go(func() { _ = carried.Run(ctx) })
	b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true}), done)
	if n := attempts.Load(); n != 1 {
		t.Errorf("swapped at attempt %d", n)
	}
}

// A swap that takes longer than the lease keeps its run beside another process that would take it, and is done once.
func TestALongSwapKeepsItsRun(t *testing.T) {
	t.Parallel()
	r := seeded(t, 75)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events))
	want := b.table(t, object, "objects")
	b.exec(t, `UPDATE objects SET state = '{"damaged": true}'`)
	b.exec(t, `TRUNCATE outbox`)
	before := b.revisions(t)
	tx := hold(t, b.db.Pool, `SELECT true FROM objects ORDER BY object_id LIMIT 1 FOR UPDATE`)
	b.start(t, "one", nil, quick())
	b.start(t, "two", nil, quick())
	run := b.ask(t, rebuild.Order{Source: b.source, Swap: true})
	b.waits(t, tx)
	by, until := b.leased(t, run)
	for range 4 { // the clock stands still but for these steps, so that only what is not renewed runs out
		now := until.Add(-time.Millisecond)
		b.exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT timestamptz ''%s'''`, now.Format(time.RFC3339Nano)))
		testkit.Eventually(t, patience, func() error {
			holder, to := b.leased(t, run)
			if until = to; holder != by {
				t.Fatalf("%s has the run of %s", holder, by)
			}
			if to.Before(now.Add(applied.Lease)) {
				return fmt.Errorf("leased until %s at %s", to, now)
			}
			return nil
		})
	}
	must(t, tx.Rollback(t.Context()))
	ended := b.until(t, run, done)
	equal(t, "", want, b.table(t, object, "objects"))
	b.grew(t, before, ended)
	if n := b.number(t, `SELECT count(*) FROM outcomes WHERE run = $1`, run); n != len(b.ids) || ended.Counts[rebuild.Processed] != int64(n) {
		t.Errorf("%d outcomes of %d events: %v", n, len(b.ids), ended.Counts)
	}
}

// leased is who has a run, and until when.
func (b *testBundle) leased(t *testing.T, run int64) (by string, until time.Time) {
	t.Helper()
	must(t,
		b.db.Pool.QueryRow(t.Context(), `SELECT leased_by, leased_until FROM checkpoints WHERE run = $1`, run).Scan(&by,
			&until))
	return by, until
}
