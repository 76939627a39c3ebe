package reconcile_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
)

// pagings are edits of the example that page otherwise.
var pagings = map[string][]string{
	"field":   nil,
	"address": {"/lists/field", "/lists/url", `after: "{cursor}", `, "", "next: {field: meta.next}", "next: {address: meta.next}"},
	"link":    {"/lists/field", "/lists/link", `after: "{cursor}", `, "", "next: {field: meta.next}", "next: {link: true}"},
	"last":    {"/lists/field", "/lists/last", "next: {field: meta.next}", "next: {last: key, more: more}"},
	"window":  {"/lists/field", "/lists/window", `after: "{cursor}", `, "", "next: {field: meta.next}", "next: {window: true}"},
	"page":    {"/lists/field", "/lists/page", `after: "{cursor}"`, `page: "{cursor}"`},
	"whole":   {"/lists/field", "/lists/whole", `query: {limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}`, "", "            items: items", "", "next: {field: meta.next}", "partial: true"},
}

// live has things made, changed and deleted, and delivers half of the webhooks that tell of it.
func (b *described) live(t *testing.T, seed uint64, changes int) {
	t.Helper()
	r, from := rand.New(rand.NewPCG(seed, 61)), len(b.fake.Events())
	for range changes {
		name := fmt.Sprint("name ", r.IntN(1000))
		if r.IntN(6) == 0 {
			name = ""
		}
		b.fake.Set(fmt.Sprintf("t%02d", r.IntN(40)), name, time.Duration(500+r.IntN(3000))*time.Millisecond)
	}
	var kept [][]byte
	for _, body := range b.fake.Events()[from:] {
		if r.IntN(2) == 0 {
			kept = append(kept, body)
		}
	}
	r.Shuffle(len(kept), func(i, k int) { kept[i], kept[k] = kept[k], kept[i] })
	b.deliver(t, kept)
	b.fake.Advance(time.Minute)
	if len(b.differs(t)) == 0 {
		t.Fatal("nothing is wrong: there is nothing to find")
	}
}

// Half of the webhooks are lost, and the API has its troubles: after a sweep the mirror is what the API has, however it pages, and few calls were made.
func TestSweepOfADescribedAPI(t *testing.T) {
	t.Parallel()
	for kind, edits := range pagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, append([]string{"limit: 100", "limit: 6"}, edits...)...)
			b.live(t, 7, 150)
			var n atomic.Int64
			b.fake.Fails = func(r *http.Request) restfake.Fault {
				switch i := n.Add(1); {
				case i%11 == 3:
					return restfake.Broken
				case i%11 == 7:
					return restfake.Cut
				case i == 5 && r.URL.Query().Get("after") != "":
					return restfake.Forgotten
				case i == 20:
					return restfake.Throttled
				}
				return restfake.None
			}
			b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
			b.sweep(t, reconcile.Order{})
			for _, w := range b.differs(t) {
				t.Error(w)
			}
			b.fake.Fails = nil
			looks, again := b.fake.Calls("/things/"), b.sweep(t, reconcile.Order{Full: true})
			alive := int64(0)
			for _, name := range b.fake.Truth() {
				if name != "" {
					alive++
				}
			}
			counted(t, again, map[string]int64{reconcile.Seen: alive, reconcile.Equal: alive})
			if made := b.fake.Calls("/things/") - looks; made != 0 {
				t.Errorf("%d looks at what is as it should be", made)
			}
		})
	}
}

// A second sweep asks for what changed since the first, and finds what was lost since.
func TestChangesOfADescribedAPI(t *testing.T) {
	t.Parallel()
	b := newDescribed(t)
	b.live(t, 8, 150)
	b.runner.Settings.Overlap = 10 * time.Second
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
	b.sweep(t, reconcile.Order{})
	b.fake.Set("t00", "changed", time.Second)
	b.fake.Set("fresh", "new", time.Second)
	b.fake.Advance(time.Minute)
	r := b.sweep(t, reconcile.Order{Type: "thing"})
	if r.Counts[reconcile.Seen] != 2 || r.Counts[reconcile.Mended] != 2 {
		t.Errorf("counts %v, of two that changed", r.Counts)
	}
	for _, w := range b.differs(t) {
		t.Error(w)
	}
}

// A list that is late tells old states, which change nothing where webhooks have brought newer ones; here nothing but the time of the events orders them.
func TestLateListOfADescribedAPI(t *testing.T) {
	t.Parallel()
	b := newDescribed(t, "limit: 100\n            items", "limit: 100\n            lag: 5m\n            items", `type: "{json:type}"`, "type: '{json:type}'\n      occurred: {from: 'json:thing.changed'}",
		`version: {from: "json:thing.changed", unit: rfc3339}`, "", "version: {path: changed, unit: rfc3339}", "")
	b.live(t, 9, 60)
	b.fake.Advance(10 * time.Minute)
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
	b.sweep(t, reconcile.Order{})
	for _, w := range b.differs(t) {
		t.Fatal(w)
	}
	from := len(b.fake.Events())
	for i := range 10 {
		b.fake.Set(fmt.Sprintf("t%02d", i), []string{"newer", ""}[i%2], time.Second)
	}
	b.deliver(t, b.fake.Events()[from:])
	b.fake.Late = 4 * time.Minute
	r := b.sweep(t, reconcile.Order{Full: true})
	for _, w := range b.differs(t) {
		t.Errorf("%s (counts %v)", w, r.Counts)
	}
}

// Where the key is wrong, or the path of an object is, nothing is believed to be missing.
func TestNothingIsMissingBySlip(t *testing.T) {
	t.Parallel()
	for slip, of := range map[string]struct{ edits []string }{
		"answered 401: the key is wrong":                      {[]string{"X-Api-Key: {key}", "X-Api-Key: x{key}"}},
		"answered 404 without saying that the object is miss": {[]string{`get: "/things/{id}"`, `get: "/thing/{id}"`}},
	} {
		t.Run(slip, func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, of.edits...)
			b.fake.Set("a", "one", time.Second)
			b.deliver(t, b.fake.Events())
			b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
			run := b.askOnly(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "a"})
			b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, slip) })
			if wrong := b.differs(t); len(wrong) > 0 {
				t.Error(wrong)
			}
		})
	}
}

// TestReconcile_deletesBetweenCountedPages deletes the first of 43 things, of which no webhook came, before the second page is
// answered: once, so that nothing is missing after the run, or each time, so that the type is not reported as complete.
func TestReconcile_deletesBetweenCountedPages(t *testing.T) {
	t.Parallel()
	for deletes, want := range map[int]string{1: "", 20: "objects move between its pages all the time"} {
		t.Run(fmt.Sprint(deletes, " deletes"), func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, append([]string{"limit: 100", "limit: 10"}, pagings["page"]...)...)
			for i := range 43 {
				b.fake.Set(fmt.Sprintf("t%02d", i), "x", time.Second)
			}
			b.fake.Advance(time.Minute)
			deleted := 0
			b.change = func(call provider.Call) {
				if call.Query.Get("page") == "2" && deleted < deletes {
					b.fake.Set(fmt.Sprintf("t%02d", deleted), "", time.Millisecond)
					deleted++
				}
			}
			b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
			run := b.askOnly(t, reconcile.Order{What: reconcile.Objects, Type: "thing", Full: true})
			if want != "" {
				if r := b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, want) }); r.Status == runs.Done {
					t.Errorf("the run is done with %v", r.Counts)
				}
				return
			}
			r := b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Done })
			for _, w := range b.differs(t) {
				if strings.HasPrefix(w, "t00 ") {
					continue // deleted after it was listed
				}
				t.Errorf("%s (counts %v)", w, r.Counts)
			}
		})
	}
}
