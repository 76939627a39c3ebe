package refetch_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// While one process waits for the call budget, no other process refetches the object. The request
// becomes due again in time, and another attempt completes it.
func TestRefetch_waitingForBudget_isNotDuplicated(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 92, reconciled.EventTimeOptions)
	id := b.ObjectWithPendingRefetch(t)
	w := &blockedCaller{SimAPI: b.API}
	for i := range 2 {
		r := b.Runner()
		r.Limits.Lease = time.Second
		r.Sources.Replace(b.SourceWith(func(s *providerapi.Source) { s.Caller = w }))
		reconciled.StartRefetcher(t, r, fmt.Sprint("process ", i))
	}
	b.WaitForRequestError(t, "refetch within the lease: not done within 500ms")
	testkit.Eventually(t, time.Minute, func() error { // another attempt
		if n := w.tries.Load(); n < 2 {
			return fmt.Errorf("%d attempts", n)
		}
		return nil
	})
	w.open.Store(true)
	b.WaitForRefetches(t)
	if most := w.most.Load(); most != 1 {
		t.Errorf("%d refetches of %s at once", most, id)
	}
}

// blockedCaller is a Caller whose budget allows no call before it opens.
type blockedCaller struct {
	*reconciled.SimAPI
	activeCounter
	open  atomic.Bool
	tries atomic.Int64
}

func (w *blockedCaller) Do(ctx context.Context, c provider.Call) (*providerapi.Response, error) {
	if w.open.Load() {
		return w.SimAPI.Do(ctx, c)
	}
	w.tries.Add(1)
	defer w.begin()()
	// Without its own limit a call would wait for longer than the lease.
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, reconciled.ErrProviderDown)
	defer cancel()
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A refetch that is interrupted by a new configuration or by a failure on this side is repeated at
// once or soon, not when its lease expires. It does not count as an attempt.
func TestRefetch_interrupted_isRetriedSoon(t *testing.T) {
	t.Parallel()
	t.Run("another configuration", func(t *testing.T) {
		t.Parallel()
		b := reconciled.NewEmptyEnv(t, 93, reconciled.EventTimeOptions)
		b.ObjectWithPendingRefetch(t)
		r := b.Runner()
		r.Limits.Lease = time.Hour
		var calls atomic.Int64
		b.API.InterceptWith(func(provider.Call) (*providerapi.Response, error) {
			if calls.Add(1) == 1 {
				r.Sources.Replace(b.SourceWith(func(*providerapi.Source) {}))
			}
			return nil, nil
		})
		reconciled.StartRefetcher(t, r, "refetcher")
		b.WaitForRefetches(t)
		if n := calls.Load(); n < 2 {
			t.Errorf("%d calls: no refetch was interrupted", n)
		}
	})
	t.Run("a failure on this side", func(t *testing.T) {
		t.Parallel()
		b := reconciled.NewEmptyEnv(t, 94, reconciled.EventTimeOptions)
		b.ObjectWithPendingRefetch(t)
		b.DB.Exec(t, `REVOKE ALL ON events FROM postern_gateway`)
		r := b.Runner()
		r.Limits.Lease = 10 * time.Second
		reconciled.StartRefetcher(t, r, "refetcher")
		b.WaitForRequestError(t, "permission denied") // no process has taken the request
		if wait := reconciled.QueryOne[float64](t, b,
			`SELECT extract(epoch FROM due - clock_now())::float8 FROM refetch_requests`); wait > 2.5 {
			t.Errorf("the request is due in %g s, with a lease of 10", wait)
		}
		reconciled.WantValue(t, b, 0, `SELECT attempts FROM refetch_requests`)
		b.DB.Exec(t, `GRANT SELECT, INSERT ON events TO postern_gateway`)
		b.WaitForRefetches(t)
	})
}

// With a simulated clock a refetch may be due in years. It is made within an hour all the same.
func TestRefetch_farFutureReason_isDueWithinAnHour(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 96, reconciled.EventTimeOptions)
	id := b.ObjectWithPendingRefetch(t)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = $2 WHERE object_id = $1`, id,
		b.API.Time.AddDate(40, 0, 0).UnixMicro())
	reconciled.StartRefetcher(t, b.Runner(), "refetcher")
	reconciled.WaitForValue(t, b, 1, `SELECT count(*) FROM refetch_requests WHERE lease_owner = ''
		AND due BETWEEN clock_now() + interval '50 minutes' AND clock_now() + interval '61 minutes'`)
	b.API.WantCalls(t, "/things/", 0)
}
