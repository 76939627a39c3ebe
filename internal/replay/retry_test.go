package replay_test

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// unreadable cannot read some events; each time it tries is counted.
type unreadable struct {
	sim.Provider
	ids   map[int64]bool
	tries *atomic.Int64
}

func (u unreadable) Observe(s *provider.Source, e *provider.Stored) (provider.Observation, error) {
	u.tries.Add(1)
	if u.ids[e.ID] {
		return provider.Observation{}, errUnread
	}
	return u.Provider.Observe(s, e)
}

func (b *testBundle) askRetry(t *testing.T, o replay.Retry) int64 {
	t.Helper()
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: replay.RetryJob, Asked: o})
	must(t, err)
	return run
}

const outcomesWithout = `SELECT (to_jsonb(o))::text FROM outcomes o WHERE NOT (run = %d AND event_id = %d) ORDER BY event_id, run`

// One of a hundred failures is tried again, and the others stay as they are, with their attempts and times.
func TestRetryOfOneLeavesTheOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, 31, 20)
	stop := b.start(t, "broken", failing{}, 100)
	run := b.until(t, b.ask(t, replay.Order{}), done).Run
	stop()
	b.start(t, "mended", sim.Provider{}, 100)
	one := b.ids[36]
	others := b.rows(t, fmt.Sprintf(outcomesWithout, run, one))
	r := b.until(t, b.askRetry(t, replay.Retry{Unfinished: processor.Unfinished{Run: run, Filter: events.Filter{IDs: []int64{one}}}}), done)
	if r.Counts["failed"] != 0 || r.Counts[replay.Processed] != 1 {
		t.Errorf("%+v", r)
	}
	equal(t, "others changed", others, b.rows(t, fmt.Sprintf(outcomesWithout, run, one)))
	if got := b.rows(t, `SELECT run || ' ' || status FROM outcomes WHERE event_id = $1 AND run > 0`, one); len(got) != 1 || strings.HasSuffix(got[0], "failed") {
		t.Error(got)
	}
	if again := b.until(t, b.askRetry(t, replay.Retry{Unfinished: processor.Unfinished{Run: run, Filter: events.Filter{IDs: []int64{one}}}}), done); len(again.Counts) != 0 {
		t.Errorf("%+v", again)
	}
}

// Dead and failed events are chosen by status, reason and event, get all their attempts, and are counted by what became of them.
func TestRetryChooses(t *testing.T) {
	t.Parallel()
	b := setup(t, 37, 20)
	broken := map[int64]bool{b.ids[3]: true, b.ids[5]: true}
	for i, id := range b.ids[:10] { // the first five failed, the others are dead, every second for another reason
		status, due := "failed", "clock_now() + interval '1 h'"
		if i >= 5 {
			status, due = "dead", "NULL"
		}
		b.db.Exec(t,
			`UPDATE outcomes SET status = $2, attempts = 2, reason = $3, object = CASE WHEN $1 = $4 THEN 99 ELSE 0 END, due = `+due+` WHERE event_id = $1 AND run = 0`,
			id, status, fmt.Sprintf("cause %d of it", i%2), b.ids[0])
	}
	b.start(t, "one", unreadable{ids: broken, tries: new(atomic.Int64)}, 3)
	preview := func(u processor.Unfinished) int64 {
		t.Helper()
		p, err := (&replay.Retry{Unfinished: u}).Preview(t.Context(), b.operator, false)
		if err != nil || !p.Exact {
			t.Fatal(p, err)
		}
		return p.Events
	}
	for _, c := range []struct {
		u    processor.Unfinished
		want int64
	}{
		{processor.Unfinished{}, 10}, {processor.Unfinished{Status: "dead"}, 5}, {processor.Unfinished{Status: "failed", Failure: "cause 1"}, 2}, {processor.Unfinished{Run: 1}, 0},
		{processor.Unfinished{Filter: events.Filter{Type: "other"}}, 0}, {processor.Unfinished{Filter: events.Filter{IDs: b.ids[9:20]}}, 1},
		{processor.Unfinished{Filter: events.Filter{Until: time.Now().Add(-time.Hour)}}, 0}, {processor.Unfinished{Objects: []int64{1}}, 10}, {processor.Unfinished{Objects: []int64{99}, Filter: events.Filter{ObjectID: "none"}}, 1},
	} {
		if got := preview(c.u); got != c.want {
			t.Errorf("%+v: %d events, want %d", c.u, got, c.want)
		}
	}
	r := b.until(t, b.askRetry(t, replay.Retry{Unfinished: processor.Unfinished{Status: "failed", Failure: "cause 1"}}), done)
	if r.Counts[replay.Processed] != 2 || r.Counts["failed"] != 1 {
		t.Errorf("%+v", r)
	}
	if got := b.rows(t, `SELECT status || ' ' || attempts || ' ' || reason FROM outcomes WHERE event_id = $1 AND run = 0`, b.ids[3]); got[0] != "failed 1 "+errUnread.Error() {
		t.Error(got)
	}
	r = b.until(t, b.askRetry(t, replay.Retry{}), done)
	if r.Counts[replay.Processed] != 9 || r.Counts["failed"] != 2 {
		t.Errorf("%+v", r)
	}
	if got := b.rows(t, `SELECT status FROM outcomes WHERE run = 0 AND status IN ('failed', 'dead')`); len(got) != 2 {
		t.Error(got)
	}
}

// Wherever a retry is ended, whoever goes on counts each event once, and nothing is left untried.
func TestRetryGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	b := setup(t, 41, 20)
	before := b.mirror(t)
	b.db.Exec(t, `UPDATE outcomes SET status = 'dead', reason = 'x' WHERE run = 0`)
	run := b.askRetry(t, replay.Retry{Unfinished: processor.Unfinished{Status: "dead"}})
	for i, crash := range []func(h *runs.Hold, ids []int64){
		func(*runs.Hold, []int64) {},
		func(h *runs.Hold, ids []int64) { b.keep(t, h, ids) },
		func(h *runs.Hold, ids []int64) {
			b.keep(t, h, ids)
			must(t,
				errOf(b.processor(t, sim.Provider{}).ApplyStored(t.Context(), processor.Target{Run: 0, Again: run}, ids,
					false)))
		},
	} {
		h := b.takes(t, replay.RetryJob)
		if h.Bound == 0 {
			bound, err := events.FreezeBound(t.Context(), b.pool)
			must(t, err)
			must(t, h.Freeze(t.Context(), bound))
		}
		ids := h.Hand
		if ids == nil {
			var err error
			if ids, _, err = (&processor.Unfinished{Status: "dead"}).Match(t.Context(), b.pool, h.Cursor, h.Bound); err != nil || len(ids) < 20 {
				t.Fatal(i, len(ids), err)
			}
			ids = ids[:20]
		}
		crash(h, ids)
	}
	b.flaky(t, "checkpoints", "UPDATE")
	b.start(t, "last", sim.Provider{}, 7)
	r := b.until(t, run, done)
	if int(r.Counts[replay.Processed]) != len(b.ids) || r.Counts["dead"] != 0 || r.Counts["failed"] != 0 || r.Counts[replay.Deduplicated] < 20 {
		t.Errorf("%d events: %v", len(b.ids), r.Counts)
	}
	if left := b.rows(t, `SELECT status FROM outcomes WHERE status IN ('dead', 'failed')`); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
	equal(t, "", before, b.mirror(t))
}

func (b *testBundle) keep(t *testing.T, h *runs.Hold, ids []int64) {
	t.Helper()
	must(t, h.Keep(t.Context(), ids))
}

// takes takes the next run of a job for somebody who ends at once.
func (b *testBundle) takes(t *testing.T, job string) (h *runs.Hold) {
	t.Helper()
	return b.takesFor(t, job, 50*time.Millisecond)
}

func (b *testBundle) takesFor(t *testing.T, job string, lease time.Duration) (h *runs.Hold) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if h, err = runs.Take(t.Context(), b.pool, "ends at once", lease, job); err == nil && h == nil {
			err = errors.New("still held")
		}
		return err
	})
	return h
}

// flaky makes about every third write of a table fail as if the server was stopped, and with it the transaction.
func (b *testBundle) flaky(t *testing.T, table, write string) {
	t.Helper()
	b.db.Exec(t, fmt.Sprintf(`CREATE FUNCTION fail_%[1]s_%[2]s() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF random() < 0.33 THEN RAISE EXCEPTION 'a fault of the test' USING ERRCODE = 'admin_shutdown'; END IF; RETURN NULL; END $$;
CREATE TRIGGER fail AFTER %[2]s ON %[1]s FOR EACH STATEMENT EXECUTE FUNCTION fail_%[1]s_%[2]s()`, table, write))
}

// ending ends whoever reads some events, so many times.
type ending struct {
	sim.Provider
	times map[int64]int
}

func (e ending) Observe(s *provider.Source, ev *provider.Stored) (provider.Observation, error) {
	if e.times[ev.ID] > 0 {
		e.times[ev.ID]--
		runtime.Goexit()
	}
	return e.Provider.Observe(s, ev)
}

// What ends its process again and again is passed over as failed in the end; what was only in hand when somebody else ended the process is not, and neither is
// anything beside it. So for a replay, and for a retry of what is dead.
func TestWhatEndsTheProcessIsPassedOver(t *testing.T) {
	t.Parallel()
	for _, again := range []int64{0, 12} {
		t.Run(fmt.Sprint(again), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 43, 4)
			b.db.Exec(t, `UPDATE outcomes SET status = 'dead', attempts = 9, reason = 'x' WHERE run = 0`)
			guilty, unlucky := b.ids[7], b.ids[3]
			to := processor.Target{Run: 5}
			if again != 0 {
				to = processor.Target{Run: events.LiveRun, Again: again}
			}
			p := b.processor(t, ending{times: map[int64]int{guilty: 100, unlucky: 2}})
			p.Settings = processor.DefaultSettings
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
			left := b.rows(t, `SELECT event_id || ' ' || status || ' ' || attempts || ' ' || reason FROM outcomes WHERE run = $1 AND status IN ('failed', 'dead')`, to.Run)
			if len(left) != 1 || !strings.HasPrefix(left[0], fmt.Sprintf("%d failed 3 tried alone; the attempt has not ended yet", guilty)) {
				t.Errorf("left: %q", left)
			}
			if n := len(b.rows(t, `SELECT status FROM outcomes WHERE run = $1`, to.Run)); n != len(b.ids) {
				t.Errorf("%d outcomes of %d events", n, len(b.ids))
			}
		})
	}
}

// Who goes on with a run counts what those before it had decided and not counted, each event once however many of them ended there, whether it is
// tried alone or not. What had failed was not decided.
func TestDeduplicated(t *testing.T) {
	t.Parallel()
	b := setup(t, 17, 12)
	run := b.ask(t, replay.Order{})
	crash := func(n int, p provider.Provider) {
		h := b.takes(t, replay.Job)
		if h.Bound == 0 {
			bound, err := events.FreezeBound(t.Context(), b.pool)
			if err == nil {
				err = h.Freeze(t.Context(), bound)
			}
			must(t, err)
		}
		must(t, errOf(b.processor(t, p).ApplyStored(t.Context(), processor.Target{Run: run}, b.ids[:n], false)))
	}
	crash(7, sim.Provider{})
	crash(9, sim.Provider{})
	crash(11, failing{})
	h := b.takesFor(t, replay.Job, time.Minute)
	if !h.Abandoned {
		t.Error("nobody seems to have ended in the middle")
	}
	carry := &replay.Runner{Pool: b.pool, Processor: b.processor(t, sim.Provider{}), Chunk: 5}
	if status, err := carry.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	r, err := runs.Show(t.Context(), b.operator, run)
	if err != nil || r.Counts[replay.Deduplicated] != 9 || r.Counts["failed"] != 2 {
		t.Errorf("%v, %v", r.Counts, err)
	}
	b.counted(t, r, len(b.ids))
}
