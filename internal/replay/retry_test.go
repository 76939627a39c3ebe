package replay_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// selectiveProvider cannot read some events. It counts its reads.
type selectiveProvider struct {
	sim.Provider
	ids   map[int64]bool
	tries *atomic.Int64
}

func (u selectiveProvider) Observe(s *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	u.tries.Add(1)
	if u.ids[e.ID] {
		return provider.Observation{}, errUnreadable
	}
	return u.Provider.Observe(s, e)
}

func (b *testBundle) requestRetry(t *testing.T, o replay.RetryParams) int64 {
	t.Helper()
	run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: replay.RetryJob, Params: o})
	must(t, err)
	return run
}

const otherOutcomesSQL = `SELECT (to_jsonb(o))::text FROM outcomes o WHERE NOT (run = %d AND event_id = %d)
	ORDER BY event_id, run`

// One of a hundred failures is retried, and the others stay as they are, with their attempts and
// times.
func TestRetry_oneEvent_leavesOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, 31, 20)
	stop := b.start(t, "broken", failingProvider{}, 100)
	run := b.replay(t, replay.Params{}).ID
	stop()
	b.start(t, "repaired", sim.Provider{}, 100)
	one := b.ids[36]
	others := b.rows(t, fmt.Sprintf(otherOutcomesSQL, run, one))
	selected := apply.Unfinished{Run: run, Filter: events.Filter{IDs: []int64{one}}}
	r := b.retry(t, selected)
	if r.Counts["failed"] != 0 || r.Counts[replay.Processed] != 1 {
		t.Errorf("%+v", r)
	}
	equal(t, "others changed", others, b.rows(t, fmt.Sprintf(otherOutcomesSQL, run, one)))
	if got := b.rows(t, `SELECT run || ' ' || status FROM outcomes WHERE event_id = $1 AND run > 0`,
		one); len(got) != 1 || strings.HasSuffix(got[0], "failed") {
		t.Error(got)
	}
	if again := b.retry(t, selected); len(again.Counts) != 0 {
		t.Errorf("%+v", again)
	}
}

// Dead and failed events are selected by status, reason and event. They get all their attempts, and
// are counted by their new outcomes.
func TestRetry_filters_selectOutcomes(t *testing.T) {
	t.Parallel()
	b := setup(t, 37, 20)
	broken := map[int64]bool{b.ids[3]: true, b.ids[5]: true}
	for i, id := range b.ids[:10] { // the first five failed, the others are dead, every second for another reason
		status, due := "failed", "clock_now() + interval '1 h'"
		if i >= 5 {
			status, due = "dead", "NULL"
		}
		b.db.Exec(t, `UPDATE outcomes SET status = $2, attempts = 2, reason = $3, object = CASE WHEN $1 = $4 THEN 99
				ELSE 0 END, due = `+due+
			` WHERE event_id = $1 AND run = 0`, id, status, fmt.Sprintf("cause %d of it", i%2), b.ids[0])
	}
	b.start(t, "one", selectiveProvider{ids: broken, tries: new(atomic.Int64)}, 3)
	preview := func(u apply.Unfinished) int64 {
		t.Helper()
		p, err := (&replay.RetryParams{Unfinished: u}).Preview(t.Context(), b.operator, false)
		if err != nil || !p.Complete {
			t.Fatal(p, err)
		}
		return p.Events
	}
	for _, c := range []struct {
		u    apply.Unfinished
		want int64
	}{
		{apply.Unfinished{}, 10}, {apply.Unfinished{Status: "dead"}, 5},
		{apply.Unfinished{Status: "failed", ReasonContains: "cause 1"}, 2}, {apply.Unfinished{Run: 1}, 0},
		{apply.Unfinished{Filter: events.Filter{Type: "other"}}, 0},
		{apply.Unfinished{Filter: events.Filter{IDs: b.ids[9:20]}}, 1},
		{apply.Unfinished{Filter: events.Filter{Until: time.Now().Add(-time.Hour)}}, 0},
		{apply.Unfinished{Objects: []int64{1}}, 10},
		{apply.Unfinished{Objects: []int64{99}, Filter: events.Filter{ObjectID: "none"}}, 1},
	} {
		if got := preview(c.u); got != c.want {
			t.Errorf("%+v: %d events, want %d", c.u, got, c.want)
		}
	}
	r := b.retry(t, apply.Unfinished{Status: "failed", ReasonContains: "cause 1"})
	if r.Counts[replay.Processed] != 2 || r.Counts["failed"] != 1 {
		t.Errorf("%+v", r)
	}
	if got := b.rows(t, `SELECT status || ' ' || attempts || ' ' || reason FROM outcomes WHERE event_id = $1
		AND run = 0`, b.ids[3]); got[0] != "failed 1 "+errUnreadable.Error() {
		t.Error(got)
	}
	r = b.retry(t, apply.Unfinished{})
	if r.Counts[replay.Processed] != 9 || r.Counts["failed"] != 2 {
		t.Errorf("%+v", r)
	}
	if got := b.rows(t, `SELECT status FROM outcomes WHERE run = 0 AND status IN ('failed', 'dead')`); len(got) != 2 {
		t.Error(got)
	}
}

// Wherever a retry is interrupted, the next process counts each event once and misses none.
func TestRetry_interrupted_continuesAtCheckpoint(t *testing.T) {
	t.Parallel()
	b := setup(t, 41, 20)
	before := b.mirror(t)
	b.db.Exec(t, `UPDATE outcomes SET status = 'dead', reason = 'x' WHERE run = 0`)
	run := b.requestRetry(t, replay.RetryParams{Unfinished: apply.Unfinished{Status: "dead"}})
	for i, crash := range []func(h *runs.Lease, ids []int64){
		func(*runs.Lease, []int64) {},
		func(h *runs.Lease, ids []int64) { must(t, h.MarkInProgress(t.Context(), ids)) },
		func(h *runs.Lease, ids []int64) {
			must(t, h.MarkInProgress(t.Context(), ids))
			must(t, errOf(b.applier(t, sim.Provider{}).ApplyStored(t.Context(), apply.Target{Run: 0,
				RetryRun: run}, ids, false)))
		},
	} {
		h := b.takeBriefly(t, replay.RetryJob)
		b.bound(t, h)
		ids := h.InProgress
		if ids == nil {
			var err error
			if ids, _, err = (&apply.Unfinished{Status: "dead"}).Match(t.Context(), b.pool, h.Cursor,
				h.Bound); err != nil || len(ids) < 20 {
				t.Fatal(i, len(ids), err)
			}
			ids = ids[:20]
		}
		crash(h, ids)
	}
	b.failRandomly(t, "checkpoints", "UPDATE")
	b.start(t, "last", sim.Provider{}, 7)
	r := b.awaitRun(t, run, done)
	if int(r.Counts[replay.Processed]) != len(b.ids) || r.Counts["dead"] != 0 || r.Counts["failed"] != 0 ||
		r.Counts[replay.Deduplicated] < 20 {
		t.Errorf("%d events: %v", len(b.ids), r.Counts)
	}
	if left := b.rows(t, `SELECT status FROM outcomes WHERE status IN ('dead', 'failed')`); len(left) != 0 {
		t.Errorf("%d remain", len(left))
	}
	equal(t, "", before, b.mirror(t))
}

// bound bounds a run, as its first process does.
func (b *testBundle) bound(t *testing.T, h *runs.Lease) {
	t.Helper()
	if h.Bound == 0 {
		bound, err := events.FreezeBound(t.Context(), b.pool)
		must(t, err)
		must(t, h.SetBound(t.Context(), bound))
	}
}

// takeBriefly takes the next run of a job for a process that ends at once.
func (b *testBundle) takeBriefly(t *testing.T, job string) (h *runs.Lease) {
	t.Helper()
	return b.awaitRunFor(t, job, 50*time.Millisecond)
}

func (b *testBundle) awaitRunFor(t *testing.T, job string, lease time.Duration) (h *runs.Lease) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if h, err = runs.Acquire(t.Context(), b.pool, "ends at once", lease, job); err == nil && h == nil {
			err = errors.New("the lease is still held")
		}
		return err
	})
	return h
}

// failRandomly makes about every third write of a table fail, and with it the transaction, as if
// the server was stopped.
func (b *testBundle) failRandomly(t *testing.T, table, write string) {
	t.Helper()
	b.db.Exec(t, fmt.Sprintf(`CREATE FUNCTION fail_%[1]s_%[2]s() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF random() < 0.33 THEN RAISE EXCEPTION 'a fault of the test' USING ERRCODE = 'admin_shutdown'; END IF; RETURN
	NULL; END $$;
CREATE TRIGGER fail AFTER %[2]s ON %[1]s FOR EACH STATEMENT EXECUTE FUNCTION fail_%[1]s_%[2]s()`, table, write))
}

// exitingProvider ends the goroutine that reads some events, a number of times.
type exitingProvider struct {
	sim.Provider
	times map[int64]int
}

func (e exitingProvider) Observe(s *provider.Source, ev *provider.StoredEvent) (provider.Observation, error) {
	if e.times[ev.ID] > 0 {
		e.times[ev.ID]--
		runtime.Goexit()
	}
	return e.Provider.Observe(s, ev)
}

// An event that ends its process again and again is finally skipped as failed. Other events are
// applied, including one that was only in progress when the process ended. This holds for a replay
// and for a retry of dead events.
func TestApplyStored_eventEndsProcess_isSkipped(t *testing.T) {
	t.Parallel()
	for _, retryRun := range []int64{0, 12} {
		t.Run(fmt.Sprint(retryRun), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 43, 4)
			b.db.Exec(t, `UPDATE outcomes SET status = 'dead', attempts = 9, reason = 'x' WHERE run = 0`)
			guilty, unlucky := b.ids[7], b.ids[3]
			to := apply.Target{Run: 5}
			if retryRun != 0 {
				to = apply.Target{Run: events.LiveRun, RetryRun: retryRun}
			}
			p := b.applier(t, exitingProvider{times: map[int64]int{guilty: 100, unlucky: 2}})
			p.Settings = apply.DefaultSettings
			ended := false
			for tries := 0; !ended; tries++ {
				if tries > 2+3 {
					t.Fatal("the run never ends")
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := p.ApplyStored(t.Context(), to, b.ids, true); err != nil {
						t.Error(err)
					}
					ended = true
				})
				wg.Wait()
			}
			left := b.rows(t, `SELECT event_id || ' ' || status || ' ' || attempts || ' ' || reason FROM outcomes
				WHERE run = $1 AND status IN ('failed', 'dead')`, to.Run)
			if len(left) != 1 || !strings.HasPrefix(left[0],
				fmt.Sprintf("%d failed 3 tried alone; the attempt has not ended yet", guilty)) {
				t.Errorf("remaining: %q", left)
			}
			if n := len(b.rows(t, `SELECT status FROM outcomes WHERE run = $1`, to.Run)); n != len(b.ids) {
				t.Errorf("%d outcomes of %d events", n, len(b.ids))
			}
		})
	}
}

// A process that continues a run counts events that earlier processes decided without counting
// them, each once. This holds for batches and for single events. Failed events are not counted as
// decided.
func TestReplay_eventsDecidedBefore_areCountedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, 17, 12)
	run := b.request(t, replay.Params{})
	crash := func(n int, p provider.Provider) {
		h := b.takeBriefly(t, replay.Job)
		b.bound(t, h)
		must(t, errOf(b.applier(t, p).ApplyStored(t.Context(), apply.Target{Run: run}, b.ids[:n], false)))
	}
	crash(7, sim.Provider{})
	crash(9, sim.Provider{})
	crash(11, failingProvider{})
	h := b.awaitRunFor(t, replay.Job, time.Minute)
	if !h.Abandoned {
		t.Error("the lease does not show that a process ended during the run")
	}
	execute(t, &replay.Runner{Pool: b.pool, Applier: b.applier(t, sim.Provider{}), Chunk: 5}, h)
	r, err := runs.Show(t.Context(), b.operator, run)
	if err != nil || r.Counts[replay.Deduplicated] != 9 || r.Counts["failed"] != 2 {
		t.Errorf("%v, %v", r.Counts, err)
	}
	b.checkCounts(t, r, len(b.ids))
}
