package stripe_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// Responses to GET, read by the rule of their type.
func TestSnapshot_bodies_giveObservation(t *testing.T) {
	t.Parallel()
	type result struct {
		Deleted, Final, Own bool
		At                  int64
		State               string
	}
	for name, c := range map[string]struct {
		objectType, id, body string
		want                 result
		dead                 bool
	}{
		"whole": {"customer", "cus_1", `{"id":"cus_1","object":"customer","name":"A"}`,
			result{State: `{"id":"cus_1","object":"customer","name":"A"}`}, false},
		"stub, ids never reused": {"customer", "cus_1", `{"id":"cus_1","object":"customer","deleted":true}`,
			result{Deleted: true, Final: true}, false},
		"stub of a chosen id": {"product", "gold", `{"id":"gold","object":"product","deleted":true}`,
			result{Deleted: true}, false},
		"missing": {"price", "price_1", "", result{Deleted: true}, false},
		"own version": {"product", "prod_1", `{"id":"prod_1","object":"product","updated":1800000000}`,
			result{Own: true, At: 1_800_000_000_000_000,
				State: `{"id":"prod_1","object":"product","updated":1800000000}`}, false},
		"canceled is not deleted": {"subscription", "sub_1",
			`{"id":"sub_1","object":"subscription","status":"canceled"}`,
			result{State: `{"id":"sub_1","object":"subscription","status":"canceled"}`}, false},
		"one without an id": {"cash_balance", "cus_1", `{"object":"cash_balance","customer":"cus_1"}`,
			result{State: `{"object":"cash_balance","customer":"cus_1"}`}, false},
		"another object": {"customer", "cus_1", `{"id":"cus_2","object":"customer"}`, result{}, true},
		"another type":   {"customer", "cus_1", `{"id":"cus_1","object":"charge"}`, result{}, true},
		"no JSON":        {"customer", "cus_1", `<html>`, result{}, true},
	} {
		s := &provider.Snapshot{ObjectType: c.objectType, ObjectID: c.id, Missing: c.body == "", Body: []byte(c.body)}
		o, err := stripe.Stripe{}.Snapshot(&provider.Source{}, s)
		var dead *provider.Dead
		if errors.As(err, &dead) != c.dead || !c.dead && err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if o.OwnVersion && !o.HasAt {
			t.Errorf("%s: the own version is not used", name)
		}
		if got := (result{o.Deleted, o.Final, o.OwnVersion, o.At, string(o.State.Raw())}); !c.dead && got != c.want {
			t.Errorf("%s: %s", name, cmp.Diff(c.want, got))
		}
	}
}

// An object without livemode has the mode of its event, and of the key that reads it, so both modes
// can be refetched.
func TestSnapshot_modes_areSeparateAccounts(t *testing.T) {
	t.Parallel()
	src := &provider.Source{}
	for objectType, object := range map[string]string{
		"account":          `{"id":"acct_1","object":"account","charges_enabled":true}`,
		"capability":       `{"id":"card_payments","object":"capability","account":"acct_1","status":"active"}`,
		"balance_settings": `{"object":"balance_settings","payments":{}}`,
		"balance":          `{"object":"balance","livemode":%t}`,
		"product":          `{"id":"gold","object":"product","deleted":true}`,
	} {
		for _, live := range []bool{true, false} {
			if strings.Contains(object, "%t") {
				object = fmt.Sprintf(object, live)
			}
			event := fmt.Sprintf(`{"id":"evt_1","object":"event","type":"%s.updated","account":"acct_1",`+
				`"created":1790000000,"livemode":%t,"data":{"object":%s}}`, objectType, live, object)
			o, err := stripe.Stripe{}.Observe(src, &provider.StoredEvent{Body: []byte(event)})
			if want := map[bool]string{true: "acct_1", false: "acct_1/test"}[live]; err != nil || o.Account != want {
				t.Errorf("%s, live %t: stored under %q (%v), want %q", objectType, live, o.Account, err, want)
			}
			for key, reads := range map[string]bool{"rk_live_x": live, "rk_test_x": !live, "sk_org_live_x": live,
				"sk_org_test_x": !live} {
				api := &provider.API{Key: provider.Secret{Value: []byte(key)}}
				if _, ok := (stripe.Stripe{}).Fetch(src, api, o.Account, o.ObjectType, o.ObjectID); ok != reads {
					t.Errorf("%s, live %t, is requested with %s: %t", objectType, live, key, ok)
				}
			}
			if _, err := (stripe.Stripe{}).Snapshot(src, &provider.Snapshot{Account: o.Account,
				ObjectType: o.ObjectType, ObjectID: o.ObjectID, Body: []byte(object)}); err != nil {
				t.Errorf("%s, live %t: %v", objectType, live, err)
			}
			if strings.Contains(object, "livemode") {
				other := strings.Replace(object, fmt.Sprint(live), fmt.Sprint(!live), 1)
				if _, err := (stripe.Stripe{}).Snapshot(src, &provider.Snapshot{Account: o.Account,
					ObjectType: o.ObjectType, ObjectID: o.ObjectID, Body: []byte(other)}); err == nil {
					t.Errorf("%s, live %t: an object of the other mode is accepted", objectType, live)
				}
				object = strings.Replace(object, fmt.Sprint(live), "%t", 1)
			}
		}
	}
}

// Objects below another object are read with the owner in their state or event. The owner also
// proves that they are missing. The owner's mode is the key's; for a connected account an event
// must give it.
func TestLocate_types_findCallBelowOwner(t *testing.T) {
	t.Parallel()
	event := func(live bool, object string) string {
		return fmt.Sprintf(`{"id": "evt_1", "object": "event", "type": "x", "created": 100, `+
			`"livemode": %t, "data": {"object": %s}}`, live, object)
	}
	const card, externalAccounts, person = `{"object": "card", "id": "card_1", "customer": "cus_1"}`,
		`{"object": "card", "id": "card_1", "account": "acct_1", "customer": null}`,
		`{"object": "person", "account": "acct_1"}`
	for name, c := range map[string]struct{ key, account, objectType, id, state, newest, want, check string }{
		"a customer's card": {"sk_live_1", "", "card", "card_1", card, "",
			"/v1/customers/cus_1/sources/card_1", "/v1/customers/cus_1"},
		"a connected account's": {"sk_live_1", "acct_1", "card", "card_1", card, "",
			"acct_1 /v1/customers/cus_1/sources/card_1 Stripe-Account=acct_1",
			"acct_1 /v1/customers/cus_1 Stripe-Account=acct_1"},
		"by its event": {"sk_live_1", "", "card", "card_1", "", event(true, card),
			"/v1/customers/cus_1/sources/card_1", "/v1/customers/cus_1"},
		"outside": {"sk_live_1", "acct_1", "card", "card_1", externalAccounts, event(true, externalAccounts),
			"acct_1 /v1/accounts/acct_1/external_accounts/card_1", "acct_1 /v1/accounts/acct_1"},
		"external account, unknown mode": {"sk_live_1", "acct_1", "bank_account", "ba_1", externalAccounts, "",
			"acct_1 /v1/accounts/acct_1/external_accounts/ba_1", ""},
		"external account, other mode": {"sk_live_1", "acct_1", "card", "card_1", externalAccounts,
			event(false, externalAccounts), "none", ""},
		"another form of key": {"key", "acct_1", "card", "card_1", externalAccounts, event(false, externalAccounts),
			"acct_1 /v1/accounts/acct_1/external_accounts/card_1", "acct_1 /v1/accounts/acct_1"},
		"external account, account not named": {"sk_live_1", "acct_1", "bank_account", "ba_1", "",
			event(true, `{"object": "bank_account"}`), "acct_1 /v1/accounts/acct_1/external_accounts/ba_1",
			"acct_1 /v1/accounts/acct_1"},
		"a person": {"rk_test_1", "acct_1", "person", "person_1", person, event(false, person),
			"acct_1 /v1/accounts/acct_1/persons/person_1", "acct_1 /v1/accounts/acct_1"},
		"a person of unknown mode": {"rk_test_1", "acct_1", "person", "person_1", person, "",
			"acct_1 /v1/accounts/acct_1/persons/person_1", ""},
		"a refund of a fee": {"sk_live_1", "", "fee_refund", "fr_1", `{"fee": "fee_1"}`, "",
			"/v1/application_fees/fee_1/refunds/fr_1", "/v1/application_fees/fee_1"},
		"a source's transaction": {"sk_live_1", "", "source_transaction", "srctxn_1",
			`{"source": "src_1", "livemode": true}`, "", "/v1/sources/src_1/source_transactions/srctxn_1",
			"/v1/sources/src_1"},
		"of the other mode, by state": {"sk_live_1", "", "source_transaction", "srctxn_1",
			`{"source": "src_1", "livemode": false}`, "", "none", ""},
		"a customer's cash": {"sk_live_1", "", "customer_cash_balance_transaction", "ccsbtxn_1",
			`{"customer": "cus_1"}`, "", "/v1/customers/cus_1/cash_balance_transactions/ccsbtxn_1",
			"/v1/customers/cus_1"},
		"no state and no event": {"sk_live_1", "", "card", "card_1", "", "", "none", ""},
		"no owner": {"sk_live_1", "", "card", "card_1", `{"customer": null}`,
			event(true, `{"object": "card"}`), "none", ""},
		"owner id with dots":  {"sk_live_1", "", "card", "card_1", `{"customer": ".."}`, "", "none", ""},
		"object id with dots": {"sk_live_1", "", "card", "..", card, "", "none", ""},
		"object that is read by its id": {"sk_live_1", "", "customer", "cus_1", `{"customer": "cus_1"}`, "", "none",
			""},
	} {
		var newest *provider.StoredEvent
		if c.newest != "" {
			newest = &provider.StoredEvent{Body: []byte(c.newest)}
		}
		call, check, ok := stripe.Stripe{}.Locate(withKey(c.key), c.account, c.objectType, c.id, []byte(c.state),
			newest)
		if got := describeCall(call, ok); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if got := describeCall(check, true); strings.TrimSpace(got) != c.check {
			t.Errorf("%s: check %s, want %s", name, got, c.check)
		}
	}
}

// Objects below other objects are listed once each, however many an owner has. So are objects with
// a test clock.
func TestListObjects_objectsBelowOwners_areListed(t *testing.T) {
	t.Parallel()
	const shop = "acct_1"
	f := stripefake.New(t, stripefake.Options{Seed: 5, Accounts: []string{shop}})
	f.Create(shop, "account", nil)
	f.Create("", "account", nil)
	below := map[string]string{"card": "customer", "tax_id": "customer", "fee_refund": "application_fee",
		"treasury.received_credit": "treasury.financial_account"}
	fields := map[string]string{"card": "customer", "tax_id": "customer", "fee_refund": "fee",
		"treasury.received_credit": "financial_account"}
	for _, account := range []string{"", shop} {
		for objectType, owner := range below {
			for _, n := range []int{23, 0, 1, 10, 0, 11, 8, 0, 0, 7} {
				of := f.Create(account, owner, nil)
				for range n {
					f.Create(account, objectType, map[string]any{fields[objectType]: of})
				}
			}
		}
		for range 9 {
			f.Create(account, "person", nil)
			f.Create(account, "bank_account", nil)
		}
		for _, objectType := range []string{"customer", "subscription"} {
			clock := f.Create(account, "test_helpers.test_clock", nil)
			for range 12 {
				f.Create(account, objectType, map[string]any{"test_clock": clock})
			}
		}
	}
	truth := map[string][]string{}
	deleted := 0
	for i, o := range f.CurrentObjects() {
		if event := map[string]string{"card": "customer.source.deleted", "person": "person.deleted",
			"bank_account": "account.external_account.deleted"}[o.Type]; event != "" && i%7 == 0 {
			f.ApplyEvent(o.Account, o.ID, event)
			deleted++
			continue
		}
		account := o.Account
		if o.Type == "account" {
			account = strings.TrimPrefix(account+"/test", "/")
		}
		truth[account+" "+o.Type] = append(truth[account+" "+o.Type], o.ID)
	}
	delete(truth, " person") // the id of the key's own account is unknown
	delete(truth, " bank_account")
	if deleted < 10 || len(truth) < 20 {
		t.Fatalf("%d are deleted, of %d types", deleted, len(truth))
	}
	for what, want := range truth {
		account, objectType, _ := strings.Cut(what, " ")
		if _, ok := (stripe.Stripe{}).Lists(&provider.Source{}, withKey(stripefake.Key), account)[objectType]; !ok {
			t.Errorf("%s is not listed", what)
			continue
		}
		got := listed(t, f, account, objectType, func(c *provider.Call) {
			if c.Query.Has("limit") {
				c.Query.Set("limit", "7")
			}
		})
		if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("of %s the list contains %v, the fake has %v", what, got, want)
		}
	}
}
