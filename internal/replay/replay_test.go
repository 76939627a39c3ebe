package replay_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The checks of package testkit by short names, because most lines of these tests use one.
var must, equal, takeRun = testkit.Must, testkit.Equal, applied.LeaseRun

// testBundle is a log whose events were applied live.
type testBundle struct {
	log            *applied.Log
	db             *testkit.DB
	pool, operator *pgxpool.Pool
	source         int32
	ids            []int64
}

func newLog(t *testing.T) *testBundle {
	t.Helper()
	l := applied.New(t)
	return &testBundle{log: l, db: l.DB, pool: l.Pool, operator: l.OperatorPool, source: l.Source}
}

func setup(t *testing.T, seed uint64, objects int) *testBundle {
	t.Helper()
	return setupOf(t, seed, sim.Options{Objects: objects, Changes: 12, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70,
		DuplicateEvents: 20, Deletes: 15})
}

func setupOf(t *testing.T, seed uint64, like sim.Options) *testBundle {
	t.Helper()
	b := newLog(t)
	b.log.Settings.BackOff = []time.Duration{time.Hour}
	h := sim.Generate(rand.New(rand.NewPCG(seed, 1)), like)
	rand.New(rand.NewPCG(seed, 3)).Shuffle(len(h.Events), func(i, j int) {
		h.Events[i], h.Events[j] = h.Events[j], h.Events[i]
	})
	b.ids = b.log.Append(t, b.source, h.Events)
	applied.Apply(t, b.applier(t, nil), events.LiveRun, b.ids)
	return b
}

func (b *testBundle) applier(t *testing.T, p provider.Provider) *apply.Applier {
	return b.log.Applier(t, p)
}

// start executes runs until the test ends or stop is called.
func (b *testBundle) start(t *testing.T, id string, p provider.Provider, chunk int) (stop func()) {
	t.Helper()
	return b.startRunner(t, id, &replay.Runner{Pool: b.pool, Applier: b.applier(t, p), Chunk: chunk,
		RetryPause: 10 * time.Millisecond})
}

func (b *testBundle) startRunner(t *testing.T, id string, replays *replay.Runner) (stop func()) {
	t.Helper()
	return b.log.StartRunner(t, id, 2, map[string]runs.Executor{replay.Job: replays.Execute,
		replay.RetryJob: replays.ExecuteRetry})
}

func (b *testBundle) request(t *testing.T, o replay.Params) int64 {
	t.Helper()
	run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: replay.Job, Params: o})
	must(t, err)
	return run
}

// awaitRun waits until a run has reached a state.
func (b *testBundle) awaitRun(t *testing.T, run int64, isReached func(*runs.Run) bool) *runs.Run {
	t.Helper()
	return b.log.WaitForRun(t, run, isReached)
}

func done(r *runs.Run) bool { return r.Status == runs.Done }

// replay requests a replay and waits until it is done.
func (b *testBundle) replay(t *testing.T, o replay.Params) *runs.Run {
	t.Helper()
	return b.awaitRun(t, b.request(t, o), done)
}

// retry requests a retry of unfinished events and waits until it is done.
func (b *testBundle) retry(t *testing.T, u apply.Unfinished) *runs.Run {
	t.Helper()
	return b.awaitRun(t, b.requestRetry(t, replay.RetryParams{Unfinished: u}), done)
}

// execute executes a leased replay to its end.
func execute(t *testing.T, r *replay.Runner, h *runs.Lease) {
	t.Helper()
	if status, err := r.Execute(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
}

// mirror returns every object as it is stored, with the time of its last write.
func (b *testBundle) mirror(t *testing.T) []string {
	t.Helper()
	return b.rows(t, `SELECT to_jsonb(o)::text FROM objects o ORDER BY object_id`)
}

func (b *testBundle) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	return b.db.QueryStrings(t, sql, args...)
}

// checkCounts fails unless each of n events has one outcome in the run, and the run's counts agree.
func (b *testBundle) checkCounts(t *testing.T, r *runs.Run, n int) {
	t.Helper()
	want := map[string]int64{}
	for _, status := range b.rows(t, `SELECT status FROM outcomes WHERE run = $1`, r.ID) {
		want[status]++
		want[replay.Processed]++
	}
	deduplicated, counts := r.Counts[replay.Deduplicated], maps.Clone(r.Counts)
	delete(counts, replay.Deduplicated)
	if diff := cmp.Diff(want, counts); diff != "" || int(counts[replay.Processed]) != n || deduplicated < 0 ||
		int(deduplicated) > n {
		t.Errorf("%d events, %d of them deduplicated: %s", n, deduplicated, diff)
	}
}

// A replay restores objects that were lost from the mirror.
func TestReplay_lostObjects_areRepaired(t *testing.T) {
	t.Parallel()
	b := setup(t, 7, 30)
	const shown = `SELECT object_id || ' ' || version_at || ' ' || deleted || ' ' || ambiguous || ' ' ||
		coalesce(state::text, 'null') || ' ' || last_event_id FROM objects ORDER BY object_id`
	before := b.rows(t, shown)
	b.db.Exec(t, `DELETE FROM objects WHERE hashtext(object_id) % 2 = 0`)
	if len(b.rows(t, shown)) == len(before) {
		t.Fatal("nothing was lost")
	}
	b.start(t, "one", sim.Provider{}, 50)
	ended := b.replay(t, replay.Params{})
	b.checkCounts(t, ended, len(b.ids))
	if diff := cmp.Diff(before, b.rows(t, shown)); diff != "" || ended.Counts["applied"] == 0 {
		t.Errorf("%v: %s", ended.Counts, diff)
	}
}

// A run that is paused, moved to another process or interrupted continues at its checkpoint. In the
// end each event has one outcome.
func TestReplay_interrupted_continuesAtCheckpoint(t *testing.T) {
	t.Parallel()
	b := setup(t, 11, 40)
	first := b.start(t, "first", sim.Provider{}, 5)
	run := b.request(t, replay.Params{Rate: 100})
	begun := func(r *runs.Run) bool { return r.Counts[replay.Processed] > 0 }
	b.awaitRun(t, run, begun)
	must(t, runs.ChangeStatus(t.Context(), b.operator, run, runs.Paused))
	paused := b.awaitRun(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.LeaseOwner == "" })
	if n := paused.Counts[replay.Processed]; n == 0 || int(n) >= len(b.ids) {
		t.Fatalf("%d of %d events are done", n, len(b.ids))
	}
	first()
	must(t, runs.ChangeStatus(t.Context(), b.operator, run, runs.Queued))
	// A process that dies between its outcomes and its checkpoint.
	h := takeRun(t, b.pool, "dead", time.Millisecond, replay.Job)
	ids, _, err := events.Match(t.Context(), b.pool, &events.Filter{}, h.Cursor, h.Bound)
	if err != nil || len(ids) < 8 {
		t.Fatal(len(ids), err)
	}
	must(t, errOf(b.applier(t, sim.Provider{}).ApplyStored(t.Context(), apply.Target{Run: run}, ids[:7], false)))
	b.start(t, "second", sim.Provider{}, 5)
	b.checkCounts(t, b.awaitRun(t, run, done), len(b.ids))
}

// A replay does not exceed its rate.
func TestReplay_rate_isNotExceeded(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, 10)
	b.start(t, "one", sim.Provider{}, 1000)
	const rate = 60
	ended := b.replay(t, replay.Params{Rate: rate, Filter: events.Filter{IDs: b.ids[:min(len(b.ids), 2*rate)]}})
	took := ended.EndedAt.Sub(ended.StartedAt.Time)
	if least := time.Duration(float64(ended.Counts[replay.Processed])/rate*float64(time.Second)) - 100*
		time.Millisecond; took < least {
		t.Errorf("%d events in %s", ended.Counts[replay.Processed], took)
	}
}

// failingProvider reads no event.
type failingProvider struct{ sim.Provider }

var errUnreadable = errors.New("cannot be read")

func (failingProvider) Observe(*provider.Source, *provider.StoredEvent) (provider.Observation, error) {
	return provider.Observation{}, errUnreadable
}

// A failure in a replay belongs to that run: the live outcome stays, and the run ends.
func TestReplay_eventFails_keepsLiveOutcome(t *testing.T) {
	t.Parallel()
	b := setup(t, 5, 10)
	live := b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`)
	b.start(t, "one", failingProvider{}, 100)
	ended := b.replay(t, replay.Params{})
	b.checkCounts(t, ended, len(b.ids))
	if int(ended.Counts["failed"]) != len(b.ids) {
		t.Error(ended.Counts)
	}
	equal(t, "", live, b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`))
}

// A run with unreadable parameters fails with the reason, and does not block other runs.
func TestReplay_unreadableParams_fails(t *testing.T) {
	t.Parallel()
	b := setup(t, 6, 2)
	var unreadable []int64
	for _, params := range []map[string]any{{"rate": "fast"}, {"dry_run": true}} {
		run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: replay.Job, Params: params})
		must(t, err)
		unreadable = append(unreadable, run)
	}
	b.start(t, "one", sim.Provider{}, 100)
	b.replay(t, replay.Params{})
	for _, run := range unreadable {
		if r := b.awaitRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() }); r.Status != runs.Failed ||
			r.Detail == "" || len(r.Counts) > 0 {
			t.Errorf("%+v", r)
		}
	}
}

// An object that an older rule made gets the current rule version when an event of its version is
// decided again. Nothing else changes.
func TestReplay_olderRule_updatesRuleVersion(t *testing.T) {
	t.Parallel()
	b := setup(t, 13, 10)
	const shown = `SELECT (to_jsonb(o) - 'updated_at')::text FROM objects o ORDER BY object_id`
	before := b.rows(t, shown)
	b.db.Exec(t, `UPDATE objects SET rule_version = 0`)
	b.start(t, "one", sim.Provider{}, 100)
	b.replay(t, replay.Params{})
	equal(t, "", before, b.rows(t, shown))
}

// A run for a source that is not configured fails with a remedy. A run for all sources continues,
// and the failed events can be retried.
func TestReplay_sourceNotConfigured_fails(t *testing.T) {
	t.Parallel()
	b := setup(t, 17, 3)
	p := b.applier(t, sim.Provider{})
	p.Replace(map[string]apply.Source{})
	b.startRunner(t, "without", &replay.Runner{Pool: b.pool, Applier: p, Chunk: 100})
	for _, run := range []int64{b.request(t, replay.Params{Filter: events.Filter{Source: b.source}}),
		b.requestRetry(t, replay.RetryParams{
			Unfinished: apply.Unfinished{Filter: events.Filter{Source: b.source}}})} {
		r := b.awaitRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() })
		if r.Status != runs.Failed || !strings.Contains(r.Detail, `source "sim" is not in the configuration`) ||
			len(r.Counts) != 0 {
			t.Errorf("%+v", r)
		}
	}
	all := b.replay(t, replay.Params{})
	if int(all.Counts["failed"]) != len(b.ids) {
		t.Errorf("%+v", all)
	}
	p.Replace(map[string]apply.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"},
		Provider: sim.Provider{}}})
	again := b.retry(t, apply.Unfinished{Run: all.ID})
	if again.Counts["failed"] != 0 || int(again.Counts[replay.Processed]) != len(b.ids) {
		t.Errorf("%+v", again)
	}
}

// errOf returns the error of a call whose other result is not needed.
func errOf[T any](_ T, err error) error { return err }

// Replays of all or of parts of the log, concurrent and repeated, leave every object unchanged,
// including the time of its last write, and all live outcomes. This holds although each of their
// steps fails now and then. Each event has one outcome in each run, and is counted once.
func TestReplay_correctMirror_changesNothing(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	b := setupOf(t, seed, sim.Options{Objects: 20, Changes: 10, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 60,
		DuplicateEvents: 20, Deletes: 10, Partial: 20})
	const outcomes = `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`
	before, live := b.mirror(t), b.rows(t, outcomes)
	b.failRandomly(t, "checkpoints", "UPDATE")
	b.failRandomly(t, "outcomes", "INSERT")
	expected := map[int64]int{} // how many events each run selects
	expected[b.request(t, replay.Params{})] = len(b.ids)
	expected[b.request(t, replay.Params{Filter: events.Filter{ObjectID: "no such"}})] = 0
	expected[b.request(t, replay.Params{Filter: events.Filter{Source: b.source, Type: "th*"}})] = len(b.ids)
	for range 4 {
		ids, chosen := []int64{}, map[int64]bool{}
		for range 1 + r.IntN(len(b.ids)) {
			id := b.ids[r.IntN(len(b.ids))]
			ids, chosen[id] = append(ids, id), true
		}
		expected[b.request(t, replay.Params{Filter: events.Filter{IDs: ids}})] = len(chosen)
	}
	for _, id := range []string{"one", "two"} {
		b.start(t, id, sim.Provider{}, 13)
	}
	for run, n := range expected {
		ended := b.awaitRun(t, run, done)
		b.checkCounts(t, ended, n)
		if n > 0 && ended.Bound < b.ids[len(b.ids)-1] || ended.Cursor != ended.Bound {
			t.Errorf("run %d ended at %d of %d", run, ended.Cursor, ended.Bound)
		}
	}
	equal(t, "objects", before, b.mirror(t))
	equal(t, "live outcomes", live, b.rows(t, outcomes))
}

// While sixteen writers append, a replay skips no event up to its bound.
func TestReplay_concurrentAppends_missesNothing(t *testing.T) {
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
					batch = append(batch, events.Delivery{Source: b.source, ReceivedAt: time.Now(),
						Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body,
						Events: []provider.Event{{Key: fmt.Sprint("w", w, " ", n, " ", i), Type: "thing",
							Fingerprint: provider.BodyFingerprint(body)}}})
				}
				if _, err := events.Append(t.Context(), b.db.Pool, batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var runIDs []int64
	for range 4 {
		run := b.request(t, replay.Params{})
		b.awaitRun(t, run, func(r *runs.Run) bool { return r.Bound > 0 })
		runIDs = append(runIDs, run)
	}
	var ended []*runs.Run
	for _, run := range runIDs {
		ended = append(ended, b.awaitRun(t, run, done))
	}
	close(stop)
	wg.Wait()
	for _, r := range ended {
		missed := b.rows(t, `SELECT e.id::text FROM events e WHERE e.id <= $2 AND NOT EXISTS (SELECT FROM outcomes o
			WHERE o.event_id = e.id AND o.run = $1)`, r.ID, r.Bound)
		beyond := b.rows(t, `SELECT event_id::text FROM outcomes WHERE run = $1 AND event_id > $2`, r.ID, r.Bound)
		if len(missed) > 0 || len(beyond) > 0 || int(r.Counts[replay.Processed]) < len(b.ids) {
			t.Errorf("run %d of %d events: %d missed, %d beyond the bound", r.ID, r.Counts[replay.Processed],
				len(missed), len(beyond))
		}
	}
	if n := len(b.rows(t, `SELECT id::text FROM events WHERE id > $1`, ended[0].Bound)); n == 0 {
		t.Error("nothing was appended meanwhile")
	}
}
