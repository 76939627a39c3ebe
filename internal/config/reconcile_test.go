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

// What cannot be reconciled by the clock is told with its line.
func TestWrongSchedulesOfASource(t *testing.T) {
	t.Parallel()
	const shop = "database: {url: postgres://x}\nsources:\n  a:\n    provider: shopify\n    account: x.myshopify.com\n    secrets: [{name: n, value: v}]\n    api: {key: {value: k}}\n"
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
