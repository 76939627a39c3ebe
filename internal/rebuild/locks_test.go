package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
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
			b, _ := setupApplied(t, 71, providerKinds["steps"])
			b.exec(t, `INSERT INTO retained_objects SELECT * FROM objects`)
			b.exec(t, `INSERT INTO staged_objects SELECT * FROM objects`)
			run := b.request(t, rebuild.Params{Source: b.source})
			h := takeRun(t, b.pool, "slow", time.Minute, rebuild.Job)
			var before []string
			rebuilds := b.runner(t, nil, quickSettings())
			rebuild.AtStep(rebuilds, lost, func() {
				b.exec(t, `UPDATE checkpoints SET lease_owner = 'next' WHERE run = $1`, run)
				before = b.tableRows(t, allColumns, "staged_objects")
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
			b, _ := setupApplied(t, 72, providerKinds["steps"])
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

// While a transaction of a swap is open, events of its objects wait, and events of other objects
// are applied.
func TestSwap_batchLocked_appliesOtherObjects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := newRand(t, 73)
	appendAt := func(at int64, objects ...string) (ids []int64) {
		for _, id := range objects {
			ids = append(ids, b.append(t, r, b.source, []sim.Event{thingEvent(id, at, "a@else.org")})...)
		}
		return ids
	}
	b.applyLiveShuffled(t, r, appendAt(1, "a", "b", "c"))
	b.exec(t, `UPDATE objects SET state = '{"damaged": true}' WHERE object_id IN ('a', 'b')`)
	ofFirst, ofOthers := appendAt(2, "a"), appendAt(2, "b", "c", "new")
	p := b.applier(t, nil)
	rebuilds := b.runner(t, nil, batchesOf(1))
	applied := make(chan error, 1)
	rebuild.AtStep(rebuilds, "locked", sync.OnceFunc(func() {
		go func() { applied <- errOf(p.ApplyStored(t.Context(), apply.Target{}, ofFirst, false)) }()
		b.log.AwaitLockWait(t, applied)
		must(t, errOf(p.ApplyStored(t.Context(), apply.Target{}, ofOthers, false)))
		b.checkCount(t, 0, `SELECT count(*) FROM outcomes WHERE event_id = ANY($1) AND run = 0`, ofFirst)
	}))
	b.startRunner(t, "one", rebuilds)
	if ended := b.rebuildAndSwap(t, b.source); ended.Counts[rebuild.Swapped] != 1 {
		t.Errorf("%v, and the event of b has repaired it", ended.Counts)
	}
	must(t, <-applied)
	b.checkMirror(t, b.mirrorFromLog(t, nil, 2000))
}

// A swap writes its objects with several statements, and locks their rows in the order of their
// keys before.
func TestSwap_rowsOfSeveralParts_lockedInOrderOfKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := newRand(t, 74)
	b.applyLiveShuffled(t, r, b.append(t, r, b.source, []sim.Event{thingEvent("a", 1, "a@else.org"),
		thingEvent("b", 1, "b@else.org"), thingEvent("c", 1, "c@else.org")}))
	b.exec(t, `UPDATE objects SET state = '{"damaged": true}' WHERE object_id <> 'b'`)
	b.exec(t, `UPDATE objects SET rule_version = 0 WHERE object_id = 'b'`)
	b.start(t, "one", nil, rebuild.DefaultSettings)
	b.log.CheckLockOrder(t, "objects", "object_id", "a", func() error {
		if swapped := b.rebuildAndSwap(t, b.source).Counts[rebuild.Swapped]; swapped != 2 {
			return fmt.Errorf("%d objects swapped", swapped)
		}
		return nil
	})
}

// A redaction locks an event that was applied live while the swap's transaction began, and waits
// for the event's object. The swap does not wait for the event under its locks.
func TestSwap_newerEventLocked_doesNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := newRand(t, 76)
	b.applyLiveShuffled(t, r, b.append(t, r, b.source, []sim.Event{thingEvent("a", 1, "a@else.org")}))
	b.exec(t, `UPDATE objects SET state = '{"damaged": true}'`)
	rebuilds := b.runner(t, nil, quickSettings())
	redacts, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = redacts.Rollback(context.Background()) }() // after a commit it does nothing
	execSQL(t, redacts, `SET LOCAL deadlock_timeout = '1ms'`)     // it is the one that fails
	rebuild.AtStep(rebuilds, "lock", sync.OnceFunc(func() {
		ids := b.append(t, r, b.source, []sim.Event{thingEvent("a", 2, "b@else.org")})
		applied.Apply(t, b.applier(t, nil), events.LiveRun, ids)
		execSQL(t, redacts, `SELECT pg_advisory_xact_lock($1::bigint # 6364136223846793005)`, ids[0])
	}))
	b.startRunner(t, "one", rebuilds)
	run := b.request(t, rebuild.Params{Source: b.source, Swap: true})
	b.awaitBlocked(t, redacts)
	execSQL(t, redacts, `SELECT pg_advisory_xact_lock(object) FROM outcomes WHERE object <> 0`)
	must(t, redacts.Commit(t.Context()))
	b.awaitRun(t, run, done)
	b.checkMirror(t, b.mirrorFromLog(t, nil, 2000))
}

// A swap that takes longer than the lease keeps its run, although another process would take it,
// and happens once.
func TestSwap_longerThanLease_keepsRun(t *testing.T) {
	t.Parallel()
	b, _ := setupApplied(t, 75, providerKinds["steps"])
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
		b.db.ReplaceClock(t, "timestamptz '"+now.Format(time.RFC3339Nano)+"'")
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

// A part of a comparison ends after its objects also in the indexes, however many objects follow.
func TestCompare_manyObjects_readsOnlyItsPartOfTheIndexes(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.InsertObjects(t, 30_000)
	db.Exec(t, `INSERT INTO staged_objects SELECT (jsonb_populate_record(o, '{"version_at": 2}')).* FROM objects o`)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		for _, index := range []string{"objects_pkey", "staged_objects_pkey"} {
			before := testkit.IndexBlocksRead(t, tx, index)
			differing, end, err := rebuild.CompareInTx(t.Context(), tx, rebuild.Params{Source: 1}, versioning.Key{},
				1000, 2000)
			if err != nil || len(differing) != 1000 || end == nil {
				t.Fatalf("%s: %d objects differ, end %v, %v", name, len(differing), end, err)
			}
			if read := testkit.IndexBlocksRead(t, tx, index) - before; read > 40 || read < 5 {
				t.Errorf("%s: %d blocks of %s were read", name, read, index)
			}
		}
	})
}

// No border of a part hides an object, wherever the objects of a table, account or type end.
func TestCompare_smallParts_findEachObjectOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.InsertObjects(t, 200)
	db.Exec(t, `
UPDATE objects SET account = CASE WHEN right(object_id, 1) < '3' THEN 'a' ELSE '' END,
  object_type = CASE WHEN object_id LIKE '%5_' THEN 'other' ELSE 'thing' END;
INSERT INTO staged_objects SELECT (jsonb_populate_record(o, '{"version_at": 2}')).* FROM objects o
	WHERE object_id NOT BETWEEN 'obj_000030' AND 'obj_000060';
DELETE FROM objects WHERE object_id BETWEEN 'obj_000100' AND 'obj_000140'`)
	tx, err := db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	compare := func(p rebuild.Params, rows, limit int) (found []string) {
		for after := new(versioning.Key); after != nil; {
			var part []rebuild.Difference
			part, after, err = rebuild.CompareInTx(t.Context(), tx, p, *after, rows, limit)
			must(t, err)
			for _, d := range part {
				found = append(found, fmt.Sprint(d.Kind, d.Account, d.ObjectType, d.ObjectID))
			}
		}
		return found
	}
	for objectType, count := range map[string]int{"": 200, "other": 20} {
		p := rebuild.Params{Source: 1, Type: objectType}
		all := compare(p, 1000, 1000)
		if len(all) != count {
			t.Errorf("type %q: %d objects of %d are found", objectType, len(all), count)
		}
		for _, rows := range []int{1, 2, 7, 50} {
			for _, limit := range []int{3, 2 * rows} {
				if diff := cmp.Diff(all, compare(p, rows, limit)); diff != "" {
					t.Errorf("type %q, parts of %d rows and %d differences: %s", objectType, rows, limit, diff)
				}
			}
		}
	}
}
