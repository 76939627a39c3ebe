package reconcile_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
)

// A refetch of an object of a configured API updates the mirror: a changed object, a missing one,
// and an unknown one.
func TestRefetch_configuredAPI_updatesTheMirror(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t)
	b.Fake.Set("a/1", "old", time.Second)
	b.Fake.Set("b", "stays", time.Second)
	b.Deliver(t, b.Fake.Events())
	if wrong := b.ThingDifferences(t); len(wrong) > 0 {
		t.Fatalf("before any loss: %v", wrong)
	}
	b.Fake.Set("a/1", "new", time.Second)
	b.Fake.Set("b", "", time.Second)
	b.Fake.Set("c", "unheard of", time.Second)
	b.Fake.Advance(time.Minute)
	if wrong := b.ThingDifferences(t); len(wrong) != 3 {
		t.Fatalf("before the refetches: %v", wrong)
	}
	b.StartReconciler(t, b.Runner)
	for _, id := range []string{"a/1", "b", "c"} {
		reconciled.WantCounts(t, b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: id}),
			reconciled.Counts{reconcile.Missing: 1})
	}
	reconciled.WantNone(t, b.ThingDifferences(t))
	if n := b.Fake.RequestCount("/me"); n != 1 {
		t.Errorf("%d control calls, want one for the missing object", n)
	}
	b.Deliver(t, b.Fake.Events()) // the lost webhooks arrive late
	reconciled.WantNone(t, b.ThingDifferences(t))
	var body []byte
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT body FROM events WHERE event_type = 'postern.refetch'
		AND object_id = 'a/1'`).Scan(&body); err != nil ||
		!bytes.Contains(body, []byte(`"object":{"data":{"thing":{"changed":`)) {
		t.Errorf("the log has %s (%v), and not the response byte for byte", body, err)
	}
}

// A request for an object of a source with a pinned account need not contain the account.
func TestRefetch_pinnedAccount_needsNoName(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t, "provider: hmac", "provider: hmac\n    account: shop_1")
	b.Fake.Set("a", "one", time.Second)
	b.Deliver(t, b.Fake.Events())
	b.StartReconciler(t, b.Runner)
	for _, account := range []string{"", "shop_1"} {
		b.Fake.Set("a", "requested by "+account, time.Second)
		b.Fake.Advance(time.Minute)
		b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a", Account: account})
	}
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM objects`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d objects of one (%v)", n, err)
	}
	reconciled.WantNone(t, b.ThingDifferences(t))
}

// A rejected response, or a response about another object, is not appended. No message shows the
// key.
func TestRefetch_configuredAPIRejects_appendsNothing(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t, `get: "/things/{id}"`, `get: "/things/a?id={id}"`)
	b.Fake.Set("a", "one", time.Second)
	b.StartReconciler(t, b.Runner)
	for what, o := range map[string]reconcile.Params{
		"source things, other: the API cannot read objects of that type": {Type: "other", ID: "a"},
		"source things, thing: the API cannot read objects of that type ": {Type: "thing", ID: "a",
			Account: "somebody"},
	} {
		o.Scope = reconcile.Object
		b.WantFailure(t, o, what)
	}
	run := startOwnRun(t, b, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "z"})
	b.WaitForRun(t, run, func(r *runs.Run) bool {
		return strings.Contains(r.Detail, `the API returned one whose key is "a"`)
	})
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d events (%v)", n, err)
	}
}

// pagings are edits of the example configuration with another paging.
var pagings = map[string][]string{
	"field": nil,
	"address": {"/lists/field", "/lists/url", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {address: meta.next}"},
	"link": {"/lists/field", "/lists/link", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {link: true}"},
	"last": {"/lists/field", "/lists/last", "next: {field: meta.next}", "next: {last: key, more: more}"},
	"window": {"/lists/field", "/lists/window", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {window: true}"},
	"page": {"/lists/field", "/lists/page", `after: "{cursor}", `, `page: "{cursor}", `},
	"whole": {"/lists/field", "/lists/whole",
		`query: {limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}`, "",
		"            items: items", "", "next: {field: meta.next}", "partial: true"},
}

// Half of the webhooks are lost, and the API fails. After a scan the mirror equals the API with
// each paging. A second scan needs no refetch.
func TestObjectScan_configuredAPI_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	for kind, edits := range pagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewRESTEnv(t, append([]string{"limit: 100", "limit: 6"}, edits...)...)
			changeAndDeliverHalf(t, b, 7, 80)
			var n atomic.Int64
			b.Fake.NextFault = func(r *http.Request) restfake.Fault {
				switch i := n.Add(1); {
				case i%11 == 3:
					return restfake.ServerError
				case i%11 == 7:
					return restfake.ConnectionDropped
				case i == 5 && r.URL.Query().Get("after") != "":
					return restfake.CursorExpired
				case i == 20:
					return restfake.Throttled
				}
				return restfake.NoFault
			}
			b.StartReconciler(t, b.Runner)
			b.Scan(t, reconcile.Params{})
			reconciled.WantNone(t, b.ThingDifferences(t))
			b.Fake.NextFault = nil
			refetches, again := b.Fake.RequestCount("/things/"), b.Scan(t, reconcile.Params{Full: true})
			alive := int64(0)
			for _, name := range b.Fake.CurrentNames() {
				if name != "" {
					alive++
				}
			}
			reconciled.WantExactCounts(t, again, reconciled.Counts{reconcile.Processed: alive, objectscan.Equal: alive})
			if made := b.Fake.RequestCount("/things/") - refetches; made != 0 {
				t.Errorf("%d refetches of equal objects", made)
			}
		})
	}
}

// A late list has old states. They do not replace newer states of webhooks, which are ordered by
// the time of the events only.
func TestObjectScan_configuredLateList_keepsNewerState(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t, "limit: 100\n            items", "limit: 100\n            lag: 5m\n            items",
		`type: "{json:type}"`, "type: '{json:type}'\n      occurred: {from: 'json:thing.changed'}",
		`version: {from: "json:thing.changed", unit: rfc3339}`, "", "version: {path: changed, unit: rfc3339}", "")
	changeAndDeliverHalf(t, b, 9, 60)
	b.Fake.Advance(10 * time.Minute)
	b.StartReconciler(t, b.Runner)
	b.Scan(t, reconcile.Params{})
	reconciled.WantNone(t, b.ThingDifferences(t))
	from := len(b.Fake.Events())
	for i := range 10 {
		b.Fake.Set(fmt.Sprintf("t%02d", i), []string{"newer", ""}[i%2], time.Second)
	}
	b.Deliver(t, b.Fake.Events()[from:])
	b.Fake.ListAge = 4 * time.Minute
	r := b.Scan(t, reconcile.Params{Full: true})
	for _, w := range b.ThingDifferences(t) {
		t.Errorf("%s (counts %v)", w, r.Counts)
	}
}

// With a wrong key, or a wrong path of objects, no object is believed to be missing.
func TestRefetch_configurationMistake_deletesNothing(t *testing.T) {
	t.Parallel()
	for slip, of := range map[string]struct{ edits []string }{
		"answered 401: the key is wrong":                      {[]string{"X-Api-Key: {key}", "X-Api-Key: x{key}"}},
		"answered 404 without saying that the object is miss": {[]string{`get: "/things/{id}"`, `get: "/thing/{id}"`}},
	} {
		t.Run(slip, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewRESTEnv(t, of.edits...)
			b.Fake.Set("a", "one", time.Second)
			b.Deliver(t, b.Fake.Events())
			b.StartReconciler(t, b.Runner)
			run := startOwnRun(t, b, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a"})
			b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, slip) })
			reconciled.WantNone(t, b.ThingDifferences(t))
		})
	}
}

// The first of 43 things is deleted without a webhook before the second page is returned. After one
// such delete the run repairs everything. If it happens each time, the type is not complete.
func TestObjectScan_deletesBetweenNumberedPages_areDetected(t *testing.T) {
	t.Parallel()
	for deletes, want := range map[int]string{1: "", 20: "objects move between its pages all the time"} {
		t.Run(fmt.Sprint(deletes, " deletes"), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewRESTEnv(t, append([]string{"limit: 100", "limit: 10"}, pagings["page"]...)...)
			for i := range 43 {
				b.Fake.Set(fmt.Sprintf("t%02d", i), "x", time.Second)
			}
			b.Fake.Advance(time.Minute)
			deleted := 0
			b.BeforeCall = func(call provider.Call) {
				if call.Query.Get("page") == "2" && deleted < deletes {
					b.Fake.Set(fmt.Sprintf("t%02d", deleted), "", time.Millisecond)
					deleted++
				}
			}
			b.StartReconciler(t, b.Runner)
			run := startOwnRun(t, b, reconcile.Params{Scope: reconcile.Objects, Type: "thing", Full: true})
			if want != "" {
				if r := b.WaitForRun(t, run,
					func(r *runs.Run) bool { return strings.Contains(r.Detail, want) }); r.Status ==
					runs.Done {
					t.Errorf("the run is done with %v", r.Counts)
				}
				return
			}
			r := b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status == runs.Done })
			for _, w := range b.ThingDifferences(t) {
				if strings.HasPrefix(w, "t00 ") {
					continue // deleted after it was listed
				}
				t.Errorf("%s (counts %v)", w, r.Counts)
			}
		})
	}
}

// startOwnRun requests a reconciliation of the source.
func startOwnRun(t *testing.T, b *reconciled.RESTEnv, o reconcile.Params) int64 {
	t.Helper()
	o.Source = b.Source
	run := b.StartRun(t, o)
	return run
}

// changeAndDeliverHalf creates, changes and deletes things, and delivers half of the webhooks.
func changeAndDeliverHalf(t *testing.T, b *reconciled.RESTEnv, seed uint64, changes int) {
	t.Helper()
	r, from := rand.New(rand.NewPCG(seed, 61)), len(b.Fake.Events())
	for range changes {
		name := fmt.Sprint("name ", r.IntN(1000))
		if r.IntN(6) == 0 {
			name = ""
		}
		b.Fake.Set(fmt.Sprintf("t%02d", r.IntN(40)), name, time.Duration(500+r.IntN(3000))*time.Millisecond)
	}
	var kept [][]byte
	for _, body := range b.Fake.Events()[from:] {
		if r.IntN(2) == 0 {
			kept = append(kept, body)
		}
	}
	r.Shuffle(len(kept), func(i, k int) { kept[i], kept[k] = kept[k], kept[i] })
	b.Deliver(t, kept)
	b.Fake.Advance(time.Minute)
	if len(b.ThingDifferences(t)) == 0 {
		t.Fatal("there are no differences: the test is too easy")
	}
}
