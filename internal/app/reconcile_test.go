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
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A shop's account loses half of its webhooks. After one run over the events in Stripe's list, and
// the pending refetches, the mirror equals Stripe.
func TestReconcile_stripeWithLostWebhooks_restoresMirror(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 7, Running: true, Start: time.Now().Add(-time.Minute),
		Objects: 12, IDOnlyEvents: true,
		Webhooks: stripefake.Webhooks{LostUnacknowledged: 50, Shuffled: 30, Clock: time.Now},
		Faults:   stripefake.Faults{RateLimited: 5}})
	r := startReconciling(t, fake)
	fake.RunSteps(150)
	fake.Advance(time.Since(fake.Now())) // so that the test does not wait for a clock
	fake.Deliver(r.postTo(t, "shop"))
	fake.Advance(time.Minute) // later than the time that a run leaves to the next
	if wrong := r.differingFromStripe(t, fake); len(wrong) == 0 {
		t.Fatal("the mirror is complete already, so the test shows nothing")
	}
	r.mustReconcile(t, reconcile.Params{Scope: reconcile.Events})
	r.waitUntilEqual(t, fake)
}

// An endpoint with another API version than the account gets other bodies than the list, with the
// same ids. The first one is stored, and the other is a duplicate and no conflict.
func TestReconcile_otherAPIVersion_isDuplicate(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 8, Running: true, Start: time.Now(),
		Webhooks: stripefake.Webhooks{Version: "2020-08-27", LostAcknowledged: 20, Clock: time.Now}})
	r := startReconciling(t, fake)
	fake.RunSteps(60)
	var refused, posted, late int64
	fake.Deliver(func(d *provider.Delivery) bool {
		if refused < posted {
			refused++
			return false // retried in a minute
		}
		posted++
		status, _ := r.post(t, "shop", d)
		return status == http.StatusOK && posted%4 != 0 // or the response is lost
	})
	fake.Advance(2 * time.Minute)
	var events, undelivered int64
	for _, e := range fake.Events() {
		if events++; !e.Delivered {
			undelivered++
		}
	}
	for _, dry := range []bool{true, false} {
		run := r.mustReconcile(t, reconcile.Params{Scope: reconcile.Events, DryRun: dry})
		want := map[string]int64{reconcile.Processed: events, reconcile.Present: posted,
			reconcile.Missing:     events - posted,
			reconcile.Undelivered: refused, reconcile.Conflicting: 0}
		for name, n := range want {
			if run.Counts[name] != n {
				t.Errorf("%s: %d, want %d (dry run: %t)", name, run.Counts[name], n, dry)
			}
		}
	}
	if undelivered == refused || refused == events-posted {
		t.Errorf("Stripe has not delivered %d events, %d are missing, both are %d: too few for this test", undelivered,
			events-posted, refused)
	}
	fake.Deliver(func(d *provider.Delivery) bool {
		late++
		status, _ := r.post(t, "shop", d)
		return status == http.StatusOK
	})
	r.db.WantRows(t, int(events), `events WHERE event_type <> $1`, provider.RefetchType)
	if r.db.WantRows(t, 0, `event_conflicts`); late == 0 {
		t.Error("no delivery came late")
	}
}

// typesWithoutList is the number of Stripe's types that are part of other objects: card,
// bank_account, source, tax_id, fee_refund. A scan of all types skips them if the mirror has none.
const typesWithoutList = 5

// With a key that may read only some types, those are scanned, and the others are counted and not
// verified. A canceled subscription is among the results. A key that may list nothing ends the run.
func TestObjectScan_restrictedKey_scansAllowedTypes(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 9, Running: true, Start: time.Now().Add(-time.Hour),
		Restricted: map[string][]string{"rk_test_some": {"events", "customers", "subscriptions", "test_helpers"},
			"rk_test_none": {"events"}}})
	customer, canceled := fake.Create("", "customer", nil),
		fake.Create("", "subscription", map[string]any{"status": "active"})
	fake.Create("", "invoice", nil)
	fake.ApplyEvent("", canceled, "customer.subscription.deleted")
	r := startReading(t, shop+shopAPI(fake, "rk_test_some"))
	fake.Deliver(func(d *provider.Delivery) bool { return true }) // and no webhook arrives
	run := r.runReconciliation(t, reconcile.Params{Scope: reconcile.Objects})
	all := len(stripe.Stripe{}.Lists(nil, &provider.API{Key: provider.Secret{Value: []byte("rk_test_some")}}, ""))
	if c := run.Counts; run.Status != runs.Done || c[reconcile.Missing] != 2 || c[objectscan.Repaired] != 2 ||
		c[objectscan.SkippedTypes] != typesWithoutList || c[objectscan.NotListable] != int64(all-typesWithoutList-3) {
		t.Errorf("%s: %v, of %d types: %s", run.Status, run.Counts, all, run.Detail)
	}
	if found := r.db.QueryStrings(t,
		`SELECT object_id FROM objects WHERE NOT deleted ORDER BY object_type`); !slices.Equal(
		found, []string{customer, canceled}) {
		t.Errorf("the mirror has %v", found)
	}
	one := r.runReconciliation(t, reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
	if one.Status != runs.Failed {
		t.Errorf("one forbidden type: %s: %v", one.Status, one.Counts)
	}
	none := startReading(t, shop+shopAPI(fake, "rk_test_none"))
	if run := none.runReconciliation(t, reconcile.Params{Scope: reconcile.Objects}); run.Status != runs.Failed ||
		!strings.Contains(run.Detail, "403") {
		t.Errorf("a key that may list nothing: %s: %v: %s", run.Status, run.Counts, run.Detail)
	}
}

// startReading starts a gateway and a processor with a source that reads its API. Pending refetches
// are due soon.
func startReading(t *testing.T, source string) *reloading {
	t.Helper()
	r := newReloading(t, nil)
	r.begin(t, source, app.Options{Gateway: true, Processor: true, Tune: func(tuning *app.Tuning) {
		tuning.RefetchInterval, tuning.Runs.PollInterval = 50*time.Millisecond, 100*time.Millisecond
		tuning.Runs.DeferMin, tuning.Runs.DeferMax = 20*time.Millisecond, 200*time.Millisecond
	}})
	return r
}

// startReconciling starts a shop that uses the fake API.
func startReconciling(t *testing.T, fake *stripefake.Fake) *reloading {
	t.Helper()
	return startReading(t, shop+shopAPI(fake, stripefake.Key))
}

// shop is a Stripe source without a section api.
const shop = "  shop:\n    provider: stripe\n    secrets: [{name: s, value: " + stripefake.Secret + "}]\n"

// shopAPI is the section api that follows shop.
func shopAPI(fake *stripefake.Fake, key string) string {
	return fmt.Sprintf("    api: {base_url: %s, key: {value: %s}, version: %s, rate: 500, id_only_events: true}\n",
		fake.URL, key, stripefake.Version)
}

// postTo posts a webhook to a source, and reports whether it was accepted.
func (r *reloading) postTo(t *testing.T, source string) func(*provider.Delivery) bool {
	return func(d *provider.Delivery) bool {
		status, _ := r.post(t, source, d)
		return status == http.StatusOK
	}
}

// runReconciliation creates a reconciliation and returns it when it has ended.
func (r *reloading) runReconciliation(t *testing.T, o reconcile.Params) (run *runs.Run) {
	t.Helper()
	operator := r.db.Role(t, "operator")
	o.Source = 1
	id, err := runs.Create(t.Context(), operator, runs.Request{Job: reconcile.Job, Params: o, Actor: "test"})
	testkit.Must(t, err)
	testkit.Eventually(t, 5*time.Minute, func() error { // a scan of all types is long on a busy machine
		run, err = runs.Show(t.Context(), operator, id)
		if err == nil && !run.Status.Ended() {
			err = fmt.Errorf("the run is %s: %s", run.Status, run.Detail)
		}
		return err
	})
	return run
}

// mustReconcile is runReconciliation for a run that must succeed.
func (r *reloading) mustReconcile(t *testing.T, o reconcile.Params) *runs.Run {
	t.Helper()
	run := r.runReconciliation(t, o)
	if run.Status != runs.Done {
		t.Fatalf("the run is %s: %s", run.Status, run.Detail)
	}
	return run
}

// waitUntilEqual waits until the mirror equals the account.
func (r *reloading) waitUntilEqual(t *testing.T, fake *stripefake.Fake) {
	t.Helper()
	r.waitUntilNoneDiffer(t, func() []providerObject { return r.differingFromStripe(t, fake) })
}

// waitUntilNoneDiffer waits until no object differs.
func (r *reloading) waitUntilNoneDiffer(t *testing.T, differing func() []providerObject) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if wrong := differing(); len(wrong) > 0 {
			return fmt.Errorf("%d objects differ from the provider, the first: %s", len(wrong), wrong[0])
		}
		return nil
	})
}

// Id-only webhooks cause automatic refetches from the API that the source describes.
func TestRefetch_describedAPI_fetchesIDOnlyEvents(t *testing.T) {
	t.Parallel()
	fake := restfake.NewWithoutFaults(t)
	r := startReading(t, fmt.Sprintf("  things:\n    provider: hmac\n    secrets: [{name: s, value: some-secret}]\n  "+
		"  scheme: {header: X-Signature}\n    events: {type: '{json:type}', key: '{json:id}'}\n"+
		"    objects: [{type: thing, id: '{json:thing.key}'}]\n    api: {base_url: %s, key: {value: %s}, header: "+
		"'X-Api-Key: {key}', control: /me, rate: 500, objects: {thing: {get: '/things/{id}', item: data.thing, id: "+
		"key, version: {path: changed}}}}\n",
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
		testkit.Must(t, err)
		if status, answer := r.post(t, "things", d); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	fake.Advance(2 * time.Hour) // it was an hour late, and the refetch is pending from the time of receipt on
	r.waitRows(t, 5, `objects WHERE refetch_after = 0 AND NOT ambiguous AND
		(deleted AND state IS NULL AND object_id = 't0' OR state ->> 'name' = 'name ' || substr(object_id, 2))`)
}

// With a key that may read everything and an account without most products, types without an
// address are skipped, and the run ends. Links contain the current time and differ in each
// response: an object that differs only in them is equal, and no change is published.
func TestObjectScan_missingProductsAndChangingLinks_areNoDifferences(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 10, Running: true, Start: time.Now().Add(-time.Hour)})
	customer := fake.Create("", "customer", nil)
	r := startReconciling(t, fake)
	fake.Deliver(func(d *provider.Delivery) bool { return true }) // and no webhook arrives
	run := r.runReconciliation(t, reconcile.Params{Scope: reconcile.Objects})
	all := len(stripe.Stripe{}.Lists(nil, &provider.API{Key: provider.Secret{Value: []byte(stripefake.Key)}}, ""))
	// customer, subscription, invoice, charge, application_fee, test clocks, eight of treasury,
	// v2.core.account
	const there = 15
	if c := run.Counts; run.Status != runs.Done || c[reconcile.Missing] != 1 || c[objectscan.Repaired] != 1 ||
		c[objectscan.SkippedTypes] != typesWithoutList ||
		c[objectscan.NotListable] != int64(all-typesWithoutList-there) {
		t.Errorf("%s: %v, of %d types: %s", run.Status, c, all, run.Detail)
	}
	if found := r.db.QueryStrings(t, `SELECT object_id FROM objects WHERE NOT deleted`); !slices.Equal(found,
		[]string{customer}) {
		t.Errorf("the mirror has %v", found)
	}
	if one := r.runReconciliation(t, reconcile.Params{Scope: reconcile.Objects,
		Type: "issuing.card"}); one.Status != runs.Failed ||
		!strings.Contains(one.Detail, "is the product that it belongs to set up") {
		t.Errorf("one type without an address: %s: %s", one.Status, one.Detail)
	}

	const objects = 5
	for range objects {
		fake.Create("", "charge", map[string]any{"status": "succeeded"})
		fake.ApplyEvent("", fake.Create("", "invoice", nil), "invoice.finalized")
	}
	fake.Advance(time.Minute)
	revisions := func() string {
		return r.db.QueryStrings(t, `SELECT jsonb_object_agg(object_id, revision)::text FROM objects
			WHERE object_type IN ('charge', 'invoice')`)[0]
	}
	var first string
	for i, kind := range []string{reconcile.Missing, objectscan.Equal, objectscan.Equal} {
		for _, objectType := range []string{"charge", "invoice"} {
			run := r.runReconciliation(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType})
			if c := run.Counts; c[kind] != objects {
				t.Errorf("scan %d of unchanged %ss: %v, want %d %s", i, objectType, c, objects, kind)
			}
		}
		if now := revisions(); i == 0 {
			first = now
		} else if now != first {
			t.Errorf("after scan %d the revisions are %s, and were %s", i, now, first)
		}
		fake.Advance(time.Minute)
	}
}

// differingFromStripe returns the objects whose mirrored state differs from the account.
func (r *reloading) differingFromStripe(t *testing.T, fake *stripefake.Fake) []providerObject {
	t.Helper()
	var all []providerObject
	for _, o := range fake.CurrentObjects() {
		one := providerObject{kind: o.Type, id: o.ID, body: o.Body}
		if o.Deleted() {
			one.body = nil
		}
		all = append(all, one)
	}
	changes := []string{"webhooks_delivered_at", "status_transitions.webhooks_delivered_at", "receipt_url",
		"hosted_invoice_url", "invoice_pdf"}
	return r.differing(t, all, canonical.Options{DropNull: true, Without: changes}, false)
}

// providerObject is an object at its provider; without a body it is deleted. found describes the
// object in the mirror.
type providerObject struct {
	kind, id string
	body     []byte
	found    string
}

func (o providerObject) String() string {
	return fmt.Sprintf("%s %s: %s\nwant:\n%s", o.kind, o.id, o.found, o.body)
}

// differing returns the objects that are ambiguous in the mirror or differ from their provider.
// If deletedMayBeUnknown is true, the mirror need not have deleted objects.
func (r *reloading) differing(t *testing.T, all []providerObject, o canonical.Options,
	deletedMayBeUnknown bool) (wrong []providerObject) {
	t.Helper()
	for _, one := range all {
		var state []byte
		var deleted, uncertain bool
		err := r.db.Pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT state, deleted, ambiguous
			OR refetch_after <> 0
			FROM objects WHERE object_type = $1 AND object_id = $2`, one.kind, one.id).
			Scan(&state, &deleted, &uncertain)
		switch {
		case err != nil && deletedMayBeUnknown && one.body == nil:
		case err != nil:
			one.found = err.Error()
			wrong = append(wrong, one)
		case uncertain || deleted != (one.body == nil) || !deleted && sum(t, state, o) != sum(t, one.body, o):
			one.found = fmt.Sprintf("(deleted %t, ambiguous or pending %t)\n%s", deleted, uncertain, state)
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

// An object scan needs one call for each page, one for each object that differs, and a few more: an
// account check, and one before any object counts as missing.
func TestObjectScan_calls_oneForEachPageAndDifference(t *testing.T) {
	t.Parallel()
	// few is the maximum of other calls: account check, clock, and the list of test clocks.
	const objects, perPage, few = 730, 100, 4
	fake := stripefake.New(t, stripefake.Options{Seed: 11, Running: true, Start: time.Now().Add(-time.Hour)})
	ids := make([]string, objects)
	for i := range ids {
		ids[i] = fake.Create("", "customer", nil)
	}
	fake.Advance(time.Minute)
	r := startReconciling(t, fake)
	scan := func(name string, listed, changed int64, want map[string]int64) {
		t.Helper()
		fake.ResetRequests()
		counts := r.mustReconcile(t, reconcile.Params{Scope: reconcile.Objects, Type: "customer"}).Counts
		for kind, n := range want {
			if counts[kind] != n {
				t.Errorf("%s: %d are %s, want %d: %v", name, counts[kind], kind, n, counts)
			}
		}
		pages := (listed + perPage - 1) / perPage
		if made := int64(len(fake.Requests())); made < pages+changed || made > pages+changed+few {
			t.Errorf("%s: %d calls for %d pages and %d objects that differ: %v", name, made, pages, changed,
				fake.RequestsByRoute())
		}
	}
	scan("an empty mirror, filled by the pages", objects, 0, map[string]int64{reconcile.Missing: objects,
		objectscan.Repaired: objects})
	scan("nothing has changed", objects, 0, map[string]int64{objectscan.Equal: objects})
	for i := range 7 {
		fake.Set("", ids[100*i], map[string]any{"name": fmt.Sprint("Ada ", i)})
	}
	fake.ApplyEvent("", ids[5], "customer.deleted")
	fake.Create("", "customer", nil)
	fake.Advance(time.Minute)
	changed := map[string]int64{objectscan.Equal: objects - 8, reconcile.Missing: 1, objectscan.Orphans: 1,
		objectscan.Repaired: 9}
	scan("a few have changed", objects, 8, changed) // the new one is complete in its page
	if n := r.db.QueryStrings(t, `SELECT count(*)::text FROM objects WHERE object_type = 'customer'
		AND state ->> 'name' LIKE 'Ada _'`)[0]; n != "7" {
		t.Errorf("the mirror has the new state of %s of 7 changed objects", n)
	}
	r.waitUntilEqual(t, fake)
}
