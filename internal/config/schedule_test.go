package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
)

// A schedule has its defaults, its parameters are texts whatever YAML takes them for, and variables win.
func TestSchedules(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte(`database: {url: postgres://x}
schedules:
  nightly:
    job: replay
    cron: "30 3 * * *"
    parameters: {source: shop, rate: 50, since: 25h, publish: true}
`), environment("POSTERN_SCHEDULES=weekly", "POSTERN_SCHEDULES_WEEKLY_JOB=replay", "POSTERN_SCHEDULES_WEEKLY_CRON=0 4 * * 1", "POSTERN_SCHEDULES_WEEKLY_OVERLAP=queue",
		"POSTERN_SCHEDULES_WEEKLY_PARAMETERS=source=shop,type=invoice.*"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]*config.Schedule{
		"nightly": {Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC", Overlap: "skip", Missed: "run", Parameters: map[string]string{"source": "shop", "rate": "50", "since": "25h", "publish": "true"}},
		"weekly":  {Job: "replay", Cron: "0 4 * * 1", TimeZone: "UTC", Overlap: "queue", Missed: "run", Parameters: map[string]string{"source": "shop", "type": "invoice.*"}},
	}
	if diff := cmp.Diff(want, c.Schedules); diff != "" {
		t.Error(diff)
	}
	for path, place := range map[string]string{"schedules.nightly.parameters.rate": "line 6: schedules.nightly.parameters.rate: x", "schedules.weekly.job": "POSTERN_SCHEDULES_WEEKLY_JOB: x"} {
		if err := c.Locate(errors.Join(&config.Problem{Path: path, Msg: "x"})); err.Error() != place {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := config.Default().Locate(&config.Problem{Path: "a", Msg: "x"}); err.Error() != "a: x" {
		t.Error(err)
	}
	if err := c.Locate(nil); err != nil {
		t.Error(err)
	}
	if text := c.String(); !strings.Contains(text, "30 3 * * *") {
		t.Error(text)
	}
}
