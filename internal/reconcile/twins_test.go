package reconcile_test

import (
	"encoding/json"
	"regexp"
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

// twinsOf are the types of a shop, and how the lists of all of their objects are read.
var twinsOf = map[string]struct {
	objectType string
	file       bool
	// fields: the list tells whole objects, so that no other call is needed.
	fields bool
}{
	"by REST": {"product", false, true},
}

// Of two changes in one second the later one's webhook is lost, so that the versions are equal and the states are not: a sweep finds that out, says which fields differ, and mends them. What was
// found out once costs no call again.
func TestTwinsOfOneSecond(t *testing.T) {
	t.Parallel()
	for name, c := range twinsOf {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBulkShop(t, shopifyfake.Options{Seed: 62})
			if !c.file {
				b.api.Bulk = nil
			}
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

			counted(t, b.sweepOf(t, reconcile.Order{Type: c.objectType, Full: true, DryRun: true}), dry(c.fields))
			r := b.sweepOf(t, full)
			counted(t, r, map[string]int64{reconcile.Seen: 4, reconcile.Equal: 1, reconcile.Different: 3, reconcile.Mended: 3})
			page, err := reconcile.Differences(t.Context(), b.Operator, r.Run, "different", "mended", "", 10)
			if err != nil || len(page.Items) != 3 || len(page.Items[0].Fields) != 1 || page.Items[0].Fields[0].Path != "state.title" {
				t.Errorf("the differences are %+v, %v", page.Items, err)
			}
			b.isTheShops(t)
			b.fake.Forget()
			counted(t, b.sweepOf(t, full), map[string]int64{reconcile.Seen: 4, reconcile.Equal: 4})
			b.lists(t)
		})
	}
}

// dry is what a dry run counts, which asks for no object.
func dry(fields bool) map[string]int64 {
	if !fields {
		return map[string]int64{reconcile.Seen: 4, reconcile.Equal: 4}
	}
	return map[string]int64{reconcile.Seen: 4, reconcile.Equal: 1, reconcile.Different: 3}
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
