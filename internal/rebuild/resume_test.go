package rebuild_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// resumedSwap is a swap with a changed configuration that is interrupted again and again. The live
// events that arrive meanwhile are applied with the changed configuration.
type resumedSwap struct {
	*testBundle
	run int64
	// before are the events that were applied with the old configuration, arriving the others.
	before   []int64
	arriving []sim.Event
	live     *apply.Applier
	// waiting are events of objects that may be locked.
	waiting sync.WaitGroup
}

func newResumedSwap(t *testing.T, options sim.Options) *resumedSwap {
	t.Helper()
	r := newRand(t, 91)
	w := &resumedSwap{testBundle: setup(t)}
	options.Objects, options.Changes = 24, 8
	before, after := halves(sim.Generate(r, options).Events)
	w.before = w.append(t, r, w.source, before)
	w.arriving = after
	w.applyLiveShuffled(t, r, w.before)
	w.exec(t, `TRUNCATE outbox`)
	w.live = w.applier(t, changedProvider{})
	w.run = w.request(t, rebuild.Params{Source: w.source, Swap: true})
	return w
}

// arrive appends the next live events and applies them. If wait is false, they are applied as soon
// as their objects are not locked any more.
func (w *resumedSwap) arrive(t *testing.T, n int, wait bool) {
	t.Helper()
	n = min(n, len(w.arriving))
	ids := w.log.Append(t, w.source, w.arriving[:n])
	w.arriving, w.ids = w.arriving[n:], append(w.ids, ids...)
	w.waiting.Go(func() {
		if _, err := w.live.ApplyStored(t.Context(), apply.Target{}, ids, false); err != nil {
			t.Error(err)
		}
	})
	if wait {
		w.waiting.Wait()
	}
}

var errKilled = errors.New("the process ends")

// attempt executes the run until the step with this number, counted from 0. It reports whether the
// run has ended.
func (w *resumedSwap) attempt(t *testing.T, steps int) bool {
	t.Helper()
	var lease *runs.Lease
	testkit.Eventually(t, maxWait, func() (err error) {
		if lease, err = runs.Acquire(t.Context(), w.pool, "dead", time.Millisecond, rebuild.Job); lease == nil {
			return fmt.Errorf("the run has a lease still (%w)", err)
		}
		return nil
	})
	rebuilds := w.runner(t, changedProvider{}, batchesOf(2))
	rebuild.OnStep(rebuilds, func(name string) error {
		if name == "clear" || name == "copy" {
			return nil
		}
		if steps--; steps < 0 {
			return errKilled
		}
		w.arrive(t, 1, name == "compare" || name == "lock")
		return nil
	})
	status, err := rebuilds.Execute(t.Context(), lease, slog.New(slog.DiscardHandler))
	w.waiting.Wait()
	if err != nil && !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	return status == runs.Done
}

// rowsAfter returns the objects that the events give: the ones before with one provider, and the
// others with the changed one.
func (w *resumedSwap) rowsAfter(t *testing.T, reads provider.Provider, run int64) []string {
	t.Helper()
	w.exec(t, `TRUNCATE retained_objects`)
	into := apply.Target{Run: run, Staging: &apply.Staging{Table: versioning.RetainedObjects}}
	must(t, errOf(w.applier(t, reads).ApplyStored(t.Context(), into, w.before, false)))
	must(t, errOf(w.live.ApplyStored(t.Context(), into, w.ids[len(w.before):], false)))
	return w.tableRows(t, objectColumns, "retained_objects")
}

// checkBetween checks that each object is as the old configuration or as the new one makes it from
// all its events, and that the run counts exactly the changes that it has announced.
func (w *resumedSwap) checkBetween(t *testing.T, attempt int) {
	t.Helper()
	old, now := w.rowsAfter(t, nil, int64(2000+2*attempt)), w.rowsAfter(t, changedProvider{}, int64(2001+2*attempt))
	for _, row := range w.rows(t, `SELECT `+objectColumns+` FROM objects o WHERE version_at <> -9223372036854775808`) {
		if !slices.Contains(old, row) && !slices.Contains(now, row) {
			t.Fatalf("attempt %d: neither old nor new: %s", attempt, row)
		}
	}
	announced := w.number(t, `SELECT coalesce(sum(cardinality(ids)), 0) FROM outbox
		WHERE created_at < clock_now() - interval '25 seconds'`)
	w.checkCount(t, announced, `SELECT coalesce((counts ->> 'grown')::int, 0) FROM runs WHERE run = $1`, w.run)
}

// Wherever a swap is interrupted while live events arrive, each object is as the old or the new
// rule makes it from all its events, and the last owner of the run ends as if the log had always
// been read with the new configuration.
func TestSwap_killedAtEachStep_endsAsTheLog(t *testing.T) {
	t.Parallel()
	for name, options := range kindsOf("own version") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newResumedSwap(t, options)
			attempts := 0
			for !w.attempt(t, attempts) {
				w.checkBetween(t, attempts)
				if attempts++; attempts > 200 {
					t.Fatal("the swap does not end")
				}
			}
			w.checkBetween(t, attempts)
			w.arrive(t, len(w.arriving), true)
			w.checkMirror(t, w.mirrorFromLog(t, changedProvider{}, 1000))
			r, err := runs.Show(t.Context(), w.pool, w.run)
			if must(t, err); attempts < 6 || r.Counts[rebuild.Swapped] == 0 || r.Counts[rebuild.Emptied] == 0 {
				t.Errorf("%d attempts, %v", attempts, r.Counts)
			}
			if w.run = w.request(t, rebuild.Params{Source: w.source, Swap: true}); !w.attempt(t, 1000) {
				t.Error("another rebuild does not end")
			}
			w.checkCount(t, 0, `SELECT (counts ->> 'swapped')::int FROM runs WHERE run = $1`, w.run)
		})
	}
}

// A swap that has replaced objects cannot be cancelled or discarded. It can be paused; the
// comparison then shows the objects that are not replaced yet.
func TestSwap_partOfObjectsReplaced_pausesAndDoesNotCancel(t *testing.T) {
	t.Parallel()
	w := newResumedSwap(t, providerKinds["own version"])
	for steps := 1; w.number(t, `SELECT coalesce((counts ->> 'swapped')::int, 0) FROM runs`) == 0; steps++ {
		must(t, runs.ChangeStatus(t.Context(), w.operator, w.run, runs.Paused))
		must(t, runs.ChangeStatus(t.Context(), w.operator, w.run, runs.Queued))
		if w.attempt(t, steps) {
			t.Fatal("swapped at once")
		}
	}
	must(t, runs.ChangeStatus(t.Context(), w.operator, w.run, runs.Paused))
	for name, stop := range map[string]func() error{
		"discard": func() error { return rebuild.Discard(t.Context(), w.operator, w.run) },
		"cancel":  func() error { return runs.ChangeStatus(t.Context(), w.operator, w.run, runs.Cancelled) },
	} {
		if err := stop(); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "has replaced objects") {
			t.Errorf("%s: %v", name, err)
		}
	}
	swapped := w.number(t, `SELECT (counts ->> 'swapped')::int FROM runs`)
	counts, items := w.allDifferences(t, w.run)
	emptied := w.number(t, `SELECT (counts ->> 'emptied')::int FROM runs`)
	if len(items) == 0 || int(counts[rebuild.Same]) < swapped-emptied {
		t.Errorf("%d replaced: %v", swapped, counts)
	}
	if r, err := runs.Show(t.Context(), w.pool, w.run); err != nil || rebuild.Stage(r) != rebuild.Swapping {
		t.Errorf("%v, %v", r, err)
	}
	must(t, runs.ChangeStatus(t.Context(), w.operator, w.run, runs.Queued))
	if !w.attempt(t, 1000) {
		t.Error("it does not end")
	}
	w.arrive(t, len(w.arriving), true)
	w.checkMirror(t, w.mirrorFromLog(t, changedProvider{}, 1000))
}

// A swap that meets an error that no retry resolves, after it has replaced objects, is paused. It
// goes on when the cause is removed.
func TestSwap_permanentErrorAfterPart_pausesAndGoesOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := newRand(t, 92)
	b.applyLiveShuffled(t, r, b.append(t, r, b.source, []sim.Event{thingEvent("a", 1, "a@else.org"),
		thingEvent("b", 1, "b@else.org")}))
	b.exec(t, `UPDATE objects SET state = '{"damaged": true}'`)
	rebuilds := b.runner(t, nil, batchesOf(1))
	batches := 0
	rebuild.AtStep(rebuilds, "lock", func() {
		if batches++; batches != 2 {
			return
		}
		rebuilds.Applier.Replace(map[string]apply.Source{}) // as an edited configuration does
		ids := b.append(t, r, b.source, []sim.Event{thingEvent("b", 2, "b@else.org")})
		if _, err := b.applier(t, nil).ApplyStored(t.Context(), apply.Target{}, ids, false); err != nil {
			t.Error(err)
		}
	})
	b.startRunner(t, "one", rebuilds)
	run := b.request(t, rebuild.Params{Source: b.source, Swap: true})
	stopped := b.awaitRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() || r.Status == runs.Paused })
	if stopped.Status != runs.Paused || stopped.Counts[rebuild.Swapped] != 1 || !stopped.EndedAt.IsZero() ||
		!strings.Contains(stopped.Detail, "is not in the configuration") ||
		!strings.Contains(stopped.Detail, fmt.Sprint("postern runs resume ", run)) {
		t.Errorf("%s, %v: %s", stopped.Status, stopped.Counts, stopped.Detail)
	}
	rebuilds.Applier.Replace(b.sources)
	must(t, runs.ChangeStatus(t.Context(), b.operator, run, runs.Queued))
	b.awaitRun(t, run, done)
	b.checkMirror(t, b.mirrorFromLog(t, nil, 2000))
}

// An operator's overwrite that is applied between the comparison and the lock, or after the swap of
// its object, is part of the object with the events since.
func TestSwap_overwriteBetweenSteps_isKept(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"compare", "lock", "written"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newObject(t)
			w.appendEvent(t, "before", -10, `"deleted": true, "final": true, "object": null`)
			w.appendEvent(t, "since", 3, `"object": {"n": "since"}`)
			p := w.applier(t, nil)
			must(t, errOf(p.ApplyStored(t.Context(), apply.Target{}, w.ids, false)))
			w.exec(t, `UPDATE objects SET version_at = version_at - 1
				WHERE version_at > -9223372036854775808`)
			var overwritten sync.WaitGroup
			rebuilds := w.runner(t, nil, quickSettings())
			rebuild.AtStep(rebuilds, step, sync.OnceFunc(func() {
				ids := []int64{w.appendRefetch(t, "refetch", 4, &provider.Overwrite{Before: w.began, Actor: "me",
					Reason: "an unintended delete"})}
				overwritten.Go(func() {
					if _, err := p.ApplyStored(t.Context(), apply.Target{}, ids, false); err != nil {
						t.Error(err)
					}
				})
				if step != "written" { // it waits for the lock of its object
					overwritten.Wait()
				}
			}))
			w.startRunner(t, "one", rebuilds)
			w.rebuildAndSwap(t, w.source)
			overwritten.Wait()
			w.checkObject(t, "objects", "since overwritten")
		})
	}
}
