package reconcile_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// stripeEnv is a Stripe source with a fake account and real clients.
type stripeEnv struct {
	*testEnv
	fake   *stripefake.Fake
	config *provider.Source
}

// newStripeEnv makes a source that is pinned to an account, or to none.
func newStripeEnv(t *testing.T, pinned string, o stripefake.Options) *stripeEnv {
	t.Helper()
	b := &stripeEnv{testEnv: newEnvWithoutAPI(t), fake: stripefake.New(t, o),
		config: &provider.Source{Name: applied.SourceName, Account: pinned}}
	s := b.Sources[applied.SourceName]
	s.Config, s.Provider = b.config, stripe.Stripe{}
	b.Sources[applied.SourceName] = s
	return b
}

// deliver appends and applies the webhooks of the account that are not lost, and returns the number
// of lost ones.
func (b *stripeEnv) deliver(t *testing.T, lost func(n int) bool) (missing int64) {
	t.Helper()
	var ds []*provider.Delivery
	n := 0
	b.fake.Deliver(func(d *provider.Delivery) bool {
		if n++; lost(n) {
			missing++
		} else {
			ds = append(ds, d)
		}
		return true
	})
	applied.AppendAndApply(t, b.gateway, b.Applier(t, nil), b.Sources[applied.SourceName], ds...)
	return missing
}

// runner makes a runner as in a process of its own, with its own client. Its calls go through
// watch.
func (b *stripeEnv) runner(t *testing.T, api *provider.API,
	watch func(providerapi.Caller) providerapi.Caller) *reconcile.Runner {
	t.Helper()
	sources := &providerapi.Sources{}
	source := &providerapi.Source{Name: applied.SourceName, Number: b.Source, Config: b.config, API: api,
		Provider: stripe.Stripe{}, Reader: stripe.Stripe{}}
	source.Caller = watch(newClient(t, b.Pool, source))
	sources.Replace(source)
	s := reconcile.DefaultSettings
	s.RetryDelay = 10 * time.Millisecond
	limits := refetch.DefaultLimits
	limits.ListDelay = time.Second
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.gateway, Applier: b.Applier(t, nil),
		Sources: sources, Limits: limits}, Settings: s}
}

func (b *stripeEnv) apiAt(url string) *provider.API {
	return &provider.API{BaseURL: url, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)},
		Version: stripefake.Version, Rate: 1000, Concurrency: 3, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
}

func sameCaller(c providerapi.Caller) providerapi.Caller { return c }

// Neither webhooks nor the API name the account that a source is pinned to. An event is therefore
// the same from both.
func TestReconcile_pinnedAccount_eventsMatchWebhooks(t *testing.T) {
	t.Parallel()
	b := newStripeEnv(t, stripefake.OwnAccount, stripefake.Options{Seed: 3, Objects: 8})
	b.fake.RunSteps(60)
	missing := b.deliver(t, func(n int) bool { return n%3 == 0 })
	b.fake.Advance(time.Minute)
	b.startReconciler(t, b.runner(t, b.apiAt(b.fake.URL), sameCaller))
	run := b.startRun(t, reconcile.Params{Account: stripefake.OwnAccount, Scope: reconcile.Events})
	r := b.waitForEnd(t, run)
	all := int64(len(b.fake.Events()))
	if r.Status != runs.Done || r.Counts[reconcile.Missing] != missing || r.Counts[reconcile.Present] != all-missing ||
		missing == 0 {
		t.Errorf("%s with %v, want %d missing of %d: %s", r.Status, r.Counts, missing, all, r.Detail)
	}
	b.wantRows(t, `SELECT DISTINCT account FROM events ORDER BY 1`, stripefake.OwnAccount, stripefake.OwnAccount+
		"/test")
	b.wantRows(t, `SELECT account FROM rate_budgets`, "")
}

const connectedAccount = "acct_1"

// childTypes are the types of child objects, with the account of their scans.
var childTypes = map[string]string{"card": connectedAccount, "tax_id": connectedAccount, "person": connectedAccount,
	"bank_account": connectedAccount, "account": connectedAccount + "/test",
	"treasury.received_credit": connectedAccount, "fee_refund": connectedAccount}

// newChildEnv makes an account with a connected account that has objects of each child type. All
// webhooks arrived.
func newChildEnv(t *testing.T, calls func(providerapi.Caller) providerapi.Caller) *stripeEnv {
	t.Helper()
	b := newStripeEnv(t, "", stripefake.Options{Seed: 3, Accounts: []string{connectedAccount}})
	b.fake.Create(connectedAccount, "account", nil)
	for range 5 {
		for _, owner := range []string{"customer", "application_fee", "treasury.financial_account"} {
			b.fake.Create(connectedAccount, owner, nil)
		}
	}
	for range 30 {
		for objectType := range childTypes {
			if objectType != "account" {
				b.fake.Create(connectedAccount, objectType, nil)
			}
		}
	}
	b.fake.Advance(time.Minute)
	b.deliver(t, loseNone)
	b.startReconciler(t, b.runner(t, b.apiAt(b.fake.URL), calls))
	return b
}

// childDifferences returns the child objects that differ in the mirror.
func (b *stripeEnv) childDifferences(t *testing.T) (wrong []string) {
	t.Helper()
	for _, o := range b.fake.CurrentObjects() {
		account, below := childTypes[o.Type]
		if !below {
			continue
		}
		var state []byte
		var deleted bool
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT state, deleted FROM objects WHERE account = $1
			AND object_type = $2 AND object_id = $3`, account, o.Type, o.ID).Scan(&state, &deleted)
		var is, want map[string]any
		if err == nil && deleted == o.Deleted() && deleted {
			continue
		}
		if err == nil {
			_, _ = json.Unmarshal(state, &is), json.Unmarshal(o.Body, &want)
			delete(is, "hosted_regulatory_receipt_url")
			delete(want, "hosted_regulatory_receipt_url")
		}
		if err != nil || deleted != o.Deleted() || !cmp.Equal(is, want) {
			wrong = append(wrong, fmt.Sprintf("%s %s: %v: deleted %t: %s", o.Type, o.ID, err, deleted,
				cmp.Diff(want, is)))
		}
	}
	return wrong
}

// Scans of child objects find missing, older and deleted ones, also below a deleted parent. A
// second scan finds all equal without a refetch.
func TestObjectScan_childObjects_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	b := newChildEnv(t, sameCaller)
	if wrong := b.childDifferences(t); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	n := 0
	for _, o := range b.fake.CurrentObjects() {
		if _, below := childTypes[o.Type]; !below || o.Type == "account" {
			continue
		}
		switch n++; {
		case n%9 == 0 && o.Type == "card":
			b.fake.ApplyEvent(connectedAccount, o.ID, "customer.source.deleted")
		case n%9 == 0 && o.Type == "person":
			b.fake.ApplyEvent(connectedAccount, o.ID, "person.deleted")
		case n%9 == 0 && o.Type == "bank_account":
			b.fake.ApplyEvent(connectedAccount, o.ID, "account.external_account.deleted")
		case n%9 == 1:
			b.fake.SetWithoutEvent(connectedAccount, o.ID, map[string]any{"changed": "1"})
		case n%9 == 2:
			b.fake.Create(connectedAccount, o.Type, nil)
		}
	}
	b.fake.SetWithoutEvent(connectedAccount, connectedAccount, map[string]any{"email": "ada@postern.example"})
	b.fake.Advance(time.Minute)
	b.deliver(t, loseAll)
	if wrong := b.childDifferences(t); len(wrong) < 40 {
		t.Fatalf("%d objects differ: the test is too easy", len(wrong))
	}
	for objectType, account := range childTypes {
		r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[objectscan.Unrepaired] != 0 || c[objectscan.ContentDiffers]+
			c[objectscan.MirrorOlder] == 0 {
			t.Errorf("%s: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		before := len(b.fake.Requests())
		r = b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[reconcile.Processed] == 0 ||
			c[objectscan.Equal] != c[reconcile.Processed] {
			t.Errorf("%s, again: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		for _, one := range b.fake.Requests()[before:] {
			if last := one.Path[strings.LastIndex(one.Path, "/")+1:]; strings.Contains(last, "_Fake") {
				t.Errorf("%s: %s was requested", objectType, one.Path)
			}
		}
	}
	wantNone(t, b.childDifferences(t))
}

// A refetch of a child object finds a change without a webhook. It is believed to be missing only
// if the same key finds its parent, even a deleted one.
func TestRefetch_childObjects_needTheirParent(t *testing.T) {
	t.Parallel()
	b := newChildEnv(t, sameCaller)
	ids := map[string][]string{}
	for _, o := range b.fake.CurrentObjects() {
		ids[o.Type] = append(ids[o.Type], o.ID)
	}
	card, person, unheard := ids["card"][0], ids["person"][0], ids["person"][1]
	owner := b.DB.QueryStrings(t, `SELECT state ->> 'customer' FROM objects WHERE object_id = '`+card+`'`)[0]
	b.fake.SetWithoutEvent(connectedAccount, card, map[string]any{"exp_year": 2044})
	// as if its event had been dropped
	b.DB.Exec(t, `DELETE FROM outcomes WHERE event_id IN (SELECT id FROM events WHERE object_id = $1)`, unheard)
	b.fake.Advance(time.Minute)
	refetchParams := func(objectType, id string) reconcile.Params {
		return reconcile.Params{Scope: reconcile.Object, Type: objectType, ID: id, Account: connectedAccount}
	}
	if r := b.runToEnd(t, refetchParams("card", card)); r.Status != runs.Done ||
		b.DB.QueryStrings(t, `SELECT state ->> 'exp_year'
		FROM objects WHERE object_id = '`+card+`'`)[0] != "2044" {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	gone := func() string {
		return strings.Join(b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted ORDER BY object_id`), " ")
	}
	b.fake.SetFaults(stripefake.Faults{SeesNothing: true})
	for objectType, id := range map[string]string{"card": card, "person": person} {
		o := refetchParams(objectType, id)
		o.Source = b.Source
		run := b.startRun(t, o)
		r := b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() || r.Detail != "" })
		if why := map[string]string{"card": "does not know event",
			"person": "answered 403"}[objectType]; !strings.Contains(r.Detail, why) {
			t.Errorf("%s of an account that shows nothing: %s: %s", objectType, r.Status, r.Detail)
		}
		if !r.Status.Ended() {
			b.setStatus(t, run, runs.Cancelled)
			b.waitForEnd(t, run)
		}
	}
	b.fake.SetFaults(stripefake.Faults{})
	if now := gone(); now != "" {
		t.Fatalf("believed to be missing: %s", now)
	}
	b.fake.ApplyEvent(connectedAccount, owner, "customer.deleted")
	b.fake.ApplyEvent(connectedAccount, person, "person.deleted")
	b.fake.ApplyEvent(connectedAccount, unheard, "person.deleted")
	b.fake.Advance(time.Minute)
	b.runToEnd(t, refetchParams("card", card))
	b.runToEnd(t, refetchParams("person", person))
	if now := gone(); now != card+" "+person {
		t.Errorf("deleted in the mirror: %q", now)
	}
	scanned := b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "person", Account: connectedAccount})
	if scanned.Status != runs.Done || scanned.Counts[objectscan.Unrepaired] != 1 || gone() != card+" "+person {
		t.Errorf("a person without an event of known mode: %s with %v; deleted are %q", scanned.Status, scanned.Counts,
			gone())
	}
}

// If the key may not read the external accounts of a connected account, cards and bank accounts are
// not listable, also those of its customers. The run names the rejected list and scans the other
// types.
func TestObjectScan_rejectedChildList_isNotListable(t *testing.T) {
	t.Parallel()
	b := newChildEnv(t, func(c providerapi.Caller) providerapi.Caller {
		return interceptingCaller{c, func(call provider.Call) *providerapi.Response {
			if strings.HasSuffix(call.Path, "/external_accounts") {
				return errorResponse(http.StatusForbidden)
			}
			return nil
		}}
	})
	const rejected = "/v1/accounts/" + connectedAccount + "/external_accounts: the API of source sim: answered 403"
	r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Account: connectedAccount})
	report := b.report(t, r.ID)
	if r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	var notListable []string
	for _, of := range report.Types {
		if strings.Contains(of.Reason, "external_accounts") {
			notListable = append(notListable, of.ObjectType+" "+of.Phase)
			if !strings.HasPrefix(of.Reason, rejected) {
				t.Errorf("%s: %s", of.ObjectType, of.Reason)
			}
		}
	}
	if want := []string{"bank_account not_listable", "card not_listable"}; !slices.Equal(notListable, want) ||
		b.DB.QueryStrings(t, `SELECT count(*)::text FROM watermarks
			WHERE subject IN ('type tax_id', 'type person')`)[0] != "2" {
		t.Errorf("%q, want %q; %s %v: %s", notListable, want, r.Status, r.Counts, r.Detail)
	}
	b.wantFailure(t, reconcile.Params{Scope: reconcile.Objects, Account: connectedAccount, Type: "card"}, rejected)
}

// A platform's live endpoint gets the events of both modes of a connected account, whose charges
// are in one account of the mirror. A live key does not see charges of test mode: they are neither
// refetched nor deleted. A missing charge of live mode is deleted.
func TestObjectScan_otherModeObjects_areUnrepaired(t *testing.T) {
	t.Parallel()
	const key, connected = "rk_live_all", "acct_1"
	b := newStripeEnv(t, "", stripefake.Options{Seed: 13, LiveMode: true, Accounts: []string{connected},
		Restricted: map[string][]string{key: {"charges", "events"}}})
	kept := b.fake.Create(connected, "charge", nil)
	b.deliver(t, loseNone)
	for id, live := range map[string]bool{"ch_test": false, "ch_gone": true} {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).*
			FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', $1::text, 'state',
				o.state || jsonb_build_object('id', $1::text, 'livemode', $2::bool))) AS o
			FROM objects o WHERE object_id = $3) o`, id, live, kept)
	}
	b.fake.Advance(time.Minute)
	api := b.apiAt(b.fake.URL)
	api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
	b.startReconciler(t, b.runner(t, api, sameCaller))
	run := func(o reconcile.Params) *runs.Run {
		o.Source, o.Account, o.Type = b.Source, connected, "charge"
		id := b.startRun(t, o)
		return b.waitForEnd(t, id)
	}
	scanned := run(reconcile.Params{Scope: reconcile.Objects})
	if c := scanned.Counts; scanned.Status != runs.Done || c[objectscan.Equal] != 1 || c[objectscan.Orphans] != 1 ||
		c[objectscan.Unrepaired] != 1 {
		t.Errorf("%s with %v: %s", scanned.Status, c, scanned.Detail)
	}
	if refetched := run(reconcile.Params{Scope: reconcile.Object, ID: "ch_test"}); refetched.Status != runs.Failed ||
		!strings.Contains(refetched.Detail, "test or live") {
		t.Errorf("a refetch with the key of the other mode: %s: %s", refetched.Status, refetched.Detail)
	}
	b.wantRows(t, `SELECT object_id || ' ' || deleted FROM objects ORDER BY object_id`, kept+" false", "ch_gone true",
		"ch_test false")
	for _, r := range b.fake.Requests() {
		if strings.HasSuffix(r.Path, "/ch_test") {
			t.Errorf("%s was requested: %s", r.Path, fmt.Sprint(r.Status))
		}
	}
}
