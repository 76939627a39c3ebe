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

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

const connected = "acct_1"

// belowTypes are types whose objects lie below others, with the account that a sweep of them is of.
var belowTypes = map[string]string{"card": connected, "tax_id": connected, "person": connected, "bank_account": connected, "account": connected + "/test", "treasury.received_credit": connected, "fee_refund": connected}

// below is a shop with a connected account in which there is something of each type, of which all webhooks came.
func below(t *testing.T, calls func(reconcile.Caller) reconcile.Caller) *shop {
	t.Helper()
	b := newShop(t, "", stripefake.Options{Seed: 3, Accounts: []string{connected}})
	b.fake.Create(connected, "account", nil)
	for range 5 {
		for _, owner := range []string{"customer", "application_fee", "treasury.financial_account"} {
			b.fake.Create(connected, owner, nil)
		}
	}
	for range 30 {
		for objectType := range belowTypes {
			if objectType != "account" {
				b.fake.Create(connected, objectType, nil)
			}
		}
	}
	b.fake.Advance(time.Minute)
	b.deliver(t, func(int) bool { return false })
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, b.api(b.fake.URL), calls).Carry})
	return b
}

// order is a reconciliation, ended.
func (b *shop) order(t *testing.T, o reconcile.Order) *runs.Run {
	t.Helper()
	o.Source = b.Source
	id, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return b.Until(t, id, func(r *runs.Run) bool { return r.Status.Final() })
}

// wrongs are the objects below others that the mirror does not show as they are.
func (b *shop) wrongs(t *testing.T) (wrong []string) {
	t.Helper()
	for _, o := range b.fake.Truth() {
		account, below := belowTypes[o.Type]
		if !below {
			continue
		}
		var state []byte
		var deleted bool
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT state, deleted FROM objects WHERE account = $1 AND object_type = $2 AND object_id = $3`, account, o.Type, o.ID).Scan(&state, &deleted)
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
			wrong = append(wrong, fmt.Sprintf("%s %s: %v: deleted %t: %s", o.Type, o.ID, err, deleted, cmp.Diff(want, is)))
		}
	}
	return wrong
}

// Sweeps of what lies below other objects find what is missing, behind and gone, also below an owner that was deleted itself; a second one finds all equal, and asks for none by itself.
func TestSweepsOfWhatLiesBelow(t *testing.T) {
	t.Parallel()
	b := below(t, asIs)
	if wrong := b.wrongs(t); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	n := 0
	for _, o := range b.fake.Truth() {
		if _, below := belowTypes[o.Type]; !below || o.Type == "account" {
			continue
		}
		switch n++; {
		case n%9 == 0 && o.Type == "card":
			b.fake.Do(connected, o.ID, "customer.source.deleted")
		case n%9 == 0 && o.Type == "person":
			b.fake.Do(connected, o.ID, "person.deleted")
		case n%9 == 0 && o.Type == "bank_account":
			b.fake.Do(connected, o.ID, "account.external_account.deleted")
		case n%9 == 1:
			b.fake.SetQuietly(connected, o.ID, map[string]any{"changed": "1"})
		case n%9 == 2:
			b.fake.Create(connected, o.Type, nil)
		}
	}
	b.fake.SetQuietly(connected, connected, map[string]any{"email": "ada@postern.example"})
	b.fake.Advance(time.Minute)
	b.deliver(t, func(int) bool { return true })
	if wrong := b.wrongs(t); len(wrong) < 40 {
		t.Fatalf("%d objects are wrong: there is little to prove", len(wrong))
	}
	for objectType, account := range belowTypes {
		r := b.order(t, reconcile.Order{What: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[reconcile.Left] != 0 || c[reconcile.Different]+c[reconcile.Behind] == 0 {
			t.Errorf("%s: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		before := len(b.fake.Requests())
		r = b.order(t, reconcile.Order{What: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[reconcile.Seen] == 0 || c[reconcile.Equal] != c[reconcile.Seen] {
			t.Errorf("%s, again: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		for _, one := range b.fake.Requests()[before:] {
			if last := one.Path[strings.LastIndex(one.Path, "/")+1:]; strings.Contains(last, "_Fake") {
				t.Errorf("%s: %s was asked for", objectType, one.Path)
			}
		}
	}
	for _, w := range b.wrongs(t) {
		t.Error(w)
	}
}

// A look at what lies below another object finds what no webhook told; that it is missing is believed where its owner is found with the same key, also where that was deleted, and only there.
func TestLooksBelow(t *testing.T) {
	t.Parallel()
	b := below(t, asIs)
	ids := map[string][]string{}
	for _, o := range b.fake.Truth() {
		ids[o.Type] = append(ids[o.Type], o.ID)
	}
	card, person, unheard := ids["card"][0], ids["person"][0], ids["person"][1]
	owner := b.DB.Rows(t, `SELECT state ->> 'customer' FROM objects WHERE object_id = '`+card+`'`)[0]
	b.fake.SetQuietly(connected, card, map[string]any{"exp_year": 2044})
	b.DB.Exec(t, `DELETE FROM outcomes WHERE event_id IN (SELECT id FROM events WHERE object_id = $1)`, unheard) // as if its event had been dropped
	b.fake.Advance(time.Minute)
	look := func(objectType, id string) reconcile.Order {
		return reconcile.Order{What: reconcile.Object, Type: objectType, ID: id, Account: connected}
	}
	if r := b.order(t, look("card", card)); r.Status != runs.Done || b.DB.Rows(t, `SELECT state ->> 'exp_year' FROM objects WHERE object_id = '`+card+`'`)[0] != "2044" {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	gone := func() string {
		return strings.Join(b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted ORDER BY object_id`), " ")
	}
	b.fake.SetFaults(stripefake.Faults{Blind: true})
	for objectType, id := range map[string]string{"card": card, "person": person} {
		o := look(objectType, id)
		o.Source = b.Source
		run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
		if err != nil {
			t.Fatal(err)
		}
		r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() || r.Detail != "" })
		if why := map[string]string{"card": "does not know event", "person": "answered 403"}[objectType]; !strings.Contains(r.Detail, why) {
			t.Errorf("%s of an account that shows nothing: %s: %s", objectType, r.Status, r.Detail)
		}
		if !r.Status.Final() {
			if err := runs.Change(t.Context(), b.Operator, run, runs.Cancelled); err != nil {
				t.Fatal(err)
			}
			b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
		}
	}
	b.fake.SetFaults(stripefake.Faults{})
	if now := gone(); now != "" {
		t.Fatalf("taken for missing: %s", now)
	}
	b.fake.Do(connected, owner, "customer.deleted")
	b.fake.Do(connected, person, "person.deleted")
	b.fake.Do(connected, unheard, "person.deleted")
	b.fake.Advance(time.Minute)
	b.order(t, look("card", card))
	b.order(t, look("person", person))
	if now := gone(); now != card+" "+person {
		t.Errorf("deleted in the mirror: %q", now)
	}
	swept := b.order(t, reconcile.Order{What: reconcile.Objects, Type: "person", Account: connected})
	if swept.Status != runs.Done || swept.Counts[reconcile.Left] != 1 || gone() != card+" "+person {
		t.Errorf("of a person of whom no event tells the mode: %s with %v; deleted are %q", swept.Status, swept.Counts, gone())
	}
}

// Where the key may not read what a connected account is paid out to, its cards and bank accounts are unlisted, those of its customers too: the run says which list it is that is refused, and sweeps the other types.
func TestExternalAccountsThatAreRefused(t *testing.T) {
	t.Parallel()
	b := below(t, func(c reconcile.Caller) reconcile.Caller {
		return meddling{c, func(call provider.Call) *reconcile.Response {
			if strings.HasSuffix(call.Path, "/external_accounts") {
				return failing(http.StatusForbidden)
			}
			return nil
		}}
	})
	const refused = "/v1/accounts/" + connected + "/external_accounts: the API of source sim: answered 403"
	r := b.order(t, reconcile.Order{What: reconcile.Objects, Account: connected})
	report, err := reconcile.Drift(t.Context(), b.Operator, r.Run)
	if err != nil || r.Status != runs.Done {
		t.Fatalf("%s (%v): %s", r.Status, err, r.Detail)
	}
	var unlisted []string
	for _, of := range report.Types {
		if strings.Contains(of.Why, "external_accounts") {
			unlisted = append(unlisted, of.ObjectType+" "+of.Phase)
			if !strings.HasPrefix(of.Why, refused) {
				t.Errorf("%s: %s", of.ObjectType, of.Why)
			}
		}
	}
	if want := []string{"bank_account unlisted", "card unlisted"}; !slices.Equal(unlisted, want) || b.DB.Rows(t, `SELECT count(*)::text FROM watermarks WHERE what IN ('type tax_id', 'type person')`)[0] != "2" {
		t.Errorf("%q, want %q; %s %v: %s", unlisted, want, r.Status, r.Counts, r.Detail)
	}
	if r := b.order(t, reconcile.Order{What: reconcile.Objects, Account: connected, Type: "card"}); r.Status != runs.Failed || !strings.Contains(r.Detail, refused) {
		t.Errorf("asked for alone: %s: %s", r.Status, r.Detail)
	}
}
