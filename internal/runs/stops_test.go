package runs_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// What a person stops ends in the middle of a step, however long that is.
func TestAStopEndsAStep(t *testing.T) {
	t.Parallel()
	for _, to := range []runs.Status{runs.Cancelled, runs.Paused} {
		t.Run(string(to), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.ask(t, "")
			begun := make(chan struct{})
			r := b.run(t, b.processor, 300*time.Millisecond, map[string]runs.Carry{job: func(ctx context.Context, _ *runs.Hold, _ *slog.Logger) (runs.Status, error) {
				close(begun)
				<-ctx.Done()
				return "", ctx.Err()
			}})
			<-begun
			if err := runs.Change(t.Context(), b.operator, run, to); err != nil {
				t.Fatal(err)
			}
			b.leaseEnds(t, run)
			r.stop()
			if said := r.said.String(); strings.Contains(said, "lost") || strings.Contains(said, "WARN") || !strings.Contains(said, `msg="run stopped"`) || !strings.Contains(said, "status="+string(to)) {
				t.Error(said)
			}
			if got := b.show(t, run); got.Status != to || got.Troubles != 0 || got.Detail != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// What a person stops in the middle of a step is not said to be lost, and can be taken at once when it goes on.
func TestAStoppedRunIsNotLost(t *testing.T) {
	t.Parallel()
	for _, to := range []runs.Status{runs.Cancelled, runs.Paused} {
		t.Run(string(to), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.ask(t, "")
			begun, release := make(chan struct{}), make(chan struct{})
			r := b.run(t, b.processor, time.Hour, map[string]runs.Carry{job: func(ctx context.Context, h *runs.Hold, _ *slog.Logger) (runs.Status, error) {
				close(begun)
				<-release
				return runs.Done, pgx.BeginFunc(ctx, b.processor, func(tx pgx.Tx) error { return h.Done(ctx, tx) })
			}})
			<-begun
			if err := runs.Change(t.Context(), b.operator, run, to); err != nil {
				t.Fatal(err)
			}
			close(release)
			b.leaseEnds(t, run)
			r.stop()
			if said := r.said.String(); strings.Contains(said, "lost") || !strings.Contains(said, `msg="run stopped"`) || !strings.Contains(said, "status="+string(to)) {
				t.Error(said)
			}
		})
	}
}

// leaseEnds waits until the process has given back the lease of a run, which a run that was cancelled no longer shows.
func (b *testBundle) leaseEnds(t *testing.T, run int64) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var by string
		err := b.operator.QueryRow(t.Context(), `SELECT leased_by FROM checkpoints WHERE run = $1`, run).Scan(&by)
		if err == nil && by != "" {
			err = errors.New("held by " + by)
		}
		return err
	})
}

// What a run meets after a person has stopped it is no trouble of its own: it is not put off, and goes on at once when it may.
func TestAStoppedRunMeetsNoTrouble(t *testing.T) {
	t.Parallel()
	for _, to := range []runs.Status{runs.Cancelled, runs.Paused} {
		t.Run(string(to), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.ask(t, "")
			ended := make(chan struct{})
			r := b.run(t, b.processor, time.Hour, map[string]runs.Carry{job: func(ctx context.Context, h *runs.Hold, _ *slog.Logger) (runs.Status, error) {
				defer close(ended)
				if err := runs.Change(ctx, b.operator, run, to); err != nil {
					t.Error(err)
				}
				return "", errors.New("refused by the database, since the run is not running")
			}})
			<-ended
			b.leaseEnds(t, run)
			r.stop()
			if got := b.show(t, run); got.Status != to || got.Detail != "" || got.Troubles != 0 {
				t.Errorf("%+v", got)
			}
			if said := r.said.String(); strings.Contains(said, "WARN") || !strings.Contains(said, `msg="run stopped"`) || !strings.Contains(said, "status="+string(to)) {
				t.Error(said)
			}
			if n := sample(t, r.metrics, "postern_runs_put_off_total", job); n != 0 {
				t.Errorf("put off %g times", n)
			}
			var free bool
			if err := b.operator.QueryRow(t.Context(), `SELECT leased_by = '' AND leased_until < clock_now() FROM checkpoints WHERE run = $1`, run).Scan(&free); err != nil || !free {
				t.Errorf("cannot be taken at once, %v", err)
			}
		})
	}
}
