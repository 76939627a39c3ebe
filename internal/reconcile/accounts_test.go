package reconcile_test

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// A run over all accounts covers every account of the mirror except those that the configuration
// excludes. A run for one account by name always works.
func TestReconcile_excludedAccounts_runOnlyOnRequest(t *testing.T) {
	t.Parallel()
	for _, pinned := range []string{"", stripefake.OwnAccount} {
		t.Run("pinned to "+cmp.Or(pinned, "none"), func(t *testing.T) {
			t.Parallel()
			testExcludedAccounts(t, pinned)
		})
	}
}

// testExcludedAccounts tests a source that is pinned to an account, or to none.
func testExcludedAccounts(t *testing.T, pinned string) {
	t.Helper()
	b := reconciled.NewStripeEnv(t, pinned, stripefake.Options{Seed: 3, Objects: 30,
		Accounts: []string{"acct_B", "acct_C"}})
	b.Config.Accounts = []string{"acct_B", "*"}
	b.Fake.RunSteps(400)
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(time.Minute)
	api := b.APIAt(b.Fake.URL)
	part := "test"
	if pinned != "" {
		part = pinned + "/test"
	}
	// Each run compares the objects of its own account, including the account of the source
	// itself.
	for objectType, want := range map[string][]string{"subscription": {pinned, "acct_B", "acct_C"},
		"product": {part, "acct_B/test", "acct_C/test"}} {
		var got []string
		for _, r := range reconcileAll(t, b, api, nil, reconcile.Params{Scope: reconcile.Objects, Type: objectType,
			DryRun: true}) {
			if got = append(got, b.Report(t, r.ID).Account); r.Counts[reconcile.Missing] != 0 ||
				r.Counts[objectscan.Equal] == 0 {
				t.Errorf("pinned to %q: %s %s %v: %s", pinned, objectType, r.Status, r.Counts, r.Detail)
			}
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("pinned to %q: %s of accounts %q, want %q", pinned, objectType, got, want)
		}
	}
	events := reconcile.Params{Scope: reconcile.Events, DryRun: true}
	products := reconcile.Params{Scope: reconcile.Objects, Type: "product", DryRun: true}
	for _, c := range []struct {
		except []string
		over   reconcile.Params
		want   []string
	}{
		{nil, events, []string{"", "acct_B", "acct_C"}},
		{nil, products, []string{part, "acct_B/test", "acct_C/test"}},
		{[]string{"acct_B"}, events, []string{"", "acct_C"}},
		{[]string{"acct_B"}, products, []string{part, "acct_C/test"}},
		{[]string{""}, events, []string{"acct_B", "acct_C"}},
		{[]string{""}, products, []string{"acct_B/test", "acct_C/test"}},
	} {
		got := slices.Sorted(maps.Keys(reconcileAll(t, b, api, c.except, c.over)))
		if slices.Sort(c.want); !slices.Equal(got, c.want) {
			t.Errorf("pinned to %q, without %q: %s of %q, want %q", pinned, c.except, c.over.Scope, got, c.want)
		}
	}
	r := b.Runner(t, api, reconciled.SameCaller)
	r.Sources.All()[b.Source].ExcludedAccounts = []string{"", "acct_B", "acct_C"}
	b.StartReconciler(t, r)
	for _, requested := range []reconcile.Params{{AllAccounts: true}, {Account: "acct_B"}, {}} {
		requested.Scope, requested.DryRun = reconcile.Events, true
		ended := b.RunToEnd(t, requested)
		n, each := ended.Counts[reconcile.Accounts]
		if ended.Status != runs.Done || each != requested.AllAccounts || n != 0 ||
			(ended.Counts[reconcile.Processed] > 0) == each {
			t.Errorf("pinned to %q, %v: %s %v: %s", pinned, requested, ended.Status, ended.Counts, ended.Detail)
		}
	}
}

// The metrics do not contain the watermarks and differences of an excluded account and of its test
// mode. They count the excluded accounts.
func TestMetrics_excludedAccounts_areNotMeasured(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 3})
	b.DB.Exec(t, `INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at)
		SELECT $1, m.account, m.subject,
		to_timestamp(0), to_timestamp(m.until), 1, now()
		FROM (VALUES ('', 'events', 3000), ('acct_gone', 'events', 1000), ('acct_1', 'events', 2000),
			('acct_1', 'type product', 2000), ('acct_gone/test', 'type product', 1000), ('acct_gone', 'type person', 1))
			m(account, subject, until)`, b.Source)
	b.DB.Exec(t, `INSERT INTO runs (run, job, params, actor, reason, detail, counts, status, created_at, updated_at,
		ended_at)
		OVERRIDING SYSTEM VALUE
		SELECT n, 'reconcile', '{}', 'test', '', '', '{}', 'done', now(), now(), now() FROM generate_series(1, 3) n`)
	b.DB.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at,
		unrepaired)
		SELECT s.run, $1, s.account, 'product', 'done', now(), now(), s.unrepaired
		FROM (VALUES (1, 'acct_1', 5), (2, 'acct_left', 70), (3, 'acct_gone/test', 600)) s(run, account, unrepaired)`,
		b.Source)
	sources := b.Runner(t, b.APIAt(b.Fake.URL), reconciled.SameCaller).Sources
	reg := prometheus.NewRegistry()
	o, err := reconcile.NewStateMetrics(reg, sources)
	testkit.Must(t, err)
	const until, left = "postern_complete_until_timestamp_seconds sim ", "postern_drift_unrepaired_objects sim product"
	for _, one := range []struct {
		except []string
		want   map[string]float64
	}{
		{nil, map[string]float64{until + "events": 1000, until + "type product": 1000, until + "type person": 1,
			left: 675, "postern_accounts_excluded excluded sim": 0}},
		{[]string{"acct_gone"}, map[string]float64{until + "events": 2000, until + "type product": 2000,
			until + "type person": 0, left: 75, "postern_accounts_excluded excluded sim": 1}},
		{[]string{"acct_gone", "acct_1", "acct_left"}, map[string]float64{until + "events": 3000,
			until + "type product": 0, left: 0, "postern_accounts_excluded excluded sim": 3}},
		{[]string{"", "acct_gone"}, map[string]float64{until + "events": 2000,
			"postern_accounts_excluded excluded sim": 2}},
	} {
		sources.All()[b.Source].ExcludedAccounts = one.except
		testkit.Must(t, o.Read(t.Context(), b.Pool))
		got := reconciled.GaugeValues(t, reg)
		for name, want := range one.want {
			if n, there := got[name]; n != want ||
				there != (want != 0 || name == "postern_accounts_excluded excluded sim") {
				t.Errorf("without %q: %s is %v (%t), want %v", one.except, name, n, there, want)
			}
		}
	}
}

const disconnectedSQL = `SELECT account || ' ' || (reason LIKE '%may not act for the account%')
	FROM disconnected_accounts
	ORDER BY 1`

// newCompletePlatform makes a platform with connected accounts. Each has a complete log with one
// event, and a lost event after it.
func newCompletePlatform(t *testing.T, accounts ...string) *reconciled.StripeEnv {
	t.Helper()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 27, Start: time.Now().Add(-5 * time.Hour),
		Accounts: accounts})
	for _, account := range append(accounts, "") {
		b.Fake.Create(account, "invoice", nil)
	}
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(2 * time.Hour)
	wantAll(t, b, reconcileAll(t, b, b.APIAt(b.Fake.URL), nil, reconcile.Params{Scope: reconcile.Events}), "",
		runs.Done)
	b.Fake.Advance(2 * time.Hour)
	for _, account := range append(accounts, "") {
		b.Fake.Create(account, "charge", nil) // its webhook is lost
	}
	b.Deliver(t, reconciled.LoseAll)
	b.Fake.Advance(time.Minute)
	return b
}

// A disconnected account is skipped after one call and keeps its watermark. The other accounts and
// their metrics go on. After the account is connected again, its events are reconciled.
func TestReconcile_disconnectedAccount_isSkipped(t *testing.T) {
	t.Parallel()
	b := newCompletePlatform(t, "acct_1", "acct_2")
	api := b.APIAt(b.Fake.URL)
	reg := prometheus.NewRegistry()
	sources := b.Runner(t, api, reconciled.SameCaller).Sources
	o, err := reconcile.NewStateMetrics(reg, sources)
	testkit.Must(t, err)
	// measured checks the metrics: the accounts are complete until the earliest of their watermarks
	measured := func(disconnected float64, accounts ...string) {
		t.Helper()
		until := completeUntil(t, b, "")
		for _, account := range accounts {
			if one := completeUntil(t, b, account); one.Before(until) {
				until = one
			}
		}
		testkit.Must(t, o.Read(t.Context(), b.Pool))
		got := reconciled.GaugeValues(t, reg)
		if n, at := got["postern_accounts_excluded disconnected sim"], got["postern_complete_until_timestamp_seconds "+
			"sim events"]; n != disconnected || at != float64(until.Unix()) {
			t.Errorf("%v accounts are excluded, and the others complete until %v, want %v and %v", n, at, disconnected,
				until.Unix())
		}
	}
	before := completeUntil(t, b, "acct_1")
	b.Fake.SetFaults(stripefake.Faults{Disconnected: []string{"acct_1"}})
	for range 2 {
		had := len(b.Fake.Requests())
		ended := reconcileAll(t, b, api, nil, reconcile.Params{Scope: reconcile.Events})
		wantSkipped(t, ended["acct_1"])
		delete(ended, "acct_1")
		wantAll(t, b, ended, "", runs.Done)
		if len(ended) != 2 || completeUntil(t, b, "acct_1") != before || !completeUntil(t, b,
			"acct_2").After(before.Add(time.Hour)) || !completeUntil(t, b, "").After(before.Add(time.Hour)) {
			t.Errorf("%d others; complete until %s, %s and %s, the disconnected one of before %s", len(ended),
				completeUntil(t, b, ""), completeUntil(t, b, "acct_2"), completeUntil(t, b, "acct_1"), before)
		}
		b.WantRows(t, disconnectedSQL, "acct_1 true")
		measured(1, "acct_2")
		rejected := 0
		for _, r := range b.Fake.Requests()[had:] {
			if r.Account == "acct_1" {
				rejected++
			}
		}
		if rejected != 1 {
			t.Errorf("%d calls for the account", rejected)
		}
		b.Fake.Advance(time.Minute)
	}
	others := []string{"acct_1/test", "acct_10", "acct_1_/test"}
	b.DB.Exec(t, `INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at)
		SELECT $1, a, 'type product',
		to_timestamp(0), now(), 1, now() FROM unnest($2::text[]) AS a`, b.Source, others)
	page, err := watermarks.List(t.Context(), b.OperatorPool, b.Source, "", 0)
	if err != nil || len(page.Items) != 6 {
		t.Fatalf("%+v, %v", page.Items, err)
	}
	b.DB.Exec(t, `DELETE FROM watermarks WHERE account = ANY($1)`, others)
	for _, p := range page.Items {
		if gone := p.Account == "acct_1" || p.Account == "acct_1/test"; strings.Contains(p.DisconnectedReason,
			"may not act for the account") != gone || p.DisconnectedSince.IsZero() == gone {
			t.Errorf("%+v", p)
		}
	}
	// An excluded account is not counted again as disconnected. A run for the disconnected account
	// by name fails.
	sources.All()[b.Source].ExcludedAccounts = []string{"acct_1"}
	measured(0, "acct_2")
	sources.All()[b.Source].ExcludedAccounts = nil
	for _, what := range []reconcile.Params{{Scope: reconcile.Events, Account: "acct_1"},
		{Scope: reconcile.Objects, Type: "invoice", Account: "acct_1"}} {
		reconciled.WantRunFailed(t, b.RunOnce(t, api, what), "may not act for the account")
	}
	// The same for objects.
	ended := reconcileAll(t, b, api, nil, reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
	wantSkipped(t, ended["acct_1"])
	b.Fake.SetFaults(stripefake.Faults{})
	b.Fake.Advance(time.Minute)
	ended = reconcileAll(t, b, api, nil, reconcile.Params{Scope: reconcile.Events})
	wantAll(t, b, ended, "", runs.Done)
	if got := b.DB.QueryStrings(t, disconnectedSQL); len(got) > 0 || ended["acct_1"].Counts[reconcile.Missing] != 1 {
		t.Errorf("connected again: %q, %v", got, ended["acct_1"].Counts)
	}
	measured(0, "acct_1", "acct_2")
}

// wantSkipped checks that a run has ended without work, because its account is disconnected.
func wantSkipped(t *testing.T, r *runs.Run) {
	t.Helper()
	if r == nil || r.Status != runs.Done || r.Detail != "" || r.Counts[reconcile.Disconnected] != 1 ||
		r.Counts[reconcile.Processed] != 0 {
		t.Errorf("%+v", r)
	}
}

// A run over all accounts with one account left reconciles that account. It may be disconnected, if
// the key is verified for the platform, even if it is the only account that is reconciled. A dry
// run stores nothing. A run that waited for calls skips an account that was disconnected in the
// meantime.
func TestReconcile_onlyConnectedAccount_isReconciledOrSkipped(t *testing.T) {
	t.Parallel()
	b := newCompletePlatform(t, "acct_1")
	api := b.APIAt(b.Fake.URL)
	before, own := completeUntil(t, b, "acct_1"), completeUntil(t, b, "")
	ended := reconcileAll(t, b, api, []string{""}, reconcile.Params{Scope: reconcile.Events})
	if r := ended["acct_1"]; len(ended) != 1 || r == nil || r.Status != runs.Done || r.Counts[reconcile.Missing] != 1 {
		t.Errorf("%+v", ended)
	}
	if !completeUntil(t, b, "acct_1").After(before) || !completeUntil(t, b, "").Equal(own) {
		t.Errorf("complete until %s, before %s, and the account of the source %s, before %s",
			completeUntil(t, b, "acct_1"), before, completeUntil(t, b, ""), own)
	}
	b.Fake.SetFaults(stripefake.Faults{Disconnected: []string{"acct_1"}})
	for _, except := range [][]string{nil, {""}} {
		for _, dry := range []bool{true, false} {
			o := reconcile.Params{Scope: reconcile.Events, DryRun: dry}
			wantSkipped(t, reconcileAll(t, b, api, except, o)["acct_1"])
			if got := b.DB.QueryStrings(t, disconnectedSQL); (len(got) == 0) != dry {
				t.Errorf("dry %t, without %q, disconnected: %q", dry, except, got)
			}
		}
		b.DB.Exec(t, `DELETE FROM disconnected_accounts`)
	}
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Events, Account: "acct_1", ParentRun: 1})
	b.DB.Exec(t, `UPDATE runs SET detail = $2 WHERE run = $1`, run, quotaUsedUp)
	b.StartReconciler(t, b.Runner(t, api, reconciled.SameCaller))
	wantSkipped(t, b.WaitForEnd(t, run))
}

// A run fails if the key may have lost rights. No account is then marked as disconnected.
func TestReconcile_badKey_marksNoAccountDisconnected(t *testing.T) {
	t.Parallel()
	two, one := []string{"acct_1", "acct_2"}, []string{"acct_1"}
	for name, tc := range map[string]struct {
		accounts, except []string
		faults           stripefake.Faults
		// instead responds in place of the API.
		instead func(t *testing.T, b *reconciled.StripeEnv) http.Handler
		detail  string
		fine    []string
	}{
		"revoked": {two, nil, stripefake.Faults{Revoked: true}, nil, "the key is wrong or revoked", nil},
		"no rights to any account": {two, nil, stripefake.Faults{Disconnected: two}, nil,
			"nothing shows that only this account is disconnected", []string{""}},
		"of another platform": {one, nil, stripefake.Faults{}, otherPlatformAPI, "does not know event", nil},
		"not good for itself alone": {two, []string{""}, stripefake.Faults{Disconnected: one}, rejectingPlatformAPI,
			"the key is wrong or revoked", []string{"acct_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCompletePlatform(t, tc.accounts...)
			b.Fake.SetFaults(tc.faults)
			api := b.APIAt(b.Fake.URL)
			if tc.instead != nil {
				api = b.APIAt(reconciled.Serve(t, tc.instead(t, b).ServeHTTP))
			}
			ended := reconcileAll(t, b, api, tc.except, reconcile.Params{Scope: reconcile.Events})
			for _, account := range tc.fine {
				if r := ended[account]; r == nil || r.Status != runs.Done {
					t.Errorf("account %q: %+v", account, r)
				}
				delete(ended, account)
			}
			if len(ended) == 0 {
				t.Error("nothing was reconciled")
			}
			wantAll(t, b, ended, "the API of source "+applied.SourceName, runs.Failed)
			if r := ended["acct_1"]; r == nil || !strings.Contains(r.Detail, tc.detail) {
				t.Errorf("%+v", r)
			}
			reconciled.WantNone(t, b.DB.QueryStrings(t, disconnectedSQL))
		})
	}
}

// otherPlatformAPI is the API for a key of another platform.
func otherPlatformAPI(t *testing.T, b *reconciled.StripeEnv) http.Handler {
	return b.OtherAccountAPI(t, "invoice", 1)
}

// Without events of the platform itself, another connected account must verify the key.
func TestAccountCheck_noPlatformEvents_usesAnotherAccount(t *testing.T) {
	t.Parallel()
	for _, complete := range []bool{false, true} {
		b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 27, Start: time.Now().Add(-5 * time.Hour),
			Accounts: []string{"acct_1", "acct_2"}})
		b.Fake.Create("acct_1", "invoice", nil)
		b.Fake.Create("acct_2", "invoice", nil)
		b.Deliver(t, reconciled.LoseNone)
		b.Fake.Advance(2 * time.Hour)
		wantAll(t, b, reconcileAll(t, b, b.APIAt(b.Fake.URL), []string{""}, reconcile.Params{Scope: reconcile.Events}),
			"", runs.Done)
		if !complete {
			b.DB.Exec(t, `DELETE FROM watermarks WHERE account = 'acct_2'`)
		}
		b.Fake.SetFaults(stripefake.Faults{Disconnected: []string{"acct_1"}})
		b.Fake.Advance(time.Minute)
		ended := reconcileAll(t, b, b.APIAt(b.Fake.URL), []string{""}, reconcile.Params{Scope: reconcile.Events})
		if r := ended["acct_1"]; r == nil || (r.Status == runs.Done) != complete ||
			(r.Counts[reconcile.Disconnected] == 1) != complete {
			t.Errorf("the other account complete %t: %+v", complete, r)
		}
	}
}

// rejectingPlatformAPI accepts the key for connected accounts only.
func rejectingPlatformAPI(_ *testing.T, b *reconciled.StripeEnv) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Stripe-Account") == "" {
			r.Header.Set("Authorization", "Bearer sk_test_another")
		}
		b.Fake.ServeHTTP(w, r)
	})
}

// reconcileAll reconciles all accounts one after the other, in a process whose source excludes
// some. It returns the ended runs by account.
func reconcileAll(t *testing.T, b *reconciled.StripeEnv, api *provider.API, except []string,
	o reconcile.Params) map[string]*runs.Run {
	t.Helper()
	r := b.Runner(t, api, reconciled.SameCaller)
	r.Sources.All()[b.Source].ExcludedAccounts = except
	defer b.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: r.Execute})()
	o.AllAccounts = true
	run := b.StartRun(t, o)
	reconciled.WantRunDone(t, b.WaitForEnd(t, run))
	entered, err := reconcile.StartedRuns(t.Context(), b.OperatorPool, run)
	testkit.Must(t, err)
	if len(entered) == 0 { // the run itself reconciled the only account, or there is none
		entered = append(entered, run)
	}
	ended := map[string]*runs.Run{}
	for _, run := range entered {
		ended[accountOf(t, b, run)] = b.WaitForEnd(t, run)
	}
	return ended
}

// accountOf returns the account of a run.
func accountOf(t *testing.T, b *reconciled.StripeEnv, run int64) string {
	t.Helper()
	return reconciled.QueryOne[string](t, b.Env, `SELECT params ->> 'account' FROM runs WHERE run = $1`, run)
}

// wantAll checks that all runs have ended with a status and found no disconnected account.
func wantAll(t *testing.T, b *reconciled.StripeEnv, ended map[string]*runs.Run, detail string, status runs.Status) {
	t.Helper()
	for account, r := range ended {
		if r.Status != status || !strings.Contains(r.Detail, detail) || r.Counts[reconcile.Disconnected] != 0 {
			t.Errorf("account %q: %s with %v: %s", account, r.Status, r.Counts, r.Detail)
		}
	}
}

// completeUntil returns the watermark of the events of an account.
func completeUntil(t *testing.T, b *reconciled.StripeEnv, account string) time.Time {
	t.Helper()
	_, until := b.CompleteRange(t, account, reconcile.Events)
	if until.IsZero() {
		t.Fatalf("account %q has no watermark", account)
	}
	return until
}
