package runner

import (
	"fmt"
	"maps"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// foundBefore is the reason of a step that is done although its request was never sent.
const foundBefore = "found at the destination before the first attempt"

// skippedStep is a step whose condition is false. reserve inserts it.
type skippedStep struct {
	effect   int64
	step     *rules.Step
	position int
	reason   string
}

// skipSteps skips the next steps whose condition is false. It evaluates the condition of a step
// only as long as the ledger has no row of the step, since the row is the decision: a restart or an
// edited rule must not decide otherwise after a call. It returns a result if a condition fails.
func (t *leasedEffect) skipSteps(r *rules.Rule) *result {
	for {
		step, undo, position := t.nextStep(r)
		if undo || step == nil || step.When == nil || t.findStep(step.Name, false) != nil {
			return nil
		}
		data, err := t.readData(r, step, false)
		if err != nil {
			return t.review(fmt.Sprintf("step %s: %v", step.Name, err))
		}
		wanted, err := step.When.EvalBool(data)
		switch {
		case err != nil:
			return t.review(rules.StorableMessage(fmt.Sprintf("step %s, when: %v", step.Name, err)))
		case wanted:
			return nil
		}
		t.skipped = append(t.skipped, skippedStep{effect: t.effect, step: step, position: position,
			reason: rules.StorableMessage(fmt.Sprintf("its condition was false in version %d of the rule: %s",
				r.Version, step.When))})
		t.steps = append(t.steps, stepRow{step: step.Name, state: effects.Skipped})
		if time.Now().After(t.decideUntil) {
			return t.decideLater()
		}
	}
}

// decideLater makes a leased effect due again at once.
func (t *leasedEffect) decideLater() *result {
	return t.endWithoutCall(effects.Planned, 0, t.attempts-1, "")
}

// readData returns the data that the templates and the condition of a step get. A value that no
// step captured, for example of a skipped step, is null.
func (t *leasedEffect) readData(r *rules.Rule, step *rules.Step, undo bool) (*rules.TemplateData, error) {
	data, err := effects.ReadTemplateData(t.templateData)
	if err != nil {
		return nil, err
	}
	data.Steps = map[string]map[string]any{}
	for i := range r.Steps {
		s := &r.Steps[i]
		data.Steps[s.Name] = map[string]any{}
		// also of a mail that is checked now, or that an operator reported as sent
		if b := t.findStep(s.Name, false); s.Do.Mail != nil && (b == nil || b.state != effects.Skipped) {
			data.Steps[s.Name][rules.CapturedMessageID] = t.messageID(s)
		}
	}
	for i := range t.steps {
		if b := &t.steps[i]; !b.undo {
			captured := data.Steps[b.step]
			if captured == nil {
				captured = map[string]any{}
			}
			maps.Copy(captured, b.captured)
			data.Steps[b.step] = captured
		}
	}
	data.ReservedAt = t.databaseTime
	data.StepKey = rules.StepKey(t.key, t.version, t.forced, step.Name, undo)
	return data, nil
}
