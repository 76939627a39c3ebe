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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const job = "replay"

type testBundle struct{ operator, processor *pgxpool.Pool }

func setup(t *testing.T) *testBundle {
	t.Helper()
	db := testkit.Database(t)
	return &testBundle{db.Role(t, "operator"), db.Role(t, "processor")}
}

func (b *testBundle) ask(t *testing.T, reason string) int64 {
	t.Helper()
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: job, Asked: map[string]string{"type": "x"}, Who: "me", Reason: reason, Expected: 7})
	must(t, err)
	return run
}

func (b *testBundle) take(t *testing.T, by string, lease time.Duration) *runs.Hold {
	t.Helper()
	h, err := runs.Take(t.Context(), b.processor, by, lease, job)
	must(t, err)
	return h
}

func (b *testBundle) show(t *testing.T, run int64) *runs.Run {
	t.Helper()
	r, err := runs.Show(t.Context(), b.operator, run)
	must(t, err)
	return r
}

// A run goes from hand to hand: what one has done the next does not do again, and who has lost it cannot move it.
func TestARunGoesFromHandToHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.ask(t, "because")
	first := b.take(t, "first", 50*time.Millisecond)
	if first == nil || first.Run.Run != run || first.Cursor != 0 || first.Abandoned || first.Status != runs.Running {
		t.Fatalf("took %+v", first)
	}
	must(t, first.Freeze(t.Context(), 100))
	if err := first.Freeze(t.Context(), 200); !errors.Is(err, runs.ErrLost) {
		t.Errorf("a second bound: %v", err)
	}
	first.Counts["applied"] = 3
	if status, err := first.Advance(t.Context(), 40); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	var second *runs.Hold
	testkit.Eventually(t, time.Minute, func() error { // the first has died
		if second = b.take(t, "first", time.Minute); second == nil {
			return errors.New("nothing to take")
		}
		return nil
	})
	if second.Cursor != 40 || second.Bound != 100 || !second.Abandoned || second.Counts["applied"] != 3 || !strings.HasPrefix(second.HeldBy, "first/") {
		t.Errorf("took %+v", second)
	}
	if _, err := first.Advance(t.Context(), 90); !errors.Is(err, runs.ErrLost) {
		t.Errorf("the first still advances: %v", err)
	}
	if err := first.End(t.Context(), runs.Done, ""); err != nil || b.show(t, run).Status != runs.Running {
		t.Errorf("the first ends it: %v", err)
	}
	if b.take(t, "first", time.Minute) != nil {
		t.Error("taken by two of one process")
	}
	must(t, second.Release(t.Context()))
	third := b.take(t, "third", time.Minute)
	if third == nil || third.Abandoned || third.Cursor != 40 {
		t.Fatalf("took %+v", third)
	}
	third.Counts["applied"]++
	must(t, errOf(third.Advance(t.Context(), 100)))
	must(t, third.End(t.Context(), runs.Done, ""))
	got := b.show(t, run)
	want := &runs.Run{Run: run, Job: job, Asked: []byte(`{"type": "x"}`), Who: "me", Reason: "because", Status: runs.Done, Bound: 100, Cursor: 100, Expected: 7,
		Counts: map[string]int64{"applied": 4}, MadeAt: got.MadeAt, StartedAt: got.StartedAt, EndedAt: got.EndedAt, UpdatedAt: got.UpdatedAt}
	if diff := cmp.Diff(want, got); diff != "" || got.StartedAt.Before(got.MadeAt.Time) || got.EndedAt.Before(got.StartedAt.Time) {
		t.Errorf("%s\n%+v", diff, got)
	}
	if b.take(t, "fourth", time.Minute) != nil {
		t.Error("what is done is taken again")
	}
}

// What a person wants of a run is seen at its next checkpoint, and what has ended stays so.
func TestChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.ask(t, "")
	change := func(to runs.Status, invalid bool) {
		t.Helper()
		if err := runs.Change(t.Context(), b.operator, run, to); errors.Is(err, events.ErrInvalid) != invalid || err != nil && !invalid {
			t.Errorf("%s: %v", to, err)
		}
	}
	change(runs.Waiting, false) // it does
	change(runs.Paused, false)
	if b.take(t, "p", time.Minute) != nil {
		t.Error("a paused run is taken")
	}
	change(runs.Waiting, false)
	h := b.take(t, "p", time.Minute)
	change(runs.Paused, false)
	change(runs.Paused, false)
	if status, err := h.Advance(t.Context(), 5); err != nil || status != runs.Paused {
		t.Errorf("%s, %v", status, err)
	}
	if err := h.End(t.Context(), runs.Done, ""); err != nil || b.show(t, run).Status != runs.Paused {
		t.Errorf("what is paused is done: %v", err)
	}
	change(runs.Waiting, false)
	if h = b.take(t, "p", time.Minute); h == nil || h.Cursor != 5 {
		t.Fatalf("took %+v", h)
	}
	change(runs.Cancelled, false)
	if status, err := h.Advance(t.Context(), 6); err != nil || status != runs.Cancelled {
		t.Errorf("%s, %v", status, err)
	}
	change(runs.Waiting, true)
	change(runs.Paused, true)
	change(runs.Cancelled, false)
	if err := runs.Change(t.Context(), b.operator, run+1, runs.Paused); !errors.Is(err, events.ErrNotFound) {
		t.Error(err)
	}
}

// However many ask at once, each run is one's.
func TestEachRunIsTakenOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 20
	for i := range n {
		b.ask(t, fmt.Sprint(i))
	}
	var mu sync.Mutex
	taken := map[int64]int{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for misses := 0; misses < 20; {
				h, err := runs.Take(t.Context(), b.processor, fmt.Sprint(w), time.Minute, job)
				if err != nil {
					t.Error(err)
					return
				}
				if h == nil {
					misses++
					continue
				}
				mu.Lock()
				taken[h.Run.Run]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for run, times := range taken {
		if times != 1 {
			t.Errorf("run %d is taken %d times", run, times)
		}
	}
	if len(taken) != n {
		t.Errorf("%d of %d runs are taken", len(taken), n)
	}
	page, err := runs.List(t.Context(), b.operator, runs.Filter{Status: runs.Running}, "", 15)
	if err != nil || len(page.Items) != 15 || page.Items[0].Run < page.Items[14].Run {
		t.Fatalf("%d runs, %v", len(page.Items), err)
	}
	if page, err = runs.List(t.Context(), b.operator, runs.Filter{Job: job}, page.Next, 15); err != nil || len(page.Items) != 5 || page.Next != "" {
		t.Errorf("%d runs on the second page, %v", len(page.Items), err)
	}
}

// What is kept in hand is there for the next holder, until the checkpoint passes it.
func TestHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.ask(t, "x")
	first, err := runs.Take(t.Context(), b.processor, "first", time.Millisecond, job)
	if err != nil || first == nil || first.Hand != nil {
		t.Fatal(first, err)
	}
	must(t, first.Keep(t.Context(), []int64{7, 8}))
	var second *runs.Hold
	testkit.Eventually(t, time.Minute, func() (err error) {
		if second, err = runs.Take(t.Context(), b.processor, "second", time.Minute, job); err == nil && second == nil {
			err = errors.New("still held")
		}
		return err
	})
	if !second.Abandoned || !slices.Equal(second.Hand, []int64{7, 8}) {
		t.Errorf("%+v", second)
	}
	if err := first.Keep(t.Context(), []int64{9}); !errors.Is(err, runs.ErrLost) {
		t.Error(err)
	}
	must(t, errOf(second.Advance(t.Context(), 8)))
	if r, err := runs.Show(t.Context(), b.operator, second.Run.Run); err != nil || r.Hand != nil || second.Hand != nil {
		t.Errorf("%+v %v", r, err)
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

// execSQL runs a statement over a pool, a session or a transaction.
func execSQL(t testing.TB, over interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := over.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// equal reports how a value differs from the one that is wanted.
func equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// What asks with one key is one run, however many ask at once and however it stands; another key, or none, is another run.
func TestOneKeyIsOneRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	order := runs.Order{Job: job, Asked: 1, Who: "cron", OnceKey: "nightly 2026-05-01", Said: "source=shop"}
	var all sync.WaitGroup
	var fresh, first atomic.Int64
	for range 16 {
		all.Go(func() {
			run, is, err := runs.AskOnce(t.Context(), b.operator, order)
			if other := first.Swap(run); err != nil || other != 0 && other != run {
				t.Errorf("runs %d and %d, %v", run, other, err)
			}
			if is {
				fresh.Add(1)
			}
		})
	}
	all.Wait()
	if fresh.Load() != 1 {
		t.Errorf("%d were told that theirs is new", fresh.Load())
	}
	must(t, runs.Change(t.Context(), b.operator, first.Load(), runs.Cancelled))
	if run, is, err := runs.AskOnce(t.Context(), b.operator, order); run != first.Load() || is || err != nil {
		t.Errorf("%d, %t, %v", run, is, err)
	}
	other := order
	other.Said = "source=other"
	if _, _, err := runs.AskOnce(t.Context(), b.operator, other); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("was used for run %d, which asked for something else (replay source=shop)", first.Load())) {
		t.Error(err)
	}
	for _, key := range []string{strings.Repeat("k", 201), "a\x00b", "\xff"} {
		other.OnceKey = key
		if _, _, err := runs.AskOnce(t.Context(), b.operator, other); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	}
	for _, key := range []string{"nightly 2026-05-02", "", ""} {
		other.OnceKey = key
		if _, is, err := runs.AskOnce(t.Context(), b.operator, other); err != nil || !is {
			t.Errorf("%q: %t, %v", key, is, err)
		}
	}
	if r := b.show(t, first.Load()); r.OnceKey != order.OnceKey {
		t.Errorf("%+v", r)
	}
}

// A schedule can be run now: once for a key, not beside a run that is open, and beside its pause.
func TestFire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tick(t, b.planner(schedule("s", "0 0 1 1 *")))
	must(t, errOf(runs.PauseSchedule(t.Context(), b.operator, "s", "me")))
	fire := func(ctx context.Context, name, key string) (int64, bool, error) {
		return runs.Fire(ctx, b.operator, jobs, name, "me", "a test", key)
	}
	var all sync.WaitGroup
	var fresh atomic.Int64
	var first atomic.Int64
	for range 8 {
		all.Go(func() {
			run, is, err := fire(t.Context(), "s", "k")
			if err != nil {
				t.Error(err)
			}
			if is {
				fresh.Add(1)
				first.Store(run)
			}
		})
	}
	all.Wait()
	if fresh.Load() != 1 {
		t.Errorf("%d new runs", fresh.Load())
	}
	if r := b.show(t, first.Load()); r.Schedule != "s" || !r.PlannedAt.IsZero() || r.Who != "me" || r.OnceKey != "k" || r.Status != runs.Waiting {
		t.Errorf("%+v", r)
	}
	if _, _, err := fire(t.Context(), "s", ""); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "of schedule s is still waiting") {
		t.Error(err)
	}
	if _, _, err := fire(t.Context(), "none", ""); !errors.Is(err, events.ErrNotFound) {
		t.Error(err)
	}
	b.finish(t)
	if run, is, err := fire(t.Context(), "s", "k"); run != first.Load() || is || err != nil {
		t.Errorf("%d, %t, %v", run, is, err)
	}
	if run, is, err := fire(t.Context(), "s", ""); run <= first.Load() || !is || err != nil {
		t.Errorf("%d, %t, %v", run, is, err)
	}
	if _, _, err := runs.AskOnce(t.Context(), b.operator, runs.Order{Job: job, OnceKey: "k"}); !errors.Is(err, events.ErrInvalid) {
		t.Error(err)
	}
}
