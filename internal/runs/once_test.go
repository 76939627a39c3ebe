package runs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

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
	if err := runs.Change(t.Context(), b.operator, first.Load(), runs.Cancelled); err != nil {
		t.Fatal(err)
	}
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
	if _, err := runs.PauseSchedule(t.Context(), b.operator, "s", "me"); err != nil {
		t.Fatal(err)
	}
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
