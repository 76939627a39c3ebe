package app_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var metricName = regexp.MustCompile(`postern_[a-z_]+`)

// The alert rules use metrics that exist, and each rule has a page.
func TestAlertRules_metrics_exist(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../deploy/prometheus-rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	names := metricName.FindAllString(string(rules), -1)
	if len(names) < 30 {
		t.Errorf("only %d metrics are used", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+strings.TrimSuffix(name, "_bucket")+"`") {
			t.Errorf("the metric %s does not exist", name)
		}
	}
	alerts, pages := strings.Count(string(rules), "- alert:"), strings.Count(string(rules), " page: ")
	if alerts != pages {
		t.Errorf("%d alerts have %d pages", alerts, pages)
	}
}
