package reconcile_test

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// owned are histories whose objects have a version of their own, unowned those that have none.
var (
	owned   = sim.Options{Objects: 40, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 2_000_000, Own: true, Deletes: 10}
	unowned = sim.Options{Objects: 40, Changes: 6, Contents: 4, Unit: 1_000_000, Gap: 2_000_000, Deletes: 10}
)

// lossy are some of the events of a history, the newest among them: without it nothing is believed to be missing.
func lossy(h *sim.History, percent int, seed uint64) []sim.Event {
	kept := some(h.Events, percent, seed)
	newest := slices.MaxFunc(h.Events, func(a, b sim.Event) int { return cmp.Compare(a.Happened, b.Happened) })
	if !slices.ContainsFunc(kept, func(e sim.Event) bool { return e.Key == newest.Key }) {
		kept = append(kept, newest)
	}
	return kept
}

// sweep asks for all objects and returns the run, which must be done.
func (b *world) sweep(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	o.What = reconcile.Objects
	r := b.ask(t, o)
	if r.Status != runs.Done {
		t.Fatalf("the run is %s: %s", r.Status, r.Detail)
	}
	return r
}

// counted compares the counts of a run that are not 0.
func counted(t *testing.T, r *runs.Run, want map[string]int64) {
	t.Helper()
	got := nonzero(maps.Clone(r.Counts))
	if d := diff.Diff(want, got); d != "" {
		t.Errorf("counts (-want +got): %s", d)
	}
}

// proven is until when the type is proven.
func (b *world) proven(t *testing.T) time.Time {
	t.Helper()
	_, until, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", "type thing")
	if err != nil {
		t.Fatal(err)
	}
	return until
}

// Whatever webhooks have lost and whatever the lists say, the mirror is the provider's after a sweep, and a second one finds nothing.
func TestSweptMirrorIsTheProviders(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]sim.Options{"own versions": owned, "no versions": unowned} {
		for _, version := range []string{"", sim.Named, sim.Numbered, sim.Both, sim.ByChange} {
			if version == sim.Numbered || version == sim.Both {
				if !o.Own {
					continue
				}
				o.Unit = 1 // two states of one version cannot be told apart by it
			}
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(2) {
					b := newWorld(t, 100+seed, o)
					b.api.version = version
					b.deliver(t, lossy(b.api.h, 50, seed))
					if len(b.wrong(t)) == 0 {
						t.Fatal("nothing is wrong before")
					}
					b.Carry(t, "one", 1, b.jobs())
					first := b.sweep(t, reconcile.Order{})
					for _, w := range b.wrong(t) {
						t.Error(w)
					}
					c := first.Counts
					if odd := c[reconcile.Missing] + c[reconcile.Behind] + c[reconcile.Different] + c[reconcile.Ghosts]; odd == 0 || c[reconcile.Mended] != odd || c[reconcile.Left] != 0 {
						t.Errorf("counts %v", c)
					}
					if c[reconcile.Equal]+c[reconcile.Missing]+c[reconcile.Behind]+c[reconcile.Ahead]+c[reconcile.Different]+c[reconcile.Ghosts] != c[reconcile.Seen] {
						t.Errorf("the kinds do not sum up: %v", c)
					}
					if want := b.api.now.Add(-time.Millisecond).Truncate(time.Second).Add(-time.Second); !b.proven(t).Equal(want) {
						t.Errorf("proven until %s, want %s", b.proven(t), want)
					}
					again := b.sweep(t, reconcile.Order{Full: true})
					counted(t, again, map[string]int64{reconcile.Seen: c[reconcile.Seen] - c[reconcile.Ghosts], reconcile.Equal: c[reconcile.Seen] - c[reconcile.Ghosts]})
				}
			})
		}
	}
}

// noRow is a row that cannot be read.
type noRow struct{}

func (noRow) Scan(...any) error { return errDown }

// A sweep that cannot read how far it is asks for no more than before.
func TestUnreadProgressStays(t *testing.T) {
	t.Parallel()
	from := time.Unix(1_000_000, 0).UTC()
	if got, err := reconcile.FromAfter(from, noRow{}); !errors.Is(err, errDown) || !got.Equal(from) {
		t.Errorf("from %s, want %s (%v)", got, from, err)
	}
}

// slow is an API one of whose answers has taken long.
type slow struct{ *api }

func (slow) Longest() time.Duration { return 3 * time.Second }

// What counts as ahead of a list may have been seen as long before it as an answer takes, and within the second of its Date: the type is proven until before that.
func TestNothingIsProvenThatMayCountAsAhead(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 87, eventTime)
	b.deliver(t, b.api.h.Events)
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Caller = slow{b.api} }))
	b.carry(t, r)
	b.sweep(t, reconcile.Order{})
	if want := b.api.now.Add(-time.Millisecond).Truncate(time.Second).Add(-4 * time.Second); !b.proven(t).Equal(want) {
		t.Errorf("proven until %s, want %s", b.proven(t), want)
	}
}
