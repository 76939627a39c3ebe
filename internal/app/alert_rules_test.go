package app_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/postern-gateway/postern/internal/testkit"
)

var (
	// metricRow is a row of the page of metrics: name and labels.
	metricRow = regexp.MustCompile("(?m)^\\| `(postern_[a-z_]+)` \\| \\w+ \\| ([^|]*) \\|")
	// usedMetric is a metric in an expression, with the labels that it selects.
	usedMetric = regexp.MustCompile(`(postern_[a-z_]+)(?:\{(\w+)=)?`)
	// groupedBy are the labels that an expression keeps.
	groupedBy = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// The alert rules use metrics and labels that exist, and each names a page.
func TestAlertRules_metricsLabelsAndPages_exist(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile("../../deploy/prometheus-rules.yaml")
	testkit.Must(t, err)
	testkit.Must(t, yaml.Unmarshal(text, &file))
	page, err := os.ReadFile(metricsPage)
	testkit.Must(t, err)
	labels := map[string]string{}
	for _, row := range metricRow.FindAllStringSubmatch(string(page), -1) {
		labels[row[1]] = row[2]
	}
	rules := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			rules++
			var wanted []string
			for _, by := range groupedBy.FindAllStringSubmatch(rule.Expr, -1) {
				wanted = append(wanted, strings.Split(by[1], ", ")...)
			}
			used := usedMetric.FindAllStringSubmatch(rule.Expr, -1)
			for _, metric := range used {
				known, ok := labels[strings.TrimSuffix(metric[1], "_bucket")]
				if !ok {
					t.Errorf("%s: there is no metric %s", rule.Alert, metric[1])
				}
				for _, label := range append(wanted, metric[2]) {
					if label != "" && label != "le" && !strings.Contains(known, "`"+label+"`") {
						t.Errorf("%s: %s has no label %s", rule.Alert, metric[1], label)
					}
				}
			}
			name, _, _ := strings.Cut(rule.Annotations["page"], "#")
			if _, err := os.Stat("../../docs/how-to/" + name); err != nil || name == "" || len(used) == 0 {
				t.Errorf("%s: %d metrics, page %q: %v", rule.Alert, len(used), name, err)
			}
		}
	}
	if rules < 30 {
		t.Errorf("there are only %d rules", rules)
	}
}
