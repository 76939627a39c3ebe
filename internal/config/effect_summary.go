package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/settings"
)

// EffectSummary summarizes other objects of the source for each object of a rule on a schedule.
type EffectSummary struct {
	// Type is the type of the objects that are summarized, e.g. invoice.
	Type string `yaml:"type,omitempty"`
	// By is the dotted path to the id of the rule's object, in the states of those objects, e.g.
	// customer.
	By string `yaml:"by,omitempty"`
	// Sums maps names to dotted paths of numbers in their states, e.g. total: amount_paid. The sum
	// is summary.sums.total. Each value may be a number, or a text with a decimal number. A missing
	// value or null counts as 0. Any other value means that an operator must review the effect.
	Sums map[string]string `yaml:"sums,omitempty"`
	// Fields maps names to dotted paths of values in their states, e.g. number: number. Each object
	// of summary.objects has these names and id. A value of more than 4 KiB is null. The list has
	// at most 1,000 objects, those that changed first. If there are more, summary.truncated is
	// true. Count and sums are complete. If more than 100,000 objects changed, an operator must
	// review the effect.
	Fields map[string]string `yaml:"fields,omitempty"`
}

// summaryPath is a path of names and array indexes.
var summaryPath = regexp.MustCompile(`^[^.{}]+(\.[^.{}]+)*$`)

// summary checks the summary of a rule; nil if it has none.
func (b *ruleBuilder) summary(at string, e *Effect) *rules.Summary {
	s := &e.Summary
	if settings.IsZero(*s) {
		return nil
	}
	if e.Schedule.Cron == "" {
		b.fail(at, "applies only to a rule on a schedule: write schedule with the planned times, e.g. "+
			"{cron: \"0 9 * * 1\"}")
	}
	if s.Type == "" {
		b.fail(at+".type", "is not set: write the type of the objects to summarize, e.g. invoice")
	}
	if s.By == "" {
		b.fail(at+".by", "is not set: write the path, in the state of those objects, of the id of the %s, e.g. %s",
			e.Type, e.Type)
	}
	paths := map[string]string{".by": s.By}
	for section, names := range map[string]map[string]string{".sums.": s.Sums, ".fields.": s.Fields} {
		for name, path := range names {
			paths[section+name] = path
			if !captureName.MatchString(name) || section == ".fields." && name == "id" {
				b.fail(at+section+name, "is not a valid name: use a to z, 0 to 9 and _, beginning with a letter; "+
					"id is always there")
			}
		}
	}
	for _, place := range slices.Sorted(maps.Keys(paths)) {
		if path := paths[place]; !summaryPath.MatchString(path) && (path != "" || place != ".by") {
			b.fail(at+place, "%q is not a path: write names and array indexes separated by dots, e.g. lines.0.amount, "+
				"without {{ }}", strings.TrimSpace(path))
		}
	}
	return &rules.Summary{Type: s.Type, By: s.By, Sums: s.Sums, Fields: s.Fields}
}
