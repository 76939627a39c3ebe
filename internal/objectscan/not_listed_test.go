package objectscan_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

func noFault(provider.Call) (*providerapi.Response, error) { return nil, nil }

// An existing object that the list omits counts as not listed, besides equal or repaired. An object
// that is rejected or unreadable by id may not exist and is not counted. A missing object is an
// orphan.
func TestObjectScan_notListedObjects_areCounted(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addEachDrift(t, b)
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusForbidden), "/things/obj_7")
	b.API.RespondTo(b.FoundResponse(`[]`), "/things/obj_9")
	omitFromList(b, noFault, "obj_3", "obj_6", "obj_7", "obj_8", "obj_9")
	b.StartReconciler(t, b.Runner())
	want := driftCounts(5)
	want[objectscan.NotListed], want[objectscan.Unrepaired] = 3, 2
	want[objectscan.Equal] -= 2
	want[objectscan.ContentDiffers] += 2
	r := b.Scan(t, reconcile.Params{Full: true})
	reconciled.WantExactCounts(t, r, want)
	report := b.Report(t, r.ID)
	if len(report.Types) != 1 || report.Types[0].NotListed != 3 || report.Types[0].Checked != 20 ||
		!b.TypeCompleteUntil(t).IsZero() {
		t.Errorf("%+v, complete until %s", report, b.TypeCompleteUntil(t))
	}
	b.API.RespondTo(nil, "/things/obj_7", "/things/obj_9")
	omitFromList(b, noFault, "obj_6", "obj_8")
	want = reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 19, objectscan.MirrorNewer: 1,
		objectscan.NotListed: 2}
	reconciled.WantExactCounts(t, b.Scan(t, reconcile.Params{DryRun: true}), want)
	calls := b.API.CallCount("/things/")
	reconciled.WantExactCounts(t, b.Scan(t, reconcile.Params{}), want)
	if n := b.API.CallCount("/things/") - calls; n != 2 || b.TypeCompleteUntil(t).IsZero() {
		t.Errorf("%d calls for two objects that are not listed; complete until %s", n, b.TypeCompleteUntil(t))
	}
}

// If the list is read again, earlier objects that were not listed are reset. The new list contains
// this one.
func TestObjectScan_listReadAgain_resetsNotListed(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	run := addStartedScan(t, b)
	b.DB.Exec(t, `INSERT INTO listed_objects (run, object_type, object) SELECT $1, 'thing', hashtextextended(id, 0)
		FROM unnest('{obj_1,obj_2}'::text[]) id`, run)
	b.DB.Exec(t, `UPDATE object_scans SET phase = 'orphans', checked = 2, mirror_older = 1, missing = 1, not_listed = 1,
		in_progress = '[{"id": "obj_1", "kind": "mirror_older", "counted": true, "not_listed": true},
			{"id": "obj_2", "kind": "missing", "counted": true}]'`)
	unreadable := func(id string) bool { return id == "obj_2" }
	b.StartReconciler(t, b.RunnerReading(reconciled.PartlyReadable{Unreadable: unreadable}))
	reconciled.WantExactCounts(t, b.WaitForEnd(t, run), reconciled.Counts{reconcile.Processed: 20,
		objectscan.Equal: 20})
}

// omitFromList makes the API's list omit some objects. The function fails may respond in place of
// the API.
func omitFromList(b *reconciled.Env, fails func(provider.Call) (*providerapi.Response, error), ids ...string) {
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if answer, err := fails(c); answer != nil || err != nil {
			return answer, err
		}
		if c.Path != "/list" {
			return nil, nil
		}
		var page struct {
			Things []struct {
				ID     string          `json:"id"`
				At     int64           `json:"at"`
				Answer json.RawMessage `json:"answer"`
			} `json:"things"`
			Next string `json:"next"`
		}
		if err := json.Unmarshal(b.API.History.ObjectsPage(b.API.Time.UnixMicro(), 0, 0, c.Query.Get("cursor"),
			reconciled.PageSize), &page); err != nil {
			return nil, err
		}
		shown := page.Things[:0]
		for _, one := range page.Things {
			if !slices.Contains(ids, one.ID) {
				shown = append(shown, one)
			}
		}
		page.Things = shown
		body, err := json.Marshal(page)
		return b.FoundResponse(string(body)), err
	}
}
