package config_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
)

const stripeAPI = "database: {url: postgres://x}\nsources:\n  a:\n    provider: stripe\n    secrets: [{name: n, " +
	"value: whsec_secret_of_a_test}]\n    api: "

const githubAPI = "database: {url: postgres://x}\nsources:\n  a:\n    provider: github\n    secrets: [{name: n, " +
	"value: whsec_secret_of_a_test}]\n    api: "

const shopifyAPI = "database: {url: postgres://x}\nsources:\n  a:\n    provider: shopify\n    account: " +
	"my-shop.myshopify.com\n    secrets: [{name: n, value: whsec_secret_of_a_test}]\n    api: "

func TestAPI_settings_becomeAPI(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, "sk_live_file\n")
	key := func(value string) provider.Secret { return provider.Secret{Name: "api.key", Value: []byte(value)} }
	stripe := provider.API{BaseURL: "https://api.stripe.com", Rate: 5, Concurrency: 5, Timeout: 30 * time.Second,
		MaxBytes: 16 << 20, LateEventGrace: 2 * time.Minute}
	github, shopify := stripe, stripe
	github.BaseURL, github.Version, github.Concurrency = "https://api.github.com", "2022-11-28", 4
	shopify.BaseURL, shopify.Version = "https://my-shop.myshopify.com", "2026-07"
	shopify.Rate, shopify.Concurrency = 1, 2
	edited := func(a provider.API, edit func(*provider.API)) *provider.API { edit(&a); return &a }
	for text, want := range map[string]*provider.API{
		stripeAPI:                               nil,
		stripeAPI + "{key: {value: rk_test_1}}": edited(stripe, func(a *provider.API) { a.Key = key("rk_test_1") }),
		stripeAPI + "{key: {env: STRIPE_API_KEY}}": edited(stripe, func(a *provider.API) {
			a.Key = key("sk_test_env")
		}),
		stripeAPI + "{key: {file: " + file + "}}": edited(stripe, func(a *provider.API) {
			a.Key, a.Rate = key("sk_live_file"), 10
		}),
		stripeAPI + "{key: {value: k}, rate: 7, concurrency: 2, timeout: 5s, max_response_bytes: 1MiB, version: 2026-08-26.dahlia, late_event_grace: 1h, base_url: 'http://[::1]:12111/'}": {
			BaseURL: "http://[::1]:12111", Key: key("k"), Version: "2026-08-26.dahlia", Rate: 7, Concurrency: 2,
			Timeout: 5 * time.Second, MaxBytes: 1 << 20, LateEventGrace: time.Hour},
		stripeAPI + "{key: {value: k}, monthly: 5000}": edited(stripe, func(a *provider.API) {
			a.Key, a.MonthlyCalls = key("k"), 5000
		}),
		stripeAPI + "{key: {value: k}, id_only_events: true}": edited(stripe, func(a *provider.API) {
			a.Key, a.IDOnlyEvents = key("k"), true
		}),
		stripeAPI + "{key: {value: k}, base_url: http://localhost:1/mirror}": edited(stripe, func(a *provider.API) {
			a.BaseURL, a.Key = "http://localhost:1/mirror", key("k")
		}),
		githubAPI + "{key: {value: github_pat_1}, hooks: [repos/octo-org/kettle.js/hooks/12, " +
			"orgs/octo-org/hooks/9], repositories: [octo-org/kettle.js], redeliver: true}": edited(github,
			func(a *provider.API) {
				a.Key, a.Redeliver = key("github_pat_1"), true
				a.Webhooks = []string{"repos/octo-org/kettle.js/hooks/12", "orgs/octo-org/hooks/9"}
				a.Repositories = []string{"octo-org/kettle.js"}
			}),
		shopifyAPI + "{key: {value: shpat_1}, bulk: [order, gift_card], types: {gift_card: {get: " +
			"'gift_cards/{id}.json', list: giftCards}, variant: {list: productVariants, changed: true}}}": edited(
			shopify, func(a *provider.API) {
				a.Key, a.Bulk = key("shpat_1"), []string{"order", "gift_card"}
				a.Types = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCards"},
					"variant": {List: "productVariants", Changed: true}}
			}),
	} {
		c, err := config.Parse([]byte(text), environment("STRIPE_API_KEY=sk_test_env"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, c.Endpoints()[0].API); diff != "" {
			t.Errorf("%s:\n%s", text, diff)
		}
	}
}

func TestAPI_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	const key = "{key: {value: k}, %}"
	for text, rows := range map[string]map[string][]string{
		stripeAPI + "%": {
			"{rate: 5}": {"line 6: sources.a.api.key: is not set: give exactly one of value, env and file, with a " +
				"key that may only read"},
			"{key: {value: s3cret, env: X}}": {"line 6: sources.a.api.key: give exactly one of value, env and file"},
			"{key: {env: NOWHERE}}":          {"the variable NOWHERE is not set"},
			"{key: {file: /nowhere}}":        {"/nowhere"},
			"{key: {value: 's3cret x'}}":     {"sources.a.api.key: contains a space"},
			"{key: {value: pk_live_s3cret}}": {"line 6: sources.a.api: key: is a publishable key"},
			"{kee: {value: s3cret}}":         {"sources.a.api.kee: unknown field", "did you mean key?"},
		},
		stripeAPI + key: {
			"version: latest":       {`sources.a.api: version: "latest" is not a version of Stripe's API`},
			"rate: -1":              {"sources.a.api.rate: -1 is too small: the minimum is 1"},
			"monthly: -1":           {"sources.a.api.monthly: -1 is too small: the minimum is 1"},
			"concurrency: 101":      {"sources.a.api.concurrency: 101 is too large: the maximum is 100"},
			"timeout: 1ms":          {"sources.a.api.timeout: 1ms is too small: the minimum is 10ms"},
			"max_response_bytes: 1": {"sources.a.api.max_response_bytes: 1 is too small: the minimum is 1KiB"},
			"base_url: 'ftp://h'":   {`sources.a.api.base_url: "ftp://h" is not the address of an`},
			"base_url: 'h:80'":      {"is not the address of an API"},
			"base_url: 'http://h'":  {`"http://h" is plain http`, "write https"},
			"base_url: 'http://127.0.0.1.evil.example'": {"is plain http"},
			"base_url: 'https://u:s3cret@h'":            {"sources.a.api.base_url: has a user, a query"},
			"base_url: 'https://h/?key=s3cret'":         {"has a user, a query"},
			"hooks: [repos/o/r/hooks/1]": {"sources.a.api: the API of stripe does not support hooks, repositories " +
				"and redeliver: leave these out"},
		},
		githubAPI + key: {
			"version: v3": {`sources.a.api: version: "v3" is not a version of GitHub's API: write a date like ` +
				"2022-11-28"},
			"types: {issue: {get: x}}": {"sources.a.api: types: the types of github are built in: leave this out"},
			"bulk: [issue]":            {"sources.a.api: bulk: the API of github has no bulk operations: leave it out"},
			"id_only_events: true":     {"sources.a.api: id_only_events: github has no id-only events: leave it out"},
			"hooks: [app/hook]": {`sources.a.api: hooks: "app/hook" is not a webhook: write ` +
				"repos/OWNER/NAME/hooks/ID or orgs/NAME/hooks/ID"},
			"hooks: [repos/o/../hooks/1]": {`hooks: "repos/o/../hooks/1" is not a webhook`},
			"repositories: [o/Kettle, o/x, o/kettle]": {`sources.a.api: repositories: "o/kettle" is named twice: ` +
				"name it once"},
			"repositories: [kettle]": {`sources.a.api: repositories: "kettle" is not a repository: write OWNER/NAME`},
		},
		shopifyAPI + key: {
			"bulk: [fulfillment]": {`sources.a.api: bulk: objects of type "fulfillment" cannot be listed by a bulk ` +
				"operation"},
			"types: {page: {get: '/pages/{id}.json'}}": {`sources.a.api: types.page: get: "/pages/{id}.json" is ` +
				"not a path of one object"},
			"types: {page: {got: 'pages/{id}.json'}}": {"unknown field"},
		},
		githubAPI + "%": {"{key: {value: ghr_s3cret}}": {"line 6: sources.a.api: key: is a refresh token"}},
		shopifyAPI + "%": {
			"{key: {value: s3cret}, version: 2026-08}": {`sources.a.api: version: "2026-08" is not a version of ` +
				"Shopify's API"},
			"{key: {value: s3cret_for_postern_dev}}": {"is a public demo secret"},
		},
		"database: {url: postgres://x}\nsources:\n  a: {provider: %, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}], api: {key: {value: s3cret}}}": {
			"slack": {"line 3: sources.a.api: reading the API of slack is not supported, only that of github, " +
				"shopify, stripe: leave this section out"},
			"shopify, accounts: ['*']": {"line 3: sources.a.api: an access token belongs to one shop: name the shop " +
				"under the source's account"},
		},
	} {
		for setting, want := range rows {
			checkRejected(t, strings.Replace(text, "%", setting, 1), want...)
		}
	}
}

// The section reconcile of a source defines schedules for all its accounts, in addition to
// configured schedules.
func TestReconcile_section_becomesSchedules(t *testing.T) {
	t.Parallel()
	text := stripeAPI + `{key: {value: k}}
    reconcile: {events: "*/15 * * * *", objects: "0 3 * * *", full: "@weekly", time_zone: Europe/Berlin}
schedules:
  a-events: {job: replay, cron: "0 4 * * *"}
`
	c := parse(t, text, "POSTERN_SOURCES_A_RECONCILE_OBJECTS=0 5 * * *")
	schedule := func(job, cron, zone string, parameters map[string]string) *config.Schedule {
		return &config.Schedule{Job: job, Cron: cron, TimeZone: zone, Overlap: "skip", Missed: "run",
			Parameters: parameters}
	}
	want := []config.NamedSchedule{
		{Name: "a-events", Path: "schedules.a-events", Schedule: schedule("replay", "0 4 * * *", "UTC", nil)},
		{Name: "a.events", Path: "sources.a.reconcile.events", Schedule: schedule("reconcile", "*/15 * * * *",
			"Europe/Berlin", map[string]string{"source": "a", "all_accounts": "true", "objects": "false"})},
		{Name: "a.objects", Path: "sources.a.reconcile.objects", Schedule: schedule("reconcile", "0 5 * * *",
			"Europe/Berlin", map[string]string{"source": "a", "all_accounts": "true", "objects": "true"})},
		{Name: "a.full", Path: "sources.a.reconcile.full", Schedule: schedule("reconcile", "@weekly", "Europe/Berlin",
			map[string]string{"source": "a", "all_accounts": "true", "objects": "true", "full": "true"})},
	}
	if diff := cmp.Diff(want, c.AllSchedules()); diff != "" {
		t.Error(diff)
	}
}

// A source that is reconciled on schedule without a monthly limit is reported, where the provider
// limits reads.
func TestWarnings_scheduleWithoutMonthlyBound_isReported(t *testing.T) {
	t.Parallel()
	const own = "\nschedules:\n  mine: {job: reconcile, cron: '@daily', parameters: {source: a, objects: 'true'}}\n"
	for text, want := range map[string]bool{
		stripeAPI + "{key: {value: k}}\n    reconcile: {events: '@hourly'}":                       true,
		stripeAPI + "{key: {value: k}}" + own:                                                     true,
		stripeAPI + "{key: {value: k}, monthly: 5000}\n    reconcile: {events: '@hourly'}":        false,
		stripeAPI + "{key: {value: k}}":                                                           false,
		githubAPI + "{key: {value: k}, repositories: [a/b]}\n    reconcile: {objects: '@hourly'}": false,
	} {
		c, err := config.Parse([]byte(text), environment())
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := strings.Join(c.Warnings(), "\n"); strings.Contains(got, "sources.a.api.monthly: is not "+
			"set") != want || want && !strings.Contains(got, "to at least 10000 in thirty days") {
			t.Errorf("%s: got warnings %q", text, got)
		}
	}
}

// Sources that cannot be reconciled on schedule are reported with their line.
func TestReconcile_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{stripeAPI + "{key: {value: k}}\n    reconcile: {events: x}", "line 7: sources.a.reconcile.events: "},
		{stripeAPI + "{key: {value: k}}\n    reconcile:\n      objects: '@daily'\n      time_zone: Moon",
			"line 9: sources.a.reconcile.time_zone: "},
		{stripeAPI + "{}\n    reconcile: {full: '@daily'}", "line 7: sources.a.reconcile: needs a section api"},
		{shopifyAPI + "{key: {value: k}}\n    reconcile: {events: '@hourly'}",
			"line 8: sources.a.reconcile.events: the API of shopify lists no events"},
		{githubAPI + "{key: {value: k}}\n    reconcile: {events: '@hourly'}",
			"line 7: sources.a.reconcile.events: the API of github lists no events"},
		{githubAPI + "{key: {value: k}}\n    reconcile: {objects: '@daily'}",
			"line 7: sources.a.reconcile.objects: the API of github lists no objects"},
	} {
		checkRejected(t, c[0], c[1])
	}
}

// Endpoints contain the excluded accounts. Wrong exclusions, and those that exclude every account,
// are reported with their line.
func TestReconcile_excludedAccounts_areChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text string
		want []string
	}{
		{"{key: {value: k}}\n    reconcile: {events: '@hourly'}", nil},
		{"{key: {value: k}}\n    reconcile: {events: '@hourly', own_account: true, exclude: [acct_1]}",
			[]string{"acct_1"}},
		{"{key: {value: k}}\n    reconcile: {own_account: false}", []string{""}},
		{"{key: {value: k}}\n    accounts: [acct_1, acct_2]\n" +
			"    reconcile: {own_account: false, exclude: [acct_1, acct_gone]}",
			[]string{"", "acct_1", "acct_gone"}},
		{"{key: {value: k}}\n    accounts: [acct_1, '*']\n    reconcile: {own_account: false, exclude: [acct_1]}",
			[]string{"", "acct_1"}},
	} {
		text, want := test.text, test.want
		c, err := config.Parse([]byte(stripeAPI+text), environment())
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, c.Endpoints()[0].ExcludedAccounts); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	for _, c := range [][2]string{
		{stripeAPI + "{}\n    reconcile: {own_account: false}", "line 7: sources.a.reconcile: needs a section api"},
		{stripeAPI + "{key: {value: k}}\n    reconcile: {exclude: ['']}", "line 7: sources.a.reconcile.exclude.0: "},
		{stripeAPI + "{key: {value: k}}\n    reconcile: {exclude: [acct_1, acct_1]}",
			"line 7: sources.a.reconcile.exclude: "},
		{stripeAPI + "{key: {value: k}}\n    reconcile: {exclude: ['*']}",
			"line 7: sources.a.reconcile.exclude.0: '*' is not an"},
		{stripeAPI + "{key: {value: k}}\n    account: acct_1\n    reconcile: {exclude: [acct_1]}",
			"line 8: sources.a.reconcile.exclude.0: acct_1 is the source's own account: write own_account: false"},
		{stripeAPI + "{key: {value: k}}\n    reconcile: {exclude: [test]}",
			"line 7: sources.a.reconcile.exclude.0: test is a part of the key's own account: " +
				"write own_account: false, which"},
		{stripeAPI + "{key: {value: k}}\n    reconcile: {exclude: [acct_2, acct_1/test]}",
			"line 7: sources.a.reconcile.exclude.1: acct_1/test is a part of account acct_1: name that account, which"},
		{stripeAPI + "{key: {value: k}}\n    account: acct_1\n    reconcile: {own_account: false}",
			"line 8: sources.a.reconcile.own_account: excludes every account, because"},
		{stripeAPI + "{key: {value: k}}\n    accounts: [acct_1]\n" +
			"    reconcile: {own_account: false, exclude: [acct_1]}",
			"line 8: sources.a.reconcile.own_account: excludes every account, because"},
		{githubAPI + "{key: {value: k}, repositories: [a/b]}\n    reconcile: {own_account: false}",
			"line 7: sources.a.reconcile.own_account: a key of github belongs to one account"},
		{githubAPI + "{key: {value: k}, repositories: [a/b]}\n    reconcile: {objects: '@daily', exclude: [someone]}",
			"line 7: sources.a.reconcile.exclude.0: a key of github belongs to one account"},
	} {
		checkRejected(t, c[0], c[1])
	}
}
