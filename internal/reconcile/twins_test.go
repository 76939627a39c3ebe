package reconcile_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// sweepOf carries out a sweep of a type.
func (b *bulkShop) sweepOf(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	o.Source, o.What = b.Source, reconcile.Objects
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
	if r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	return r
}

// twinsOf are some types of a shop, and how the lists of all of their objects are read.
var twinsOf = map[string]struct {
	objectType, field string
	// file: the list is one. whole: it tells whole objects, so that no other call is needed.
	file, whole bool
	// mark is what is proven by it.
	mark string
}{
	"REST":                                {"product", "state.title", false, true, "type product"},
	"GraphQL":                             {"draft_order", "state.note", false, false, "type draft_order"},
	"GraphQL, versions may not move":      {"collection", "state.title", false, false, "versions collection"},
	"a file":                              {"customer", "state.note", true, false, "type customer"},
	"a file, versions that need not move": {"product", "state.title", true, false, "versions product"},
}

// twins makes a shop in which time stands still.
func twins(t *testing.T, file bool) *bulkShop {
	t.Helper()
	b := newBulkShop(t, shopifyfake.Options{Seed: 62, Start: time.Now()})
	if !file {
		b.api.Bulk = nil
	}
	return b
}

// Of two changes in one second the later one's webhook is lost, so that the versions are equal and the states are not: a sweep finds that out, says which fields differ, and mends them. What was
// found out once costs no call again.
func TestTwinsOfOneSecond(t *testing.T) {
	t.Parallel()
	for name, c := range twinsOf {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := twins(t, c.file)
			for range 3 {
				id := b.fake.Create(c.objectType)
				b.deliver(t, func(int) bool { return false })
				b.fake.Change(c.objectType, id, true)
			}
			b.fake.Create(c.objectType)
			b.deliver(t, func(int) bool { return false })
			b.fake.Advance(2 * time.Minute)
			b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
			full := reconcile.Order{Type: c.objectType, Full: true}

			dry := map[string]int64{reconcile.Seen: 4, reconcile.Equal: 4} // it asks for no object
			if c.whole {
				dry[reconcile.Equal], dry[reconcile.Different] = 1, 3
			}
			counted(t, b.sweepOf(t, reconcile.Order{Type: c.objectType, Full: true, DryRun: true}), dry)
			b.proves(t, c.objectType)
			r := b.sweepOf(t, full)
			counted(t, r, map[string]int64{reconcile.Seen: 4, reconcile.Equal: 1, reconcile.Different: 3, reconcile.Mended: 3})
			page, err := reconcile.Differences(t.Context(), b.Operator, r.Run, "different", "mended", "", 10)
			if err != nil || len(page.Items) != 3 || len(page.Items[0].Fields) != 1 || page.Items[0].Fields[0].Path != c.field {
				t.Errorf("the differences are %+v, %v", page.Items, err)
			}
			b.isTheShops(t)
			b.proves(t, c.objectType, c.mark)
			if c.whole {
				b.lists(t)
			}
			b.fake.Forget()
			counted(t, b.sweepOf(t, full), map[string]int64{reconcile.Seen: 4, reconcile.Equal: 4})
			b.lists(t)
		})
	}
}

// What changes and moves no version is found where the list tells whole objects; where it does not, only the versions are proven.
func TestChangesUnderAVersion(t *testing.T) {
	t.Parallel()
	for name, c := range twinsOf {
		if !c.whole && strings.HasPrefix(c.mark, "type ") { // its versions are known to move
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := twins(t, c.file)
			id := b.fake.Create(c.objectType)
			b.deliver(t, func(int) bool { return false })
			b.fake.Advance(2 * time.Minute)
			b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
			full := reconcile.Order{Type: c.objectType, Full: true}
			counted(t, b.sweepOf(t, full), map[string]int64{reconcile.Seen: 1, reconcile.Equal: 1})
			b.fake.Slip(c.objectType, id)
			b.fake.Advance(2 * time.Minute)
			want := map[string]int64{reconcile.Seen: 1, reconcile.Equal: 1}
			if c.whole {
				want = map[string]int64{reconcile.Seen: 1, reconcile.Different: 1, reconcile.Mended: 1}
			}
			counted(t, b.sweepOf(t, full), want)
			if c.whole {
				b.isTheShops(t)
			}
			b.proves(t, c.objectType, c.mark)
		})
	}
}

// Once a list tells more than versions, only what is proven by that is told; what a run of before has said of itself stays.
func TestAListThatTellsMoreThanBefore(t *testing.T) {
	t.Parallel()
	b := twins(t, true)
	b.fake.Create("product")
	b.deliver(t, func(int) bool { return false })
	b.fake.Advance(2 * time.Minute)
	stop := b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
	full := reconcile.Order{Type: "product", Full: true}
	alone := b.sweepOf(t, full).Run
	b.proves(t, "product", "versions product")
	stop()
	b.api.Bulk = nil
	b.fake.Advance(2 * time.Minute)
	b.Carry(t, "two", 1, map[string]runs.Carry{reconcile.Job: b.runner(t).Carry})
	b.sweepOf(t, full)
	b.proves(t, "product", "type product")
	if report, err := reconcile.Drift(t.Context(), b.Operator, alone); err != nil || !slices.Equal(report.VersionsAlone, []string{"product"}) {
		t.Errorf("%+v, %v", report, err)
	}
}

// proves checks what is proven of a type, beside what changed.
func (b *bulkShop) proves(t *testing.T, objectType string, want ...string) {
	t.Helper()
	got := b.DB.Rows(t, `SELECT what FROM watermarks WHERE what IN ('type ' || $1, 'versions ' || $1)`, objectType)
	if !slices.Equal(got, want) {
		t.Errorf("proven is %q, want %q", got, want)
	}
	if len(want) == 0 {
		return
	}
	page, err := reconcile.Watermarks(t.Context(), b.Operator, b.Source, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range page.Items {
		if p.What != want[0] {
			continue
		}
		report, err := reconcile.Drift(t.Context(), b.Operator, p.Run)
		if err != nil || slices.Contains(report.VersionsAlone, objectType) != strings.HasPrefix(want[0], "versions ") {
			t.Errorf("the report tells of %q alone by versions (%v), proven is %q", report.VersionsAlone, err, want)
		}
	}
}

// lists checks that nothing but lists was asked for of late.
func (b *bulkShop) lists(t *testing.T) {
	t.Helper()
	for _, q := range b.fake.Requests() {
		if oneObject.MatchString(q.Path) {
			t.Errorf("asked for %s", q.Path)
		}
	}
}

// oneObject is the path of one object.
var oneObject = regexp.MustCompile(`/\d+\.json$`)

// isTheShops compares the states of the mirror with those of the shop.
func (b *bulkShop) isTheShops(t *testing.T) {
	t.Helper()
	want := map[string]any{}
	for _, o := range b.fake.Truth() {
		if o.Body != nil {
			want[o.Type+" "+o.ID] = read(t, o.Body)
		}
	}
	got := map[string]any{}
	for _, row := range b.DB.Rows(t, `SELECT object_type || ' ' || object_id || ' ' || state::text FROM objects WHERE NOT ambiguous AND look_after = 0`) {
		parts := strings.SplitN(row, " ", 3)
		got[parts[0]+" "+parts[1]] = read(t, []byte(parts[2]))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func read(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
