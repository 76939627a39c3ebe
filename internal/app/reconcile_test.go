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
	"github.com/postern-gateway/postern/internal/config"
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
	fake.Deliver(func(d *provider.Delivery) bool {
		status, _ := r.post(t, "shop", d)
		return status == http.StatusOK
	})
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
	var stored, conflicts int64
	if err := r.db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM events WHERE event_type <> $1), (SELECT count(*) FROM event_conflicts)`, provider.LookType).Scan(&stored, &conflicts); err != nil {
		t.Fatal(err)
	}
	if late == 0 || stored != events || conflicts != 0 {
		t.Errorf("after %d late deliveries there are %d events of %d, and %d conflicts", late, stored, events, conflicts)
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
	var found []string
	if err := r.db.Pool.QueryRow(t.Context(), `SELECT array_agg(object_id ORDER BY object_type) FROM objects WHERE NOT deleted`).Scan(&found); err != nil || !slices.Equal(found, []string{customer, canceled}) {
		t.Errorf("the mirror has %v (%v)", found, err)
	}
	if one := r.reconciled(t, reconcile.Order{What: reconcile.Objects, Type: "invoice"}); one.Status != runs.Failed {
		t.Errorf("one type that is refused: %s: %v", one.Status, one.Counts)
	}
	none := startReconcilingAs(t, fake, "rk_test_none")
	if run := none.reconciled(t, reconcile.Order{What: reconcile.Objects}); run.Status != runs.Failed || !strings.Contains(run.Detail, "403") {
		t.Errorf("with nothing to list: %s: %v: %s", run.Status, run.Counts, run.Detail)
	}
}

// startReading starts a gateway and a processor with a source, as a configuration has it, which read its API, and look at what is in doubt soon.
func startReading(t *testing.T, source string) *reloading {
	t.Helper()
	r := startReloading(t, source, time.Hour)
	stop(t, r.app)
	loader := config.NewLoader(r.file, config.ForGateway, nil)
	var err error
	if r.cfg, err = loader.Load(); err != nil {
		t.Fatal(err)
	}
	r.app = r.startLogged(t, app.Options{Gateway: true, Processor: true, Loader: loader, Hangup: r.hangup, Tune: func(tuning *app.Tuning) {
		patient(tuning)
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
	testkit.Eventually(t, time.Minute, func() error {
		if wrong := r.against(t, fake); len(wrong) > 0 {
			return fmt.Errorf("%d objects are not as Stripe has them, the first: %s", len(wrong), wrong[0])
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
	testkit.Eventually(t, time.Minute, func() error {
		var n int
		err := r.db.Pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT count(*) FROM objects WHERE look_after = 0 AND NOT ambiguous AND
			(deleted AND state IS NULL AND object_id = 't0' OR state ->> 'name' = 'name ' || substr(object_id, 2))`).Scan(&n)
		if err == nil && n != 5 {
			err = fmt.Errorf("%d of 5 objects are as the API has them", n)
		}
		return err
	})
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
func (r *reloading) against(t *testing.T, fake *stripefake.Fake) (wrong []string) {
	t.Helper()
	for _, o := range fake.Truth() {
		var state []byte
		var deleted, doubt bool
		err := r.db.Pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT state, deleted, ambiguous OR look_after <> 0 FROM objects WHERE object_type = $1 AND object_id = $2`, o.Type, o.ID).
			Scan(&state, &deleted, &doubt)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Sprintf("%s %s: %v", o.Type, o.ID, err))
		case doubt || deleted != o.Deleted() || !deleted && sum(t, state) != sum(t, o.Body):
			wrong = append(wrong, fmt.Sprintf("%s %s (deleted %t, in doubt %t):\n%s\nwant:\n%s", o.Type, o.ID, deleted, doubt, state, o.Body))
		}
	}
	return wrong
}

// sum compares states but for what changes without an event.
func sum(t *testing.T, text []byte) [32]byte {
	t.Helper()
	v, err := canonical.Parse(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v.Sum(canonical.Options{DropNull: true, Without: []string{"webhooks_delivered_at", "status_transitions.webhooks_delivered_at", "receipt_url", "hosted_invoice_url", "invoice_pdf"}})
}
