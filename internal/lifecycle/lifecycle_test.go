package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

func TestStack_stop_runsInReverseAndNamesErrors(t *testing.T) {
	t.Parallel()
	var s lifecycle.Stack
	var order []string
	undo := func(name string, err error) {
		s.Defer(name, func(context.Context) error { order = append(order, name); return err })
	}
	undo("pool", nil)
	undo("stream", errBroken)
	undo("listener", nil)
	err := s.Stop(t.Context())
	if diff := cmp.Diff([]string{"listener", "stream", "pool"}, order); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "stop stream") {
		t.Errorf("got %v, want the failed undo by name", err)
	}
	if again := s.Stop(t.Context()); again != err || len(order) != 3 {
		t.Errorf("the second Stop returned %v and there were %d undos; want the first's result and no new undo", again,
			len(order))
	}
	undo("late", nil)
	if len(order) != 4 {
		t.Error("an undo function that was registered after Stop was not run")
	}
}

func TestStack_stalledUndo_isAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s lifecycle.Stack
		release := make(chan struct{})
		stopped := false
		s.Defer("pool", func(context.Context) error { stopped = true; return nil })
		s.Defer("stalled", func(context.Context) error { <-release; return nil })
		ctx, cancel := lifecycle.WithTimeout(t.Context(), "stop gateway", time.Second)
		defer cancel()
		began := time.Now()
		err := s.Stop(ctx)
		if elapsed := time.Since(began); elapsed > 2*time.Second {
			t.Errorf("Stop took %s, though its context had a second", elapsed)
		}
		if !stopped {
			t.Error("the undo function after the stalled one was not run")
		}
		if err == nil || !strings.Contains(err.Error(), "stalled") || !strings.Contains(err.Error(), "stop gateway") {
			t.Errorf("got %v, want the names of the stalled undo function and of the timeout", err)
		}
		close(release)
	})
}

func TestGroup_loopEnds_stopsGroup(t *testing.T) {
	t.Parallel()
	until := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		loop func(context.Context) error
		want error
	}{
		"returns an error":   {func(context.Context) error { return errBroken }, errBroken},
		"returns nil early":  {func(context.Context) error { return nil }, lifecycle.ErrEnded},
		"panics":             {func(context.Context) error { panic("oh") }, new(lifecycle.Panic)},
		"runs until stopped": {until, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := lifecycle.NewGroup(t.Context())
				g.Loop("consume", c.loop)
				g.Loop("neighbour", until)
				synctest.Wait()
				err := g.Stop(t.Context())
				var p *lifecycle.Panic
				switch {
				case c.want == nil && err != nil:
					t.Errorf("an orderly stop gave %v", err)
				case errors.As(c.want, &p) && !errors.As(err, &p), !errors.As(c.want, &p) && !errors.Is(err, c.want):
					t.Errorf("got %v, want %v", err, c.want)
				case c.want != nil && !strings.HasPrefix(err.Error(), "consume: "):
					t.Errorf("got %v, want the loop's name first", err)
				}
			})
		})
	}
}

func TestGroup_taskEnds_isNoError(t *testing.T) {
	t.Parallel()
	g := lifecycle.NewGroup(t.Context())
	g.Go("once", func(context.Context) error { return nil })
	if err := g.Wait(); err != nil {
		t.Errorf("a task that ended gave %v", err)
	}
}

func TestGroup_stop_isBoundedByContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := lifecycle.NewGroup(t.Context())
		g.Loop("stalled", func(context.Context) error { <-release; return nil })
		ctx, cancel := lifecycle.WithTimeout(t.Context(), "stop", time.Second)
		defer cancel()
		if err := g.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		close(release)
		synctest.Wait()
	})
}

func TestWithTimeout_expired_namesOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := lifecycle.WithTimeout(t.Context(), "apply batch", 3*time.Second)
		defer cancel()
		<-ctx.Done()
		err := context.Cause(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || err.Error() != "apply batch: not done within 3s" {
			t.Errorf("got %v", err)
		}
	})
}

func TestRepeat_errorsAndWork_waitAndReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		wake := make(chan struct{}, 1)
		began := time.Now()
		var times []time.Duration
		reported := 0
		err := lifecycle.Repeat(ctx, time.Minute, wake, func(error) { reported++ },
			func(context.Context) (more bool, err error) {
				times = append(times, time.Since(began))
				switch len(times) {
				case 1: // more work: no wait
					return true, nil
				case 2, 3: // errors: a wait, one report
					return true, errBroken
				case 4:
					time.AfterFunc(time.Second, func() { wake <- struct{}{} })
				case 5:
					return false, errBroken
				case 6:
					stop()
					return false, errBroken
				}
				return false, nil
			})
		want := []time.Duration{0, 0, time.Minute, 2 * time.Minute, 2*time.Minute + time.Second, 3*time.Minute +
			time.Second}
		if err != nil || reported != 2 || !cmp.Equal(times, want) {
			t.Errorf("%v, %d reports, calls at %v", err, reported, times)
		}
	})
}
