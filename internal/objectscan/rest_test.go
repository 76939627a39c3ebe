package objectscan_test

import (
	"fmt"
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

// Half of the webhooks are lost, and the API fails. After a scan the mirror equals the API with
// each paging. A second scan needs no refetch.
func TestObjectScan_configuredAPI_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	for kind, edits := range reconciled.Pagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewRESTEnv(t, append([]string{"limit: 100", "limit: 6"}, edits...)...)
			reconciled.ChangeAndDeliverHalf(t, b, 7, 80)
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
	reconciled.ChangeAndDeliverHalf(t, b, 9, 60)
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

// The first of 43 things is deleted without a webhook before the second page is returned. After one
// such delete the run repairs everything. If it happens each time, the type is not complete.
func TestObjectScan_deletesBetweenNumberedPages_areDetected(t *testing.T) {
	t.Parallel()
	for deletes, want := range map[int]string{1: "", 20: "objects move between its pages all the time"} {
		t.Run(fmt.Sprint(deletes, " deletes"), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewRESTEnv(t, append([]string{"limit: 100", "limit: 10"}, reconciled.Pagings["page"]...)...)
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
			run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing", Full: true})
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
