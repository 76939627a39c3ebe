package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// What is forced happens again also where the other side honours keys, and once for each run, however often that is planned.
func TestForcedHappensAgain(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.settled(t)
	for _, run := range []int64{7, 7, 8} {
		err := postgres.InTx(t.Context(), b.pool, "again", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
			_, err := effects.PlanAgain(ctx, tx, b.rules, run, time.Now().Add(time.Hour), []int64{1})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		b.settled(t)
	}
	if got := b.states(t); got["done"] != 3 {
		t.Error(got)
	}
	sent := map[string]bool{}
	for _, call := range b.sink.Calls() {
		sent[call.Key] = true
	}
	if n := len(sent); n != 6 || len(b.sink.Calls()) != 6 {
		t.Errorf("%d calls under %d keys", len(b.sink.Calls()), n)
	}
}
