package replay_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
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
	if err != nil {
		t.Fatal(err)
	}
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

// Whatever is replayed, in whatever order and however often, the objects stay as they are, and so do the outcomes of before.
func TestReplayChangesNothingThatIsRight(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	b := setup(t, seed, 40)
	before, live := b.mirror(t), b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`)
	for _, id := range []string{"one", "two"} {
		b.start(t, id, sim.Provider{}, 17)
	}
	all := []replay.Order{{}, {Filter: events.Filter{ObjectID: "no such"}}, {Filter: events.Filter{Source: b.source, Type: "th*"}}}
	for range 4 {
		some := replay.Order{Filter: events.Filter{IDs: []int64{}}}
		for range r.IntN(len(b.ids)) {
			some.Filter.IDs = append(some.Filter.IDs, b.ids[r.IntN(len(b.ids))])
		}
		all = append(all, some)
	}
	var asked []int64
	for _, o := range all {
		asked = append(asked, b.ask(t, o))
	}
	for i, run := range asked {
		ended := b.until(t, run, done)
		want := map[int64]bool{}
		for _, id := range all[i].Filter.IDs {
			want[id] = true
		}
		n := len(want)
		if i == 0 || i == 2 {
			n = len(b.ids)
		}
		b.counted(t, ended, n)
		if n > 0 && ended.Bound < b.ids[len(b.ids)-1] || ended.Cursor != ended.Bound {
			t.Errorf("run %d ended at %d of %d", run, ended.Cursor, ended.Bound)
		}
	}
	if diff := cmp.Diff(before, b.mirror(t)); diff != "" {
		t.Errorf("objects: %s", diff)
	}
	if diff := cmp.Diff(live, b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`)); diff != "" {
		t.Errorf("live outcomes: %s", diff)
	}
}

// What was lost of the mirror comes back by a replay.
func TestReplayMendsTheMirror(t *testing.T) {
	t.Parallel()
	b := setup(t, 7, 30)
	const shown = `SELECT object_id || ' ' || version_at || ' ' || deleted || ' ' || ambiguous || ' ' || coalesce(state::text, 'null') || ' ' || last_event_id FROM objects ORDER BY object_id`
	before := b.rows(t, shown)
	if _, err := b.db.Pool.Exec(t.Context(), `DELETE FROM objects WHERE hashtext(object_id) % 2 = 0`); err != nil {
		t.Fatal(err)
	}
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
	if err := runs.Change(t.Context(), b.operator, run, runs.Paused); err != nil {
		t.Fatal(err)
	}
	paused := b.until(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.HeldBy == "" })
	if n := paused.Counts[replay.Processed]; n == 0 || int(n) >= len(b.ids) {
		t.Fatalf("%d of %d events are done", n, len(b.ids))
	}
	first()
	if err := runs.Change(t.Context(), b.operator, run, runs.Waiting); err != nil {
		t.Fatal(err)
	}
	// One that dies between its outcomes and its checkpoint.
	h, err := runs.Take(t.Context(), b.pool, "dead", time.Millisecond, replay.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	ids, _, err := events.Match(t.Context(), b.pool, &events.Filter{}, h.Cursor, h.Bound)
	if err != nil || len(ids) < 8 {
		t.Fatal(len(ids), err)
	}
	if _, err := b.processor(t, sim.Provider{}).ApplyStored(t.Context(), processor.Target{Run: run}, ids[:7], false); err != nil {
		t.Fatal(err)
	}
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
	if diff := cmp.Diff(live, b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`)); diff != "" {
		t.Error(diff)
	}
}

// An order that nobody can read fails, with the reason, and holds up no other.
func TestUnreadableOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, 6, 2)
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: replay.Job, Asked: map[string]string{"rate": "fast"}})
	if err != nil {
		t.Fatal(err)
	}
	later, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: replay.Job, Asked: map[string]any{"dry_run": true}})
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE objects SET rule_version = 0`); err != nil {
		t.Fatal(err)
	}
	b.start(t, "one", sim.Provider{}, 100)
	b.until(t, b.ask(t, replay.Order{}), done)
	if diff := cmp.Diff(before, b.rows(t, shown)); diff != "" {
		t.Error(diff)
	}
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
