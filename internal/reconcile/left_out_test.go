package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
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
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if all := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() }); all.Status != runs.Done {
		t.Fatalf("%s with %v: %s", all.Status, all.Counts, all.Detail)
	}
	entered, err := reconcile.Entered(t.Context(), b.Operator, run)
	if err != nil {
		t.Fatal(err)
	}
	if len(entered) == 0 { // the run itself was the one account's, or there is none
		entered = append(entered, run)
	}
	ended := map[string]*runs.Run{}
	for _, run := range entered {
		ended[b.of(t, run)] = b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
	}
	return ended
}

// of is the account that a run was asked for.
func (b *shop) of(t *testing.T, run int64) string {
	t.Helper()
	var account string
	if err := b.Pool.QueryRow(t.Context(), `SELECT asked ->> 'account' FROM runs WHERE run = $1`, run).Scan(&account); err != nil {
		t.Fatal(err)
	}
	return account
}

// names are the accounts of some runs, in order.
func names(ended map[string]*runs.Run) []string {
	var all []string
	for account := range ended {
		all = append(all, account)
	}
	slices.Sort(all)
	return all
}

// All accounts are all but those that the configuration excepts, with all that the mirror keeps of them, by what name ever; asked for by its name each is reconciled.
func TestExceptedAccountsAreReconciledOnRequestAlone(t *testing.T) {
	t.Parallel()
	for pinned, own := range map[string]string{"": "", stripefake.Own: stripefake.Own} {
		b := newShop(t, pinned, stripefake.Options{Seed: 3, Objects: 30, Accounts: []string{"acct_B", "acct_C"}})
		b.config.Accounts = []string{"acct_B", "*"}
		b.fake.Live(400)
		b.deliver(t, func(int) bool { return false })
		b.fake.Advance(time.Minute)
		api := b.api(b.fake.URL)
		part := "test"
		if pinned != "" {
			part = own + "/test"
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
		b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: r.Carry})
		for _, asked := range []reconcile.Order{{AllAccounts: true}, {Account: "acct_B"}, {}} {
			asked.Source, asked.What, asked.DryRun = b.Source, reconcile.Events, true
			run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: asked, Who: "test"})
			if err != nil {
				t.Fatal(err)
			}
			ended := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
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
