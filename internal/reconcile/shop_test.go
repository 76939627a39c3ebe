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
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// shop is a source of Stripe's, whose account lives in a fake that real clients call.
type shop struct {
	*world
	fake   *stripefake.Fake
	config *provider.Source
}

// newShop has a source that is pinned to an account, or to none.
func newShop(t *testing.T, pinned string, o stripefake.Options) *shop {
	t.Helper()
	b := &shop{world: bare(t), fake: stripefake.New(t, o), config: &provider.Source{Name: applied.Name, Account: pinned}}
	s := b.Sources[applied.Name]
	s.Config, s.Provider = b.config, stripe.Stripe{}
	b.Sources[applied.Name] = s
	return b
}

// deliver stores and applies webhooks of the account that the choice lets through, and returns how many were not.
func (b *shop) deliver(t *testing.T, lost func(n int) bool) (missing int64) {
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
	applied.Deliver(t, b.gateway, b.Processor(t, nil), b.Sources[applied.Name], ds...)
	return missing
}

// runner is one of a process of its own, with its own client, whose calls go through watch.
func (b *shop) runner(t *testing.T, api *provider.API, watch func(reconcile.Caller) reconcile.Caller) *reconcile.Runner {
	t.Helper()
	sources := &reconcile.Sources{}
	source := &reconcile.Source{Name: applied.Name, Number: b.Source, Config: b.config, API: api, Provider: stripe.Stripe{}, Reader: stripe.Stripe{}}
	source.Caller = watch(newClient(t, b.Pool, source))
	sources.Replace(source)
	s := reconcile.DefaultSettings
	s.Again, s.Settle = 10*time.Millisecond, time.Second
	return &reconcile.Runner{Pool: b.Pool, Log: b.gateway, Processor: b.Processor(t, nil), Sources: sources, Settings: s}
}

func (b *shop) api(url string) *provider.API {
	return &provider.API{BaseURL: url, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)}, Version: stripefake.Version, Rate: 1000, Concurrency: 3, Timeout: 30 * time.Second, MaxBytes: 8 << 20}
}

func asIs(c reconcile.Caller) reconcile.Caller { return c }

// The account that a source is pinned to is not named by its webhooks, and so not by what is listed of it: one event is one, whoever tells it.
func TestThePinnedAccountsEventsAreItsWebhooks(t *testing.T) {
	t.Parallel()
	b := newShop(t, stripefake.Own, stripefake.Options{Seed: 3, Objects: 8})
	b.fake.Live(60)
	missing := b.deliver(t, func(n int) bool { return n%3 == 0 })
	b.fake.Advance(time.Minute)
	b.carry(t, b.runner(t, b.api(b.fake.URL), asIs))
	run := b.order(t, reconcile.Order{Account: stripefake.Own, What: reconcile.Events})
	r := b.ended(t, run)
	all := int64(len(b.fake.Events()))
	if r.Status != runs.Done || r.Counts[reconcile.Missing] != missing || r.Counts[reconcile.Present] != all-missing || missing == 0 {
		t.Errorf("%s with %v, want %d missing of %d: %s", r.Status, r.Counts, missing, all, r.Detail)
	}
	b.rows(t, `SELECT DISTINCT account FROM events ORDER BY 1`, stripefake.Own, stripefake.Own+"/test")
	b.rows(t, `SELECT account FROM budgets`, "")
}

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
	b.deliver(t, every)
	b.carry(t, b.runner(t, b.api(b.fake.URL), calls))
	return b
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
	b.deliver(t, lost)
	if wrong := b.wrongs(t); len(wrong) < 40 {
		t.Fatalf("%d objects are wrong: there is little to prove", len(wrong))
	}
	for objectType, account := range belowTypes {
		r := b.ask(t, reconcile.Order{What: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[reconcile.Left] != 0 || c[reconcile.Different]+c[reconcile.Behind] == 0 {
			t.Errorf("%s: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		before := len(b.fake.Requests())
		r = b.ask(t, reconcile.Order{What: reconcile.Objects, Type: objectType, Account: account})
		if c := r.Counts; r.Status != runs.Done || c[reconcile.Seen] == 0 || c[reconcile.Equal] != c[reconcile.Seen] {
			t.Errorf("%s, again: %s with %v: %s", objectType, r.Status, c, r.Detail)
		}
		for _, one := range b.fake.Requests()[before:] {
			if last := one.Path[strings.LastIndex(one.Path, "/")+1:]; strings.Contains(last, "_Fake") {
				t.Errorf("%s: %s was asked for", objectType, one.Path)
			}
		}
	}
	none(t, b.wrongs(t))
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
	if r := b.ask(t, look("card", card)); r.Status != runs.Done || b.DB.Rows(t, `SELECT state ->> 'exp_year' FROM objects WHERE object_id = '`+card+`'`)[0] != "2044" {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	gone := func() string {
		return strings.Join(b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted ORDER BY object_id`), " ")
	}
	b.fake.SetFaults(stripefake.Faults{Blind: true})
	for objectType, id := range map[string]string{"card": card, "person": person} {
		o := look(objectType, id)
		o.Source = b.Source
		run := b.order(t, o)
		r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() || r.Detail != "" })
		if why := map[string]string{"card": "does not know event", "person": "answered 403"}[objectType]; !strings.Contains(r.Detail, why) {
			t.Errorf("%s of an account that shows nothing: %s: %s", objectType, r.Status, r.Detail)
		}
		if !r.Status.Final() {
			b.turn(t, run, runs.Cancelled)
			b.ended(t, run)
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
	b.ask(t, look("card", card))
	b.ask(t, look("person", person))
	if now := gone(); now != card+" "+person {
		t.Errorf("deleted in the mirror: %q", now)
	}
	swept := b.ask(t, reconcile.Order{What: reconcile.Objects, Type: "person", Account: connected})
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
	r := b.ask(t, reconcile.Order{What: reconcile.Objects, Account: connected})
	report := b.report(t, r.Run)
	if r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
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
	b.fails(t, reconcile.Order{What: reconcile.Objects, Account: connected, Type: "card"}, refused)
}

// A platform's live endpoint gets the events of both modes of a connected account, whose charges are kept under one account. A live key does not see those of test mode: they are neither asked for nor
// taken for missing, while one of live mode that is gone is.
func TestASweepLeavesTheOtherMode(t *testing.T) {
	t.Parallel()
	const key, connected = "rk_live_all", "acct_1"
	b := newShop(t, "", stripefake.Options{Seed: 13, Live: true, Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
	kept := b.fake.Create(connected, "charge", nil)
	b.deliver(t, every)
	for id, live := range map[string]bool{"ch_test": false, "ch_gone": true} {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_id', $1::text, 'state', o.state || jsonb_build_object('id', $1::text, 'livemode', $2::bool))) AS o
			FROM objects o WHERE object_id = $3) o`, id, live, kept)
	}
	b.fake.Advance(time.Minute)
	api := b.api(b.fake.URL)
	api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
	b.carry(t, b.runner(t, api, asIs))
	run := func(o reconcile.Order) *runs.Run {
		o.Source, o.Account, o.Type = b.Source, connected, "charge"
		id := b.order(t, o)
		return b.ended(t, id)
	}
	swept := run(reconcile.Order{What: reconcile.Objects})
	if c := swept.Counts; swept.Status != runs.Done || c[reconcile.Equal] != 1 || c[reconcile.Ghosts] != 1 || c[reconcile.Left] != 1 {
		t.Errorf("%s with %v: %s", swept.Status, c, swept.Detail)
	}
	if looked := run(reconcile.Order{What: reconcile.Object, ID: "ch_test"}); looked.Status != runs.Failed || !strings.Contains(looked.Detail, "test or live") {
		t.Errorf("a look with the key of the other mode: %s: %s", looked.Status, looked.Detail)
	}
	b.rows(t, `SELECT object_id || ' ' || deleted FROM objects ORDER BY object_id`, kept+" false", "ch_gone true", "ch_test false")
	for _, r := range b.fake.Requests() {
		if strings.HasSuffix(r.Path, "/ch_test") {
			t.Errorf("%s was asked for: %s", r.Path, fmt.Sprint(r.Status))
		}
	}
}
