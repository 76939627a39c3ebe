package reconcile_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	diff "github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// hides has the API's list leave some objects out, and meet what fails says besides.
func (b *world) hides(fails func(provider.Call) (*reconcile.Response, error), ids ...string) {
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
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
		if err := json.Unmarshal(b.api.h.List(b.api.now.UnixMicro(), 0, 0, c.Query.Get("cursor"), pageSize), &page); err != nil {
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
		return b.found(string(body)), err
	}
}

func calmAPI(provider.Call) (*reconcile.Response, error) { return nil, nil }

// What lists hide and is alive is counted as hidden, beside what it is else: equal, or to be mended. What is refused by its name, or told as nothing that can be read, is not known to be alive, and what is missing is a ghost; of what is listed nothing is hidden.
func TestWhatListsHideIsCounted(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.spoil(t)
	b.api.on(failing(http.StatusForbidden), "/things/obj_7")
	b.api.on(b.found(`[]`), "/things/obj_9")
	b.hides(calmAPI, "obj_3", "obj_6", "obj_7", "obj_8", "obj_9")
	b.carry(t, b.runner())
	want := kinds(5)
	want[reconcile.Hidden], want[reconcile.Left] = 3, 2
	want[reconcile.Equal] -= 2
	want[reconcile.Different] += 2
	r := b.sweep(t, reconcile.Order{Full: true})
	counted(t, r, want)
	report := b.report(t, r.Run)
	if len(report.Types) != 1 || report.Types[0].Hidden != 3 || report.Types[0].Checked != 20 || !b.proven(t).IsZero() {
		t.Errorf("%+v, proven until %s", report, b.proven(t))
	}
	b.api.on(nil, "/things/obj_7", "/things/obj_9")
	b.hides(calmAPI, "obj_6", "obj_8")
	counted(t, b.sweep(t, reconcile.Order{DryRun: true}),
		counts{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Ahead: 1, reconcile.Hidden: 2})
	calls := b.api.made("/things/")
	counted(t, b.sweep(t, reconcile.Order{}),
		counts{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Ahead: 1, reconcile.Hidden: 2})
	if n := b.api.made("/things/") - calls; n != 2 || b.proven(t).IsZero() {
		t.Errorf("%d calls for two hidden objects; proven until %s", n, b.proven(t))
	}
}

// What lists hide counts once, wherever a process ends.
func TestWhatListsHideCountsOnceThoughKilled(t *testing.T) {
	t.Parallel()
	counts := map[bool]counts{}
	for _, killed := range []bool{false, true} {
		b := newWorld(t, 221, owned)
		b.deliver(t, lossy(b.api.h, 50, 7))
		var ids []string
		for i := range 20 {
			ids = append(ids, fmt.Sprint("obj_", 2*i+1))
		}
		chance, carry := rand.New(rand.NewPCG(5, 52)), b.runner().Carry
		if killed {
			carry = b.dies(t)
		}
		b.hides(func(provider.Call) (*reconcile.Response, error) {
			if killed && chance.IntN(20) == 0 {
				return nil, errDown
			}
			return nil, nil
		}, ids...)
		parallel := 1
		if killed {
			parallel = 0
		}
		b.Carry(t, "one", parallel, map[string]runs.Carry{reconcile.Job: carry})
		counts[killed] = b.sweep(t, reconcile.Order{}).Counts
		if n := b.DB.Rows(t, `SELECT hidden::text FROM sweeps`); n[0] != fmt.Sprint(counts[killed][reconcile.Hidden]) || n[0] == "0" {
			t.Errorf("hidden: %q, the run says %d", n, counts[killed][reconcile.Hidden])
		}
	}
	if d := diff.Diff(counts[false], counts[true]); d != "" {
		t.Errorf("counts (-undisturbed +killed): %s", d)
	}
}

// unnamed reads one object by no name.
type unnamed struct{ sim.Provider }

func (p unnamed) Fetch(src *provider.Source, api *provider.API, account, objectType, id string) (provider.Call, bool) {
	c, ok := p.Provider.Fetch(src, api, account, objectType, id)
	return c, ok && id != "obj_2"
}

// What was in hand, and is forgotten since the list must be read again for it, is hidden no more: here the list shows it.
func TestWhatIsForgottenIsNotHidden(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	run := b.begun(t)
	b.DB.Exec(t, `INSERT INTO listed (run, object_type, object) SELECT $1, 'thing', hashtextextended(id, 0)
		FROM unnest('{obj_1,obj_2}'::text[]) id`, run)
	b.DB.Exec(t, `UPDATE sweeps SET phase = 'ghosts', checked = 2, behind = 1, missing = 1, hidden = 1,
		hand = '[{"id": "obj_1", "kind": "behind", "counted": true, "hidden": true}, {"id": "obj_2", "kind": "missing", "counted": true}]'`)
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = unnamed{}, unnamed{} }))
	counted(t, b.ended(t, run), counts{reconcile.Seen: 20, reconcile.Equal: 20})
}
