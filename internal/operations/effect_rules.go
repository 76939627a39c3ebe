package operations

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// EffectRule is an effect rule in the configuration of the process that responds.
type EffectRule struct {
	Rule string `json:"rule"`
	// Configured: this process has the rule in its configuration. Otherwise only its effects are
	// known.
	Configured bool `json:"configured"`
	// Source and ObjectType select the objects of the rule.
	Source     string `json:"source"`
	ObjectType string `json:"object_type"`
	// Trigger is why the rule is evaluated: a change, an event, a schedule, or each revision, which
	// it forwards. It is empty if this process does not have the rule.
	Trigger     rules.Trigger `json:"trigger"`
	RuleVersion int           `json:"rule_version"`
	// Approval says which effects wait for an operator; empty if this process does not have the
	// rule.
	Approval rules.Approval `json:"approval"`
	// Destinations are those of its steps, in their order.
	Destinations []string `json:"destinations"`
}

// EffectRuleDetail is an effect rule with its configuration and the number of its effects.
type EffectRuleDetail struct {
	EffectRule
	// Configuration is the rule as YAML, with its defaults and without secrets; empty if this
	// process does not have it.
	Configuration string `json:"configuration"`
	StateCounts
}

// RuleName names an effect rule.
type RuleName struct {
	Rule string `json:"rule"`
}

// EffectRules lists the configured effect rules by name. Errors: events.ErrInvalid.
func EffectRules(configured []*rules.Rule, p Page) (page events.Page[EffectRule], err error) {
	if err := check(p); err != nil {
		return page, err
	}
	return events.ReadPage("list effect rules", p.Cursor, p.limit(), "", func(r *EffectRule) string { return r.Rule },
		func(after string, limit int) (all []EffectRule, _ error) {
			for _, r := range configured {
				if r.Name > after {
					all = append(all, newEffectRule(r))
				}
			}
			slices.SortFunc(all, func(a, b EffectRule) int { return strings.Compare(a.Rule, b.Rule) })
			return all[:min(limit, len(all))], nil
		})
}

// ShowEffectRule returns one effect rule: a configured one, or one that has effects. Errors:
// events.ErrNotFound.
func ShowEffectRule(ctx context.Context, pool *pgxpool.Pool, configured []*rules.Rule,
	p RuleName) (*EffectRuleDetail, error) {
	counts, err := countStates(ctx, pool, p.Rule)
	if err != nil {
		return nil, err
	}
	out := &EffectRuleDetail{EffectRule: EffectRule{Rule: p.Rule, Destinations: []string{}}, StateCounts: counts}
	i := slices.IndexFunc(configured, func(r *rules.Rule) bool { return r.Name == p.Rule })
	switch {
	case i >= 0:
		out.EffectRule, out.Configuration = newEffectRule(configured[i]), configured[i].Configuration
	case len(out.States) == 0:
		return nil, fmt.Errorf("effect rule %q: %w: neither the configuration of this process nor the newest effects "+
			"have it", p.Rule, events.ErrNotFound)
	}
	return out, nil
}

func newEffectRule(r *rules.Rule) EffectRule {
	out := EffectRule{Rule: r.Name, Configured: true, Source: r.Source, ObjectType: r.Type, Trigger: r.On,
		RuleVersion: r.Version, Approval: r.Approval, Destinations: []string{}}
	if out.Trigger == "" {
		out.Trigger = rules.OnChange
	}
	for i := range r.Steps {
		if to := r.Steps[i].Destination; !slices.Contains(out.Destinations, to) {
			out.Destinations = append(out.Destinations, to)
		}
	}
	return out
}

// maxCountedEffects is how many of the newest effects, and how many of each unfinished state, are
// read to count those of a rule.
const maxCountedEffects = 10_000

// StateCounts are the numbers of a rule's effects by state.
type StateCounts struct {
	States []StateCount `json:"states"`
	// CountedSince is the planned time of the oldest effect that was read; null if all were read.
	// Older effects are counted only while they await approval, are failed, or need review.
	CountedSince events.Instant `json:"counted_since"`
}

// StateCount is the number of effects in a state.
type StateCount struct {
	State effects.State `json:"state"`
	Count int64         `json:"count"`
	// OldestAt is when the oldest of them was planned.
	OldestAt events.Instant `json:"oldest_at"`
}

// countStatesSQL reads the newest $2 effects, and as many of each state of the index of unfinished
// ones, and counts those of rule $1. Its last row has the time of the oldest of the newest effects
// if there may be older ones.
const countStatesSQL = `
WITH newest AS MATERIALIZED (
  SELECT effect, state, rule, planned_at FROM effects ORDER BY effect DESC LIMIT $2
), unfinished AS (
  SELECT u.* FROM unnest('{awaiting_approval,failed,needs_review}'::text[]) AS s(state) CROSS JOIN LATERAL (
    SELECT effect, state, rule, planned_at FROM effects e
    WHERE e.state = s.state AND e.state IN ('awaiting_approval', 'failed', 'needs_review')
    ORDER BY effect DESC LIMIT $2) u
)
SELECT state, count(*), min(planned_at) FROM (SELECT * FROM newest UNION SELECT * FROM unfinished) e WHERE rule = $1
GROUP BY state
UNION ALL
SELECT '', count(*), min(planned_at) FROM newest HAVING count(*) = $2
ORDER BY 1`

// countStates counts the effects of a rule by state.
func countStates(ctx context.Context, db postgres.DB, rule string) (out StateCounts, err error) {
	if out.States, err = postgres.Collect(ctx, db, pgx.RowToStructByPos[StateCount], countStatesSQL, rule,
		maxCountedEffects); err != nil {
		return out, fmt.Errorf("count the effects of rule %s: %w", rule, err)
	}
	if len(out.States) > 0 && out.States[0].State == "" {
		out.CountedSince, out.States = out.States[0].OldestAt, out.States[1:]
	}
	if out.States == nil {
		out.States = []StateCount{}
	}
	return out, nil
}
