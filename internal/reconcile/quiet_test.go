package reconcile_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// quietShop is a shop of so many invoices, whose last event was forty days ago and of which one has gone since; its id.
func quietShop(t *testing.T, invoices int) (b *shop, gone string) {
	t.Helper()
	b = newShop(t, "", stripefake.Options{Seed: 27})
	for range invoices {
		gone = b.fake.Create("", "invoice", nil)
	}
	b.deliver(t, every)
	b.fake.Advance(time.Minute)
	b.fake.Vanish("", gone)
	b.fake.Advance(40 * 24 * time.Hour)
	return b, gone
}

// Where nothing at all shows it, a run ends, and a hint waits, with what a person can do.
func TestAQuietAccountThatNothingShows(t *testing.T) {
	t.Parallel()
	b, gone := quietShop(t, 1)
	const advice = "have anything change in the account that makes an event"
	failed(t, b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Object, Type: "invoice", ID: gone}), advice)
	b.wish(t, "invoice", gone, "me", "it is gone")
	looksOf(t, b.runner(t, b.api(b.fake.URL), asIs), "one")
	testkit.Eventually(t, time.Minute, func() error {
		if got := b.DB.Rows(t, `SELECT object_id FROM hints WHERE due = 'infinity' AND error LIKE '%' || $1 || '%'`, advice); len(got) != 1 {
			return fmt.Errorf("parked are %q of %q", got, b.DB.Rows(t, `SELECT due || error FROM hints`))
		}
		return nil
	})
	none(t, b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`))
	b.fake.Create("", "invoice", nil)
	b.deliver(t, every)
	b.fake.Advance(time.Minute)
	isDone(t, b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Object, Type: "invoice", ID: gone}))
}

// A dry sweep with a key of another account, of which nothing shows that it is not ours, ends once an object is to be believed gone.
func TestADrySweepOfAnotherAccountEnds(t *testing.T) {
	t.Parallel()
	b, _ := quietShop(t, 5)
	foreign := b.api(serve(t, b.elsewhere(t, "invoice", 3).ServeHTTP))
	r := b.asked(t, foreign, reconcile.Order{What: reconcile.Objects, Type: "invoice", DryRun: true})
	failed(t, r, "nothing shows that the key", "the newest event that it lists is not in the log")
}

func every(int) bool { return false }
func lost(int) bool  { return true }

// unheard has something happen whose webhook does not come: of a type that nobody has subscribed to, for example.
func (b *shop) unheard(t *testing.T) {
	t.Helper()
	b.fake.Create("", "charge", nil)
	b.deliver(t, lost)
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
	has(t, b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Objects, Type: "invoice"}),
		counts{reconcile.Mended: 1})
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
	failed(t, b.asked(t, api, reconcile.Order{What: reconcile.Object, Type: "invoice", ID: gone}), advice)
	asked := b.asked(t, api, reconcile.Order{What: reconcile.Objects, Type: "invoice"})
	if asked.Status != runs.Proposed { // since all objects are gone
		t.Fatalf("%s: %s", asked.Status, asked.Detail)
	}
	b.approve(t, asked.Run, "they are gone")
	before := len(b.fake.Requests())
	stop := b.carry(t, b.runner(t, api, asIs))
	r := b.ended(t, asked.Run)
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
	theirs := b.elsewhere(t, "invoice", 10)
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

// kept copies the mirror's things as objects of other types, which the API does not read and webhooks have told of last.
func (b *world) kept(t *testing.T, types ...string) {
	t.Helper()
	for _, typ := range types {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text)) AS o FROM objects o WHERE object_type = 'thing') o`, typ)
	}
	b.DB.Exec(t, `UPDATE objects o SET last_event_id = CASE WHEN o.object_type = 'thing' THEN w.oldest ELSE w.newest END FROM (SELECT min(id) AS oldest, max(id) AS newest FROM events WHERE origin = 'webhook') w`)
}

// held says what a sweep with a wrong key has done, which must be nothing, and asks that it waits for a person who reads some words.
func (b *world) held(t *testing.T, words string) {
	t.Helper()
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	r := b.Until(t, run, halted)
	if r.Status != runs.Proposed || !strings.Contains(r.Detail, words) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	if odd := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted OR object_id LIKE 'theirs%'`); len(odd) > 0 || !b.proven(t).IsZero() {
		t.Errorf("proven until %s, deleted or foreign are %q", b.proven(t), odd)
	}
}

// Objects of types that the API does not read keep no others from being asked for, however many and new they are; where there are no others, nothing shows the key.
func TestTypesThatNobodyReadsAreNoWitnesses(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone %t", alone), func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 230, alive(5))
			b.kept(t, "wa", "wb", "wc", "wd")
			words := "the API knows none of the 3 objects"
			if alone {
				b.DB.Exec(t, `DELETE FROM objects WHERE object_type = 'thing'`)
				words = "reads none of the types of objects that the mirror has"
			}
			b.carry(t, b.silently(t, 3, nothing))
			b.held(t, words)
		})
	}
}

// With the right key an object of the one type that is read shows it, also where webhooks have told of other types alone.
func TestALookedAtObjectIsAWitnessAmongTypesThatNobodyReads(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 230, alive(5))
	r := b.silently(t, 0, nothing)
	b.api.meets(nil) // it is the right key
	b.carry(t, r)
	b.sweep(t, reconcile.Order{})
	if n := b.looks(t); n != 5 {
		t.Fatalf("%d looks", n)
	}
	b.deliver(t, b.api.h.Events[:1])
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', 'wa', 'last_event_id', (SELECT max(id) FROM events WHERE origin = 'webhook'))) AS o FROM objects o) o`)
	b.DB.Exec(t, `UPDATE objects SET last_event_id = (SELECT min(id) FROM events WHERE origin = 'reconcile') WHERE object_type = 'thing'`)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	if swept := b.Until(t, run, halted); swept.Status != runs.Done || swept.Counts[reconcile.Equal] != 5 {
		t.Errorf("%s %v: %s", swept.Status, swept.Counts, swept.Detail)
	}
}

// An API that answers 403 for what another account has tells nothing of whose the key is.
func TestRefusedObjectsAreNoWitnesses(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 230, alive(5))
	r := b.silently(t, 3, nothing)
	answer := b.api.fails
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		a, err := answer(c)
		if a != nil && a.Verdict.Kind == provider.Missing {
			a.Verdict = provider.Verdict{Kind: provider.Refused, Detail: "answered 403: not yours"}
		}
		return a, err
	}
	b.carry(t, r)
	b.held(t, "and refuses 1 of them")
	b.api.called(t, "/things/", 1)
}

// A platform's live endpoint gets the events of both modes of an account. Where those of late are all of test mode, an object of live mode shows a live key, and a key of another account is shown by nothing.
func TestEventsOfTheOtherModeAreNotHeldAgainstAKey(t *testing.T) {
	t.Parallel()
	const connected, key = "acct_1", "rk_live_all"
	for _, right := range []bool{true, false} {
		t.Run(fmt.Sprintf("right %t", right), func(t *testing.T) {
			t.Parallel()
			b := newShop(t, "", stripefake.Options{Seed: 13, Live: true, Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
			kept := b.fake.Create(connected, "charge", nil)
			b.deliver(t, every)
			b.fake.Advance(40 * 24 * time.Hour) // no live event is listed any more
			b.webhook(t, fmt.Sprintf(`{"id":"evt_test_1","object":"event","type":"charge.succeeded","account":%q,"created":%d,"livemode":false,"data":{"object":{"id":"ch_t","object":"charge","livemode":false}}}`,
				connected, b.fake.Now().Add(-2*time.Hour).Unix()))
			api := b.api(b.fake.URL)
			if !right {
				other := stripefake.New(t, stripefake.Options{Seed: 22, Live: true, Start: b.fake.Now(), Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
				api = b.api(serve(t, renamed(other).ServeHTTP))
			}
			api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
			for _, o := range []reconcile.Order{{What: reconcile.Events}, {What: reconcile.Objects, Type: "charge"}} {
				o.Account = connected
				r := b.asked(t, api, o)
				if right && r.Status != runs.Done || !right && (r.Status != runs.Failed || !strings.Contains(r.Detail, "the key reads the other")) {
					t.Errorf("%s is %s: %s", o.What, r.Status, r.Detail)
				}
			}
			b.rows(t, `SELECT object_id || ' ' || deleted FROM objects`, kept+" false")
		})
	}
}

// webhook appends what a webhook brought, and applies nothing of it.
func (b *shop) webhook(t *testing.T, body string) (id int64) {
	t.Helper()
	d := &provider.Delivery{ReceivedAt: b.fake.Now(), Body: []byte(body)}
	return applied.Take(t, b.gateway, b.Sources[applied.Name], d)[0].ID
}
