package reconcile_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// every reconciles all accounts, one after the other, in a process whose source excepts some. It returns the runs that were
// entered, when they have ended, by their account.
func (b *shop) every(t *testing.T, api *provider.API, except []string, o reconcile.Order) map[string]*runs.Run {
	t.Helper()
	r := b.runner(t, api, asIs)
	r.Sources.All()[b.Source].Except = except
	defer b.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: r.Carry})()
	o.Source, o.AllAccounts = b.Source, true
	run := b.order(t, o)
	isDone(t, b.ended(t, run))
	entered, err := reconcile.Entered(t.Context(), b.Operator, run)
	if err != nil {
		t.Fatal(err)
	}
	if len(entered) == 0 { // the run itself was the one account's, or there is none
		entered = append(entered, run)
	}
	ended := map[string]*runs.Run{}
	for _, run := range entered {
		ended[b.of(t, run)] = b.ended(t, run)
	}
	return ended
}

// of is the account that a run was asked for.
func (b *shop) of(t *testing.T, run int64) string {
	t.Helper()
	return one[string](t, b.world, `SELECT asked ->> 'account' FROM runs WHERE run = $1`, run)
}

// names are the accounts of some runs, in order.
func names(ended map[string]*runs.Run) []string {
	return slices.Sorted(maps.Keys(ended))
}

// All accounts are all but those that the configuration excepts, with all that the mirror keeps of them, by what name ever; asked for by its name each is reconciled.
func TestExceptedAccountsAreReconciledOnRequestAlone(t *testing.T) {
	t.Parallel()
	for _, pinned := range []string{"", stripefake.Own} {
		b := newShop(t, pinned, stripefake.Options{Seed: 3, Objects: 30, Accounts: []string{"acct_B", "acct_C"}})
		b.config.Accounts = []string{"acct_B", "*"}
		b.fake.Live(400)
		b.deliver(t, every)
		b.fake.Advance(time.Minute)
		api := b.api(b.fake.URL)
		part := "test"
		if pinned != "" {
			part = pinned + "/test"
		}
		// Each is held against its own objects, also those of an account that is named by nobody but the source.
		for objectType, want := range map[string][]string{"subscription": {pinned, "acct_B", "acct_C"}, "product": {part, "acct_B/test", "acct_C/test"}} {
			var got []string
			for _, r := range b.every(t, api, nil, reconcile.Order{What: reconcile.Objects, Type: objectType, DryRun: true}) {
				if got = append(got, b.report(t, r.Run).Account); r.Counts[reconcile.Missing] != 0 ||
					r.Counts[reconcile.Equal] == 0 {
					t.Errorf("pinned to %q: %s %s %v: %s", pinned, objectType, r.Status, r.Counts, r.Detail)
				}
			}
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("pinned to %q: %s of accounts %q, want %q", pinned, objectType, got, want)
			}
		}
		for _, one := range []struct {
			except           []string
			events, products []string
		}{
			{nil, []string{"", "acct_B", "acct_C"}, []string{part, "acct_B/test", "acct_C/test"}},
			{[]string{"acct_B"}, []string{"", "acct_C"}, []string{part, "acct_C/test"}},
			{[]string{""}, []string{"acct_B", "acct_C"}, []string{"acct_B/test", "acct_C/test"}},
		} {
			if got := names(b.every(t, api, one.except, reconcile.Order{What: reconcile.Events, DryRun: true})); !slices.Equal(got, one.events) {
				t.Errorf("pinned to %q, without %q: events of %q, want %q", pinned, one.except, got, one.events)
			}
			slices.Sort(one.products)
			if got := names(b.every(t, api, one.except, reconcile.Order{What: reconcile.Objects, Type: "product", DryRun: true})); !slices.Equal(got, one.products) {
				t.Errorf("pinned to %q, without %q: products of %q, want %q", pinned, one.except, got, one.products)
			}
		}
		r := b.runner(t, api, asIs)
		r.Sources.All()[b.Source].Except = []string{"", "acct_B", "acct_C"}
		b.carry(t, r)
		for _, asked := range []reconcile.Order{{AllAccounts: true}, {Account: "acct_B"}, {}} {
			asked.What, asked.DryRun = reconcile.Events, true
			ended := b.ask(t, asked)
			n, each := ended.Counts[reconcile.Accounts]
			if ended.Status != runs.Done || each != asked.AllAccounts || n != 0 || (ended.Counts[reconcile.Seen] > 0) == each {
				t.Errorf("pinned to %q, %v: %s %v: %s", pinned, asked, ended.Status, ended.Counts, ended.Detail)
			}
		}
	}
}

// What was proven and found of an excepted account, and of its part in test mode, does not hide how far the others are; how many are left out is told.
func TestExceptedAccountsAreNotMeasured(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 3})
	b.DB.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) SELECT $1, m.account, m.what, to_timestamp(0), to_timestamp(m.until), 1, now()
		FROM (VALUES ('', 'events', 3000), ('acct_gone', 'events', 1000), ('acct_1', 'events', 2000), ('acct_1', 'type product', 2000), ('acct_gone/test', 'type product', 1000), ('acct_gone', 'type person', 1)) m(account, what, until)`, b.Source)
	b.DB.Exec(t, `INSERT INTO runs (run, job, asked, who, reason, detail, counts, status, made_at, updated_at, ended_at) OVERRIDING SYSTEM VALUE
		SELECT n, 'reconcile', '{}', 'test', '', '', '{}', 'done', now(), now(), now() FROM generate_series(1, 3) n`)
	b.DB.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at, remaining) SELECT s.run, $1, s.account, 'product', 'done', now(), now(), s.remaining
		FROM (VALUES (1, 'acct_1', 5), (2, 'acct_left', 70), (3, 'acct_gone/test', 600)) s(run, account, remaining)`, b.Source)
	sources := b.runner(t, b.api(b.fake.URL), asIs).Sources
	reg := prometheus.NewRegistry()
	o, err := reconcile.NewOwed(reg, sources)
	if err != nil {
		t.Fatal(err)
	}
	const until, left = "postern_proven_until_timestamp_seconds sim ", "postern_drift_left_objects sim product"
	for _, one := range []struct {
		except []string
		want   map[string]float64
	}{
		{nil, map[string]float64{until + "events": 1000, until + "type product": 1000, until + "type person": 1, left: 675, "postern_accounts_left_out sim excepted": 0}},
		{[]string{"acct_gone"}, map[string]float64{until + "events": 2000, until + "type product": 2000, until + "type person": 0, left: 75, "postern_accounts_left_out sim excepted": 1}},
		{[]string{"acct_gone", "acct_1", "acct_left"}, map[string]float64{until + "events": 3000, until + "type product": 0, left: 0, "postern_accounts_left_out sim excepted": 3}},
		{[]string{"", "acct_gone"}, map[string]float64{until + "events": 2000, "postern_accounts_left_out sim excepted": 2}},
	} {
		sources.All()[b.Source].Except = one.except
		if err := o.Read(t.Context(), b.Pool); err != nil {
			t.Fatal(err)
		}
		got := gauges(t, reg)
		for name, want := range one.want {
			if n, there := got[name]; n != want || there != (want != 0 || name == "postern_accounts_left_out sim excepted") {
				t.Errorf("without %q: %s is %v (%t), want %v", one.except, name, n, there, want)
			}
		}
	}
}

const disconnectedRows = `SELECT account || ' ' || (why LIKE '%may not act for the account%') FROM disconnected ORDER BY 1`

// proving has a platform with connected accounts that are all proven once, an event of each, and others since.
func proving(t *testing.T, accounts ...string) *shop {
	t.Helper()
	b := newShop(t, "", stripefake.Options{Seed: 27, Start: time.Now().Add(-5 * time.Hour), Accounts: accounts})
	for _, account := range append(accounts, "") {
		b.fake.Create(account, "invoice", nil)
	}
	b.deliver(t, every)
	b.fake.Advance(2 * time.Hour)
	b.wantAll(t, b.every(t, b.api(b.fake.URL), nil, reconcile.Order{What: reconcile.Events}), "", runs.Done)
	b.fake.Advance(2 * time.Hour)
	for _, account := range append(accounts, "") {
		b.fake.Create(account, "charge", nil) // whose webhook is lost
	}
	b.deliver(t, lost)
	b.fake.Advance(time.Minute)
	return b
}

// wantAll wants that all runs have ended so, and have met no account that is disconnected.
func (b *shop) wantAll(t *testing.T, ended map[string]*runs.Run, detail string, status runs.Status) {
	t.Helper()
	for account, r := range ended {
		if r.Status != status || !strings.Contains(r.Detail, detail) || r.Counts[reconcile.Disconnected] != 0 {
			t.Errorf("account %q: %s with %v: %s", account, r.Status, r.Counts, r.Detail)
		}
	}
}

// until is how far events of an account are proven.
func (b *shop) until(t *testing.T, account string) time.Time {
	t.Helper()
	_, until := b.provenOf(t, account, reconcile.Events)
	if until.IsZero() {
		t.Fatalf("nothing is proven of account %q", account)
	}
	return until
}

// An account that was disconnected is passed over, at the cost of a call, and stays as it was proven; the others, and what is measured of them, go on. Once it is connected again it is caught up.
func TestADisconnectedAccountIsPassedOver(t *testing.T) {
	t.Parallel()
	b := proving(t, "acct_1", "acct_2")
	api := b.api(b.fake.URL)
	reg := prometheus.NewRegistry()
	sources := b.runner(t, api, asIs).Sources
	o, err := reconcile.NewOwed(reg, sources)
	if err != nil {
		t.Fatal(err)
	}
	measured := func(disconnected float64, until time.Time) {
		t.Helper()
		if err := o.Read(t.Context(), b.Pool); err != nil {
			t.Fatal(err)
		}
		got := gauges(t, reg)
		if n, at := got["postern_accounts_left_out sim disconnected"], got["postern_proven_until_timestamp_seconds sim events"]; n != disconnected || at != float64(until.Unix()) {
			t.Errorf("%v accounts are left out, and the others proven until %v, want %v and %v", n, at, disconnected, until.Unix())
		}
	}
	before := b.until(t, "acct_1")
	b.fake.SetFaults(stripefake.Faults{Disconnected: []string{"acct_1"}})
	for range 2 {
		had := len(b.fake.Requests())
		ended := b.every(t, api, nil, reconcile.Order{What: reconcile.Events})
		if r := ended["acct_1"]; r == nil || r.Status != runs.Done || r.Detail != "" || r.Counts[reconcile.Disconnected] != 1 || r.Counts[reconcile.Seen] != 0 {
			t.Fatalf("%+v", r)
		}
		delete(ended, "acct_1")
		b.wantAll(t, ended, "", runs.Done)
		if len(ended) != 2 || b.until(t, "acct_1") != before || !b.until(t, "acct_2").After(before.Add(time.Hour)) || !b.until(t, "").After(before.Add(time.Hour)) {
			t.Errorf("%d others; proven until %s, %s and %s, the disconnected one of before %s", len(ended), b.until(t, ""), b.until(t, "acct_2"), b.until(t, "acct_1"), before)
		}
		b.rows(t, disconnectedRows, "acct_1 true")
		measured(1, earliest(b.until(t, ""), b.until(t, "acct_2")))
		refused := 0
		for _, r := range b.fake.Requests()[had:] {
			if r.Account == "acct_1" {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%d calls for the account", refused)
		}
		b.fake.Advance(time.Minute)
	}
	others := []string{"acct_1/test", "acct_10", "acct_1_/test"}
	b.DB.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) SELECT $1, a, 'type product', to_timestamp(0), now(), 1, now() FROM unnest($2::text[]) AS a`, b.Source, others)
	page, err := reconcile.Watermarks(t.Context(), b.Operator, b.Source, "", 0)
	if err != nil || len(page.Items) != 6 {
		t.Fatalf("%+v, %v", page.Items, err)
	}
	b.DB.Exec(t, `DELETE FROM watermarks WHERE account = ANY($1)`, others)
	for _, p := range page.Items {
		if gone := p.Account == "acct_1" || p.Account == "acct_1/test"; strings.Contains(p.Disconnected, "may not act for the account") != gone || p.DisconnectedSince.IsZero() == gone {
			t.Errorf("%+v", p)
		}
	}
	// It does not count as disconnected twice where it is excepted, and who asks for it by its name is told.
	sources.All()[b.Source].Except = []string{"acct_1"}
	measured(0, earliest(b.until(t, ""), b.until(t, "acct_2")))
	sources.All()[b.Source].Except = nil
	for _, what := range []reconcile.Order{{What: reconcile.Events, Account: "acct_1"}, {What: reconcile.Objects, Type: "invoice", Account: "acct_1"}} {
		failed(t, b.asked(t, api, what), "may not act for the account")
	}
	// Objects too.
	ended := b.every(t, api, nil, reconcile.Order{What: reconcile.Objects, Type: "invoice"})
	if r := ended["acct_1"]; r == nil || r.Status != runs.Done || r.Counts[reconcile.Disconnected] != 1 {
		t.Errorf("objects: %+v", r)
	}
	b.fake.SetFaults(stripefake.Faults{})
	b.fake.Advance(time.Minute)
	ended = b.every(t, api, nil, reconcile.Order{What: reconcile.Events})
	b.wantAll(t, ended, "", runs.Done)
	if got := b.DB.Rows(t, disconnectedRows); len(got) > 0 || ended["acct_1"].Counts[reconcile.Missing] != 1 {
		t.Errorf("connected again: %q, %v", got, ended["acct_1"].Counts)
	}
	measured(0, earliest(b.until(t, ""), earliest(b.until(t, "acct_1"), b.until(t, "acct_2"))))
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// The only connected account may be disconnected too, where the key is shown to be the platform's, and also where it is the only one that is reconciled. A dry run keeps nothing.
func TestTheOnlyConnectedAccountIsDisconnected(t *testing.T) {
	t.Parallel()
	b := proving(t, "acct_1")
	b.fake.SetFaults(stripefake.Faults{Disconnected: []string{"acct_1"}})
	for _, except := range [][]string{nil, {""}} {
		for _, dry := range []bool{true, false} {
			r := b.every(t, b.api(b.fake.URL), except, reconcile.Order{What: reconcile.Events, DryRun: dry})["acct_1"]
			if r == nil || r.Status != runs.Done || r.Counts[reconcile.Disconnected] != 1 {
				t.Errorf("%+v", r)
			}
			if got := b.DB.Rows(t, disconnectedRows); (len(got) == 0) != dry {
				t.Errorf("dry %t, without %q, known to be disconnected: %q", dry, except, got)
			}
		}
		b.DB.Exec(t, `DELETE FROM disconnected`)
	}
}

// A run that has waited for calls passes over the account that was disconnected meanwhile.
func TestDisconnectedWhileARunWaits(t *testing.T) {
	t.Parallel()
	b := proving(t, "acct_1")
	b.fake.SetFaults(stripefake.Faults{Disconnected: []string{"acct_1"}})
	run := b.order(t, reconcile.Order{What: reconcile.Events, Account: "acct_1", Of: 1})
	b.DB.Exec(t, `UPDATE runs SET detail = $2 WHERE run = $1`, run, spent)
	b.carry(t, b.runner(t, b.api(b.fake.URL), asIs))
	if r := b.ended(t, run); r.Status != runs.Done || r.Counts[reconcile.Disconnected] != 1 || r.Detail != "" {
		t.Errorf("%+v", r)
	}
}

// A run of the one account that is left goes on with that account, wherever it ended.
func TestTheOneAccountThatIsLeft(t *testing.T) {
	t.Parallel()
	b := proving(t, "acct_1")
	before, own := b.until(t, "acct_1"), b.until(t, "")
	ended := b.every(t, b.api(b.fake.URL), []string{""}, reconcile.Order{What: reconcile.Events})
	if r := ended["acct_1"]; len(ended) != 1 || r == nil || r.Status != runs.Done || r.Counts[reconcile.Missing] != 1 {
		t.Errorf("%+v", ended)
	}
	if !b.until(t, "acct_1").After(before) || !b.until(t, "").Equal(own) {
		t.Errorf("proven until %s, of before %s, and of the source's own %s, of before %s", b.until(t, "acct_1"), before, b.until(t, ""), own)
	}
}

// What may as well be a key that is good for less than before fails, and nothing is taken for disconnected by it.
func TestABadKeyDisconnectsNoAccount(t *testing.T) {
	t.Parallel()
	two, one := []string{"acct_1", "acct_2"}, []string{"acct_1"}
	for name, tc := range map[string]struct {
		accounts, except []string
		faults           stripefake.Faults
		// instead answers in the place of the API.
		instead func(t *testing.T, b *shop) http.Handler
		detail  string
		fine    []string
	}{
		"revoked":                   {two, nil, stripefake.Faults{Revoked: true}, nil, "the key is wrong, or was revoked", nil},
		"no rights to any account":  {two, nil, stripefake.Faults{Disconnected: two}, nil, "nothing shows that the account is disconnected", []string{""}},
		"of another platform":       {one, nil, stripefake.Faults{}, ofAnotherPlatform, "does not know event", nil},
		"not good for itself alone": {two, []string{""}, stripefake.Faults{Disconnected: one}, refusesItself, "the key is wrong, or was revoked", []string{"acct_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := proving(t, tc.accounts...)
			b.fake.SetFaults(tc.faults)
			api := b.api(b.fake.URL)
			if tc.instead != nil {
				api = b.api(serve(t, tc.instead(t, b).ServeHTTP))
			}
			ended := b.every(t, api, tc.except, reconcile.Order{What: reconcile.Events})
			for _, account := range tc.fine {
				if r := ended[account]; r == nil || r.Status != runs.Done {
					t.Errorf("account %q: %+v", account, r)
				}
				delete(ended, account)
			}
			if len(ended) == 0 {
				t.Error("nothing was reconciled")
			}
			b.wantAll(t, ended, "the API of source "+applied.Name, runs.Failed)
			if r := ended["acct_1"]; r == nil || !strings.Contains(r.Detail, tc.detail) {
				t.Errorf("%+v", r)
			}
			none(t, b.DB.Rows(t, disconnectedRows))
		})
	}
}

// ofAnotherPlatform is the API as a key of another platform has it.
func ofAnotherPlatform(t *testing.T, b *shop) http.Handler {
	return b.elsewhere(t, "invoice", 1)
}

// Where nothing is of the platform itself, another connected account has to show the key.
func TestAnotherAccountShowsTheKey(t *testing.T) {
	t.Parallel()
	for _, proven := range []bool{false, true} {
		b := newShop(t, "", stripefake.Options{Seed: 27, Start: time.Now().Add(-5 * time.Hour), Accounts: []string{"acct_1", "acct_2"}})
		b.fake.Create("acct_1", "invoice", nil)
		b.fake.Create("acct_2", "invoice", nil)
		b.deliver(t, every)
		b.fake.Advance(2 * time.Hour)
		b.wantAll(t, b.every(t, b.api(b.fake.URL), []string{""}, reconcile.Order{What: reconcile.Events}), "", runs.Done)
		if !proven {
			b.DB.Exec(t, `DELETE FROM watermarks WHERE account = 'acct_2'`)
		}
		b.fake.SetFaults(stripefake.Faults{Disconnected: []string{"acct_1"}})
		b.fake.Advance(time.Minute)
		ended := b.every(t, b.api(b.fake.URL), []string{""}, reconcile.Order{What: reconcile.Events})
		if r := ended["acct_1"]; r == nil || (r.Status == runs.Done) != proven || (r.Counts[reconcile.Disconnected] == 1) != proven {
			t.Errorf("the other proven %t: %+v", proven, r)
		}
	}
}

// refusesItself is an API that knows the key for connected accounts alone.
func refusesItself(_ *testing.T, b *shop) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Stripe-Account") == "" {
			r.Header.Set("Authorization", "Bearer sk_test_another")
		}
		b.fake.ServeHTTP(w, r)
	})
}
