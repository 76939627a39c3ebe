package objectscan_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	diff "github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
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
	reconciled.WantExactCounts(t, b.Scan(t, reconcile.Params{DryRun: true}),
		reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 19, objectscan.MirrorNewer: 1,
			objectscan.NotListed: 2})
	calls := b.API.CallCount("/things/")
	reconciled.WantExactCounts(t, b.Scan(t, reconcile.Params{}),
		reconciled.Counts{reconcile.Processed: 20, objectscan.Equal: 19, objectscan.MirrorNewer: 1,
			objectscan.NotListed: 2})
	if n := b.API.CallCount("/things/") - calls; n != 2 || b.TypeCompleteUntil(t).IsZero() {
		t.Errorf("%d calls for two objects that are not listed; complete until %s", n, b.TypeCompleteUntil(t))
	}
}

// Objects that lists omit count once, whenever a process ends.
func TestObjectScan_notListedObjectsAndKills_countOnce(t *testing.T) {
	t.Parallel()
	counts := map[bool]reconciled.Counts{}
	for _, killed := range []bool{false, true} {
		b := reconciled.NewEmptyEnv(t, 221, versionedOptions)
		b.Deliver(t, lossyEvents(b.API.History, 50, 7))
		var ids []string
		for i := range 20 {
			ids = append(ids, fmt.Sprint("obj_", 2*i+1))
		}
		chance, execute := rand.New(rand.NewPCG(5, 52)), b.Runner().Execute
		if killed {
			execute = killedJob(t, b)
		}
		omitFromList(b, func(provider.Call) (*providerapi.Response, error) {
			if killed && chance.IntN(20) == 0 {
				return nil, reconciled.ErrProviderDown
			}
			return nil, nil
		}, ids...)
		parallel := 1
		if killed {
			parallel = 0
		}
		b.StartRunner(t, "one", parallel, map[string]runs.Executor{reconcile.Job: execute})
		counts[killed] = b.Scan(t, reconcile.Params{}).Counts
		if n := b.DB.QueryStrings(t, `SELECT not_listed::text FROM object_scans`); n[0] != fmt.Sprint(
			counts[killed][objectscan.NotListed]) ||
			n[0] == "0" {
			t.Errorf("not listed: %q, the run says %d", n, counts[killed][objectscan.NotListed])
		}
	}
	if d := diff.Diff(counts[false], counts[true]); d != "" {
		t.Errorf("counts (-undisturbed +killed): %s", d)
	}
}

// uncallableObject has no call for one object.
type uncallableObject struct{ sim.Provider }

func (p uncallableObject) Fetch(src *provider.Source, api *provider.API, account, objectType, id string) (provider.Call,
	bool) {
	c, ok := p.Provider.Fetch(src, api, account, objectType, id)
	return c, ok && id != "obj_2"
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
	b.StartReconciler(t, b.RunnerWith(func(s *providerapi.Source) {
		s.Provider, s.Reader = uncallableObject{},
			uncallableObject{}
	}))
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
