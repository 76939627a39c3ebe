package objectscan_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// sameSecondCases are some types of a shop, and how the lists of their objects are read.
var sameSecondCases = map[string]struct {
	objectType, field string
	// file: the list is a file. whole: the list contains whole objects, so that no other call is
	// necessary.
	file, whole bool
	// mark is the watermark that the list moves.
	mark string
}{
	"REST":                                {"product", "state.title", false, true, "type product"},
	"GraphQL":                             {"draft_order", "state.note", false, false, "type draft_order"},
	"GraphQL, versions may not move":      {"collection", "state.title", false, false, "versions collection"},
	"a file":                              {"customer", "state.note", true, false, "type customer"},
	"a file, versions that need not move": {"product", "state.title", true, false, "versions product"},
}

// newStillShopifyEnv makes a shop whose clock stands still.
func newStillShopifyEnv(t *testing.T, file bool) *reconciled.ShopifyEnv {
	t.Helper()
	b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 62, Start: time.Now()})
	if !file {
		b.API.Bulk = nil
	}
	return b
}

// An object changes twice in one second, and the webhook of the later change is lost: the versions
// are equal and the states are not. A scan finds this, reports the fields that differ, and repairs
// them. A second scan needs no further call. The scan finds a change that does not advance the
// version if the list contains whole objects. If it does not, only the versions are complete.
func TestObjectScan_changesInOneSecond_areFound(t *testing.T) {
	t.Parallel()
	for name, c := range sameSecondCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newStillShopifyEnv(t, c.file)
			for range 3 {
				id := b.Fake.Create(c.objectType)
				b.Deliver(t, reconciled.LoseNone)
				b.Fake.Change(c.objectType, id, true)
			}
			last := b.Fake.Create(c.objectType)
			b.Deliver(t, reconciled.LoseNone)
			b.Fake.Advance(2 * time.Minute)
			b.StartReconciler(t, b.Runner(t))
			full := reconcile.Params{Type: c.objectType, Full: true}

			dry := reconciled.Counts{reconcile.Processed: 4, objectscan.Equal: 4} // it requests no object
			if c.whole {
				dry[objectscan.Equal], dry[objectscan.ContentDiffers] = 1, 3
			}
			reconciled.WantExactCounts(t,
				b.Scan(t, reconcile.Params{Type: c.objectType, Full: true, DryRun: true}), dry)
			wantComplete(t, b, c.objectType)
			r := b.Scan(t, full)
			reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 4, objectscan.Equal: 1,
				objectscan.ContentDiffers: 3, objectscan.Repaired: 3})
			page, err := objectscan.Differences(t.Context(), b.OperatorPool, r.ID, "content_differs", "repaired", "",
				10)
			if err != nil || len(page.Items) != 3 || len(page.Items[0].Fields) != 1 ||
				page.Items[0].Fields[0].Path != c.field {
				t.Errorf("the differences are %+v, %v", page.Items, err)
			}
			wantMirrorEqual(t, b)
			wantComplete(t, b, c.objectType, c.mark)
			if c.whole {
				wantOnlyLists(t, b)
			}
			b.Fake.ResetRequests()
			reconciled.WantExactCounts(t, b.Scan(t, full), reconciled.Counts{reconcile.Processed: 4,
				objectscan.Equal: 4})
			wantOnlyLists(t, b)
			if !c.whole && c.mark == "type "+c.objectType { // its versions always advance
				return
			}
			b.Fake.ChangeKeepingVersion(c.objectType, last)
			b.Fake.Advance(2 * time.Minute)
			slipped := reconciled.Counts{reconcile.Processed: 4, objectscan.Equal: 4}
			if c.whole {
				slipped = reconciled.Counts{reconcile.Processed: 4, objectscan.Equal: 3, objectscan.ContentDiffers: 1,
					objectscan.Repaired: 1}
			}
			reconciled.WantExactCounts(t, b.Scan(t, full), slipped)
			if c.whole {
				wantMirrorEqual(t, b)
			}
			wantComplete(t, b, c.objectType, c.mark)
		})
	}
}

// When a list contains more than versions, the new watermark replaces the old one. The report of an
// earlier run does not change.
func TestObjectScan_listWithMoreContent_replacesTheWatermark(t *testing.T) {
	t.Parallel()
	b := newStillShopifyEnv(t, true)
	b.Fake.Create("product")
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(2 * time.Minute)
	stop := b.StartReconciler(t, b.Runner(t))
	full := reconcile.Params{Type: "product", Full: true}
	alone := b.Scan(t, full).ID
	wantComplete(t, b, "product", "versions product")
	stop()
	b.API.Bulk = nil
	b.Fake.Advance(2 * time.Minute)
	b.StartRunner(t, "two", 1, map[string]runs.Executor{reconcile.Job: b.Runner(t).Execute})
	b.Scan(t, full)
	wantComplete(t, b, "product", "type product")
	testkit.Equal(t, "types of which only versions are complete", []string{"product"},
		b.Report(t, alone).VersionOnlyTypes)
}

// A scan of all types reads all customers once. It reads them once more for a type inside customers
// if the mirror has an object of that type, or if the request names it. The watermark of a skipped
// type does not move.
func TestObjectScan_onlyIfMirroredTypes_areScannedWhenPresent(t *testing.T) {
	t.Parallel()
	const pages = 2
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 3})
	b.Fake.AddObjects("", "customer", 100*pages-50)
	owner := map[string]any{"customer": b.Fake.Create("", "customer", nil)}
	b.StartReconciler(t, b.Runner(t, b.APIAt(b.Fake.URL), reconciled.SameCaller))
	all := []string{"bank_account", "card", "fee_refund", "source", "tax_id"}
	scan := func(objectType string, skipped, alone, sources, taxIDs int) *runs.Run {
		t.Helper()
		r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType})
		reconciled.WantCounts(t, r, reconciled.Counts{objectscan.SkippedTypes: int64(skipped),
			objectscan.Unrepaired: 0})
		if a, s, x := customerPages(b); a != alone || s != sources || x != taxIDs {
			t.Errorf("%d pages of customers alone, %d with sources and %d with tax ids, want %d, %d and %d", a, s, x,
				alone, sources, taxIDs)
		}
		return r
	}
	complete := func(objectType string) bool {
		t.Helper()
		return len(b.DB.QueryStrings(t, `SELECT run::text FROM watermarks WHERE subject = 'type `+objectType+`'`)) > 0
	}
	first := scan("", len(all), pages, 0, 0)
	if skipped := typesInPhase(t, b, first.ID, objectscan.PhaseSkipped); !slices.Equal(skipped, all) ||
		!complete("customer") || complete("card") || complete("tax_id") {
		t.Errorf("skipped: %q; customers are complete: %t, cards: %t", skipped, complete("customer"), complete("card"))
	}
	b.Fake.Create("", "card", owner)
	b.Fake.Create("", "tax_id", owner)
	b.Fake.Advance(time.Minute)
	b.Deliver(t, func(n int) bool { return n == 3 }) // the webhook of the tax id is lost
	b.WantRows(t, `SELECT object_type FROM objects WHERE object_type IN ('card', 'tax_id')`, "card")
	b.Fake.ResetRequests()
	second := scan("", len(all)-1, pages, pages, 0)
	if done := typesInPhase(t, b, second.ID, "done"); !slices.Contains(done, "card") || !complete("card") ||
		complete("tax_id") {
		t.Errorf("done: %q; cards are complete: %t", done, complete("card"))
	}
	requested := scan("tax_id", 0, 0, 0, pages)
	if requested.Counts[objectscan.Repaired] != 1 || !complete("tax_id") {
		t.Errorf("requested by type: %v, complete %t", requested.Counts, complete("tax_id"))
	}
	scan("", len(all)-2, pages, pages, pages)
}

// onlyIfMirroredAndThing lists two types, the first of them only if it is mirrored.
type onlyIfMirroredAndThing struct{ reconciled.TwoTypes }

func (onlyIfMirroredAndThing) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"aaa": {OnlyIfMirrored: true}, "thing": {}}
}

// A type that a run has skipped stays skipped in all its attempts. A type that a run has started is
// read to its end, whatever the mirror has meanwhile. A key that may list none of the other types
// fails the run.
func TestObjectScan_skippedType_staysSkippedForTheRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	down := func() { b.API.RespondTo(reconciled.ErrorResponse(http.StatusTooManyRequests), "/aaas", "/list") }
	well := func() {
		b.API.RespondTo(b.FoundResponse(`{"things":[]}`), "/aaas")
		b.API.RespondTo(nil, "/list")
	}
	down()
	b.StartReconciler(t, b.RunnerReading(onlyIfMirroredAndThing{}))
	startFailing := func(o reconcile.Params) int64 {
		t.Helper()
		run := b.StartRun(t, o)
		b.WaitForRun(t, run, reconciled.EndedOrDeferred)
		return run
	}
	another := `INSERT INTO objects
		SELECT (jsonb_populate_record(o, '{"object_type": "aaa", "object_id": "obj_new"}')).* FROM objects o
			WHERE object_id = 'obj_6' AND object_type = 'thing'`

	passed := startFailing(reconcile.Params{Scope: reconcile.Objects})
	b.DB.Exec(t, another)
	well()
	if got := b.WaitForEnd(t, passed); got.Status != runs.Done || got.Counts[objectscan.SkippedTypes] != 1 ||
		b.API.CallCount("/aaas") != 0 {
		t.Errorf("%s with %v, after %d calls: %s", got.Status, got.Counts, b.API.CallCount("/aaas"), got.Detail)
	}
	down()
	begun := startFailing(reconcile.Params{Scope: reconcile.Objects})
	b.DB.Exec(t, `DELETE FROM objects WHERE object_type = 'aaa'`)
	well()
	if got := b.WaitForEnd(t, begun); got.Status != runs.Done || got.Counts[objectscan.SkippedTypes] != 0 ||
		b.API.CallCount("/aaas") == 0 {
		t.Errorf("started with: %s with %v: %s", got.Status, got.Counts, got.Detail)
	}
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusForbidden), "/list")
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects}, "403")
}

// wantComplete checks the watermarks of a type, without those of changes.
func wantComplete(t *testing.T, b *reconciled.ShopifyEnv, objectType string, want ...string) {
	t.Helper()
	got := b.DB.QueryStrings(t, `SELECT subject FROM watermarks WHERE subject IN ('type ' || $1, 'versions ' || $1)`,
		objectType)
	if !slices.Equal(got, want) {
		t.Errorf("the watermarks are %q, want %q", got, want)
	}
	if len(want) == 0 {
		return
	}
	page, err := watermarks.List(t.Context(), b.OperatorPool, b.Source, "", 10)
	testkit.Must(t, err)
	for _, p := range page.Items {
		if p.Subject != want[0] {
			continue
		}
		report := b.Report(t, p.Run)
		if slices.Contains(report.VersionOnlyTypes, objectType) != strings.HasPrefix(want[0], "versions ") {
			t.Errorf("the report has only versions of %q (%v), the watermarks are %q", report.VersionOnlyTypes, err,
				want)
		}
	}
}

// wantOnlyLists checks that only lists were requested since the last reset.
func wantOnlyLists(t *testing.T, b *reconciled.ShopifyEnv) {
	t.Helper()
	for _, q := range b.Fake.Requests() {
		if objectPath.MatchString(q.Path) {
			t.Errorf("%s was requested", q.Path)
		}
	}
}

// objectPath is the path of one object.
var objectPath = regexp.MustCompile(`/\d+\.json$`)

// wantMirrorEqual compares the states of the mirror with those of the shop.
func wantMirrorEqual(t *testing.T, b *reconciled.ShopifyEnv) {
	t.Helper()
	want := map[string]any{}
	for _, o := range b.Fake.CurrentObjects() {
		if o.Body != nil {
			want[o.Type+" "+o.ID] = parseJSON(t, o.Body)
		}
	}
	got := map[string]any{}
	for _, row := range b.DB.QueryStrings(t, `SELECT object_type || ' ' || object_id || ' ' || state::text FROM objects
		WHERE NOT ambiguous AND refetch_after = 0`) {
		parts := strings.SplitN(row, " ", 3)
		got[parts[0]+" "+parts[1]] = parseJSON(t, []byte(parts[2]))
	}
	testkit.Equal(t, "", want, got)
}

func parseJSON(t *testing.T, text []byte) (v any) {
	t.Helper()
	testkit.Must(t, json.Unmarshal(text, &v))
	return v
}

// customerPages counts the requests for pages of customers: without expansion, with their sources,
// and with their tax ids.
func customerPages(b *reconciled.StripeEnv) (alone, sources, taxIDs int) {
	for _, one := range b.Fake.Requests() {
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
	b.Fake.ResetRequests()
	return alone, sources, taxIDs
}

// typesInPhase returns the types of a run's report that are in a phase.
func typesInPhase(t *testing.T, b *reconciled.StripeEnv, run int64, phase string) (all []string) {
	t.Helper()
	for _, one := range b.Report(t, run).Types {
		if one.Phase == phase {
			all = append(all, one.ObjectType)
		}
	}
	return all
}
