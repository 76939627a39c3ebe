package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
)

// A source's section reconcile stands for schedules of all its accounts, beside those that are written.
func TestSchedulesOfASource(t *testing.T) {
	t.Parallel()
	text := stripeAPI + `{key: {value: k}}
    reconcile: {events: "*/15 * * * *", objects: "0 3 * * *", full: "@weekly", time_zone: Europe/Berlin}
schedules:
  a-events: {job: replay, cron: "0 4 * * *"}
`
	c, err := config.Parse([]byte(text), environment("POSTERN_SOURCES_A_RECONCILE_OBJECTS=0 5 * * *"))
	if err != nil {
		t.Fatal(err)
	}
	schedule := func(job, cron, zone string, parameters map[string]string) *config.Schedule {
		return &config.Schedule{Job: job, Cron: cron, TimeZone: zone, Overlap: "skip", Missed: "run", Parameters: parameters}
	}
	want := []config.Planned{
		{Name: "a-events", Path: "schedules.a-events", Schedule: schedule("replay", "0 4 * * *", "UTC", nil)},
		{Name: "a.events", Path: "sources.a.reconcile.events", Schedule: schedule("reconcile", "*/15 * * * *", "Europe/Berlin", map[string]string{"source": "a", "all_accounts": "true", "objects": "false"})},
		{Name: "a.objects", Path: "sources.a.reconcile.objects", Schedule: schedule("reconcile", "0 5 * * *", "Europe/Berlin", map[string]string{"source": "a", "all_accounts": "true", "objects": "true"})},
		{Name: "a.full", Path: "sources.a.reconcile.full", Schedule: schedule("reconcile", "@weekly", "Europe/Berlin", map[string]string{"source": "a", "all_accounts": "true", "objects": "true", "full": "true"})},
	}
	if diff := cmp.Diff(want, c.Planned()); diff != "" {
		t.Error(diff)
	}
}

// Where the provider allots reads, a source that is reconciled by the clock is told of without a bound.
func TestSchedulesWithoutABoundAreToldOf(t *testing.T) {
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
		if got := strings.Join(c.Warnings(), "\n"); strings.Contains(got, "sources.a.api.monthly: is not set") != want || want && !strings.Contains(got, "10000 in thirty days at least") {
			t.Errorf("%s: told %q", text, got)
		}
	}
}

// What cannot be reconciled by the clock is told with its line.
func TestWrongSchedulesOfASource(t *testing.T) {
	t.Parallel()
	const shop = "database: {url: postgres://x}\nsources:\n  a:\n    provider: shopify\n    account: x.myshopify.com\n    secrets: [{name: n, value: whsec_secret_of_a_test}]\n    api: {key: {value: k}}\n"
	for text, want := range map[string]string{
		stripeAPI + "{key: {value: k}}\n    reconcile: {events: x}":                                     "line 7: sources.a.reconcile.events: ",
		stripeAPI + "{key: {value: k}}\n    reconcile:\n      objects: '@daily'\n      time_zone: Moon": "line 9: sources.a.reconcile.time_zone: ",
		stripeAPI + "{}\n    reconcile: {full: '@daily'}":                                               "line 7: sources.a.reconcile: needs a section api",
		shop + "    reconcile: {events: '@hourly'}":                                                     "line 8: sources.a.reconcile.events: the API of shopify lists no events",
		githubAPI + "{key: {value: k}}\n    reconcile: {events: '@hourly'}":                             "line 7: sources.a.reconcile.events: the API of github lists no events",
		githubAPI + "{key: {value: k}}\n    reconcile: {objects: '@daily'}":                             "line 7: sources.a.reconcile.objects: the API of github lists no objects",
	} {
		if _, err := config.Parse([]byte(text), environment()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v, want %s", text, err, want)
		}
	}
}

// Which accounts are left out is told of endpoints; what cannot be left out, or leaves nothing, is told with its line.
func TestExceptedAccountsOfASource(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"{key: {value: k}}\n    reconcile: {events: '@hourly'}":                                                       nil,
		"{key: {value: k}}\n    reconcile: {events: '@hourly', own: true, except: [acct_1]}":                          {"acct_1"},
		"{key: {value: k}}\n    reconcile: {own: false}":                                                              {""},
		"{key: {value: k}}\n    accounts: [acct_1, acct_2]\n    reconcile: {own: false, except: [acct_1, acct_gone]}": {"", "acct_1", "acct_gone"},
		"{key: {value: k}}\n    accounts: [acct_1, '*']\n    reconcile: {own: false, except: [acct_1]}":               {"", "acct_1"},
	} {
		c, err := config.Parse([]byte(stripeAPI+text), environment())
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, c.Endpoints()[0].Except); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	for text, want := range map[string]string{
		stripeAPI + "{}\n    reconcile: {own: false}":                                                               "line 7: sources.a.reconcile: needs a section api",
		stripeAPI + "{key: {value: k}}\n    reconcile: {except: ['']}":                                              "line 7: sources.a.reconcile.except.0: ",
		stripeAPI + "{key: {value: k}}\n    reconcile: {except: [acct_1, acct_1]}":                                  "line 7: sources.a.reconcile.except: ",
		stripeAPI + "{key: {value: k}}\n    reconcile: {except: ['*']}":                                             "line 7: sources.a.reconcile.except.0: '*' names no account",
		stripeAPI + "{key: {value: k}}\n    account: acct_1\n    reconcile: {except: [acct_1]}":                     "line 8: sources.a.reconcile.except.0: acct_1 is the source's own account: write own: false",
		stripeAPI + "{key: {value: k}}\n    reconcile: {except: [test]}":                                            "line 7: sources.a.reconcile.except.0: test is what the mirror calls a part of the key's own account",
		stripeAPI + "{key: {value: k}}\n    reconcile: {except: [acct_2, acct_1/test]}":                             "line 7: sources.a.reconcile.except.1: acct_1/test is what the mirror calls a part of account acct_1",
		stripeAPI + "{key: {value: k}}\n    account: acct_1\n    reconcile: {own: false}":                           "line 8: sources.a.reconcile.own: leaves no account",
		stripeAPI + "{key: {value: k}}\n    accounts: [acct_1]\n    reconcile: {own: false, except: [acct_1]}":      "line 8: sources.a.reconcile.own: leaves no account",
		githubAPI + "{key: {value: k}, repositories: [a/b]}\n    reconcile: {own: false}":                           "line 7: sources.a.reconcile.own: a key of github is of one account",
		githubAPI + "{key: {value: k}, repositories: [a/b]}\n    reconcile: {objects: '@daily', except: [someone]}": "line 7: sources.a.reconcile.except.0: a key of github is of one account",
	} {
		if _, err := config.Parse([]byte(text), environment()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v, want %s", text, err, want)
		}
	}
}
