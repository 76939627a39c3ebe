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

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A process that has lost the run just before it clears or copies does neither.
func TestRebuild_leaseLost_neitherClearsNorCopies(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"clear", "copy"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			r := newRand(t, 71)
			b := setup(t)
			b.applyLiveShuffled(t, r, b.append(t, r, b.source, sim.Generate(r, providerKinds["steps"]).Events))
			b.exec(t, `INSERT INTO retained_objects SELECT * FROM objects`)
			b.exec(t, `INSERT INTO staged_objects SELECT * FROM objects`)
			run := b.request(t, rebuild.Params{Source: b.source})
			h := takeRun(t, b.pool, "slow", time.Minute, rebuild.Job)
			var before []string
			rebuilds := &rebuild.Runner{Pool: b.pool, Applier: b.applier(t, nil), Settings: quickSettings()}
			rebuild.OnStep(rebuilds, func(name string) error {
				if name == lost {
					b.exec(t, `UPDATE checkpoints SET lease_owner = 'next' WHERE run = $1`, run)
					before = b.tableRows(t, allColumns, "staged_objects")
				}
				return nil
			})
			if _, err := rebuilds.Execute(t.Context(), h, slog.New(slog.DiscardHandler)); !errors.Is(err,
				runs.ErrLeaseLost) {
				t.Errorf("%v", err)
			}
			if diff := cmp.Diff(before, b.tableRows(t, allColumns, "staged_objects")); diff != "" ||
				(len(before) == 0) != (lost == "copy") {
				t.Errorf("%d rows before: %s", len(before), diff)
			}
		})
	}
}

// awaitBlocked waits until a session waits for a lock of a transaction.
func (b *testBundle) awaitBlocked(t *testing.T, tx pgx.Tx) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
		var n int
		err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE $1 = ANY(pg_blocking_pids(pid))`, tx.Conn().PgConn().PID()).Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("no session waits")
		}
		return err
	})
}

// Clearing staged rows takes the lock of the source's staged rows. If a rebuild is requested while
// the clearing waits for the lock, its rows are not cleared.
func TestClearStaged_lockTaken_waits(t *testing.T) {
	t.Parallel()
	for _, clearer := range []string{"ClearAbandoned", "rebuild"} {
		t.Run(clearer, func(t *testing.T) {
			t.Parallel()
			r := newRand(t, 72)
			b := setup(t)
			b.applyLiveShuffled(t, r, b.append(t, r, b.source, sim.Generate(r, providerKinds["steps"]).Events))
			b.exec(t, `INSERT INTO staged_objects SELECT * FROM objects`)
			all := len(b.tableRows(t, allColumns, "staged_objects"))
			tx := openTx(t, b.db.Pool, `SELECT pg_advisory_xact_lock($1, $2)`, rebuild.StagedLock, b.source)
			var end func() error
			if clearer == "ClearAbandoned" {
				cleared := make(chan error, 1)
				go func() { cleared <- rebuild.ClearAbandonedOnce(t.Context(), b.pool) }()
				end = func() error { return <-cleared }
			} else {
				b.start(t, "one", nil, quickSettings())
				run := b.request(t, rebuild.Params{Source: b.source})
				end = func() error { b.awaitRun(t, run, staged); return nil }
			}
			b.awaitBlocked(t, tx)
			if n := len(b.tableRows(t, allColumns, "staged_objects")); n != all {
				t.Errorf("%d rows of %d remain", n, all)
			}
			if clearer == "ClearAbandoned" { // the rebuild that it found to be missing before its wait
				b.request(t, rebuild.Params{Source: b.source})
			}
			must(t, tx.Rollback(t.Context()))
			if err := end(); err != nil {
				t.Error(err)
			}
			if n := len(b.tableRows(t, allColumns, "staged_objects")); clearer == "ClearAbandoned" && n != all {
				t.Errorf("%d rows of %d remain for an open rebuild", n, all)
			}
		})
	}
}

// Between the lock of a swap and its end no event of the source is applied, in any way. Events of
// other sources are applied.
func TestSwap_locked_appliesNothingOfTheSource(t *testing.T) {
	t.Parallel()
	r := newRand(t, 73)
	b := setup(t)
	other := b.add(t, "second")
	b.applyLiveShuffled(t, r, b.append(t, r, b.source, sim.Generate(r, providerKinds["own version"]).Events))
	late := b.append(t, r, b.source, renameObjects(sim.Generate(r, providerKinds["own version"]).Events, "late_"))
	ofOther := b.append(t, r, other, sim.Generate(r, providerKinds["own version"]).Events)
	p := b.applier(t, nil)
	replayed := make(chan error, 1)
	rebuilds := &rebuild.Runner{Pool: b.pool, Applier: b.applier(t, nil), Settings: quickSettings()}
	var once sync.Once
	rebuild.OnStep(rebuilds, func(name string) error {
		if name != "locked" {
			return nil
		}
		once.Do(func() {
			var swapErr *apply.SwapError
			if err := p.Apply(t.Context(), events.LiveRun, b.messages(t, late[:10])); !errors.As(err, &swapErr) {
				t.Errorf("a live batch: %v", err)
			}
			go func() {
				_, err := p.ApplyStored(t.Context(), apply.Target{Run: 1000}, late[10:20], false)
				replayed <- err
			}()
			testkit.Eventually(t, maxWait, func() error {
				if b.number(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1
					AND objid = $2 AND NOT granted AND database = (SELECT oid FROM pg_database
						WHERE datname = current_database())`,
					int64(versioning.SourceLock), int64(b.source)) == 0 {
					return errors.New("the replay does not wait")
				}
				return nil
			})
			if _, err := p.ApplyStored(t.Context(), apply.Target{}, ofOther, false); err != nil {
				t.Errorf("another source: %v", err)
			}
			b.checkCount(t, 0, `SELECT count(*) FROM outcomes WHERE event_id = ANY($1) AND run IN (0, 1000)`, late)
		})
		return nil
	})
	b.startRunner(t, "one", rebuilds)
	b.rebuildAndSwap(t, b.source)
	if err := <-replayed; err != nil {
		t.Error(err)
	}
	b.applyLiveShuffled(t, r, late)
	b.checkMirror(t, b.mirrorFromLog(t, nil, 2000))
}

// messages returns stored events in the form of the stream.
func (b *testBundle) messages(t *testing.T, ids []int64) []stream.Event {
	t.Helper()
	recs, err := events.Read(t.Context(), b.pool, ids, events.UnlimitedBody)
	must(t, err)
	evs := make([]stream.Event, len(recs))
	for i := range recs {
		evs[i] = stream.Event{StoredEvent: recs[i].StoredEvent, Source: "sim", ObjectType: recs[i].ObjectType,
			ObjectID: recs[i].ObjectID}
	}
	if len(evs) != len(ids) {
		t.Fatal(fmt.Sprint(len(evs), " events are stored"))
	}
	return evs
}

// poolOf returns a pool of the processor's role with a number of connections.
func (b *testBundle) poolOf(t *testing.T, n int32) *pgxpool.Pool {
	t.Helper()
	cfg := b.pool.Config().Copy()
	cfg.MaxConns = n
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Workers that hold all connections of their pool while they wait for a swap do not block it: the
// swap catches up over its own connections, at the first attempt.
func TestSwap_workersHoldAllConnections_catchesUp(t *testing.T) {
	t.Parallel()
	r := newRand(t, 41)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, providerKinds["steps"]).Events)
	live := b.poolOf(t, 4)
	s := apply.DefaultSettings
	s.Workers = 4
	p, err := apply.New(apply.Options{Pool: live, Settings: s, Logger: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(), Sources: b.sources})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	t.Cleanup(func() { cancel(); workers.Wait() })
	var attempts atomic.Int64
	runner := func(pool *pgxpool.Pool) *rebuild.Runner {
		rebuilds := &rebuild.Runner{Pool: pool, Applier: p.WithPool(pool), Settings: rebuild.DefaultSettings}
		rebuild.OnStep(rebuilds, func(name string) error {
			switch name {
			case "lock": // something to catch up with
				b.append(t, r, b.source, sim.Generate(r, providerKinds["steps"]).Events)
				return nil
			case "locked":
			default:
				return nil
			}
			attempts.Add(1)
			for i := range s.Workers { // they wait for the lock that the swap holds now
				workers.Go(func() {
					_, _ = p.ApplyStored(ctx, apply.Target{Run: 1000 + int64(i)}, ids[:20], false)
				})
			}
			testkit.Eventually(t, maxWait, func() error {
				if live.Stat().AcquiredConns() < int32(s.Workers) {
					return context.DeadlineExceeded
				}
				return nil
			})
			return nil
		})
		return rebuilds
	}
	ownPool := b.poolOf(t, int32(s.Workers)+2)
	jobRunner := runs.NewRunner(runs.Options{Pool: ownPool, ID: "one", Logger: slog.New(slog.DiscardHandler),
		Jobs:     map[string]runs.Executor{rebuild.Job: runner(ownPool).Execute},
		Settings: runs.Settings{PollInterval: 10 * time.Millisecond, LeaseDuration: 30 * time.Second, SharedSlots: 1}})
	workers.Go(func() { _ = jobRunner.Run(ctx) })
	b.awaitRun(t, b.request(t, rebuild.Params{Source: b.source, Swap: true}), done)
	if n := attempts.Load(); n != 1 {
		t.Errorf("swapped at attempt %d", n)
	}
}

// A swap that takes longer than the lease keeps its run, although another process would take it,
// and happens once.
func TestSwap_longerThanLease_keepsRun(t *testing.T) {
	t.Parallel()
	r := newRand(t, 75)
	b := setup(t)
	b.applyLiveShuffled(t, r, b.append(t, r, b.source, sim.Generate(r, providerKinds["steps"]).Events))
	want := b.tableRows(t, objectColumns, "objects")
	b.exec(t, `UPDATE objects SET state = '{"damaged": true}'`)
	b.exec(t, `TRUNCATE outbox`)
	before := b.revisions(t)
	tx := openTx(t, b.db.Pool, `SELECT true FROM objects ORDER BY object_id LIMIT 1 FOR UPDATE`)
	b.start(t, "one", nil, quickSettings())
	b.start(t, "two", nil, quickSettings())
	run := b.request(t, rebuild.Params{Source: b.source, Swap: true})
	b.awaitBlocked(t, tx)
	by, until := b.leaseOf(t, run)
	for range 4 { // the clock advances only in these steps, so that only a lease that is not renewed expires
		now := until.Add(-time.Millisecond)
		b.exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
			'SELECT timestamptz ''%s'''`, now.Format(time.RFC3339Nano)))
		testkit.Eventually(t, maxWait, func() error {
			holder, to := b.leaseOf(t, run)
			if until = to; holder != by {
				t.Fatalf("%s has the run instead of %s", holder, by)
			}
			if to.Before(now.Add(applied.Lease)) {
				return fmt.Errorf("leased until %s at %s", to, now)
			}
			return nil
		})
	}
	must(t, tx.Rollback(t.Context()))
	ended := b.awaitRun(t, run, done)
	equal(t, "", want, b.tableRows(t, objectColumns, "objects"))
	b.checkRevisions(t, before, ended)
	if n := b.number(t, `SELECT count(*) FROM outcomes WHERE run = $1`, run); n != len(b.ids) ||
		ended.Counts[rebuild.Processed] != int64(n) {
		t.Errorf("%d outcomes of %d events: %v", n, len(b.ids), ended.Counts)
	}
}

// leaseOf returns the owner of a run's lease and its end.
func (b *testBundle) leaseOf(t *testing.T, run int64) (by string, until time.Time) {
	t.Helper()
	must(t, b.db.Pool.QueryRow(t.Context(), `SELECT lease_owner, lease_until FROM checkpoints WHERE run = $1`,
		run).Scan(&by, &until))
	return by, until
}
