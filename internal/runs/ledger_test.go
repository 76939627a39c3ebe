package runs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The checks of package testkit by short names, because most lines of these tests use one.
var must, equal, execSQL = testkit.Must, testkit.Equal, testkit.ExecSQL

const job = "replay"

type testBundle struct{ operator, processor *pgxpool.Pool }

func setup(t *testing.T) *testBundle {
	t.Helper()
	db := testkit.Database(t)
	return &testBundle{db.Role(t, "operator"), db.Role(t, "processor")}
}

func (b *testBundle) create(t *testing.T, reason string) int64 {
	t.Helper()
	run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: job, Params: map[string]string{"type": "x"},
		Actor: "me", Reason: reason, Expected: 7})
	must(t, err)
	return run
}

func (b *testBundle) acquire(t *testing.T, by string, lease time.Duration) *runs.Lease {
	t.Helper()
	h, err := runs.Acquire(t.Context(), b.processor, by, lease, job)
	must(t, err)
	return h
}

func (b *testBundle) show(t *testing.T, run int64) *runs.Run {
	t.Helper()
	r, err := runs.Show(t.Context(), b.operator, run)
	must(t, err)
	return r
}

// A new owner continues from the checkpoint of the previous one, and gets the events in progress
// until the checkpoint passes them. An owner that has lost its lease cannot change the run.
func TestLease_expiresOrIsReleased_nextOwnerContinues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.create(t, "because")
	first := b.acquire(t, "first", 50*time.Millisecond)
	if first == nil || first.Run.ID != run || first.Cursor != 0 || first.Abandoned || first.InProgress != nil ||
		first.Status != runs.Running {
		t.Fatalf("leased %+v", first)
	}
	must(t, first.SetBound(t.Context(), 100))
	first.Counts["applied"] = 3
	if status, err := first.Advance(t.Context(), 40); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	must(t, first.MarkInProgress(t.Context(), []int64{47, 48}))
	var second *runs.Lease
	testkit.Eventually(t, time.Minute, func() error { // the first owner has crashed
		if second = b.acquire(t, "first", time.Minute); second == nil {
			return errors.New("no run to lease")
		}
		return nil
	})
	if second.Cursor != 40 || second.Bound != 100 || !second.Abandoned || second.Counts["applied"] != 3 ||
		!slices.Equal(second.InProgress, []int64{47, 48}) || !strings.HasPrefix(second.LeaseOwner, "first/") {
		t.Errorf("leased %+v", second)
	}
	for name, err := range map[string]error{"sets the bound": first.SetBound(t.Context(), 200),
		"marks events": first.MarkInProgress(t.Context(), []int64{9}),
		"advances":     errOf(first.Advance(t.Context(), 90))} {
		if !errors.Is(err, runs.ErrLeaseLost) {
			t.Errorf("the previous owner still %s: %v", name, err)
		}
	}
	if err := first.End(t.Context(), runs.Done, ""); err != nil || b.show(t, run).Status != runs.Running {
		t.Errorf("the previous owner ended the run: %v", err)
	}
	if b.acquire(t, "first", time.Minute) != nil {
		t.Error("one process leased a run twice")
	}
	must(t, errOf(second.Advance(t.Context(), 48)))
	if second.InProgress != nil || b.show(t, run).InProgress != nil {
		t.Errorf("in progress after the checkpoint: %v, %v", second.InProgress, b.show(t, run).InProgress)
	}
	must(t, second.Release(t.Context()))
	third := b.acquire(t, "third", time.Minute)
	if third == nil || third.Abandoned || third.Cursor != 48 {
		t.Fatalf("leased %+v", third)
	}
	third.Counts["applied"]++
	must(t, errOf(third.Advance(t.Context(), 100)))
	must(t, third.End(t.Context(), runs.Done, ""))
	got := b.show(t, run)
	want := &runs.Run{ID: run, Job: job, Params: []byte(`{"type": "x"}`), Actor: "me", Reason: "because",
		Status: runs.Done, Bound: 100, Cursor: 100, Expected: 7, Counts: map[string]int64{"applied": 4},
		CreatedAt: got.CreatedAt, StartedAt: got.StartedAt, EndedAt: got.EndedAt, UpdatedAt: got.UpdatedAt}
	if diff := cmp.Diff(want, got); diff != "" || got.StartedAt.Before(got.CreatedAt.Time) ||
		got.EndedAt.Before(got.StartedAt.Time) {
		t.Errorf("%s\n%+v", diff, got)
	}
	if b.acquire(t, "fourth", time.Minute) != nil {
		t.Error("a run that is done was leased again")
	}
}

// The executor sees an operator's change at its next checkpoint. An ended run does not change
// again.
func TestChangeStatus_pauseContinueCancel_seenAtNextCheckpoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.create(t, "")
	change := func(to runs.Status, invalid bool) {
		t.Helper()
		if err := runs.ChangeStatus(t.Context(), b.operator, run, to); errors.Is(err, events.ErrInvalid) != invalid ||
			err != nil && !invalid {
			t.Errorf("%s: %v", to, err)
		}
	}
	change(runs.Queued, false) // it is queued already
	change(runs.Paused, false)
	if b.acquire(t, "p", time.Minute) != nil {
		t.Error("a paused run was leased")
	}
	change(runs.Queued, false)
	h := b.acquire(t, "p", time.Minute)
	change(runs.Paused, false)
	change(runs.Paused, false)
	if status, err := h.Advance(t.Context(), 5); err != nil || status != runs.Paused {
		t.Errorf("%s, %v", status, err)
	}
	if err := h.End(t.Context(), runs.Done, ""); err != nil || b.show(t, run).Status != runs.Paused {
		t.Errorf("a paused run was ended as done: %v", err)
	}
	change(runs.Queued, false)
	if h = b.acquire(t, "p", time.Minute); h == nil || h.Cursor != 5 {
		t.Fatalf("leased %+v", h)
	}
	change(runs.Cancelled, false)
	if status, err := h.Advance(t.Context(), 6); err != nil || status != runs.Cancelled {
		t.Errorf("%s, %v", status, err)
	}
	change(runs.Queued, true)
	change(runs.Paused, true)
	change(runs.Cancelled, false)
	if err := runs.ChangeStatus(t.Context(), b.operator, run+1, runs.Paused); !errors.Is(err, events.ErrNotFound) {
		t.Error(err)
	}
}

// Each run is leased by one of many concurrent callers.
func TestAcquire_concurrentCallers_eachRunLeasedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 20
	for i := range n {
		b.create(t, fmt.Sprint(i))
	}
	var mu sync.Mutex
	taken := map[int64]int{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for misses := 0; misses < 20; {
				h, err := runs.Acquire(t.Context(), b.processor, fmt.Sprint(w), time.Minute, job)
				if err != nil {
					t.Error(err)
					return
				}
				if h == nil {
					misses++
					continue
				}
				mu.Lock()
				taken[h.Run.ID]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for run, times := range taken {
		if times != 1 {
			t.Errorf("run %d was leased %d times", run, times)
		}
	}
	if len(taken) != n {
		t.Errorf("%d of %d runs were leased", len(taken), n)
	}
	page, err := runs.List(t.Context(), b.operator, runs.Filter{Status: runs.Running}, "", 15)
	if err != nil || len(page.Items) != 15 || page.Items[0].ID < page.Items[14].ID {
		t.Fatalf("%d runs, %v", len(page.Items), err)
	}
	if page, err = runs.List(t.Context(), b.operator, runs.Filter{Job: job}, page.Next, 15); err != nil ||
		len(page.Items) != 5 || page.Next != "" {
		t.Errorf("%d runs on the second page, %v", len(page.Items), err)
	}
}

// errOf returns the error of a call and drops the other result.
func errOf[T any](_ T, err error) error { return err }

// All requests with one key create one run, concurrently and whatever its status. Another key, or
// none, creates another run.
func TestCreateOnce_sameIdempotencyKey_oneRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	request := runs.Request{Job: job, Params: 1, Actor: "cron", IdempotencyKey: "nightly 2026-05-01",
		ParamsText: "source=shop"}
	var all sync.WaitGroup
	var created, first atomic.Int64
	for range 16 {
		all.Go(func() {
			run, isNew, err := runs.CreateIdempotent(t.Context(), b.operator, request)
			if other := first.Swap(run); err != nil || other != 0 && other != run {
				t.Errorf("runs %d and %d, %v", run, other, err)
			}
			if isNew {
				created.Add(1)
			}
		})
	}
	all.Wait()
	if created.Load() != 1 {
		t.Errorf("%d requests got a new run", created.Load())
	}
	must(t, runs.ChangeStatus(t.Context(), b.operator, first.Load(), runs.Cancelled))
	if run, isNew, err := runs.CreateIdempotent(t.Context(), b.operator, request); run != first.Load() || isNew ||
		err != nil {
		t.Errorf("%d, %t, %v", run, isNew, err)
	}
	other := request
	other.ParamsText = "source=other"
	if _, _, err := runs.CreateIdempotent(t.Context(), b.operator, other); !errors.Is(err, events.ErrInvalid) ||
		!strings.Contains(err.Error(), fmt.Sprintf("was used for run %d, which has other parameters (replay "+
			"source=shop)", first.Load())) {
		t.Error(err)
	}
	for _, key := range []string{strings.Repeat("k", 201), "a\x00b", "\xff"} {
		other.IdempotencyKey = key
		if _, _, err := runs.CreateIdempotent(t.Context(), b.operator, other); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	}
	for _, key := range []string{"nightly 2026-05-02", "", ""} {
		other.IdempotencyKey = key
		if _, isNew, err := runs.CreateIdempotent(t.Context(), b.operator, other); err != nil || !isNew {
			t.Errorf("%q: %t, %v", key, isNew, err)
		}
	}
	if r := b.show(t, first.Load()); r.IdempotencyKey != request.IdempotencyKey {
		t.Errorf("%+v", r)
	}
}

// A schedule can be run now, also while it is paused: once for a key, and not while another run of
// it is open.
func TestRunSchedule_openRunKeyAndPause_createsAtMostOneRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tick(t, b.planner(schedule("s", "0 0 1 1 *")))
	must(t, errOf(runs.PauseSchedule(t.Context(), b.operator, "s", "me")))
	runSchedule := func(ctx context.Context, name, key string) (int64, bool, error) {
		return runs.RunSchedule(ctx, b.operator, jobs, name, "me", "a test", key)
	}
	var all sync.WaitGroup
	var created atomic.Int64
	var first atomic.Int64
	for range 8 {
		all.Go(func() {
			run, isNew, err := runSchedule(t.Context(), "s", "k")
			if err != nil {
				t.Error(err)
			}
			if isNew {
				created.Add(1)
				first.Store(run)
			}
		})
	}
	all.Wait()
	if created.Load() != 1 {
		t.Errorf("%d new runs", created.Load())
	}
	if r := b.show(t, first.Load()); r.Schedule != "s" || !r.PlannedAt.IsZero() || r.Actor != "me" ||
		r.IdempotencyKey != "k" || r.Status != runs.Queued {
		t.Errorf("%+v", r)
	}
	if _, _, err := runSchedule(t.Context(), "s", ""); !errors.Is(err, events.ErrInvalid) ||
		!strings.Contains(err.Error(), "of schedule s is still queued") {
		t.Error(err)
	}
	if _, _, err := runSchedule(t.Context(), "none", ""); !errors.Is(err, events.ErrNotFound) {
		t.Error(err)
	}
	b.finish(t)
	if run, isNew, err := runSchedule(t.Context(), "s", "k"); run != first.Load() || isNew || err != nil {
		t.Errorf("%d, %t, %v", run, isNew, err)
	}
	if run, isNew, err := runSchedule(t.Context(), "s", ""); run <= first.Load() || !isNew || err != nil {
		t.Errorf("%d, %t, %v", run, isNew, err)
	}
	if _, _, err := runs.CreateIdempotent(t.Context(), b.operator, runs.Request{Job: job,
		IdempotencyKey: "k"}); !errors.Is(err, events.ErrInvalid) {
		t.Error(err)
	}
}
