package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A run for each account is of those alone that have what is asked for, and each is held against its own objects, also those of an account that is named by nobody but the source.
func TestEachAccountHasItsOwnRun(t *testing.T) {
	t.Parallel()
	for pinned, want := range map[string]map[string][]string{
		"":             {"subscription": {"", "acct_B"}, "product": {"test", "acct_B/test"}},
		stripefake.Own: {"subscription": {stripefake.Own, "acct_B"}, "product": {stripefake.Own + "/test", "acct_B/test"}},
	} {
		b := newShop(t, pinned, stripefake.Options{Seed: 3, Objects: 30, Accounts: []string{"acct_B"}})
		if pinned != "" {
			b.config.Accounts = []string{"acct_B"}
		}
		b.fake.Live(300)
		b.deliver(t, func(int) bool { return false })
		b.fake.Advance(time.Minute)
		b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner(t, b.api(b.fake.URL), asIs).Carry})
		for objectType, accounts := range want {
			run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Who: "test",
				Asked: reconcile.Order{Source: b.Source, What: reconcile.Objects, Type: objectType, AllAccounts: true, DryRun: true}})
			if err != nil {
				t.Fatal(err)
			}
			if r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() }); r.Status != runs.Done || r.Counts[reconcile.Accounts] != 2 {
				t.Errorf("pinned to %q: %s %s %v: %s", pinned, objectType, r.Status, r.Counts, r.Detail)
			}
			entered, err := reconcile.Entered(t.Context(), b.Operator, run)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, run := range entered {
				r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
				if r.Status != runs.Done || r.Counts[reconcile.Missing] != 0 || r.Counts[reconcile.Equal] == 0 {
					t.Errorf("pinned to %q: %s %s %v: %s", pinned, objectType, r.Status, r.Counts, r.Detail)
				}
				report, err := reconcile.Drift(t.Context(), b.Operator, run)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, report.Account)
			}
			slices.Sort(got)
			if slices.Sort(accounts); !slices.Equal(got, accounts) {
				t.Errorf("pinned to %q: %s of accounts %q, want %q", pinned, objectType, got, accounts)
			}
		}
	}
}
