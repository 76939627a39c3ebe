package reconcile_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

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
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, b.api(b.fake.URL), asIs).Carry})
	all := []string{"bank_account", "card", "fee_refund", "source", "tax_id"}
	sweep := func(objectType string, rare, alone, sources, taxIDs int) *runs.Run {
		t.Helper()
		r := b.order(t, reconcile.Order{What: reconcile.Objects, Type: objectType})
		if r.Status != runs.Done || r.Counts[reconcile.Rare] != int64(rare) || r.Counts[reconcile.Left] != 0 {
			t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
		}
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
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	var well atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case !well.Load() && (c.Path == "/others" || c.Path == "/list"):
			return failing(http.StatusBadGateway), nil
		case c.Path == "/others":
			return b.found(`{"things":[]}`), nil
		}
		return nil, nil
	}
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Provider, s.Reader = rarePair{}, rarePair{} }))
	b.carry(t, r)
	troubled := func(o reconcile.Order) int64 {
		t.Helper()
		run := b.order(t, o)
		b.Until(t, run, func(r *runs.Run) bool { return r.Troubles > 0 })
		return run
	}
	another := `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"object_type": "another", "object_id": "obj_new"}')).* FROM objects o WHERE object_id = 'obj_6' AND object_type = 'thing'`

	passed := troubled(reconcile.Order{What: reconcile.Objects})
	b.DB.Exec(t, another)
	well.Store(true)
	if got := b.ended(t, passed); got.Status != runs.Done || got.Counts[reconcile.Rare] != 1 || b.api.made("/others") != 0 {
		t.Errorf("%s with %v, after %d calls: %s", got.Status, got.Counts, b.api.made("/others"), got.Detail)
	}
	well.Store(false)
	begun := troubled(reconcile.Order{What: reconcile.Objects})
	b.DB.Exec(t, `DELETE FROM objects WHERE object_type = 'another'`)
	well.Store(true)
	if got := b.ended(t, begun); got.Status != runs.Done || got.Counts[reconcile.Rare] != 0 || b.api.made("/others") == 0 {
		t.Errorf("begun with: %s with %v: %s", got.Status, got.Counts, got.Detail)
	}
}

// A key that may list nothing is good for nothing, also where other types are rare.
func TestAKeyThatMayListNothingButWhatIsRare(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" {
			return failing(http.StatusForbidden), nil
		}
		return nil, nil
	}
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Provider, s.Reader = rarePair{}, rarePair{} }))
	b.carry(t, r)
	if got := b.ask(t, reconcile.Order{What: reconcile.Objects}); got.Status != runs.Failed || !strings.Contains(got.Detail, "403") {
		t.Errorf("%s with %v: %s", got.Status, got.Counts, got.Detail)
	}
}
