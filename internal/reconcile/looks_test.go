package reconcile_test

import (
	"context"
	"errors"
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
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// looking starts processes that make looks, until the test ends.
func (b *world) looking(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		looksOf(t, b.runner(), fmt.Sprint("process ", i))
	}
}

// settled waits until nothing owes a look and no hint is left.
func (b *world) settled(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var owing, hints int
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM objects WHERE look_after <> 0), (SELECT count(*) FROM hints)`).Scan(&owing, &hints)
		if err == nil && owing+hints > 0 {
			err = fmt.Errorf("%d objects owe a look, %d hints are left", owing, hints)
		}
		return err
	})
}

// However many processes make them, and whatever the API does, looks end all doubt, and few are made.
func TestLooksEndAllDoubt(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds(3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 60+seed, eventTime)
			var owing int
			if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM objects WHERE look_after <> 0`).Scan(&owing); err != nil || owing == 0 {
				t.Fatalf("%d objects owe a look (%v): nothing to prove", owing, err)
			}
			r := rand.New(rand.NewPCG(seed, 61))
			failed := 0
			b.api.fails = func(provider.Call) (*reconcile.Response, error) {
				if failed < 3 && r.IntN(3) == 0 {
					failed++
					return &reconcile.Response{Verdict: provider.JudgeStatus(http.StatusInternalServerError, http.Header{}, nil)}, nil
				}
				return nil, nil
			}
			b.looking(t, 3)
			b.settled(t)
			none(t, b.wrong(t))
			if made := b.api.made("/things/"); made > owing+failed {
				t.Errorf("%d looks for %d objects, of which %d failed", made, owing, failed)
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
			b := newMirror(t, 70, eventTime)
			last := one[string](t, b, `SELECT object_id FROM objects ORDER BY look_after DESC LIMIT 1`)
			after := one[int64](t, b, `SELECT max(look_after) FROM objects`)
			b.api.set(time.UnixMicro(after).Add(past))
			b.looking(t, 1)
			testkit.Eventually(t, time.Minute, func() error {
				if n := b.api.made("/things/" + last); n > 0 {
					t.Fatalf("%d refetches of %s, whose reason is not past", n, last)
				}
				const waitsSQL = `SELECT count(*) FROM hints WHERE object_id = $1 AND taken_by = '' AND due > clock_now()`
				if one[int](t, b, waitsSQL, last) == 0 {
					return fmt.Errorf("no request for %s waits", last)
				}
				return nil
			})
			b.api.set(time.UnixMicro(after).Add(time.Hour))
			b.DB.Exec(t, `UPDATE hints SET due = clock_now()`) // ten seconds later
			b.settled(t)
		})
	}
}

// That an object is missing makes a tombstone only where the credentials see what the log is of: the newest event that the API lists, or another one.
func TestMissingIsBelievedWithTheRightKey(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 80, eventTime)
	var right atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case strings.HasPrefix(c.Path, "/things/"), strings.HasPrefix(c.Path, "/event/") && !right.Load():
			return b.missing(), nil
		case c.Path == "/":
			return b.answer(provider.Found, []byte(`{"events":[{"id":"nobody has told us of"}]}`)), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	o := reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_1"}
	if r := b.ask(t, o); r.Status != runs.Failed || !strings.Contains(r.Detail, another) || b.looks(t) != 0 {
		t.Errorf("with a key of another account: %s, %d looks: %s", r.Status, b.looks(t), r.Detail)
	}
	right.Store(true)
	if r := b.ask(t, o); r.Status != runs.Done || b.looks(t) != 1 || !one[bool](t, b, `SELECT deleted FROM objects WHERE object_id = 'obj_1'`) {
		t.Errorf("%s, %d looks: %s", r.Status, b.looks(t), r.Detail)
	}
}

// Of an object that neither the mirror nor the API has, nothing is appended: its name may be a typing error. One that the mirror has becomes a tombstone.
func TestAnObjectThatNobodyHasIsNoTombstone(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 81, eventTime)
	kept := one[string](t, b, `SELECT object_id FROM objects WHERE NOT deleted ORDER BY object_id LIMIT 1`)
	b.carry(t, b.runner())
	for _, dry := range []bool{true, false} {
		r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "obj_tpyo", DryRun: dry})
		has(t, r, counts{reconcile.Absent: 1, reconcile.Seen: 1, reconcile.Missing: 0})
	}
	b.DB.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, wanted_by, made_at, due, after) VALUES ($1, '', 'thing', 'obj_tpyo', 'wanted', 'me', now(), now(), 0)`, b.Source)
	b.looking(t, 1)
	b.settled(t)
	is(t, b, 0, countLooks+` AND object_id = 'obj_tpyo'`)
	is(t, b, 0, `SELECT count(*) FROM objects WHERE object_id = 'obj_tpyo'`)
	b.api.on(&reconcile.Response{Verdict: provider.Verdict{Kind: provider.Missing}, Date: b.api.now.Truncate(time.Second)}, "/things/*")
	if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: kept}); r.Counts[reconcile.Missing] != 1 || r.Counts[reconcile.Absent] != 0 {
		t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
	if !one[bool](t, b, `SELECT deleted FROM objects WHERE object_id = $1`, kept) {
		t.Errorf("%s is no tombstone", kept)
	}
}

// unread is a provider whose API has no call for some objects.
type unread struct {
	sim.Provider
	not func(id string) bool
}

func (p unread) Fetch(src *provider.Source, api *provider.API, account, objectType, id string) (provider.Call, bool) {
	c, ok := p.Provider.Fetch(src, api, account, objectType, id)
	return c, ok && !p.not(id)
}

// What the API has no call for is tried once and said once; it goes when the object owes nothing any more, and comes back where a new configuration can read it.
func TestWhatCannotBeLookedAtIsParked(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 82, eventTime)
	b.DB.Exec(t, `UPDATE objects SET look_after = 1 WHERE object_id IN ('obj_1', 'obj_2')`)
	b.DB.Exec(t, `UPDATE objects SET look_after = 0 WHERE object_id NOT IN ('obj_1', 'obj_2')`)
	r := b.runner()
	read := func(not ...string) {
		p := unread{not: func(id string) bool { return slices.Contains(not, id) }}
		r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Reader = p }))
	}
	read("obj_1", "obj_2")
	var log lockedBuffer
	parked := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			got := b.DB.Rows(t, `SELECT object_id FROM hints WHERE due = 'infinity' AND taken_by = '' AND attempts = 1 AND error LIKE '%reads no object of that type%next event' ORDER BY 1`)
			if all := one[int](t, b, `SELECT count(*) FROM hints`); !slices.Equal(got, want) || all != len(want) {
				return fmt.Errorf("%v of %d hints are parked, want %v", got, all, want)
			}
			return nil
		})
	}
	b.logged(t, r, &log)
	parked("obj_1", "obj_2")
	page, err := reconcile.Hints(t.Context(), b.Operator, b.Source, "", 10)
	if err != nil || len(page.Items) != 2 || !page.Items[0].Parked || !page.Items[0].Due.IsZero() {
		t.Errorf("%+v, %v", page, err)
	}
	b.DB.Exec(t, `UPDATE objects SET look_after = 0 WHERE object_id = 'obj_1'`) // as its next event does
	parked("obj_2")
	read("obj_1", "obj_2") // which changes nothing
	b.DB.Exec(t, `UPDATE objects SET look_after = 1 WHERE object_id = 'obj_3'`)
	testkit.Eventually(t, reconcile.DefaultSettings.Lease, func() error { // the new round has begun; a look that met trouble of our own comes again after a quarter of the lease
		if n := one[int](t, b, `SELECT count(*) FROM objects WHERE object_id = 'obj_3' AND look_after <> 0`); n > 0 {
			return fmt.Errorf("obj_3 is in doubt; said: %s", log.text())
		}
		return nil
	})
	parked("obj_2")
	if n := log.count("look not possible"); n != 2 {
		t.Errorf("it was said %d times of two objects", n)
	}
	read()
	b.settled(t)
}

// logged has a runner make looks, and keeps what is said.
func (b *world) logged(t *testing.T, r *reconcile.Runner, log *lockedBuffer) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	l := &reconcile.Looks{Runner: r, ID: "looks", Logger: slog.New(slog.NewTextHandler(log, nil)), Every: 20 * time.Millisecond}
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// crowd is a provider that notes how many looks are applied at once.
type crowd struct {
	sim.Provider
	here, most *atomic.Int64
}

func (p crowd) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	here := p.here.Add(1)
	defer p.here.Add(-1)
	for most := p.most.Load(); here > most && !p.most.CompareAndSwap(most, here); most = p.most.Load() {
	}
	<-time.After(50 * time.Millisecond)
	return p.Provider.Snapshot(src, s)
}

// However many looks a source may make at once, no more of them than there are connections for enter the mirror at once.
func TestLooksEnterWithinTheirConnections(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 83, eventTime)
	b.DB.Exec(t, `UPDATE objects SET look_after = 1`)
	var here, most atomic.Int64
	b.proc = b.Processor(t, crowd{here: &here, most: &most})
	r := b.runnerOf(func(s *reconcile.Source) { s.API = &provider.API{Concurrency: 20} })
	looksOf(t, r, "looks")
	b.settled(t)
	if n := most.Load(); n > reconcile.Entering || n < 2 {
		t.Errorf("%d looks were applied at once, want %d at most, and some", n, reconcile.Entering)
	}
}

// stuck is a provider that the processor does not get past for a while.
type stuck struct {
	sim.Provider
	release chan struct{}
}

func (p stuck) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	<-p.release
	return p.Provider.Snapshot(src, s)
}

// A look for which there is no place in the mirror while its hint is this process's is laid back, and not entered when it may be another's.
func TestLooksWaitForAPlaceWithinTheirLease(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 83, eventTime)
	b.DB.Exec(t, `UPDATE objects SET look_after = 1`)
	if n := one[int](t, b, `SELECT count(*) FROM objects`); n <= reconcile.Entering {
		t.Fatalf("only %d objects", n)
	}
	p := stuck{release: make(chan struct{})}
	release := sync.OnceFunc(func() { close(p.release) })
	b.proc = b.Processor(t, p)
	r := b.runner()
	r.Settings.Lease = 6 * time.Second
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.API = &provider.API{Concurrency: 20} }))
	looksOf(t, r, "looks")
	t.Cleanup(release)
	testkit.Eventually(t, time.Minute, func() error {
		if n := one[int](t, b, `SELECT count(*) FROM hints WHERE taken_by = '' AND attempts = 0 AND error LIKE '%still being entered%'`); n == 0 {
			return errors.New("no look was laid back")
		}
		return nil
	})
	if n := one[int](t, b, countLooks); n > reconcile.Entering {
		t.Errorf("%d looks were appended", n)
	}
	release()
	b.settled(t)
}

// elsewhere is a provider whose objects have gone to where they have other names.
type elsewhere struct{ sim.Provider }

func (elsewhere) Snapshot(*provider.Source, *provider.Snapshot) (provider.Observation, error) {
	return provider.Observation{}, &provider.Dead{Reason: "another one is answered", Moved: true}
}

// A look that another object answers for is not made again and again.
func TestMovedObjectsAreParked(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 97, eventTime)
	id := b.owing(t)
	r := b.runnerOf(func(s *reconcile.Source) { s.Reader = elsewhere{} })
	looksOf(t, r, "looks")
	eventually(t, b, 1, `SELECT count(*) FROM hints WHERE object_id = $1 AND due = 'infinity' AND error LIKE '%another one is answered%next event%'`, id)
	b.api.called(t, "/things/", 1)
}

// A field of an array's elements that changes without a version is no difference of theirs.
func TestVolatileFields(t *testing.T) {
	t.Parallel()
	volatile := []string{"assets.count", "meta"}
	for path, want := range map[string]bool{"state.assets[0].count": true, "state.assets[12].count.day": true, "state.assets.count": true, `state.meta["a b"]`: true, "state.meta[3]": true, "state.meta": true,
		"state.assets[0].counts": false, "state.assets[0].name": false, "state.assets[1]": false, "state.assets": false, "state.metal": false} {
		if got := reconcile.Changing(volatile, path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
