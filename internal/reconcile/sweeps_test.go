package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

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
	all := map[string]int64{reconcile.Seen: 21, reconcile.Equal: 15, reconcile.Missing: 2, reconcile.Behind: 1, reconcile.Different: 1, reconcile.Ahead: 1, reconcile.Ghosts: 1}
	if mended > 0 {
		all[reconcile.Mended] = mended
	}
	return all
}

// Each kind of difference is counted as what it is, told field by field, and mended through the log.
func TestKindsOfDrift(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 200, living)
	b.deliver(t, b.api.h.Events)
	b.spoil(t)
	b.Carry(t, "one", 1, b.jobs())
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
	if n := b.DB.Rows(t, `SELECT deleted || ' ' || version_final FROM objects WHERE object_id = 'gone'`)[0]; n != "true false" {
		t.Errorf("the ghost is deleted, final: %s", n)
	}
	report, err := reconcile.Drift(t.Context(), b.Operator, r.Run)
	if err != nil || len(report.Types) != 1 || report.Types[0].Phase != "done" || report.Types[0].Equal != 15 || report.Types[0].Mended != 5 || report.Source != "sim" {
		t.Errorf("%+v, %v", report, err)
	}
	if left := b.DB.Rows(t, `SELECT (SELECT count(*) FROM listed) || ' ' || (SELECT count(*) FROM ghosts)`)[0]; left != "0 0" {
		t.Errorf("%s rows are left of what was listed and of ghosts", left)
	}
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
		return 3
	}
	return 1
}

// dies carries runs out by a runner so that each attempt ends diesApart statements later than the one before.
func dies(t *testing.T, r *reconcile.Runner) runs.Carry {
	t.Helper()
	d := &dying{}
	cfg := r.Pool.Config()
	cfg.ConnConfig.Tracer = d
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r.Pool = pool
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
	for _, o := range []sim.Options{owned, unowned} {
		for _, version := range []string{"", sim.Named} {
			t.Run(fmt.Sprint(o.Own, version), func(t *testing.T) {
				t.Parallel()
				calm, wild := newWorld(t, 210, o), newWorld(t, 210, o)
				for _, b := range []*world{calm, wild} {
					b.api.version = version
					b.deliver(t, lossy(b.api.h, 50, 7))
				}
				calm.Carry(t, "one", 1, calm.jobs())
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
				for _, w := range wild.wrong(t) {
					t.Error(w)
				}
				if a, b := calm.looks(t), wild.looks(t); version == "" && b > a+len(wild.api.h.ObjectIDs())/4 {
					t.Errorf("%d looks, undisturbed %d", b, a)
				}
			})
		}
	}
}

// looks are how many there are in the log.
func (b *world) looks(t *testing.T) (n int) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE event_type = 'postern.look'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A run that would delete many objects asks first; what it has not been allowed to do it has not done, and once approved it goes on.
func TestManyTombstonesAreApproved(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', 'gone_' || n)) AS o FROM objects o, generate_series(1, 130) n WHERE object_id = 'obj_6') o`)
	b.Carry(t, "one", 1, b.jobs())
	dry := b.sweep(t, reconcile.Order{DryRun: true})
	counted(t, dry, map[string]int64{reconcile.Seen: 150, reconcile.Equal: 20, reconcile.Ghosts: 130})
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Objects}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Proposed })
	if !strings.Contains(r.Detail, "of 150 living objects of type thing") || !strings.Contains(r.Detail, "postern runs approve") {
		t.Errorf("it says %q", r.Detail)
	}
	if n := b.looks(t); n != 0 {
		t.Errorf("%d tombstones before anybody has approved", n)
	}
	b.DB.Exec(t, `DELETE FROM objects WHERE object_id = 'gone_1'`) // meanwhile
	if err := runs.Approve(t.Context(), b.Operator, run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
	r = b.ended(t, run)
	counted(t, r, map[string]int64{reconcile.Seen: 149, reconcile.Equal: 20, reconcile.Ghosts: 129, reconcile.Mended: 129})
	if r.Detail != "" || r.ApprovedBy != "me" {
		t.Errorf("approved by %s, it says %q", r.ApprovedBy, r.Detail)
	}
	if dead := b.DB.Rows(t, `SELECT count(*)::text FROM objects WHERE deleted`)[0]; r.Status != runs.Done || dead != "129" || b.proven(t).IsZero() {
		t.Errorf("%s: %s, %s dead, proven until %s", r.Status, r.Detail, dead, b.proven(t))
	}
}

// Few are deleted without asking, and a cancelled run deletes none.
func TestFewTombstonesNeedNobody(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 221, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', 'gone_' || n)) AS o FROM objects o, generate_series(1, 20) n WHERE object_id = 'obj_6') o`)
	b.Carry(t, "one", 1, b.jobs())
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 40, reconcile.Equal: 20, reconcile.Ghosts: 20, reconcile.Mended: 20})
}

// A list whose cursor is no longer known begins again, and counts nothing twice; one that never comes to its end fails.
func TestExpiredCursor(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 230, living)
	b.deliver(t, b.api.h.Events)
	b.spoil(t)
	times := 2
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" && c.Query.Get("cursor") == "obj_14" && times > 0 {
			times--
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Expired, Detail: "that was long ago"}}, nil
		}
		return nil, nil
	}
	b.Carry(t, "one", 1, b.jobs())
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
	if r := b.ask(t, reconcile.Order{What: reconcile.Objects}); r.Status != runs.Failed || !strings.Contains(r.Detail, "forgot the cursor") || !b.proven(t).Equal(before) {
		t.Errorf("%s: %s; proven until %s", r.Status, r.Detail, b.proven(t))
	}
	b.api.meets(nil)
	b.sweep(t, reconcile.Order{})
	if n := b.DB.Rows(t, `SELECT count(*)::text FROM listed`)[0]; n != "0" {
		t.Errorf("%s listed objects of a run that has failed are left", n)
	}
}

// Where the API tells what changed, a sweep after the first lists that alone, from a little before what is proven.
func TestSweepOfWhatChanged(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 240, living)
	b.api.version = sim.ByChange
	b.deliver(t, b.api.h.Events)
	end := b.api.now
	b.api.set(time.UnixMicro(b.api.h.End("obj_20")).Add(time.Second)) // soon after what happened
	b.Carry(t, "one", 1, b.jobs())
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
	since, changes, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", "changes thing")
	if err != nil || !changes.After(first) || since.Unix() != 0 {
		t.Errorf("changes are proven from %s until %s after %s (%v)", since, changes, first, err)
	}
	if !b.proven(t).Equal(first) {
		t.Errorf("what changed tells of no deletion, and the type is proven until %s after %s", b.proven(t), first)
	}
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{}) // nothing has changed since
	full := b.sweep(t, reconcile.Order{Full: true})
	if full.Counts[reconcile.Seen] != 20 {
		t.Errorf("a full one lists %v", full.Counts)
	}
	if !b.proven(t).Equal(changes) {
		t.Errorf("a full one proves the type until %s, want %s", b.proven(t), changes)
	}
	for _, w := range b.wrong(t) {
		t.Error(w)
	}
	stretch := b.sweep(t, reconcile.Order{Since: end.Add(-time.Minute), Until: end})
	counted(t, stretch, map[string]int64{})
}

// Two runs at once come to the same end.
func TestTwoSweepsAtOnce(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 250, unowned)
	b.deliver(t, lossy(b.api.h, 40, 9))
	b.Carry(t, "one", 1, b.jobs())
	b.Carry(t, "two", 1, b.jobs())
	var asked []int64
	for range 3 {
		run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Objects}, Who: "test"})
		if err != nil {
			t.Fatal(err)
		}
		asked = append(asked, run)
	}
	for _, run := range asked {
		if r := b.ended(t, run); r.Status != runs.Done || r.Counts[reconcile.Left] != 0 {
			t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
		}
	}
	for _, w := range b.wrong(t) {
		t.Error(w)
	}
}

// What a late list tells is no reason to touch what changed since, and proves nothing of the time that it does not know.
func TestLateList(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 260, unowned)
	b.deliver(t, b.api.h.Events)
	b.api.version, b.api.late = sim.Late, sim.ListLag
	var end int64
	for _, id := range b.api.h.ObjectIDs() {
		end = max(end, b.api.h.End(id))
	}
	b.api.set(time.UnixMicro(end).Add(2 * time.Second))
	before := b.wrong(t)
	b.Carry(t, "one", 1, b.jobs())
	r := b.sweep(t, reconcile.Order{})
	if r.Counts[reconcile.Ahead] == 0 {
		t.Errorf("nothing is ahead of a late list: %v", r.Counts)
	}
	for _, w := range b.wrong(t) {
		id, _, _ := strings.Cut(w, " ")
		if !slices.ContainsFunc(before, func(was string) bool { return strings.HasPrefix(was, id+" ") }) {
			t.Errorf("made wrong: %s", w)
		}
	}
	if until := b.proven(t); until.After(b.api.now.Add(-sim.ListLag)) {
		t.Errorf("proven until %s, of a list that may be of %s", until, b.api.now.Add(-sim.ListLag))
	}
}

// A list that leads nowhere, and one of a type that there is none of, say so.
func TestOddLists(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 270, living)
	b.deliver(t, b.api.h.Events)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" {
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Date: b.api.now, Body: []byte(`{"things":[],"next":"again"}`)}, nil
		}
		return nil, nil
	}
	b.Carry(t, "one", 1, b.jobs())
	if r := b.ask(t, reconcile.Order{What: reconcile.Objects, Type: "nothing"}); r.Status != runs.Failed || !strings.Contains(r.Detail, `does not list objects of type "nothing"; it lists thing`) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: b.Source, What: reconcile.Objects}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
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
	page, err := reconcile.Differences(t.Context(), b.Operator, run, "", "left", "", 10)
	if err != nil || len(page.Items) != 2 || page.Items[1].ObjectID != "obj_1" || !strings.Contains(page.Items[1].Reason, "says that it is missing") || !b.proven(t).IsZero() {
		t.Errorf("left %+v (%v), proven until %s", page.Items, err, b.proven(t))
	}
}
