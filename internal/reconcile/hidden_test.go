package reconcile_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
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
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.spoil(t)
	b.hides(func(c provider.Call) (*reconcile.Response, error) {
		switch c.Path {
		case "/things/obj_7":
			return failing(http.StatusForbidden), nil
		case "/things/obj_9":
			return b.found(`[]`), nil
		}
		return nil, nil
	}, "obj_3", "obj_6", "obj_7", "obj_8", "obj_9")
	b.carry(t, b.runner())
	want := kinds(5)
	want[reconcile.Hidden], want[reconcile.Left] = 3, 2
	want[reconcile.Equal] -= 2
	want[reconcile.Different] += 2
	r := b.sweep(t, reconcile.Order{Full: true})
	counted(t, r, want)
	report, err := reconcile.Drift(t.Context(), b.Operator, r.Run)
	if err != nil || len(report.Types) != 1 || report.Types[0].Hidden != 3 || report.Types[0].Checked != 20 || !b.proven(t).IsZero() {
		t.Errorf("%+v (%v), proven until %s", report, err, b.proven(t))
	}
	b.hides(calmAPI, "obj_6", "obj_8")
	counted(t, b.sweep(t, reconcile.Order{DryRun: true}), map[string]int64{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Ahead: 1, reconcile.Hidden: 2})
	calls := b.api.made("/things/")
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Ahead: 1, reconcile.Hidden: 2})
	if n := b.api.made("/things/") - calls; n != 2 || b.proven(t).IsZero() {
		t.Errorf("%d calls for two hidden objects; proven until %s", n, b.proven(t))
	}
}

// What lists hide counts once, wherever a process ends.
func TestWhatListsHideCountsOnceThoughKilled(t *testing.T) {
	t.Parallel()
	counts := map[bool]map[string]int64{}
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
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	var well atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" && !well.Load() {
			return failing(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Provider, s.Reader = unnamed{}, unnamed{} }))
	b.carry(t, r)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.Until(t, run, func(r *runs.Run) bool { return r.Troubles > 0 })
	b.change(t, run, runs.Paused)
	b.DB.Exec(t, `INSERT INTO listed (run, object_type, object) SELECT $1, 'thing', hashtextextended(id, 0) FROM unnest('{obj_1,obj_2}'::text[]) id`, run)
	b.DB.Exec(t, `UPDATE sweeps SET phase = 'ghosts', checked = 2, behind = 1, missing = 1, hidden = 1,
		hand = '[{"id": "obj_1", "kind": "behind", "counted": true, "hidden": true}, {"id": "obj_2", "kind": "missing", "counted": true}]'`)
	well.Store(true)
	b.change(t, run, runs.Waiting)
	counted(t, b.ended(t, run), map[string]int64{reconcile.Seen: 20, reconcile.Equal: 20})
}

// change asks for a run to be paused, or to go on, and waits until nobody has it who is to pause.
func (b *world) change(t *testing.T, run int64, to runs.Status) {
	t.Helper()
	if err := runs.Change(t.Context(), b.Operator, run, to); err != nil {
		t.Fatal(err)
	}
	if to == runs.Paused {
		b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused })
		testkit.Eventually(t, time.Minute, func() error {
			if by := one[string](t, b, `SELECT leased_by FROM checkpoints WHERE run = $1`, run); by != "" {
				return fmt.Errorf("%s still has it", by)
			}
			return nil
		})
	}
}
