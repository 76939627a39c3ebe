package retention_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// readingTx is a transaction that has read the log and prevents the detaching of its partitions.
func (b *testBundle) readingTx(t *testing.T) pgx.Tx {
	t.Helper()
	return openTx(t, b.db.Pool, `SELECT count(*) FROM events`)
}

// startExecution makes a runner execute the open run until ctx ends. The channel gets the result.
func (b *testBundle) startExecution(ctx context.Context, t *testing.T) (h *runs.Lease, ended <-chan error) {
	t.Helper()
	h = leaseRun(t, b.pool, "first", time.Minute, retention.Job)
	done := make(chan error, 1)
	go func() {
		status, err := b.runner().Execute(ctx, h, slog.New(slog.DiscardHandler))
		if err == nil {
			err = errors.New(string(status))
		}
		done <- err
	}()
	return h, done
}

// awaitPendingDetach waits until a partition is being detached.
func (b *testBundle) awaitPendingDetach(t *testing.T) {
	t.Helper()
	b.awaitNonZero(t, `SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending`)
}

// interruptDetach starts the detaching of the oldest partition and interrupts it.
func (b *testBundle) interruptDetach(t *testing.T) {
	t.Helper()
	reader := b.readingTx(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h, ended := b.startExecution(ctx, t)
	b.awaitPendingDetach(t)
	cancel()
	<-ended
	// The interrupted session may hold its locks for a moment.
	b.awaitNonZero(t, `SELECT (count(*) = 0)::int::text FROM pg_locks WHERE locktype = 'advisory'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	must(t, errors.Join(h.Release(t.Context()), reader.Rollback(t.Context())))
	b.checkText(t, "1", `SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending`)
}

// A partition whose detaching was interrupted is not in the log any more: a run that should still
// read it keeps neither it nor later partitions.
func TestRetention_interruptedDetach_isFinishedFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, 14, 5, 20)
	b.requestRun(t, retention.Policy{Bodies: 1})
	b.interruptDetach(t)
	// A paused replay whose bound is in that partition.
	b.exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at, bound)
		VALUES ('replay', '{}', 'me', '', 'paused', '', '{}', now(), now(), $1)`, b.days[0][len(b.days[0])-1])
	b.executeToEnd(t, b.runner())
	b.db.WantRows(t, 3, "dropped_partitions WHERE dropped_at IS NOT NULL")
	b.db.WantRows(t, 0, "pg_inherits WHERE inhdetachpending")
	b.checkRebuild(t, 1000)
}

// An interrupted detaching by another client is finished too, because otherwise no other partition
// could be dropped. Its table stays.
func TestRetention_detachOfOther_isFinished(t *testing.T) {
	t.Parallel()
	b := setup(t, 15, 5, 20)
	b.requestRun(t, retention.Policy{Bodies: 1})
	b.interruptDetach(t)
	name := b.rows(t, `SELECT name FROM dropped_partitions`)[0]
	b.exec(t, `DELETE FROM dropped_partitions`)
	params, err := retention.NewParams(t.Context(), b.operator, retention.Policy{Bodies: 1})
	must(t, err)
	if view, err := retention.Show(t.Context(), b.operator, params); err != nil || view.Partitions[0].Due ||
		!strings.Contains(view.Partitions[0].DropNote, "interrupted") {
		t.Errorf("%+v, %v", view.Partitions[0], err)
	}
	b.executeToEnd(t, b.runner())
	b.db.WantRows(t, len(b.days[0]), name)
	b.db.WantRows(t, 2, "dropped_partitions WHERE dropped_at IS NOT NULL")
}

// If another client begins to detach another partition meanwhile, the partition stays with this
// reason, and the run does not fail otherwise.
func TestRetention_otherDetachOpen_partitionStays(t *testing.T) {
	t.Parallel()
	b := setup(t, 16, 5, 20)
	names := b.rows(t, `SELECT relname FROM pg_class WHERE relname ~ '^events_' AND relkind = 'r' ORDER BY 1`)
	b.requestRun(t, retention.Policy{Bodies: 1})
	r := b.runner()
	var reader pgx.Tx
	other, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	r.OnStep(func(step string) error {
		if step != "detach" || reader != nil {
			return nil
		}
		reader = b.readingTx(t)
		go func() {
			_, err := b.db.Pool.Exec(other, `ALTER TABLE events DETACH PARTITION `+names[4]+` CONCURRENTLY`)
			ended <- err
		}()
		b.awaitPendingDetach(t)
		stop()
		if err := <-ended; err == nil {
			t.Error("the other detaching was not interrupted")
		}
		b.awaitNonZero(t, `SELECT (count(*) = 0)::int::text FROM pg_stat_activity WHERE state = 'active'
			AND query LIKE '%'||$1||' CONCURRENTLY' AND datname = current_database()`, names[4])
		return nil
	})
	b.executeAndFail(t, r, names[0]+": it cannot be detached now")
	must(t, reader.Rollback(t.Context()))
	b.executeToEnd(t, b.runner())
}

// Retention that waits shows the session that it waits for. It stops waiting when the run is
// stopped, and releases its lock.
func TestRetention_waits_isShownAndStopped(t *testing.T) {
	t.Parallel()
	for _, status := range []runs.Status{runs.Paused, runs.Cancelled} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 17, 4, 10)
			run := b.requestRun(t, retention.Policy{Bodies: 1})
			reader := b.readingTx(t)
			pid := reader.Conn().PgConn().PID()
			h, ended := b.startExecution(t.Context(), t)
			testkit.Eventually(t, time.Minute, func() error {
				r, err := runs.Show(t.Context(), b.operator, run)
				if err == nil && !strings.Contains(r.Detail, fmt.Sprintf("waiting for pid %d (", pid)) {
					err = fmt.Errorf("detail %q", r.Detail)
				}
				return err
			})
			must(t, runs.ChangeStatus(t.Context(), b.operator, run, status))
			select {
			case err := <-ended:
				if err == nil || err.Error() != string(status) {
					t.Errorf("%v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("retention still waits")
			}
			// Its own session released the lock, so there is no wait.
			b.checkText(t, "true", `SELECT pg_try_advisory_lock(hashtextextended('postern.retention', 0))::text`)
			if r, err := runs.Show(t.Context(), b.operator, run); err != nil || r.Detail != "" || r.Status != status {
				t.Errorf("%+v, %v", r, err)
			}
			must(t, errors.Join(h.Release(t.Context()), reader.Rollback(t.Context())))
		})
	}
}

// Two processes at once would reduce and detach the same partitions: a process without the lock
// does nothing.
func TestRetention_lockTaken_fails(t *testing.T) {
	t.Parallel()
	b := setup(t, 18, 4, 10)
	b.requestRun(t, retention.Policy{Bodies: 1})
	session, err := b.db.Pool.Acquire(t.Context())
	must(t, err)
	defer session.Release()
	execSQL(t, session, `SELECT pg_advisory_lock(hashtextextended('postern.retention', 0))`)
	if _, err := b.executeOpenRun(t, b.runner()); err == nil || !strings.Contains(err.Error(),
		"another process still executes retention") || len(b.rows(t, `SELECT name FROM dropped_partitions`)) > 0 {
		t.Errorf("while another process has the lock: %v", err)
	}
	execSQL(t, session, `SELECT pg_advisory_unlock_all()`)
	b.executeToEnd(t, b.runner())
}

// A run that begins while a partition is prepared keeps the partition. Events that it applies
// meanwhile are part of the retained objects when the partition is dropped.
func TestRetention_runBeginsMeanwhile_keepsPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, 19, 3, 20)
	// An object that no event was applied to, and whose newest event is in the day to drop.
	object := b.rows(t, `SELECT object_id FROM objects WHERE last_event_id = ANY($1) AND state IS NOT NULL ORDER BY 1
		LIMIT 1`, b.days[0])[0]
	b.exec(t, `DELETE FROM objects WHERE object_id = $1`, object)
	b.exec(t, `UPDATE outcomes SET status = 'dead' WHERE object_id = $1`, object)
	b.requestRun(t, retention.Policy{Bodies: 1})
	r := b.runner()
	var replay int64
	r.OnStep(func(step string) (err error) {
		if step == "prepared" && replay == 0 {
			replay, err = runs.Create(t.Context(), b.operator, runs.Request{Job: "replay", Params: struct{}{}})
		}
		return err
	})
	b.executeAndFail(t, r, "run 2 (replay, queued) must still read it")
	if got, want := len(b.stored(t)), len(b.days[0])+len(b.days[1])+len(b.days[2]); got != want {
		t.Fatalf("%d events remain of %d", got, want)
	}
	// The run applies the dead events and ends.
	b.exec(t, `DELETE FROM outcomes WHERE object_id = $1`, object)
	b.apply(t, b.stored(t))
	b.exec(t, `UPDATE runs SET status = 'done', ended_at = now() WHERE job = 'replay'`)
	b.executeToEnd(t, b.runner())
	if len(b.stored(t)) >= len(b.days[0])+len(b.days[1])+len(b.days[2]) {
		t.Error("nothing is dropped")
	}
	b.checkRebuild(t, 1000)
}

// Events that are written into a partition while it is reduced are reduced too, or keep the
// partition from being dropped.
func TestRetention_eventsAddedMeanwhile_areReducedOrKept(t *testing.T) {
	t.Parallel()
	for writes, want := range map[int]string{1: "", 2: "does another client write to it?"} {
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 20, 3, 20)
			b.requestRun(t, retention.Policy{Bodies: 1})
			before := len(b.days[0])
			r, n := b.runner(), 0
			r.OnStep(func(step string) error {
				if step != "count" || n == writes {
					return nil
				}
				n++ // below the events that are reduced already
				b.exec(t, `INSERT INTO events SELECT id - $2, source, event_id || 'x' || $2, event_type, account,
					object_type, object_id, occurred_at, received_at, origin, api_version, headers, verification,
						fingerprint,
					delivery_id - $2, delivery_index, body FROM events WHERE id = $1`, b.days[0][0], n)
				b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
					reason, attempts, at, rule_version)
					SELECT $1::bigint - $2, 0, 1, 0, '', '', '', 'ignored', '', 1, now(), 1`, b.days[0][0], n)
				return nil
			})
			_, err := b.executeOpenRun(t, r)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Fatalf("%v, want %q", err, want)
			}
			dropped := b.rows(t, `SELECT events || ' ' || (dropped_at IS NOT NULL) FROM dropped_partitions`)
			if got := fmt.Sprintf("%d %t", before+writes, want == ""); want == "" && dropped[0] != got || want != "" &&
				!strings.HasSuffix(dropped[0], "false") {
				t.Errorf("%v, want %s", dropped, got)
			}
		})
	}
}

// Reducing waits for the lock of an object, which a redaction holds.
func TestReduce_objectLocked_waits(t *testing.T) {
	t.Parallel()
	b := setup(t, 21, 3, 5)
	holder := openTx(t, b.db.Pool, `SELECT pg_advisory_xact_lock(l)
		FROM (SELECT DISTINCT object AS l FROM outcomes WHERE object <> 0 ORDER BY 1) l`)
	b.requestRun(t, retention.Policy{Bodies: 1})
	h, ended := b.startExecution(t.Context(), t)
	b.log.AwaitLockWait(t, ended)
	must(t, holder.Rollback(t.Context()))
	if err := <-ended; err == nil || err.Error() != string(runs.Running) {
		t.Error(err)
	}
	must(t, h.Release(t.Context()))
}

// executeRebuild executes the open rebuild until it pauses or is done.
func (b *testBundle) executeRebuild(t *testing.T) runs.Status {
	t.Helper()
	h, err := runs.Acquire(t.Context(), b.pool, "rebuilding", time.Minute, rebuild.Job)
	if err != nil || h == nil {
		t.Fatalf("no rebuild was taken: %v", err)
	}
	rebuilds := &rebuild.Runner{Pool: b.pool, Applier: b.proc, Settings: rebuild.DefaultSettings}
	status, err := rebuilds.Execute(t.Context(), h, slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, h.Release(t.Context()))
	return status
}

// A paused rebuild will read all events above its bound before it swaps, so their days stay. Days
// that it has read may be dropped.
func TestRetention_pausedRebuild_keepsUnreadDays(t *testing.T) {
	t.Parallel()
	var run int64
	b := setupDays(t, 9, 5, 20, func(b *testBundle, day int) {
		if day != 1 {
			return
		}
		var err error
		if run, err = runs.Create(t.Context(), b.operator, runs.Request{Job: rebuild.Job,
			Params: rebuild.Params{Source: b.source}, Actor: "me"}); err != nil {
			t.Fatal(err)
		}
		if status := b.executeRebuild(t); status != runs.Paused {
			t.Fatalf("the rebuild is %s", status)
		}
	})
	all := len(b.stored(t))
	before := b.rows(t, sharedColumnsSQL("objects"))
	b.requestRun(t, retention.Policy{Bodies: 1})
	b.executeAndFail(t, b.runner(), "run 1 (rebuild, paused) must still read it")
	if n, gone := len(b.stored(t)), len(b.days[0]); n != all-gone {
		t.Errorf("%d events remain of %d, %d of them in a day that the rebuild has read", n, all, gone)
	}
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	if status := b.executeRebuild(t); status != runs.Done {
		t.Errorf("the rebuild is %s", status)
	}
	equal(t, "a swap without a change of the rule changed the mirror", before, b.rows(t, sharedColumnsSQL("objects")))
}
