package reconcile_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
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
	_, until := b.provenOf(t, "", "type thing")
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
				for seed := range uint64(seeds(2)) {
					b := newWorld(t, 100+seed, o)
					b.api.version = version
					b.deliver(t, lossy(b.api.h, 50, seed))
					if len(b.wrong(t)) == 0 {
						t.Fatal("nothing is wrong before")
					}
					b.carry(t, b.runner())
					first := b.sweep(t, reconcile.Order{})
					none(t, b.wrong(t))
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
					counted(t, again, counts{reconcile.Seen: c[reconcile.Seen] - c[reconcile.Ghosts], reconcile.Equal: c[reconcile.Seen] - c[reconcile.Ghosts]})
				}
			})
		}
	}
}

// slow is an API one of whose answers has taken long.
type slow struct{ *api }

func (slow) Longest() time.Duration { return 3 * time.Second }

// What counts as ahead of a list may have been seen as long before it as an answer takes, and within the second of its Date: the type is proven until before that.
func TestNothingIsProvenThatMayCountAsAhead(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 87, eventTime)
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Caller = slow{b.api} }))
	b.sweep(t, reconcile.Order{})
	if want := b.api.now.Add(-time.Millisecond).Truncate(time.Second).Add(-4 * time.Second); !b.proven(t).Equal(want) {
		t.Errorf("proven until %s, want %s", b.proven(t), want)
	}
}

// living are objects with versions of their own that are never deleted.
var living = sim.Options{Objects: 20, Changes: 1, Contents: 4, Unit: 1, Gap: 2_000_000, Own: true}

// spoil makes one object of the mirror of each kind; the others are equal.
func (b *world) spoil(t *testing.T) {
	t.Helper()
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	b.DB.Exec(t, `UPDATE objects SET deleted = true, state = NULL, state_hash = sha256('-null'), exact_hash = sha256('-null'), version_at = version_at - 10, window_lo = 1, window_hi = 1 WHERE object_id = 'obj_2'`)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'), exact_hash = sha256('old'), tie_set = '[]', version_at = version_at - 10 WHERE object_id = 'obj_3'`)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "odd"}', state_hash = sha256('odd'), exact_hash = sha256('odd'), tie_set = '[]' WHERE object_id = 'obj_4'`)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "new"}', state_hash = sha256('new'), exact_hash = sha256('new'), tie_set = '[]', version_at = version_at + 10, window_hi = 9000000000000000 WHERE object_id = 'obj_5'`)
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, '{"object_id": "gone"}') AS o FROM objects o WHERE object_id = 'obj_6') o`)
}

// kinds are the counts of a sweep over what was spoilt.
func kinds(mended int64) map[string]int64 {
	all := counts{reconcile.Seen: 21, reconcile.Equal: 15, reconcile.Missing: 2, reconcile.Behind: 1, reconcile.Different: 1, reconcile.Ahead: 1, reconcile.Ghosts: 1}
	if mended > 0 {
		all[reconcile.Mended] = mended
	}
	return all
}

// Each kind of difference is counted as what it is, told field by field, and mended through the log.
func TestKindsOfDrift(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 200, living)
	b.spoil(t)
	b.carry(t, b.runner())
	dry := b.sweep(t, reconcile.Order{DryRun: true})
	counted(t, dry, kinds(0))
	if n := b.DB.Rows(t, `SELECT count(*)::text FROM events WHERE origin = 'reconcile'`)[0]; n != "0" || !b.proven(t).IsZero() {
		t.Errorf("a dry run has appended %s events, and proven until %s", n, b.proven(t))
	}
	calls := b.api.made("/things/")
	r := b.sweep(t, reconcile.Order{})
	counted(t, r, kinds(5))
	if made := b.api.made("/things/") - calls; made != 2 { // what is missing here, or different at one version, the list has told whole
		t.Errorf("%d objects were asked for by their names", made)
	}
	page, err := reconcile.Differences(t.Context(), b.Operator, r.Run, "", "", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, d := range page.Items {
		var paths []string
		for _, f := range d.Fields {
			paths = append(paths, f.Path)
		}
		told = append(told, strings.TrimSpace(fmt.Sprintf("%s %s %s %t %s", d.ObjectID, d.Kind, d.Result, d.EventID != nil, strings.Join(paths, " "))))
	}
	want := []string{"gone ghost mended true", "obj_1 missing mended true", "obj_2 missing mended true version deleted state",
		"obj_3 behind mended true version state.deep", "obj_4 different mended true state.deep"}
	for i := range told {
		if i >= len(want) || !strings.HasPrefix(told[i], want[i]) {
			t.Errorf("told %q, want %q", told, want)
			break
		}
	}
	for _, w := range b.wrong(t) {
		if !strings.HasPrefix(w, "obj_5 ") { // ahead: nothing to mend
			t.Error(w)
		}
	}
	b.rows(t, `SELECT deleted || ' ' || version_final FROM objects WHERE object_id = 'gone'`, "true false")
	report := b.report(t, r.Run)
	if len(report.Types) != 1 || report.Types[0].Phase != "done" || report.Types[0].Equal != 15 ||
		report.Types[0].Mended != 5 || report.Source != "sim" {
		t.Errorf("%+v, %v", report, err)
	}
	b.rows(t, `SELECT (SELECT count(*) FROM listed) || ' ' || (SELECT count(*) FROM ghosts)`, "0 0")
}

// dying lets a runner's statements end the attempt that makes them.
type dying struct {
	mu     sync.Mutex
	left   int
	cancel context.CancelFunc
}

func (d *dying) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left--; d.left == 0 {
		d.cancel()
	}
	return ctx
}

func (d *dying) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// dies is the carry of the world's own runner that dies again and again.
func (b *world) dies(t *testing.T) runs.Carry {
	t.Helper()
	return dies(t, b.runner())
}

// diesApart is how many statements later each attempt ends than the one before.
func diesApart() int {
	if testing.Short() {
		return 7
	}
	return 1
}

// seeds is how many of some histories a run of the tests takes: one, where it is short.
func seeds(all int) int {
	if testing.Short() {
		return 1
	}
	return all
}

// dies carries runs out by a runner so that each attempt ends diesApart statements later than the one before.
func dies(t *testing.T, r *reconcile.Runner) runs.Carry {
	t.Helper()
	d := &dying{}
	traced(t, r, d)
	attempt := 0
	return func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		attempt += diesApart()
		d.mu.Lock()
		d.left, d.cancel = attempt, cancel
		d.mu.Unlock()
		return r.Carry(ctx, h, log)
	}
}

// Wherever a process ends, and whatever the API does, the run comes to its end, skips nothing, and counts each object once: as one that nothing has befallen.
func TestSweepKilledAnywhere(t *testing.T) {
	t.Parallel()
	for i, o := range []sim.Options{owned, unowned} {
		for k, version := range []string{"", sim.Named} {
			if testing.Short() && i != k {
				continue
			}
			t.Run(fmt.Sprint(o.Own, version), func(t *testing.T) {
				t.Parallel()
				calm, wild := newWorld(t, 210, o), newWorld(t, 210, o)
				for _, b := range []*world{calm, wild} {
					b.api.version = version
					b.deliver(t, lossy(b.api.h, 50, 7))
				}
				calm.carry(t, calm.runner())
				want := calm.sweep(t, reconcile.Order{})
				r := rand.New(rand.NewPCG(3, 52))
				wild.api.fails = func(provider.Call) (*reconcile.Response, error) {
					switch r.IntN(20) {
					case 0:
						return nil, errDown
					case 1:
						return &reconcile.Response{Verdict: provider.JudgeStatus(http.StatusInternalServerError, http.Header{}, nil)}, nil
					}
					return nil, nil
				}
				wild.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: wild.dies(t)})
				got := wild.sweep(t, reconcile.Order{})
				if d := diff.Diff(want.Counts, got.Counts); d != "" {
					t.Errorf("counts (-undisturbed +killed): %s", d)
				}
				none(t, wild.wrong(t))
				if a, b := calm.looks(t), wild.looks(t); version == "" && b > a+len(wild.api.h.ObjectIDs())/4 {
					t.Errorf("%d looks, undisturbed %d", b, a)
				}
			})
		}
	}
}

// looks are how many there are in the log.
func (b *world) looks(t *testing.T) int {
	t.Helper()
	return one[int](t, b, countLooks)
}

// A run that would delete many objects asks first; what it has not been allowed to do it has not done, and once approved it goes on.
func TestManyTombstonesAreApproved(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "gone_", 130)
	b.carry(t, b.runner())
	dry := b.sweep(t, reconcile.Order{DryRun: true})
	counted(t, dry, counts{reconcile.Seen: 150, reconcile.Equal: 20, reconcile.Ghosts: 130})
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Proposed })
	if !strings.Contains(r.Detail, "of 150 living objects of type thing") || !strings.Contains(r.Detail, "postern runs approve") {
		t.Errorf("it says %q", r.Detail)
	}
	is(t, b, 0, countLooks)
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'gone_1'`) // meanwhile
	b.approve(t, run, "they are gone")
	r = b.ended(t, run)
	counted(t, r, counts{reconcile.Seen: 149, reconcile.Equal: 20, reconcile.Ghosts: 129, reconcile.Mended: 129})
	if r.Detail != "" || r.ApprovedBy != "me" {
		t.Errorf("approved by %s, it says %q", r.ApprovedBy, r.Detail)
	}
	if dead := b.DB.Rows(t, `SELECT count(*)::text FROM objects WHERE deleted`)[0]; r.Status != runs.Done || dead != "129" || b.proven(t).IsZero() {
		t.Errorf("%s: %s, %s dead, proven until %s", r.Status, r.Detail, dead, b.proven(t))
	}
}

// A list whose cursor is no longer known begins again, and counts nothing twice; one that never comes to its end fails.
func TestExpiredCursor(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 230, living)
	b.spoil(t)
	times := 2
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" && c.Query.Get("cursor") == "obj_14" && times > 0 {
			times--
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Expired, Detail: "that was long ago"}}, nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	r := b.sweep(t, reconcile.Order{})
	counted(t, r, kinds(5))
	if report, err := reconcile.Drift(t.Context(), b.Operator, r.Run); err != nil || report.Types[0].Restarts != 2 {
		t.Errorf("%+v, %v", report, err)
	}
	b.api.meets(func(c provider.Call) (*reconcile.Response, error) {
		if c.Query.Get("cursor") != "" {
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Expired}}, nil
		}
		return nil, nil
	})
	before := b.proven(t)
	b.fails(t, reconcile.Order{What: reconcile.Objects}, "forgot the cursor")
	if !b.proven(t).Equal(before) {
		t.Errorf("proven until %s", b.proven(t))
	}
	b.api.meets(nil)
	b.sweep(t, reconcile.Order{})
	b.rows(t, `SELECT count(*)::text FROM listed`, "0")
}

// Where the API tells what changed, a sweep after the first lists that alone, from a little before what is proven.
func TestSweepOfWhatChanged(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 240, living)
	b.api.version = sim.ByChange
	end := b.api.now
	b.api.set(time.UnixMicro(b.api.h.End("obj_20")).Add(time.Second)) // soon after what happened
	b.carry(t, b.runner())
	all := b.sweep(t, reconcile.Order{})
	if all.Counts[reconcile.Seen] < 10 {
		t.Errorf("the first lists %v", all.Counts)
	}
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	first := b.proven(t)
	b.api.set(end)
	calls := b.api.made("/list")
	later := b.sweep(t, reconcile.Order{})
	if n := later.Counts[reconcile.Seen]; n == 0 && later.Counts[reconcile.Ghosts] != 0 || b.api.made("/list") == calls {
		t.Errorf("a later one lists %v", later.Counts)
	}
	since, changes := b.provenOf(t, "", "changes thing")
	if !changes.After(first) || since.Unix() != 0 {
		t.Errorf("changes are proven from %s until %s after %s", since, changes, first)
	}
	if !b.proven(t).Equal(first) {
		t.Errorf("what changed tells of no deletion, and the type is proven until %s after %s", b.proven(t), first)
	}
	counted(t, b.sweep(t, reconcile.Order{}), counts{}) // nothing has changed since
	full := b.sweep(t, reconcile.Order{Full: true})
	if full.Counts[reconcile.Seen] != 20 {
		t.Errorf("a full one lists %v", full.Counts)
	}
	if !b.proven(t).Equal(changes) {
		t.Errorf("a full one proves the type until %s, want %s", b.proven(t), changes)
	}
	none(t, b.wrong(t))
	stretch := b.sweep(t, reconcile.Order{Since: end.Add(-time.Minute), Until: end})
	counted(t, stretch, counts{})
}

// Two runs at once come to the same end.
func TestTwoSweepsAtOnce(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 250, unowned)
	b.deliver(t, lossy(b.api.h, 40, 9))
	b.carry(t, b.runner())
	b.Carry(t, "two", 1, b.jobs())
	var asked []int64
	for range 3 {
		run := b.order(t, reconcile.Order{What: reconcile.Objects})
		asked = append(asked, run)
	}
	for _, run := range asked {
		has(t, b.ended(t, run), counts{reconcile.Left: 0})
	}
	none(t, b.wrong(t))
}

// A list that leads nowhere, and one of a type that there is none of, say so.
func TestOddLists(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 270, living)
	b.api.on(&reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now, Body: []byte(`{"things":[],"next":"again"}`)}, "/list")
	b.carry(t, b.runner())
	b.fails(t, reconcile.Order{What: reconcile.Objects, Type: "nothing"}, `does not list objects of type "nothing"; it lists thing`)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, func(r *runs.Run) bool {
		return strings.Contains(r.Detail, "the same page of type thing again and again")
	})
	b.api.meets(func(c provider.Call) (*reconcile.Response, error) { // what is listed and then missing is left for another run, and an odd name is told
		switch {
		case c.Path == "/list":
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now, Body: fmt.Appendf(nil, `{"things":[{"id":"obj_1","at":%d},{"id":""}]}`, b.api.now.UnixMicro())}, nil
		case strings.HasPrefix(c.Path, "/things/obj_1"):
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Missing}, Date: b.api.now}, nil
		}
		return nil, nil
	})
	testkit.Eventually(t, time.Minute, func() error {
		r, err := runs.Show(t.Context(), b.Operator, run)
		if err == nil && !r.Status.Final() {
			err = fmt.Errorf("%s: %s", r.Status, r.Detail)
		}
		return err
	})
	left := b.left(t, run)
	if len(left) != 2 || left[1].ObjectID != "obj_1" ||
		!strings.Contains(left[1].Reason, "says that it is missing") || !b.proven(t).IsZero() {
		t.Errorf("left %+v, proven until %s", left, b.proven(t))
	}
}
