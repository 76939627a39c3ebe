package console

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/effects/jobs/backtest"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/operations"
)

// rules returns the configured effect rules; nil in a process without rules.
func (c *Console) rules() []*rules.Rule {
	if c.Rules == nil {
		return nil
	}
	return c.Rules()
}

func rulePath(name string) string { return path("effects", "rules", name) }

// ruleLinks lists the configured rules above the effects.
func ruleLinks(_ context.Context, r *request, _ *operations.EffectParams) ([]block, error) {
	var links []cell
	for _, rule := range r.c.rules() {
		links = append(links, link(rule.Name, rulePath(rule.Name)))
	}
	if links == nil {
		return nil, nil
	}
	return []block{{ID: "rules", Fields: []field{{"Rules", links}}}}, nil
}

// rulePage shows one effect rule: its effects by state, its configuration, and a backtest.
func rulePage(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	var p operations.BacktestParams
	if err := operations.Parse(&p, texts, "rule"); err != nil {
		return nil, err
	}
	p.Rule = r.PathValue("rule")
	rule, err := operations.ShowEffectRule(ctx, r.c.Pages, r.c.rules(), operations.RuleName{Rule: p.Rule})
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "Effect rule", Title: visible(rule.Rule), Blocks: []block{ruleStates(r, rule)}}
	if !rule.Configured {
		v.Notes = []note{{Tone: "info", Text: "This process does not have the rule in its configuration. Its effects " +
			"stay in the ledger."}}
		return v, nil
	}
	v.Text = "Plans an effect " + map[rules.Trigger]string{rules.OnChange: "for changes", rules.OnEvent: "for events",
		rules.OnSchedule: "at planned times for objects"}[rule.Trigger] + " of type " + visible(rule.ObjectType) +
		" of source " + visible(rule.Source) + "."
	test, err := backtestBlock(ctx, r, v, rule, texts)
	if err != nil {
		return nil, err
	}
	v.Blocks = append(v.Blocks, block{ID: "configuration", Heading: "Configuration", Text: "The rule with its " +
		"defaults, as this process has loaded it.", Document: &document{Text: rule.Configuration}}, test)
	return v, nil
}

// ruleStates counts the effects of a rule by state, each with a link to its list.
func ruleStates(r *request, rule *operations.EffectRuleDetail) block {
	t := &table{Columns: []string{"State", "Effects", "Oldest planned"}, Empty: "The rule has no effect yet.",
		Curl: curlLine(r, "/api/v1/effects/rules/"+rule.Rule, nil)}
	for _, s := range rule.States {
		state := badge(string(s.State))
		state.Href = query(path("effects"), "rule", rule.Rule, "state", string(s.State))
		t.Rows = append(t.Rows, []cell{state, number(s.Count), r.ageCell(s.OldestAt)})
	}
	b := block{ID: "states", Heading: "Effects by state", Table: t}
	if !rule.CountedSince.IsZero() {
		b.Text = "Effects that are older than " + r.at(rule.CountedSince).Text + " are counted only if they await " +
			"approval, have failed, or need review."
	}
	if rule.Configured {
		b.Fields = []field{{"Version", []cell{number(rule.RuleVersion)}}, {"Approval",
			[]cell{text(label(string(rule.Approval)))}}, {"Destinations", []cell{text(strings.Join(rule.Destinations,
			", "))}}}
	}
	return b
}

// ledgerTexts say what a backtest found of a change.
var ledgerTexts = map[backtest.Ledger]cell{
	backtest.New:          {Text: "would be planned", Badge: true, Tone: "warning"},
	backtest.Existing:     {Text: "has its effect", Badge: true, Tone: "good"},
	backtest.OtherVersion: {Text: "would be planned again", Badge: true, Tone: "warning"},
	backtest.RepeatedKey:  {Text: "key of an earlier change", Badge: true},
	backtest.Gone:         {Text: "has an effect that the rule does not plan", Badge: true, Tone: "bad"},
}

// backtestBlock evaluates a rule against past changes where a period is chosen, and offers that.
func backtestBlock(ctx context.Context, r *request, v *view, rule *operations.EffectRuleDetail,
	texts map[string]string) (block, error) {
	b := block{ID: "backtest", Heading: "Backtest", Text: "A backtest shows for which past changes the rule would " +
		"plan an effect, and compares them with the ledger. It plans and sends nothing.",
		Filter: &filter{Path: rulePath(rule.Rule), Label: "Run the backtest", Main: []input{{Name: "since",
			Kind: "select", Label: "changes of the last", Value: texts["since"], Choices: []value{{"hour", "1h"},
				{"day", "24h"}, {"7 days", "7d"}, {"30 days", "30d"}}}}}}
	if texts["since"] == "" {
		return b, nil
	}
	found, err := readAPI[operations.BacktestResult](ctx, r, http.MethodGet, "/api/v1/effects/backtest?"+
		encode(map[string]string{"rule": rule.Rule, "since": texts["since"]}), nil)
	var p *admin.Problem
	switch {
	case errors.As(err, &p) && p.Status == http.StatusTooManyRequests:
		v.Refresh = 5
		b.Notes = []note{{Tone: "warning", Text: "Another dry run is in progress. This page tries again in 5 seconds."}}
		return b, nil
	case errors.As(err, &p) && p.Status < http.StatusInternalServerError:
		b.Notes = []note{{Tone: "warning", Text: visible(p.Detail)}}
		return b, nil
	case timedOut(err):
		b.Notes = []note{{Tone: "warning", Text: "The backtest did not end in 10 s. Choose a shorter time, or use " +
			"postern effects backtest."}}
		return b, nil
	case err != nil:
		return b, err
	}
	for _, of := range []backtest.Ledger{backtest.New, backtest.OtherVersion, backtest.Existing, backtest.RepeatedKey,
		backtest.Gone} {
		if n := found.Counts[of]; n > 0 {
			b.Fields = append(b.Fields, field{sentenceCase(ledgerTexts[of].Text), []cell{number(n)}})
		}
	}
	b.Table = &table{Columns: []string{"Change", "Key", "Object", "Event", "Effect", "Failure"},
		Empty: "The rule would plan no effect for a change in this time, and the ledger has none."}
	for i := range found.Changes {
		c := &found.Changes[i]
		effect := cell{}
		if c.Effect != 0 {
			effect = codeLink(id(c.Effect), effectPath(c.Effect))
			effect.Sub = label(string(c.State))
		}
		key := shorten(c.Key, 60)
		key.Code = true
		b.Table.Rows = append(b.Table.Rows, []cell{ledgerTexts[c.Ledger], key, r.objectCell(c.Source, c.Account,
			c.ObjectType, c.ObjectID), r.eventCell(c.Event), effect, shorten(c.Failure, 120)})
	}
	return b, nil
}
