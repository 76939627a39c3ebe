package replay_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// testBundle is a log whose events were applied live.
type testBundle struct {
	log            *applied.Log
	db             *testkit.DB
	pool, operator *pgxpool.Pool
	source         int32
	ids            []int64
}

func setup(t *testing.T, seed uint64, objects int) *testBundle {
	t.Helper()
	return setupOf(t, seed, sim.Options{Objects: objects, Changes: 12, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70, Twins: 20, Deletes: 15})
}

func setupOf(t *testing.T, seed uint64, like sim.Options) *testBundle {
	t.Helper()
	l := applied.New(t)
	l.BackOff = []time.Duration{time.Hour}
	b := &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.Operator, source: l.Source}
	h := sim.Generate(rand.New(rand.NewPCG(seed, 1)), like)
	rand.New(rand.NewPCG(seed, 3)).Shuffle(len(h.Events), func(i, j int) { h.Events[i], h.Events[j] = h.Events[j], h.Events[i] })
	b.ids = l.Append(t, l.Source, h.Events)
	applied.Apply(t, l.Processor(t, nil), events.LiveRun, b.ids)
	return b
}

func (b *testBundle) processor(t *testing.T, p provider.Provider) *processor.Processor {
	return b.log.Processor(t, p)
}

// start carries out runs until the test ends or stop is called.
func (b *testBundle) start(t *testing.T, id string, p provider.Provider, chunk int) (stop func()) {
	t.Helper()
	return b.carryOut(t, id, &replay.Runner{Pool: b.pool, Processor: b.processor(t, p), Chunk: chunk, Again: 10 * time.Millisecond})
}

func (b *testBundle) carryOut(t *testing.T, id string, replays *replay.Runner) (stop func()) {
	t.Helper()
	return b.log.Carry(t, id, 2, map[string]runs.Carry{replay.Job: replays.Carry, replay.RetryJob: replays.CarryRetry})
}

func (b *testBundle) ask(t *testing.T, o replay.Order) int64 {
	t.Helper()
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: replay.Job, Asked: o})
	must(t, err)
	return run
}

// until waits until a run stands so.
func (b *testBundle) until(t *testing.T, run int64, so func(*runs.Run) bool) *runs.Run {
	t.Helper()
	return b.log.Until(t, run, so)
}

func done(r *runs.Run) bool { return r.Status == runs.Done }

// mirror is every object as it is stored, and when it was last written.
func (b *testBundle) mirror(t *testing.T) []string {
	t.Helper()
	return b.rows(t, `SELECT to_jsonb(o)::text FROM objects o ORDER BY object_id`)
}

func (b *testBundle) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.Rows(t, sql, args...)
}

// counted fails unless each of n events has one outcome under the run, and the run's counts tell them.
func (b *testBundle) counted(t *testing.T, r *runs.Run, n int) {
	t.Helper()
	want := map[string]int64{}
	for _, status := range b.rows(t, `SELECT status FROM outcomes WHERE run = $1`, r.Run) {
		want[status]++
		want[replay.Processed]++
	}
	again, counts := r.Counts[replay.Deduplicated], maps.Clone(r.Counts)
	delete(counts, replay.Deduplicated)
	if diff := cmp.Diff(want, counts); diff != "" || int(counts[replay.Processed]) != n || again < 0 || int(again) > n {
		t.Errorf("%d events, %d of them deduplicated: %s", n, again, diff)
	}
}

// What was lost of the mirror comes back by a replay.
func TestReplayMendsTheMirror(t *testing.T) {
	t.Parallel()
	b := setup(t, 7, 30)
	const shown = `SELECT object_id || ' ' || version_at || ' ' || deleted || ' ' || ambiguous || ' ' || coalesce(state::text, 'null') || ' ' || last_event_id FROM objects ORDER BY object_id`
	before := b.rows(t, shown)
	b.db.Exec(t, `DELETE FROM objects WHERE hashtext(object_id) % 2 = 0`)
	if len(b.rows(t, shown)) == len(before) {
		t.Fatal("nothing was lost")
	}
	b.start(t, "one", sim.Provider{}, 50)
	ended := b.until(t, b.ask(t, replay.Order{}), done)
	b.counted(t, ended, len(b.ids))
	if diff := cmp.Diff(before, b.rows(t, shown)); diff != "" || ended.Counts["applied"] == 0 {
		t.Errorf("%v: %s", ended.Counts, diff)
	}
}

// A run that is paused, handed on or given up in the middle goes on where it was; each event has one outcome in the end.
func TestReplayGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	b := setup(t, 11, 40)
	first := b.start(t, "first", sim.Provider{}, 5)
	run := b.ask(t, replay.Order{Rate: 100})
	begun := func(r *runs.Run) bool { return r.Counts[replay.Processed] > 0 }
	b.until(t, run, begun)
	must(t, runs.Change(t.Context(), b.operator, run, runs.Paused))
	paused := b.until(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.HeldBy == "" })
	if n := paused.Counts[replay.Processed]; n == 0 || int(n) >= len(b.ids) {
		t.Fatalf("%d of %d events are done", n, len(b.ids))
	}
	first()
	must(t, runs.Change(t.Context(), b.operator, run, runs.Waiting))
	// One that dies between its outcomes and its checkpoint.
	h := taken(t, b.pool, "dead", time.Millisecond, replay.Job)
	ids, _, err := events.Match(t.Context(), b.pool, &events.Filter{}, h.Cursor, h.Bound)
	if err != nil || len(ids) < 8 {
		t.Fatal(len(ids), err)
	}
	must(t, errOf(b.processor(t, sim.Provider{}).ApplyStored(t.Context(), processor.Target{Run: run}, ids[:7], false)))
	b.start(t, "second", sim.Provider{}, 5)
	b.counted(t, b.until(t, run, done), len(b.ids))
}

// A replay does not go faster than it may.
func TestRate(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, 10)
	b.start(t, "one", sim.Provider{}, 1000)
	const rate = 60
	ended := b.until(t, b.ask(t, replay.Order{Rate: rate, Filter: events.Filter{IDs: b.ids[:min(len(b.ids), 2*rate)]}}), done)
	took := ended.EndedAt.Sub(ended.StartedAt.Time)
	if least := time.Duration(float64(ended.Counts[replay.Processed])/rate*float64(time.Second)) - 100*time.Millisecond; took < least {
		t.Errorf("%d events in %s", ended.Counts[replay.Processed], took)
	}
}

// failing reads no event of one object.
type failing struct{ sim.Provider }

var errUnread = errors.New("cannot be read")

func (failing) Observe(*provider.Source, *provider.Stored) (provider.Observation, error) {
	return provider.Observation{}, errUnread
}

// What fails in a replay is that run's own: the live outcome stays, and the run ends.
func TestFailuresAreTheRunsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t, 5, 10)
	live := b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`)
	b.start(t, "one", failing{}, 100)
	ended := b.until(t, b.ask(t, replay.Order{}), done)
	b.counted(t, ended, len(b.ids))
	if int(ended.Counts["failed"]) != len(b.ids) {
		t.Error(ended.Counts)
	}
	equal(t, "", live, b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`))
}

// An order that nobody can read fails, with the reason, and holds up no other.
func TestUnreadableOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, 6, 2)
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: replay.Job, Asked: map[string]string{"rate": "fast"}})
	must(t, err)
	later, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: replay.Job, Asked: map[string]any{"dry_run": true}})
	must(t, err)
	b.start(t, "one", sim.Provider{}, 100)
	b.until(t, b.ask(t, replay.Order{}), done)
	for _, run := range []int64{run, later} {
		if r := b.until(t, run, func(r *runs.Run) bool { return r.Status.Final() }); r.Status != runs.Failed || r.Detail == "" || len(r.Counts) > 0 {
			t.Errorf("%+v", r)
		}
	}
}

// What an older rule made is marked as the present rule's once an event of its version was decided again, and is otherwise left alone.
func TestReplayMarksTheRule(t *testing.T) {
	t.Parallel()
	b := setup(t, 13, 10)
	const shown = `SELECT (to_jsonb(o) - 'updated_at')::text FROM objects o ORDER BY object_id`
	before := b.rows(t, shown)
	b.db.Exec(t, `UPDATE objects SET rule_version = 0`)
	b.start(t, "one", sim.Provider{}, 100)
	b.until(t, b.ask(t, replay.Order{}), done)
	equal(t, "", before, b.rows(t, shown))
}

// A run for a source that is not configured is refused, with what to do; one for all sources goes on, and what failed can be tried again.
func TestUnknownSource(t *testing.T) {
	t.Parallel()
	b := setup(t, 17, 3)
	p := b.processor(t, sim.Provider{})
	p.Replace(map[string]processor.Source{})
	b.carryOut(t, "without", &replay.Runner{Pool: b.pool, Processor: p, Chunk: 100})
	for _, run := range []int64{b.ask(t, replay.Order{Filter: events.Filter{Source: b.source}}), b.askRetry(t, replay.Retry{Unfinished: processor.Unfinished{Filter: events.Filter{Source: b.source}}})} {
		r := b.until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
		if r.Status != runs.Failed || !strings.Contains(r.Detail, `source "sim" is not in the configuration`) || len(r.Counts) != 0 {
			t.Errorf("%+v", r)
		}
	}
	all := b.until(t, b.ask(t, replay.Order{}), done)
	if int(all.Counts["failed"]) != len(b.ids) {
		t.Errorf("%+v", all)
	}
	p.Replace(map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: sim.Provider{}}})
	again := b.until(t, b.askRetry(t, replay.Retry{Unfinished: processor.Unfinished{Run: all.Run}}), done)
	if again.Counts["failed"] != 0 || int(again.Counts[replay.Processed]) != len(b.ids) {
		t.Errorf("%+v", again)
	}
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errOf is the error of a call whose other result is not of interest.
func errOf[T any](_ T, err error) error { return err }

// equal reports how a value differs from the one that is wanted.
func equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// taken is the next run of a job, taken by a process.
func taken(t testing.TB, pool *pgxpool.Pool, by string, lease time.Duration, job string) *runs.Hold {
	t.Helper()
	h, err := runs.Take(t.Context(), pool, by, lease, job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	return h
}

// Replays of all or any parts of the log, side by side and any number of times, leave every object
// as it is, down to when it was written, and so the outcomes of before, though each step of theirs
// fails now and then: what applies, what moves the checkpoint, and what notes that a run begins or
// ends. Each event has its outcome in each run, and is counted once.
func TestReplayChangesNothingThatIsRight(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	b := setupOf(t, seed, sim.Options{Objects: 20, Changes: 10, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 60, Twins: 20,
		Deletes: 10, Partial: 20})
	const outcomes = `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`
	before, live := b.mirror(t), b.rows(t, outcomes)
	b.flaky(t, "checkpoints", "UPDATE")
	b.flaky(t, "outcomes", "INSERT")
	asked := map[int64]int{} // how many events each run chooses
	asked[b.ask(t, replay.Order{})] = len(b.ids)
	asked[b.ask(t, replay.Order{Filter: events.Filter{ObjectID: "no such"}})] = 0
	asked[b.ask(t, replay.Order{Filter: events.Filter{Source: b.source, Type: "th*"}})] = len(b.ids)
	for range 4 {
		ids, chosen := []int64{}, map[int64]bool{}
		for range 1 + r.IntN(len(b.ids)) {
			id := b.ids[r.IntN(len(b.ids))]
			ids, chosen[id] = append(ids, id), true
		}
		asked[b.ask(t, replay.Order{Filter: events.Filter{IDs: ids}})] = len(chosen)
	}
	for _, id := range []string{"one", "two"} {
		b.start(t, id, sim.Provider{}, 13)
	}
	for run, n := range asked {
		ended := b.until(t, run, done)
		b.counted(t, ended, n)
		if n > 0 && ended.Bound < b.ids[len(b.ids)-1] || ended.Cursor != ended.Bound {
			t.Errorf("run %d ended at %d of %d", run, ended.Cursor, ended.Bound)
		}
	}
	equal(t, "objects", before, b.mirror(t))
	equal(t, "live outcomes", live, b.rows(t, outcomes))
}

// While sixteen writers append, a replay passes over nothing that is at or below its bound.
func TestReplayBesideWriters(t *testing.T) {
	t.Parallel()
	b := setup(t, 29, 5)
	b.start(t, "one", sim.Provider{}, 50)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for n := range 100 {
				select {
				case <-stop:
					return
				default:
				}
				body := fmt.Appendf(nil, "no thing %d %d", w, n)
				var batch []events.Delivery
				for i := range 1 + n%3 {
					batch = append(batch, events.Delivery{Source: b.source, ReceivedAt: time.Now(), Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body,
						Events: []provider.Event{{Key: fmt.Sprint("w", w, " ", n, " ", i), Type: "thing", Fingerprint: provider.BodyFingerprint(body)}}})
				}
				if _, err := events.Append(t.Context(), b.db.Pool, batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var asked []int64
	for range 4 {
		run := b.ask(t, replay.Order{})
		b.until(t, run, func(r *runs.Run) bool { return r.Bound > 0 })
		asked = append(asked, run)
	}
	var ended []*runs.Run
	for _, run := range asked {
		ended = append(ended, b.until(t, run, done))
	}
	close(stop)
	wg.Wait()
	for _, r := range ended {
		missed := b.rows(t, `SELECT e.id::text FROM events e WHERE e.id <= $2 AND NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = $1)`, r.Run, r.Bound)
		beyond := b.rows(t, `SELECT event_id::text FROM outcomes WHERE run = $1 AND event_id > $2`, r.Run, r.Bound)
		if len(missed) > 0 || len(beyond) > 0 || int(r.Counts[replay.Processed]) < len(b.ids) {
			t.Errorf("run %d of %d events: %d missed, %d beyond the bound", r.Run, r.Counts[replay.Processed], len(missed), len(beyond))
		}
	}
	if n := len(b.rows(t, `SELECT id::text FROM events WHERE id > $1`, ended[0].Bound)); n == 0 {
		t.Error("nothing was appended meanwhile")
	}
}
