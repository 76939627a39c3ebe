package reconcile_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// sweepOf carries out a sweep of a type.
func (b *bulkShop) sweepOf(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	o.Source, o.What = b.Source, reconcile.Objects
	run := b.order(t, o)
	r := b.ended(t, run)
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

// Of two changes in one second the later one's webhook is lost, so that the versions are equal
// and the states are not: a sweep finds that out, says which fields differ, and mends them. What
// was found out once costs no call again. What changes and moves no version is found where the
// list tells whole objects; where it does not, only the versions are proven.
func TestTwinsOfOneSecond(t *testing.T) {
	t.Parallel()
	for name, c := range twinsOf {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := twins(t, c.file)
			for range 3 {
				id := b.fake.Create(c.objectType)
				b.deliver(t, every)
				b.fake.Change(c.objectType, id, true)
			}
			last := b.fake.Create(c.objectType)
			b.deliver(t, every)
			b.fake.Advance(2 * time.Minute)
			b.carry(t, b.runner(t))
			full := reconcile.Order{Type: c.objectType, Full: true}

			dry := counts{reconcile.Seen: 4, reconcile.Equal: 4} // it asks for no object
			if c.whole {
				dry[reconcile.Equal], dry[reconcile.Different] = 1, 3
			}
			counted(t, b.sweepOf(t, reconcile.Order{Type: c.objectType, Full: true, DryRun: true}), dry)
			b.proves(t, c.objectType)
			r := b.sweepOf(t, full)
			counted(t, r, counts{reconcile.Seen: 4, reconcile.Equal: 1, reconcile.Different: 3, reconcile.Mended: 3})
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
			counted(t, b.sweepOf(t, full), counts{reconcile.Seen: 4, reconcile.Equal: 4})
			b.lists(t)
			if !c.whole && c.mark == "type "+c.objectType { // its versions are known to move
				return
			}
			b.fake.Slip(c.objectType, last)
			b.fake.Advance(2 * time.Minute)
			slipped := counts{reconcile.Seen: 4, reconcile.Equal: 4}
			if c.whole {
				slipped = counts{reconcile.Seen: 4, reconcile.Equal: 3, reconcile.Different: 1, reconcile.Mended: 1}
			}
			counted(t, b.sweepOf(t, full), slipped)
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
	b.deliver(t, every)
	b.fake.Advance(2 * time.Minute)
	stop := b.carry(t, b.runner(t))
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
		report := b.report(t, p.Run)
		if slices.Contains(report.VersionsAlone, objectType) != strings.HasPrefix(want[0], "versions ") {
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

// customersRead are how often pages of customers were asked for by themselves, with their sources and with their tax ids.
func (b *shop) customersRead() (alone, sources, taxIDs int) {
	for _, one := range b.fake.Requests() {
		switch expand := one.Query.Get("expand[]"); {
		case one.Path != "/v1/customers":
		case expand == "":
			alone++
		case expand == "data.sources":
			sources++
		case expand == "data.tax_ids":
			taxIDs++
		}
	}
	b.fake.Forget()
	return alone, sources, taxIDs
}

// types are those of a run's report that are in a phase.
func (b *shop) types(t *testing.T, run int64, phase string) (all []string) {
	t.Helper()
	report, err := reconcile.Drift(t.Context(), b.Operator, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range report.Types {
		if one.Phase == phase {
			all = append(all, one.ObjectType)
		}
	}
	return all
}

// A sweep over all types reads all customers once, and once more for what lies in them where the mirror has one of it, or where it is asked for; of what it passed over nothing is proven.
func TestRareTypesAreReadWhereThereAreSome(t *testing.T) {
	t.Parallel()
	const pages = 3
	b := newShop(t, "", stripefake.Options{Seed: 3})
	b.fake.Fill("", "customer", 100*pages-50)
	owner := map[string]any{"customer": b.fake.Create("", "customer", nil)}
	b.carry(t, b.runner(t, b.api(b.fake.URL), asIs))
	all := []string{"bank_account", "card", "fee_refund", "source", "tax_id"}
	sweep := func(objectType string, rare, alone, sources, taxIDs int) *runs.Run {
		t.Helper()
		r := b.ask(t, reconcile.Order{What: reconcile.Objects, Type: objectType})
		has(t, r, counts{reconcile.Rare: int64(rare), reconcile.Left: 0})
		if a, s, x := b.customersRead(); a != alone || s != sources || x != taxIDs {
			t.Errorf("%d pages of customers alone, %d with sources and %d with tax ids, want %d, %d and %d", a, s, x, alone, sources, taxIDs)
		}
		return r
	}
	proven := func(what string) bool {
		t.Helper()
		return len(b.DB.Rows(t, `SELECT run::text FROM watermarks WHERE what = 'type `+what+`'`)) > 0
	}
	first := sweep("", len(all), pages, 0, 0)
	if rare := b.types(t, first.Run, reconcile.InRare); !slices.Equal(rare, all) || !proven("customer") || proven("card") || proven("tax_id") {
		t.Errorf("passed over: %q; customers are proven: %t, cards: %t", rare, proven("customer"), proven("card"))
	}
	b.fake.Create("", "card", owner)
	b.fake.Create("", "tax_id", owner)
	b.fake.Advance(time.Minute)
	b.deliver(t, func(n int) bool { return n == 3 }) // nobody hears of the tax id
	if got := b.DB.Rows(t, `SELECT object_type FROM objects WHERE object_type IN ('card', 'tax_id')`); !slices.Equal(got, []string{"card"}) {
		t.Fatalf("the mirror has %q", got)
	}
	b.fake.Forget()
	second := sweep("", len(all)-1, pages, pages, 0)
	if done := b.types(t, second.Run, "done"); !slices.Contains(done, "card") || !proven("card") || proven("tax_id") {
		t.Errorf("done: %q; cards are proven: %t", done, proven("card"))
	}
	asked := sweep("tax_id", 0, 0, 0, pages)
	if asked.Counts[reconcile.Mended] != 1 || !proven("tax_id") {
		t.Errorf("asked for by type: %v, proven %t", asked.Counts, proven("tax_id"))
	}
	sweep("", len(all)-2, pages, pages, pages)
}

// rarePair lists two types, of which the first is rare.
type rarePair struct{ pair }

func (rarePair) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"another": {Rare: true}, "thing": {}}
}

// What a run has passed over stays so in all its tries, and what it has begun with is read to its end, whatever the mirror has meanwhile.
func TestWhatIsRareIsSaidOnceForARun(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	down := func() { b.api.on(failing(http.StatusBadGateway), "/others", "/list") }
	well := func() {
		b.api.on(b.found(`{"things":[]}`), "/others")
		b.api.on(nil, "/list")
	}
	down()
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = rarePair{}, rarePair{} }))
	troubled := func(o reconcile.Order) int64 {
		t.Helper()
		run := b.order(t, o)
		b.Until(t, run, troubled)
		return run
	}
	another := `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"object_type": "another", "object_id": "obj_new"}')).* FROM objects o WHERE object_id = 'obj_6' AND object_type = 'thing'`

	passed := troubled(reconcile.Order{What: reconcile.Objects})
	b.DB.Exec(t, another)
	well()
	if got := b.ended(t, passed); got.Status != runs.Done || got.Counts[reconcile.Rare] != 1 || b.api.made("/others") != 0 {
		t.Errorf("%s with %v, after %d calls: %s", got.Status, got.Counts, b.api.made("/others"), got.Detail)
	}
	down()
	begun := troubled(reconcile.Order{What: reconcile.Objects})
	b.DB.Exec(t, `DELETE FROM objects WHERE object_type = 'another'`)
	well()
	if got := b.ended(t, begun); got.Status != runs.Done || got.Counts[reconcile.Rare] != 0 || b.api.made("/others") == 0 {
		t.Errorf("begun with: %s with %v: %s", got.Status, got.Counts, got.Detail)
	}
}

// A key that may list nothing is good for nothing, also where other types are rare.
func TestAKeyThatMayListNothingButWhatIsRare(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.api.on(failing(http.StatusForbidden), "/list")
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = rarePair{}, rarePair{} }))
	b.fails(t, reconcile.Order{What: reconcile.Objects}, "403")
}
