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
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// Neither webhooks nor the API name the account that a source is pinned to. An event is therefore
// the same from both.
func TestReconcile_pinnedAccount_eventsMatchWebhooks(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, stripefake.OwnAccount, stripefake.Options{Seed: 3, Objects: 8})
	b.Fake.RunSteps(60)
	missing := b.Deliver(t, func(n int) bool { return n%3 == 0 })
	b.Fake.Advance(time.Minute)
	b.StartReconciler(t, b.Runner(t, b.APIAt(b.Fake.URL), reconciled.SameCaller))
	r := b.RunToEnd(t, reconcile.Params{Account: stripefake.OwnAccount, Scope: reconcile.Events})
	all := int64(len(b.Fake.Events()))
	if missing == 0 {
		t.Error("no webhook was lost")
	}
	reconciled.WantCounts(t, r, reconciled.Counts{reconcile.Missing: missing, reconcile.Present: all - missing})
	b.WantRows(t, `SELECT DISTINCT account FROM events ORDER BY 1`, stripefake.OwnAccount, stripefake.OwnAccount+
		"/test")
	b.WantRows(t, `SELECT account FROM rate_budgets`, "")
}

// newChildEnv makes an account with a connected account that has objects of each child type. All
// webhooks arrived.
func newChildEnv(t *testing.T, calls func(providerapi.Caller) providerapi.Caller) *reconciled.StripeEnv {
	t.Helper()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 3, Accounts: []string{reconciled.ConnectedAccount}})
	b.Fake.Create(reconciled.ConnectedAccount, "account", nil)
	for range 5 {
		for _, owner := range []string{"customer", "application_fee", "treasury.financial_account"} {
			b.Fake.Create(reconciled.ConnectedAccount, owner, nil)
		}
	}
	for range 30 {
		for objectType := range reconciled.ChildTypes {
			if objectType != "account" {
				b.Fake.Create(reconciled.ConnectedAccount, objectType, nil)
			}
		}
	}
	b.Fake.Advance(time.Minute)
	b.Deliver(t, reconciled.LoseNone)
	b.StartReconciler(t, b.Runner(t, b.APIAt(b.Fake.URL), calls))
	return b
}

// Scans of child objects find missing, older and deleted ones, also below a deleted parent. A
// second scan finds all equal without a refetch.
func TestObjectScan_childObjects_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	b := newChildEnv(t, reconciled.SameCaller)
	if wrong := childDifferences(t, b); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	n := 0
	for _, o := range b.Fake.CurrentObjects() {
		if _, below := reconciled.ChildTypes[o.Type]; !below || o.Type == "account" {
			continue
		}
		switch n++; {
		case n%9 == 0 && o.Type == "card":
			b.Fake.ApplyEvent(reconciled.ConnectedAccount, o.ID, "customer.source.deleted")
		case n%9 == 0 && o.Type == "person":
			b.Fake.ApplyEvent(reconciled.ConnectedAccount, o.ID, "person.deleted")
		case n%9 == 0 && o.Type == "bank_account":
			b.Fake.ApplyEvent(reconciled.ConnectedAccount, o.ID, "account.external_account.deleted")
		case n%9 == 1:
			b.Fake.SetWithoutEvent(reconciled.ConnectedAccount, o.ID, map[string]any{"changed": "1"})
		case n%9 == 2:
			b.Fake.Create(reconciled.ConnectedAccount, o.Type, nil)
		}
	}
	b.Fake.SetWithoutEvent(reconciled.ConnectedAccount, reconciled.ConnectedAccount,
		map[string]any{"email": "ada@postern.example"})
	b.Fake.Advance(time.Minute)
	b.Deliver(t, reconciled.LoseAll)
	if wrong := childDifferences(t, b); len(wrong) < 40 {
		t.Fatalf("%d objects differ: the test is too easy", len(wrong))
	}
	for objectType, account := range reconciled.ChildTypes {
		r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[objectscan.Unrepaired] != 0 || c[objectscan.ContentDiffers]+
			c[objectscan.MirrorOlder] == 0 {
			t.Errorf("%s: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		before := len(b.Fake.Requests())
		r = b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[reconcile.Processed] == 0 ||
			c[objectscan.Equal] != c[reconcile.Processed] {
			t.Errorf("%s, again: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		for _, one := range b.Fake.Requests()[before:] {
			if last := one.Path[strings.LastIndex(one.Path, "/")+1:]; strings.Contains(last, "_Fake") {
				t.Errorf("%s: %s was requested", objectType, one.Path)
			}
		}
	}
	reconciled.WantNone(t, childDifferences(t, b))
}

// A refetch of a child object finds a change without a webhook. It is believed to be missing only
// if the same key finds its parent, even a deleted one.
func TestRefetch_childObjects_needTheirParent(t *testing.T) {
	t.Parallel()
	b := newChildEnv(t, reconciled.SameCaller)
	ids := map[string][]string{}
	for _, o := range b.Fake.CurrentObjects() {
		ids[o.Type] = append(ids[o.Type], o.ID)
	}
	card, person, unheard := ids["card"][0], ids["person"][0], ids["person"][1]
	owner := b.DB.QueryStrings(t, `SELECT state ->> 'customer' FROM objects WHERE object_id = '`+card+`'`)[0]
	b.Fake.SetWithoutEvent(reconciled.ConnectedAccount, card, map[string]any{"exp_year": 2044})
	// as if its event had been dropped
	b.DB.Exec(t, `DELETE FROM outcomes WHERE event_id IN (SELECT id FROM events WHERE object_id = $1)`, unheard)
	b.Fake.Advance(time.Minute)
	refetchParams := func(objectType, id string) reconcile.Params {
		return reconcile.Params{Scope: reconcile.Object, Type: objectType, ID: id, Account: reconciled.ConnectedAccount}
	}
	if r := b.RunToEnd(t, refetchParams("card", card)); r.Status != runs.Done ||
		b.DB.QueryStrings(t, `SELECT state ->> 'exp_year'
		FROM objects WHERE object_id = '`+card+`'`)[0] != "2044" {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	gone := func() string {
		return strings.Join(b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted ORDER BY object_id`), " ")
	}
	b.Fake.SetFaults(stripefake.Faults{SeesNothing: true})
	for objectType, id := range map[string]string{"card": card, "person": person} {
		o := refetchParams(objectType, id)
		run := b.StartRun(t, o)
		r := b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status.Ended() || r.Detail != "" })
		if why := map[string]string{"card": "does not know event",
			"person": "answered 403"}[objectType]; !strings.Contains(r.Detail, why) {
			t.Errorf("%s of an account that shows nothing: %s: %s", objectType, r.Status, r.Detail)
		}
		if !r.Status.Ended() {
			b.SetStatus(t, run, runs.Cancelled)
			b.WaitForEnd(t, run)
		}
	}
	b.Fake.SetFaults(stripefake.Faults{})
	if now := gone(); now != "" {
		t.Fatalf("believed to be missing: %s", now)
	}
	b.Fake.ApplyEvent(reconciled.ConnectedAccount, owner, "customer.deleted")
	b.Fake.ApplyEvent(reconciled.ConnectedAccount, person, "person.deleted")
	b.Fake.ApplyEvent(reconciled.ConnectedAccount, unheard, "person.deleted")
	b.Fake.Advance(time.Minute)
	b.RunToEnd(t, refetchParams("card", card))
	b.RunToEnd(t, refetchParams("person", person))
	if now := gone(); now != card+" "+person {
		t.Errorf("deleted in the mirror: %q", now)
	}
	scanned := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "person",
		Account: reconciled.ConnectedAccount})
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
		return reconciled.InterceptingCaller{Caller: c, Intercept: func(call provider.Call) *providerapi.Response {
			if strings.HasSuffix(call.Path, "/external_accounts") {
				return reconciled.ErrorResponse(http.StatusForbidden)
			}
			return nil
		}}
	})
	const rejected = "/v1/accounts/" + reconciled.ConnectedAccount +
		"/external_accounts: the API of source sim: answered 403"
	r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Account: reconciled.ConnectedAccount})
	report := b.Report(t, r.ID)
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
	b.WantFailure(t, reconcile.Params{Scope: reconcile.Objects, Account: reconciled.ConnectedAccount, Type: "card"},
		rejected)
}

// A platform's live endpoint gets the events of both modes of a connected account, whose charges
// are in one account of the mirror. A live key does not see charges of test mode: they are neither
// refetched nor deleted. A missing charge of live mode is deleted.
func TestObjectScan_otherModeObjects_areUnrepaired(t *testing.T) {
	t.Parallel()
	const key, connected = "rk_live_all", "acct_1"
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 13, LiveMode: true, Accounts: []string{connected},
		Restricted: map[string][]string{key: {"charges", "events"}}})
	kept := b.Fake.Create(connected, "charge", nil)
	b.Deliver(t, reconciled.LoseNone)
	for id, live := range map[string]bool{"ch_test": false, "ch_gone": true} {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).*
			FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', $1::text, 'state',
				o.state || jsonb_build_object('id', $1::text, 'livemode', $2::bool))) AS o
			FROM objects o WHERE object_id = $3) o`, id, live, kept)
	}
	b.Fake.Advance(time.Minute)
	api := b.APIAt(b.Fake.URL)
	api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
	b.StartReconciler(t, b.Runner(t, api, reconciled.SameCaller))
	run := func(o reconcile.Params) *runs.Run {
		o.Account, o.Type = connected, "charge"
		return b.RunToEnd(t, o)
	}
	scanned := run(reconcile.Params{Scope: reconcile.Objects})
	reconciled.WantCounts(t, scanned, reconciled.Counts{objectscan.Equal: 1, objectscan.Orphans: 1,
		objectscan.Unrepaired: 1})
	reconciled.WantRunFailed(t, run(reconcile.Params{Scope: reconcile.Object, ID: "ch_test"}), "test or live")
	b.WantRows(t, `SELECT object_id || ' ' || deleted FROM objects ORDER BY object_id`, kept+" false", "ch_gone true",
		"ch_test false")
	for _, r := range b.Fake.Requests() {
		if strings.HasSuffix(r.Path, "/ch_test") {
			t.Errorf("%s was requested: %s", r.Path, fmt.Sprint(r.Status))
		}
	}
}

// childDifferences returns the child objects that differ in the mirror.
func childDifferences(t *testing.T, b *reconciled.StripeEnv) (wrong []string) {
	t.Helper()
	for _, o := range b.Fake.CurrentObjects() {
		account, below := reconciled.ChildTypes[o.Type]
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
