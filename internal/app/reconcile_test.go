package app_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// The account of a shop loses half of its webhooks: after one run over what Stripe says it sent, and the looks that are owed, the mirror is Stripe's.
func TestReconcileStripe(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 7, Running: true, Start: time.Now().Add(-time.Minute), Objects: 12, Thin: true,
		Webhooks: stripefake.Webhooks{Lost: 50, Shuffled: 30, Clock: time.Now}, Faults: stripefake.Faults{Limited: 5}})
	r := startReconciling(t, fake)
	fake.Live(150)
	fake.Advance(time.Since(fake.Now())) // so that nothing has to wait for a clock
	fake.Deliver(r.taking(t, "shop"))
	fake.Advance(time.Minute) // behind what a run leaves to the next
	if wrong := r.against(t, fake); len(wrong) == 0 {
		t.Fatal("nothing is wrong: there is nothing to prove")
	}
	r.done(t, reconcile.Order{What: reconcile.Events})
	r.become(t, fake)
}

// An endpoint that is pinned to another version of the API than the account's gets other bodies than the list has, under the same ids: whichever comes first is kept, and the
// other is a duplicate and no conflict.
func TestEndpointOfAnotherVersion(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 8, Running: true, Start: time.Now(), Webhooks: stripefake.Webhooks{Version: "2020-08-27", Swallowed: 20, Clock: time.Now}})
	r := startReconciling(t, fake)
	fake.Live(60)
	var refused, posted, late int64
	fake.Deliver(func(d *provider.Delivery) bool {
		if refused < posted {
			refused++
			return false // tried again in a minute
		}
		posted++
		status, _ := r.post(t, "shop", d)
		return status == http.StatusOK && posted%4 != 0 // or the answer is lost
	})
	fake.Advance(2 * time.Minute)
	var events, undelivered int64
	for _, e := range fake.Events() {
		if events++; !e.Delivered {
			undelivered++
		}
	}
	for _, dry := range []bool{true, false} {
		run := r.done(t, reconcile.Order{What: reconcile.Events, DryRun: dry})
		want := map[string]int64{reconcile.Seen: events, reconcile.Present: posted, reconcile.Missing: events - posted, reconcile.Undelivered: refused, reconcile.Conflicting: 0}
		for name, n := range want {
			if run.Counts[name] != n {
				t.Errorf("%s: %d, want %d (dry run: %t)", name, run.Counts[name], n, dry)
			}
		}
	}
	if undelivered == refused || refused == events-posted {
		t.Errorf("Stripe has not delivered %d events, %d are missing, both are %d: nothing is proven", undelivered, events-posted, refused)
	}
	fake.Deliver(func(d *provider.Delivery) bool {
		late++
		status, _ := r.post(t, "shop", d)
		return status == http.StatusOK
	})
	r.wantRows(t, int(events), `events WHERE event_type <> $1`, provider.LookType)
	if r.wantRows(t, 0, `event_conflicts`); late == 0 {
		t.Error("no delivery came late")
	}
}

// rare is how many types of Stripe's lie in others, so that a sweep over all types passes over them where the mirror has none: card, bank_account, source, tax_id, fee_refund.
const rare = 5

// A key that may read some types alone has those swept, and the others are counted and not proven; a canceled subscription is among what is found. A key that may list nothing
// ends the run.
func TestSweepWithARestrictedKey(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 9, Running: true, Start: time.Now().Add(-time.Hour),
		Restricted: map[string][]string{"rk_test_some": {"events", "customers", "subscriptions", "test_helpers"}, "rk_test_none": {"events"}}})
	customer, canceled := fake.Create("", "customer", nil), fake.Create("", "subscription", map[string]any{"status": "active"})
	fake.Create("", "invoice", nil)
	fake.Do("", canceled, "customer.subscription.deleted")
	r := startReconcilingAs(t, fake, "rk_test_some")
	fake.Deliver(func(d *provider.Delivery) bool { return true }) // and none arrives
	run := r.reconciled(t, reconcile.Order{What: reconcile.Objects})
	all := len(stripe.Stripe{}.Lists(nil, &provider.API{Key: provider.Secret{Value: []byte("rk_test_some")}}, ""))
	if c := run.Counts; run.Status != runs.Done || c[reconcile.Missing] != 2 || c[reconcile.Mended] != 2 || c[reconcile.Rare] != rare || c[reconcile.Unlisted] != int64(all-rare-3) {
		t.Errorf("%s: %v, of %d types: %s", run.Status, run.Counts, all, run.Detail)
	}
	if found := r.db.Rows(t, `SELECT object_id FROM objects WHERE NOT deleted ORDER BY object_type`); !slices.Equal(found, []string{customer, canceled}) {
		t.Errorf("the mirror has %v", found)
	}
	if one := r.reconciled(t, reconcile.Order{What: reconcile.Objects, Type: "invoice"}); one.Status != runs.Failed {
		t.Errorf("one type that is refused: %s: %v", one.Status, one.Counts)
	}
	none := startReconcilingAs(t, fake, "rk_test_none")
	if run := none.reconciled(t, reconcile.Order{What: reconcile.Objects}); run.Status != runs.Failed || !strings.Contains(run.Detail, "403") {
		t.Errorf("with nothing to list: %s: %v: %s", run.Status, run.Counts, run.Detail)
	}
}

// startReading starts a gateway and a processor with a source, as a configuration has it, which read its API, and look at what
// is in doubt soon.
func startReading(t *testing.T, source string) *reloading {
	t.Helper()
	r := newReloading(t, nil)
	r.begin(t, source, app.Options{Gateway: true, Processor: true, Tune: func(tuning *app.Tuning) {
		tuning.LooksEvery, tuning.Runs.Poll = 50*time.Millisecond, 20*time.Millisecond
		tuning.Runs.PutOff, tuning.Runs.PutOffMost = 20*time.Millisecond, 200*time.Millisecond
	}})
	return r
}

// startReconciling starts a shop whose API is the fake.
func startReconciling(t *testing.T, fake *stripefake.Fake) *reloading {
	t.Helper()
	return startReconcilingAs(t, fake, stripefake.Key)
}

func startReconcilingAs(t *testing.T, fake *stripefake.Fake, key string) *reloading {
	t.Helper()
	return startReading(t, shop+shopAPI(fake, key))
}

// shop is a source of Stripe's without a section api.
const shop = "  shop:\n    provider: stripe\n    secrets: [{name: s, value: " + stripefake.Secret + "}]\n"

// shopAPI is the section api that follows shop.
func shopAPI(fake *stripefake.Fake, key string) string {
	return fmt.Sprintf("    api: {base_url: %s, key: {value: %s}, version: %s, rate: 500, thin_events: true}\n", fake.URL, key, stripefake.Version)
}

// taking posts a webhook to a source, and tells whether it was taken.
func (r *reloading) taking(t *testing.T, source string) func(*provider.Delivery) bool {
	return func(d *provider.Delivery) bool {
		status, _ := r.post(t, source, d)
		return status == http.StatusOK
	}
}

// reconciled asks for a reconciliation and returns it when it has ended.
func (r *reloading) reconciled(t *testing.T, o reconcile.Order) (run *runs.Run) {
	t.Helper()
	operator := r.db.Role(t, "operator")
	o.Source = 1
	id, err := runs.Ask(t.Context(), operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() error {
		run, err = runs.Show(t.Context(), operator, id)
		if err == nil && !run.Status.Final() {
			err = fmt.Errorf("the run is %s: %s", run.Status, run.Detail)
		}
		return err
	})
	return run
}

// done is reconciled, of a run that must be done.
func (r *reloading) done(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	run := r.reconciled(t, o)
	if run.Status != runs.Done {
		t.Fatalf("the run is %s: %s", run.Status, run.Detail)
	}
	return run
}

// become waits until the mirror is what the account is.
func (r *reloading) become(t *testing.T, fake *stripefake.Fake) {
	t.Helper()
	r.alike(t, func() []theirs { return r.against(t, fake) })
}

// alike waits until no object differs.
func (r *reloading) alike(t *testing.T, differing func() []theirs) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if wrong := differing(); len(wrong) > 0 {
			return fmt.Errorf("%d objects are not as the provider has them, the first: %s", len(wrong), wrong[0])
		}
		return nil
	})
}

// Webhooks that tell no more than an id lead to looks at the API that the source describes, by themselves.
func TestLooksOfADescribedAPI(t *testing.T) {
	t.Parallel()
	fake := restfake.New(t)
	r := startReading(t, fmt.Sprintf("  things:\n    provider: hmac\n    secrets: [{name: s, value: some-secret}]\n    scheme: {header: X-Signature}\n    events: {type: '{json:type}', key: '{json:id}'}\n"+
		"    objects: [{type: thing, id: '{json:thing.key}'}]\n    api: {base_url: %s, key: {value: %s}, header: 'X-Api-Key: {key}', control: /me, rate: 500, objects: {thing: {get: '/things/{id}', item: data.thing, id: key, version: {path: changed}}}}\n",
		fake.URL, restfake.Key))
	e := r.cfg.Endpoints()[0]
	for i := range 5 {
		fake.Set(fmt.Sprint("t", i), "", time.Second)
		if i > 0 {
			fake.Set(fmt.Sprint("t", i), fmt.Sprint("name ", i), time.Second)
		}
	}
	for _, body := range fake.Events() {
		d, err := e.Provider.Sign(e.Source, provider.Sample{Body: body}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := r.post(t, "things", d); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	fake.Advance(2 * time.Hour) // it was an hour behind, and what is owed is owed from the time of receipt on
	r.waitRows(t, 5, `objects WHERE look_after = 0 AND NOT ambiguous AND
		(deleted AND state IS NULL AND object_id = 't0' OR state ->> 'name' = 'name ' || substr(object_id, 2))`)
}

// A key that may read everything, and an account without most products: what Stripe has no address for is passed over, and the run ends.
func TestSweepOfAnAccountWithoutProducts(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 10, Running: true, Start: time.Now().Add(-time.Hour)})
	customer := fake.Create("", "customer", nil)
	r := startReconciling(t, fake)
	fake.Deliver(func(d *provider.Delivery) bool { return true }) // and none arrives
	run := r.reconciled(t, reconcile.Order{What: reconcile.Objects})
	all := len(stripe.Stripe{}.Lists(nil, &provider.API{Key: provider.Secret{Value: []byte(stripefake.Key)}}, ""))
	const there = 15 // customer, subscription, invoice, charge, application_fee, test clocks, eight of treasury, v2.core.account
	if c := run.Counts; run.Status != runs.Done || c[reconcile.Missing] != 1 || c[reconcile.Mended] != 1 || c[reconcile.Rare] != rare || c[reconcile.Unlisted] != int64(all-rare-there) {
		t.Errorf("%s: %v, of %d types: %s", run.Status, c, all, run.Detail)
	}
	if found := r.db.Rows(t, `SELECT object_id FROM objects WHERE NOT deleted`); !slices.Equal(found, []string{customer}) {
		t.Errorf("the mirror has %v", found)
	}
	if one := r.reconciled(t, reconcile.Order{What: reconcile.Objects, Type: "issuing.card"}); one.Status != runs.Failed || !strings.Contains(one.Detail, "is the product that it belongs to set up") {
		t.Errorf("one type that the account has not: %s: %s", one.Status, one.Detail)
	}
}

// against are the objects that the mirror does not show as the account has them.
func (r *reloading) against(t *testing.T, fake *stripefake.Fake) []theirs {
	t.Helper()
	var all []theirs
	for _, o := range fake.Truth() {
		one := theirs{kind: o.Type, id: o.ID, body: o.Body}
		if o.Deleted() {
			one.body = nil
		}
		all = append(all, one)
	}
	changes := []string{"webhooks_delivered_at", "status_transitions.webhooks_delivered_at", "receipt_url", "hosted_invoice_url", "invoice_pdf"}
	return r.differing(t, all, canonical.Options{DropNull: true, Without: changes}, false)
}

// theirs is an object as its provider has it; without a body it is deleted. found is what the mirror has.
type theirs struct {
	kind, id string
	body     []byte
	found    string
}

func (o theirs) String() string {
	return fmt.Sprintf("%s %s: %s\nwant:\n%s", o.kind, o.id, o.found, o.body)
}

// differing are the objects that the mirror has in doubt, or does not show as their provider has them. Whether a deleted object
// must be known is mayLack.
func (r *reloading) differing(t *testing.T, all []theirs, o canonical.Options, mayLack bool) (wrong []theirs) {
	t.Helper()
	for _, one := range all {
		var state []byte
		var deleted, doubt bool
		err := r.db.Pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT state, deleted, ambiguous OR look_after <> 0
			FROM objects WHERE object_type = $1 AND object_id = $2`, one.kind, one.id).Scan(&state, &deleted, &doubt)
		switch {
		case err != nil && mayLack && one.body == nil:
		case err != nil:
			one.found = err.Error()
			wrong = append(wrong, one)
		case doubt || deleted != (one.body == nil) || !deleted && sum(t, state, o) != sum(t, one.body, o):
			one.found = fmt.Sprintf("(deleted %t, in doubt %t)\n%s", deleted, doubt, state)
			wrong = append(wrong, one)
		}
	}
	return wrong
}

func sum(t *testing.T, text []byte, o canonical.Options) [32]byte {
	t.Helper()
	v, err := canonical.Parse(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v.Sum(o)
}

// A sweep costs a call for each page and one for each object that differs, and a few: one that shows that the key is good, and one before anything is believed to be missing.
func TestCallsOfASweep(t *testing.T) {
	t.Parallel()
	const objects, perPage, few = 730, 100, 4 // whether the key is good, whose it is, what time it is there, and which test clocks there are
	fake := stripefake.New(t, stripefake.Options{Seed: 11, Running: true, Start: time.Now().Add(-time.Hour)})
	ids := make([]string, objects)
	for i := range ids {
		ids[i] = fake.Create("", "customer", nil)
	}
	fake.Advance(time.Minute)
	r := startReconciling(t, fake)
	sweep := func(what string, there, changed int64, want map[string]int64) {
		t.Helper()
		fake.Forget()
		counts := r.done(t, reconcile.Order{What: reconcile.Objects, Type: "customer"}).Counts
		for name, n := range want {
			if counts[name] != n {
				t.Errorf("%s: %d are %s, want %d: %v", what, counts[name], name, n, counts)
			}
		}
		pages := (there + perPage - 1) / perPage
		if made := int64(len(fake.Requests())); made < pages+changed || made > pages+changed+few {
			t.Errorf("%s: %d calls for %d pages and %d objects that differ: %v", what, made, pages, changed, fake.Counts())
		}
	}
	sweep("an empty mirror, filled by the pages", objects, 0, map[string]int64{reconcile.Missing: objects, reconcile.Mended: objects})
	sweep("nothing has changed", objects, 0, map[string]int64{reconcile.Equal: objects})
	for i := range 7 {
		fake.Set("", ids[100*i], map[string]any{"name": fmt.Sprint("Ada ", i)})
	}
	fake.Do("", ids[5], "customer.deleted")
	fake.Create("", "customer", nil)
	fake.Advance(time.Minute)
	changed := map[string]int64{reconcile.Equal: objects - 8, reconcile.Missing: 1, reconcile.Ghosts: 1, reconcile.Mended: 9}
	sweep("a few have changed", objects, 8, changed) // the new one is told by its page
	if n := r.db.Rows(t, `SELECT count(*)::text FROM objects WHERE object_type = 'customer' AND state ->> 'name' LIKE 'Ada _'`)[0]; n != "7" {
		t.Errorf("%s of 7 changed objects are in the mirror as they are", n)
	}
	r.become(t, fake)
}

// Links are rendered anew in each answer, with a token that holds the time: an object of which nothing else is other is equal, and nobody is told of a change.
func TestLinksAreNoChange(t *testing.T) {
	t.Parallel()
	const objects = 5
	fake := stripefake.New(t, stripefake.Options{Seed: 12, Running: true, Start: time.Now().Add(-time.Hour)})
	for range objects {
		fake.Create("", "charge", map[string]any{"status": "succeeded"})
		fake.Do("", fake.Create("", "invoice", nil), "invoice.finalized")
	}
	fake.Advance(time.Minute)
	r := startReconciling(t, fake)
	revisions := func() string {
		return r.db.Rows(t, `SELECT jsonb_object_agg(object_id, revision)::text FROM objects WHERE object_type IN ('charge', 'invoice')`)[0]
	}
	var first string
	for i, kept := range []string{reconcile.Missing, reconcile.Equal, reconcile.Equal} {
		for _, objectType := range []string{"charge", "invoice"} {
			run := r.reconciled(t, reconcile.Order{What: reconcile.Objects, Type: objectType})
			if c := run.Counts; c[kept] != objects {
				t.Errorf("sweep %d of unchanged %ss: %v, want %d %s", i, objectType, c, objects, kept)
			}
		}
		if now := revisions(); i == 0 {
			first = now
		} else if now != first {
			t.Errorf("after sweep %d the revisions are %s, and were %s", i, now, first)
		}
		fake.Advance(time.Minute)
	}
}
