package reconcile_test

import (
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

func every(int) bool { return false }
func none(int) bool  { return true }

// unheard has something happen whose webhook does not come: of a type that nobody has subscribed to, for example.
func (b *shop) unheard(t *testing.T) {
	t.Helper()
	b.fake.Create("", "charge", nil)
	b.deliver(t, none)
	b.fake.Advance(time.Minute)
}

// deleted are the objects that the mirror shows as deleted.
func (b *shop) deleted(t *testing.T) []string {
	t.Helper()
	return b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`)
}

// That the newest event is none of the log's holds up no sweep that meets what is gone: an event that a webhook has brought shows the key, for one call more.
func TestAnUnheardEventHoldsUpNoSweep(t *testing.T) {
	t.Parallel()
	calls := map[bool]int{}
	for _, heard := range []bool{true, false} {
		b := newShop(t, "", stripefake.Options{Seed: 27})
		var all []string
		for range 30 {
			all = append(all, b.fake.Create("", "invoice", nil))
		}
		b.deliver(t, every)
		b.fake.Advance(3 * time.Hour)
		for _, id := range all[:3] {
			b.fake.Vanish("", id)
		}
		if !heard {
			b.unheard(t)
		}
		r := b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Objects, Type: "invoice"})
		if r.Status != runs.Done || r.Counts[reconcile.Ghosts] != 3 || r.Counts[reconcile.Mended] != 3 || len(b.deleted(t)) != 3 {
			t.Errorf("heard %t: %s %v, deleted are %q: %s", heard, r.Status, r.Counts, b.deleted(t), r.Detail)
		}
		if proven := b.DB.Rows(t, `SELECT what FROM watermarks`); len(proven) != 1 {
			t.Errorf("heard %t: proven are %q", heard, proven)
		}
		calls[heard] = len(b.fake.Requests())
	}
	if calls[false] != calls[true]+1 {
		t.Errorf("%d calls where the newest event is not in the log, %d where it is", calls[false], calls[true])
	}
}

// Nor does it where webhooks have brought nothing for so long that no event can be asked for: an object that is there shows the key.
func TestAnUnheardEventOfAnAccountOfFewWebhooks(t *testing.T) {
	t.Parallel()
	b, gone := quietShop(t, 5)
	b.unheard(t)
	if r := b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Objects, Type: "invoice"}); r.Status != runs.Done || r.Counts[reconcile.Mended] != 1 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
	if dead := b.deleted(t); len(dead) != 1 || dead[0] != gone {
		t.Errorf("deleted are %q, not %s", dead, gone)
	}
}

// Where nothing shows the key, a sweep leaves what is gone, says what to do, proves nothing, and ends, having asked once for all of it; so does a run over the one object. Once a webhook has come both find it.
func TestAnUnheardEventWhereNothingShowsTheKey(t *testing.T) {
	t.Parallel()
	const advice = "have anything change in the account that makes an event whose webhook comes here"
	const objects = 5
	b, gone := quietShop(t, objects)
	for _, o := range b.fake.Truth() {
		if o.Type == "invoice" && o.ID != gone {
			b.fake.Vanish("", o.ID)
		}
	}
	b.unheard(t)
	api := b.api(b.fake.URL)
	if r := b.asked(t, api, reconcile.Order{What: reconcile.Object, Type: "invoice", ID: gone}); r.Status != runs.Failed || !strings.Contains(r.Detail, advice) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	asked := b.asked(t, api, reconcile.Order{What: reconcile.Objects, Type: "invoice"})
	if asked.Status != runs.Proposed { // since all objects are gone
		t.Fatalf("%s: %s", asked.Status, asked.Detail)
	}
	if err := runs.Approve(t.Context(), b.Operator, asked.Run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
	before := len(b.fake.Requests())
	stop := b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, api, asIs).Carry})
	r := b.Until(t, asked.Run, func(r *runs.Run) bool { return r.Status.Final() })
	stop()
	if r.Status != runs.Done || r.Counts[reconcile.Left] != objects || r.Counts[reconcile.Ghosts] != 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
	// The control, three objects that may show the key, the time, the list, what was not listed, and the control and three objects once more.
	if n := len(b.fake.Requests()) - before; n != 1+3+1+1+objects+1+3 {
		t.Errorf("%d calls", n)
	}
	if why := b.DB.Rows(t, `SELECT DISTINCT reason FROM drifts WHERE result = 'left'`); len(why) != 1 || !strings.Contains(why[0], advice) {
		t.Errorf("left are %q", why)
	}
	if proven := b.DB.Rows(t, `SELECT what FROM watermarks`); len(proven) > 0 || len(b.deleted(t)) > 0 {
		t.Errorf("proven are %q, deleted %q", proven, b.deleted(t))
	}
	b.fake.Create("", "invoice", nil)
	b.deliver(t, every)
	b.fake.Advance(time.Minute)
	if r := b.asked(t, api, reconcile.Order{What: reconcile.Objects, Type: "invoice"}); r.Status != runs.Done || r.Counts[reconcile.Mended] != objects || len(b.deleted(t)) != objects {
		t.Errorf("with an event: %s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

var anInvoice = regexp.MustCompile(`^/v1/invoices/[^/]+$`)

// A key that has become another account's while a sweep was under way buries nothing, whatever it showed when the sweep began, and whatever happens in that account.
func TestAKeyThatBecomesAnotherAccountsBuriesNothing(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 27})
	var gone string
	for range 30 {
		gone = b.fake.Create("", "invoice", nil)
	}
	b.deliver(t, every)
	b.fake.Advance(3 * time.Hour)
	b.fake.Vanish("", gone)
	other := stripefake.New(t, stripefake.Options{Seed: 28, Start: b.fake.Now()})
	for range 10 {
		other.Create("", "invoice", nil)
	}
	other.Advance(2 * time.Minute)
	theirs := renamed(other)
	var changed atomic.Bool
	api := b.api(serve(t, func(w http.ResponseWriter, r *http.Request) {
		if changed.Load() || anInvoice.MatchString(r.URL.Path) {
			changed.Store(true)
			theirs.ServeHTTP(w, r)
			return
		}
		b.fake.ServeHTTP(w, r)
	}))
	r := b.asked(t, api, reconcile.Order{What: reconcile.Objects, Type: "invoice"})
	if r.Status != runs.Failed || !strings.Contains(r.Detail, another) || len(b.deleted(t)) > 0 || !changed.Load() {
		t.Errorf("%s, deleted are %q: %s", r.Status, b.deleted(t), r.Detail)
	}
}
