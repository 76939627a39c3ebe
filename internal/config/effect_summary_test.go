package config_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// aSummaryOfInvoices is a rule with a summary of other objects.
var aSummaryOfInvoices = strings.NewReplacer("    when: new.active == true", `    summary:
      type: invoice
      by: customer
      sums: {total: amount_paid}
      fields: {number: number, first: lines.0.id}
    when: summary.count > 0 && len(filter(summary.objects, .number != nil)) > 0`,
	`until: "{{ window.end }}"`,
	`until: "{{ window.end }}", total: "{{ summary.sums.total }}", all: "{{ summary.objects }}"`).Replace(aSummary)

func TestEffectSummary_yaml_becomesRule(t *testing.T) {
	t.Parallel()
	c, err := parseEffects(aSummaryOfInvoices)
	if err != nil {
		t.Fatal(err)
	}
	r := c.Rules()[0]
	if want := (&rules.Summary{Type: "invoice", By: "customer", Sums: map[string]string{"total": "amount_paid"},
		Fields: map[string]string{"number": "number", "first": "lines.0.id"}}); !reflect.DeepEqual(r.Summary, want) {
		t.Errorf("%+v", r.Summary)
	}
	listed := []any{map[string]any{"id": "in_1", "number": "A-1"}}
	f := &rules.TemplateData{New: map[string]any{"id": "cus_1", "email": "a@b.example"},
		Summary: map[string]any{"count": 1, "sums": map[string]any{"total": 12.5}, "objects": listed}}
	got, err := r.Steps[0].Do.Render(f, "k")
	const want = `{"all":[{"id":"in_1","number":"A-1"}],"from":"","to":"a@b.example","total":12.5,"until":""}`
	if err != nil || got.Body != want {
		t.Errorf("%+v, %v", got, err)
	}
	plain, err := parseEffects(aSummary)
	if err != nil || plain.Rules()[0].Summary != nil {
		t.Errorf("%v", err)
	}
}

// Errors in a summary are reported with their line, and say what to write.
func TestEffectSummary_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	checkMistakes(t, aSummaryOfInvoices, map[string]struct{ old, new, want string }{
		"no type":   {"      type: invoice\n", "", "effects.summary.summary.type: is not set: write the type of the"},
		"no id":     {"      by: customer\n", "", "effects.summary.summary.by: is not set: write the path"},
		"no path":   {"by: customer", "by: a..b", `14: effects.summary.summary.by: "a..b" is not a path`},
		"an index":  {"lines.0.id", "lines..id", `16: effects.summary.summary.fields.first: "lines..id" is not a path`},
		"a formula": {"amount_paid", `"{{ new.paid }}"`, "15: effects.summary.summary.sums.total: "},
		"a name": {"total: amount_paid", "Total: amount_paid",
			"15: effects.summary.summary.sums.Total: is not a valid"},
		"id twice": {"first:", "id:", "16: effects.summary.summary.fields.id: is not a valid name"},
		"an unknown sum": {"{{ summary.sums.total }}", "{{ summary.sums.totl }}",
			"effects.summary.steps.0.json.total: {{ summary.sums.totl }}: column 14: unknown field totl"},
		"an unknown field": {".number != nil", ".numbr != nil", "17: effects.summary.when: "},
		"an unknown member": {"summary.count > 0", "summary.size > 0",
			"17: effects.summary.when: column 9: unknown field size"},
		"no schedule": {`    schedule: {cron: "0 9 * * 1", time_zone: Europe/Berlin}` + "\n", "",
			"effects.summary.summary: applies only to a rule on a schedule: write schedule"},
	})
	without := strings.Replace(aSummary, "new.active == true", "summary.count > 0", 1)
	checkRejected(t, without, "12: effects.summary.when: column 1: unknown name summary: a rule on a schedule can use "+
		"new, object and window, and summary if it has this section")
	checkWarning(t, "misspelt", strings.Replace(aSummaryOfInvoices, "type: invoice", "type: invoise", 1),
		"no known object type", "did you mean invoice")
}
