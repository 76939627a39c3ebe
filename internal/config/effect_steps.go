package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/settings"
)

// checkBefore is the value of check.when that asks the destination before the first attempt.
const checkBefore = "before"

// stepCondition compiles the condition of a step, and checks the setting about missing values.
func (b *ruleBuilder) stepCondition(at string, s *EffectStep, scope rules.Scope) *rules.Expression {
	if s.NullIfMissing && len(s.Capture) == 0 {
		b.fail(at+".null_if_missing", "has an effect only on values to capture: write capture, or leave this out")
	}
	if s.When == "" {
		return nil
	}
	when, err := rules.Compile(s.When, scope, true)
	if err != nil {
		b.fail(at+".when", "%v", explainStepError(b.explainError(err), s.When, scope.Steps))
	}
	return when
}

// explainStepError adds the values that earlier steps capture to the error of a condition that
// reads another one.
func explainStepError(err error, text string, steps map[string][]string) error {
	_, field, unknown := strings.Cut(err.Error(), "unknown field ")
	var captured []string
	reads := strings.Contains(text, "steps."+field)
	for name, values := range steps {
		reads = reads || strings.Contains(text, "steps."+name+"."+field)
		for _, value := range values {
			captured = append(captured, "steps."+name+"."+value)
		}
	}
	switch {
	case !unknown || !reads:
		return err
	case len(captured) == 0:
		return fmt.Errorf("%w: no earlier step captures a value", err)
	}
	slices.Sort(captured)
	return fmt.Errorf("%w: earlier steps capture only %s", err, strings.Join(captured, ", "))
}

// orderWarnings reports steps that must not be repeated and are not the last.
func (c *Config) orderWarnings(name string) (all []string) {
	steps := c.Effects[name].Steps
	for i := range steps {
		s := &steps[i]
		if s.isRepeatable() || i == len(steps)-1 {
			continue
		}
		reason, wait := "happened", "an operator must resolve it, and %s and later steps wait for that"
		if settings.IsZero(s.Compensate) {
			reason = "happened and cannot be undone"
		}
		if s.Check.Path != "" {
			wait = "%s and later steps wait for its check"
			if s.AtMostOnce {
				wait += ", and for an operator if the check does not find it"
			}
		}
		all = append(all, c.Locate(&settings.Problem{
			Path: fmt.Sprintf("effects.%s.steps.%d%s", name, i, s.atMostOnceSetting()),
			Msg: fmt.Sprintf("step %s must not be sent twice and is not the last step: if a later step fails, %s has "+
				"%s; after a lost response "+wait+"; make it the last step", s.Name, s.Name, reason,
				steps[i+1].Name)}).Error())
	}
	return all
}
