package refetch_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// With several processes and failures of the API, all pending refetches are made, with few calls.
func TestRefetch_pendingObjects_areAllRefetched(t *testing.T) {
	t.Parallel()
	for seed := range uint64(reconciled.SeedCount(3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 60+seed, reconciled.EventTimeOptions)
			pending := reconciled.QueryOne[int](t, b, `SELECT count(*) FROM objects WHERE refetch_after <> 0`)
			if pending == 0 {
				t.Fatal("no object has a pending refetch: the test is too easy")
			}
			r := rand.New(rand.NewPCG(seed, 61))
			failed := 0
			b.API.Intercept = func(provider.Call) (*providerapi.Response, error) {
				if failed < 3 && r.IntN(3) == 0 {
					failed++
					return &providerapi.Response{Verdict: provider.ClassifyStatus(http.StatusInternalServerError,
						http.Header{}, nil)}, nil
				}
				return nil, nil
			}
			b.StartRefetchers(t, 3)
			b.WaitForRefetches(t)
			reconciled.WantNone(t, b.Differences(t))
			if made := b.API.CallCount("/things/"); made > pending+failed {
				t.Errorf("%d refetches of %d objects, of which %d failed", made, pending, failed)
			}
		})
	}
}

// A refetch waits until its reason is past on the provider's clock, which tells whole seconds.
func TestRefetch_reasonNotPast_waits(t *testing.T) {
	t.Parallel()
	for name, past := range map[string]time.Duration{
		"before its reason":           -10 * time.Second,
		"in the second of its reason": 900 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 70, reconciled.EventTimeOptions)
			last := reconciled.QueryOne[string](t, b, `SELECT object_id FROM objects ORDER BY refetch_after DESC
				LIMIT 1`)
			after := reconciled.QueryOne[int64](t, b, `SELECT max(refetch_after) FROM objects`)
			b.API.SetTime(time.UnixMicro(after).Add(past))
			b.StartRefetchers(t, 1)
			testkit.Eventually(t, time.Minute, func() error {
				if n := b.API.CallCount("/things/" + last); n > 0 {
					t.Fatalf("%d refetches of %s, whose reason is not past", n, last)
				}
				const waitsSQL = `SELECT count(*) FROM refetch_requests WHERE object_id = $1 AND lease_owner = ''
					AND due > clock_now()`
				if reconciled.QueryOne[int](t, b, waitsSQL, last) == 0 {
					return fmt.Errorf("no request for %s waits", last)
				}
				return nil
			})
			b.API.SetTime(time.UnixMicro(after).Add(time.Hour))
			b.DB.Exec(t, `UPDATE refetch_requests SET due = clock_now()`) // ten seconds later
			b.WaitForRefetches(t)
		})
	}
}

// A missing object becomes a tombstone only if the key sees the account of the log: the newest
// listed event, or another one, must be in the log.
func TestRefetch_missingObject_needsAccountCheck(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 80, reconciled.EventTimeOptions)
	var ownKey atomic.Bool
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		switch {
		case strings.HasPrefix(c.Path, "/things/"), strings.HasPrefix(c.Path, "/event/") && !ownKey.Load():
			return b.MissingResponse(), nil
		case c.Path == "/":
			return b.Response(provider.Found, []byte(`{"events":[{"id":"not_in_the_log"}]}`)), nil
		}
		return nil, nil
	}
	b.StartReconciler(t, b.Runner())
	o := reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_1"}
	if r := b.RunToEnd(t, o); r.Status != runs.Failed || !strings.Contains(r.Detail, otherAccountKey) ||
		b.RefetchCount(t) != 0 {
		t.Errorf("with a key of another account: %s, %d refetches: %s", r.Status, b.RefetchCount(t), r.Detail)
	}
	ownKey.Store(true)
	if r := b.RunToEnd(t, o); r.Status != runs.Done || b.RefetchCount(t) != 1 ||
		!reconciled.QueryOne[bool](t, b, `SELECT deleted FROM objects WHERE object_id = 'obj_1'`) {
		t.Errorf("%s, %d refetches: %s", r.Status, b.RefetchCount(t), r.Detail)
	}
}

// A refetch or a run for an object that neither the mirror nor the API has appends nothing, because
// the id may be a typing error. An object of the mirror becomes a tombstone.
func TestRefetch_unknownObject_writesNoTombstone(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 81, reconciled.EventTimeOptions)
	kept := reconciled.QueryOne[string](t, b, `SELECT object_id FROM objects WHERE NOT deleted ORDER BY object_id
		LIMIT 1`)
	b.StartReconciler(t, b.Runner())
	b.DB.Exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_by,
		requested_at, due, start_after)
		VALUES ($1, '', 'thing', 'obj_tpyo', 'wanted', 'me', now(), now(), 0)`, b.Source)
	b.StartRefetchers(t, 1)
	b.WaitForRefetches(t)
	for _, dry := range []bool{true, false} {
		o := reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "obj_tpyo", DryRun: dry}
		reconciled.WantCounts(t, b.WantDone(t, o), reconciled.Counts{reconcile.Absent: 1, reconcile.Processed: 1,
			reconcile.Missing: 0})
	}
	reconciled.WantValue(t, b, 0, reconciled.CountRefetchesSQL+` AND object_id = 'obj_tpyo'`)
	reconciled.WantValue(t, b, 0, `SELECT count(*) FROM objects WHERE object_id = 'obj_tpyo'`)
	b.API.RespondTo(&providerapi.Response{Verdict: provider.Verdict{Kind: provider.Missing},
		Date: b.API.Time.Truncate(time.Second)}, "/things/*")
	reconciled.WantCounts(t, b.RunToEnd(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: kept}),
		reconciled.Counts{reconcile.Missing: 1, reconcile.Absent: 0})
	reconciled.WantValue(t, b, true, `SELECT deleted FROM objects WHERE object_id = $1`, kept)
}

// An object without a call is tried and logged once and suspended. Its request is deleted when no
// refetch is pending any more, and is retried when a new configuration can read it.
func TestRefetch_unreadableType_isSuspended(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 82, reconciled.EventTimeOptions)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1 WHERE object_id IN ('obj_1', 'obj_2')`)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 0 WHERE object_id NOT IN ('obj_1', 'obj_2')`)
	r := b.Runner()
	read := func(not ...string) {
		p := reconciled.PartlyReadable{Unreadable: func(id string) bool { return slices.Contains(not, id) }}
		r.Sources.Replace(b.SourceWith(func(s *providerapi.Source) { s.Reader = p }))
	}
	read("obj_1", "obj_2")
	var log reconciled.LockedBuffer
	suspended := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			got := b.DB.QueryStrings(t, `SELECT object_id FROM refetch_requests WHERE due = 'infinity'
				AND lease_owner = ''
				AND attempts = 1
				AND error LIKE '%has no call that reads objects of this type%next event removes the ambiguity'
				ORDER BY 1`)
			if all := reconciled.QueryOne[int](t, b, `SELECT count(*) FROM refetch_requests`); !slices.Equal(got,
				want) ||
				all != len(want) {
				return fmt.Errorf("%v of %d requests are suspended, want %v", got, all, want)
			}
			return nil
		})
	}
	startRefetcherWithLog(t, b, r, &log)
	suspended("obj_1", "obj_2")
	page, err := refetch.Requests(t.Context(), b.OperatorPool, b.Source, false, "", 10)
	if err != nil || len(page.Items) != 2 || !page.Items[0].Suspended || !page.Items[0].Due.IsZero() {
		t.Errorf("%+v, %v", page, err)
	}
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 0 WHERE object_id = 'obj_1'`) // as its next event does
	suspended("obj_2")
	read("obj_1", "obj_2") // this changes nothing
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1 WHERE object_id = 'obj_3'`)
	// after a failure on this side, a refetch is retried after a quarter of the lease
	testkit.Eventually(t, refetch.DefaultLimits.Lease, func() error {
		if n := reconciled.QueryOne[int](t, b,
			`SELECT count(*) FROM objects WHERE object_id = 'obj_3' AND refetch_after <> 0`); n > 0 {
			return fmt.Errorf("a refetch of obj_3 is pending; logged: %s", log.Text())
		}
		return nil
	})
	suspended("obj_2")
	if n := log.Count("refetch not possible; suspended"); n != 2 {
		t.Errorf("logged %d times for two objects", n)
	}
	read()
	b.WaitForRefetches(t)
}

// activeCounter counts the active calls, and keeps the greatest number at any time.
type activeCounter struct{ active, most atomic.Int64 }

func (c *activeCounter) begin() (end func()) {
	here := c.active.Add(1)
	for most := c.most.Load(); here > most && !c.most.CompareAndSwap(most, here); most = c.most.Load() {
	}
	return func() { c.active.Add(-1) }
}

// blockedReader blocks the processor until it is released, and counts the refetches that are
// applied at once.
type blockedReader struct {
	sim.Provider
	activeCounter
	release chan struct{}
}

func (p *blockedReader) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	defer p.begin()()
	<-p.release
	return p.Provider.Snapshot(src, s)
}

// However many refetches a source may make, the number of concurrent applies is limited by the
// connections. A refetch that gets no slot to apply during its lease is requeued. It is not applied
// when another process may have the lease.
func TestRefetch_noApplySlot_requeuesWithinLease(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 83, reconciled.EventTimeOptions)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1`)
	if n := reconciled.QueryOne[int](t, b, `SELECT count(*) FROM objects`); n <= refetch.MaxConcurrentApplies {
		t.Fatalf("only %d objects", n)
	}
	p := &blockedReader{release: make(chan struct{})}
	release := sync.OnceFunc(func() { close(p.release) })
	b.Proc = b.Applier(t, p)
	r := b.RunnerWith(func(s *providerapi.Source) { s.API = &provider.API{Concurrency: 20} })
	r.Limits.Lease = 6 * time.Second
	reconciled.StartRefetcher(t, r, "refetcher")
	t.Cleanup(release)
	reconciled.WaitForValue(t, b, true, `SELECT count(*) > 0 FROM refetch_requests WHERE lease_owner = ''
		AND attempts = 0 AND error LIKE '%still being applied%'`)
	if n := reconciled.QueryOne[int](t, b, reconciled.CountRefetchesSQL); n > refetch.MaxConcurrentApplies {
		t.Errorf("%d refetches were appended", n)
	}
	release()
	b.WaitForRefetches(t)
	if n := p.most.Load(); n > refetch.MaxConcurrentApplies || n < 2 {
		t.Errorf("%d refetches were applied at once, want at most %d, and more than one", n,
			refetch.MaxConcurrentApplies)
	}
}

// movedReader is a provider whose objects have moved to other ids.
type movedReader struct{ sim.Provider }

func (movedReader) Snapshot(*provider.Source, *provider.Snapshot) (provider.Observation, error) {
	return provider.Observation{}, &provider.Dead{Reason: "another one is answered", WrongObject: true}
}

// A refetch that returns another object is not repeated.
func TestRefetch_movedObject_isSuspended(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 97, reconciled.EventTimeOptions)
	id := b.ObjectWithPendingRefetch(t)
	r := b.RunnerWith(func(s *providerapi.Source) { s.Reader = movedReader{} })
	reconciled.StartRefetcher(t, r, "refetcher")
	reconciled.WaitForValue(t, b, 1, `SELECT count(*) FROM refetch_requests WHERE object_id = $1 AND due = 'infinity'
		AND error LIKE '%another one is answered%next event%'`, id)
	b.API.WantCalls(t, "/things/", 1)
}

// startRefetcherWithLog starts refetches and stores their log.
func startRefetcherWithLog(t *testing.T, b *reconciled.Env, r *reconcile.Runner, log *reconciled.LockedBuffer) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	l := &refetch.Refetcher{Resources: r.Resources, ID: "refetcher", Logger: slog.New(slog.NewTextHandler(log, nil)),
		PollInterval: 20 * time.Millisecond}
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}
