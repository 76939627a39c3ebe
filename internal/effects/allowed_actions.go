package effects

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// describeAllowedActions says in a sentence which actions an operator may take on an effect.
func (v *View) describeAllowedActions() string {
	id := v.Effect.ID
	switch v.State {
	case AwaitingApproval:
		if v.ApprovalExpired {
			return fmt.Sprintf("none of its steps has started, and none will: it could be approved until %s, and a "+
				"processor will mark it as expired", v.ExpiresAt)
		}
		return fmt.Sprintf("none of its steps has started: run postern effects approve %d, or postern effects reject "+
			"%d", id, id)
	case Planned, Failed, Running:
		return v.describeInProgress()
	case Review:
		return v.describeReview()
	case Rejected:
		return "an operator rejected it" + v.describeRest("")
	case Expired:
		return "none of its steps has started. It starts only if it is planned again: by the next change that wants " +
			"its key, if its rule supersedes, or by a replay with --mode force"
	case Superseded:
		return "none of its steps has started. It starts only if a change of its object wants its key again, which " +
			"plans it again"
	case Done:
		return v.describeDone()
	}
	return ""
}

// describeInProgress describes an effect that a processor continues automatically.
func (v *View) describeInProgress() string {
	text := "a processor executes its next step automatically"
	switch {
	case v.isDetached():
		return fmt.Sprintf("%s. It continues automatically within a minute after the missing part is configured; "+
			"postern effects reject %d ends it%s", v.Reason, v.Effect.ID,
			v.describeRest("after that, when its rule is configured, "))
	case v.State == Running:
		return fmt.Sprintf("a processor is executing its next step; without a result by %s, "+
			"another processor continues", v.LeaseUntil)
	case v.State == Failed:
		text = fmt.Sprintf("a processor retries automatically at %s; postern effects retry %d retries now", v.Due,
			v.Effect.ID)
	}
	if s := v.unknownStep(); s != nil {
		return fmt.Sprintf("it is unknown whether %s was executed: %s. %s", s.describe(), s.Recovery.describe(), text)
	}
	return text
}

// describe says how a processor clears up an unknown outcome.
func (d Recovery) describe() string {
	switch d {
	case RecoverByCheck:
		return "Postern asks the destination whether it was executed, and sends nothing before it knows"
	case RecoverByOperator:
		return "it is not sent again before an operator says what happened"
	case RecoverByKey:
	}
	return "the same request is sent again under its key, which the destination recognizes, unless the destination " +
		"may have dropped the key by then (key_retention)"
}

// describeReview describes an effect that needs an operator.
func (v *View) describeReview() string {
	id := v.Effect.ID
	last := v.lastStarted()
	switch s := v.unknownStep(); {
	case v.isRedacted():
		return fmt.Sprintf("its template data was redacted, so no request can be sent for it: run postern "+
			"effects reject %d%s", id, v.describeRemaining())
	case v.hasRuleFailure():
		return v.describeRuleFailure()
	case s != nil && s.Recovery == RecoverByOperator:
		return fmt.Sprintf("it is unknown whether %s was executed; check at the destination, then run postern "+
			"effects resolve %d --step %s %s, or --not-done", s.describe(), id, s.Step, s.resolveFlags())
	case s != nil:
		return fmt.Sprintf("it is unknown whether %s was executed; postern effects retry %d is safe: %s", s.describe(),
			id, s.Recovery.describe())
	case last != nil && last.State == Checking:
		return fmt.Sprintf("the destination could not say whether it has %s already, so nothing was sent; fix the "+
			"cause in the reason, then postern effects retry %d asks again; or say what the destination has: postern "+
			"effects resolve %d --step %s %s, or --not-done", last.describe(), id, id, last.Step, last.resolveFlags())
	case last != nil && last.State == StepFailed:
		return fmt.Sprintf("%s was not executed; fix the cause of its error, then postern effects retry %d is safe: "+
			"its request is rendered again from the rule as it is then, under the same key", last.describe(), id)
	case last != nil && last.lacksCaptures():
		return fmt.Sprintf("%s is done and its response lacked a value to capture; postern effects resolve %d --step "+
			"%s %s adds it, and the next step is executed", last.describe(), id, last.Step, last.resolveFlags())
	}
	return fmt.Sprintf("its next step was not sent; fix the cause in the reason, then postern effects retry %d is safe",
		id)
}

// describeRuleFailure describes an effect whose rule failed.
func (v *View) describeRuleFailure() string {
	return fmt.Sprintf("its rule failed, so nothing can be executed under this key: %s, and run "+
		"postern effects reject %d", v.describeManualWork(), v.Effect.ID)
}

// describeManualWork says what an operator does instead of a rule that failed.
func (v *View) describeManualWork() string {
	subject, next := fmt.Sprintf("event %d by hand, because a replay does not repeat its change", v.Event),
		"is evaluated for the object's next change"
	switch {
	case v.Event == 0:
		subject, next = "this object, in the window up to "+v.WindowEnd+", by hand",
			"is evaluated again in the next window"
	case v.OnEachEvent:
		subject, next = fmt.Sprintf("event %d by hand, because a replay does not evaluate it again", v.Event),
			"is evaluated for the next event"
	}
	return fmt.Sprintf("do what has to follow for %s; then fix the rule, which %s", subject, next)
}

func (v *View) describeDone() string {
	if v.Compensating {
		return "nothing to do: it was compensated" + v.describeRemaining()
	}
	if len(v.undoableSteps()) == 0 || v.isRedacted() {
		return "nothing to do: all its steps are done" + v.describeSkipped()
	}
	return "nothing to do: all its steps are done" + v.describeSkipped() + "; " + v.describeCompensation()
}

// describeSkipped lists the steps that were skipped.
func (v *View) describeSkipped() string {
	var names []string
	for i := range v.Steps {
		if v.Steps[i].State == Skipped {
			names = append(names, v.Steps[i].Step)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", except " + strings.Join(names, ", ") + ", whose condition was false"
}

// undoableSteps returns the steps that Postern did and whose rule has a compensation for them.
func (v *View) undoableSteps() (steps []string) {
	for i := range v.Steps {
		if s := &v.Steps[i]; s.Undoable && s.State == StepDone && s.Attempts > 0 {
			steps = append(steps, s.Step)
		}
	}
	return steps
}

// describeRest says which steps of an effect that ended early remain done, and which command
// compensates them.
func (v *View) describeRest(when string) string {
	if v.Compensating || v.isRedacted() || v.unknownStep() != nil || len(v.undoableSteps()) == 0 {
		return v.describeRemaining()
	}
	return v.describeRemaining() + "; " + when + v.describeCompensation()
}

// describeCompensation names the command that compensates the effect, and the steps that it undoes.
func (v *View) describeCompensation() string {
	partial := ""
	if len(v.notUndoableSteps()) > 0 {
		partial = " --partial"
	}
	return fmt.Sprintf("postern effects compensate %d%s would undo %s", v.Effect.ID, partial,
		strings.Join(v.undoableSteps(), ", "))
}

// notUndoableSteps returns the steps that Postern did, or may have done, that changed something,
// and whose rule has no compensation for them.
func (v *View) notUndoableSteps() []string {
	steps := []string{}
	for i := range v.Steps {
		if s := &v.Steps[i]; !s.Undoable && s.mayHaveChanged() {
			steps = append(steps, s.Step)
		}
	}
	return steps
}

// mayHaveChanged reports whether Postern may have changed something with the step. It changed
// nothing if the destination had the step before, and if the step only reads.
func (s *Step) mayHaveChanged() bool {
	started := s.State == StepDone || s.State == Unknown || s.State == Reserved
	return started && s.Attempts > 0 && !strings.HasPrefix(s.Request, http.MethodGet+" ")
}

// describeRemaining lists the steps that are done and not compensated, and those with an unknown
// outcome.
func (v *View) describeRemaining() string {
	var done, unknown []string
	for i := range v.Steps {
		switch s := &v.Steps[i]; {
		case s.State == Unknown:
			unknown = append(unknown, s.describe())
		case s.State == StepDone && s.mayHaveChanged() && !s.Undo && !v.isUndone(s.Step):
			done = append(done, s.Step)
		}
	}
	text := ""
	if len(done) > 0 {
		text += "; done and not compensated: " + strings.Join(done, ", ")
	}
	if len(unknown) > 0 {
		text += "; unknown whether these were executed: " + strings.Join(unknown, ", ")
	}
	return text
}

func (v *View) isUndone(step string) bool {
	s := v.findStep(step, true)
	return s != nil && s.State == StepDone
}

// findStep returns a step that has started, or nil.
func (v *View) findStep(name string, undo bool) *Step {
	for i := range v.Steps {
		if v.Steps[i].Step == name && v.Steps[i].Undo == undo {
			return &v.Steps[i]
		}
	}
	return nil
}

// unknownStep returns the step whose outcome is unknown, or nil. While a processor executes a step,
// its state is reserved, not unknown.
func (v *View) unknownStep() *Step {
	for i := range v.Steps {
		if v.Steps[i].State == Unknown {
			return &v.Steps[i]
		}
	}
	return nil
}

// lastStarted returns the step that started last, or nil. Compensation runs in reverse order.
func (v *View) lastStarted() *Step {
	var last *Step
	for i := range v.Steps {
		if s := &v.Steps[i]; s.State != Skipped && s.Undo == v.Compensating && (last == nil || !v.Compensating) {
			last = s
		}
	}
	return last
}

// isDetached reports that the effect waits for a rule or a destination that is not configured.
func (v *View) isDetached() bool {
	return v.State == Planned && strings.Contains(v.Reason, NotConfigured)
}

// isRedacted reports that the data for its requests was deleted.
func (v *View) isRedacted() bool { return v.PayloadSHA256 == "" }

// hasRuleFailure reports that the rule failed, or wanted the key of another account's effect. The
// key is then a generated one, and no step can be executed under it.
func (v *View) hasRuleFailure() bool {
	rest, ok := strings.CutPrefix(v.Key, failureKey(v.Rule, v.Event))
	return ok && (rest == "" || rest[0] == ':') && len(v.Steps) == 0
}

// lacksCaptures reports that the step is done and its response lacked a value to capture.
func (s *Step) lacksCaptures() bool { return s.State == StepDone && s.Error != "" }

// missingCaptures returns the names of the values to capture that neither the step nor given, a
// JSON object, has.
func (s *Step) missingCaptures(given json.RawMessage) (names []string) {
	captured := map[string]json.RawMessage{}
	for _, fields := range []json.RawMessage{s.Captured, given} {
		_ = json.Unmarshal(fields, &captured) // both are objects, or empty
	}
	for _, name := range s.Captures {
		if _, ok := captured[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// resolveFlags returns the flags that an operator passes if the step was executed, with the values
// to capture that are missing.
func (s *Step) resolveFlags() string {
	var fields []string
	for _, name := range s.missingCaptures(nil) {
		fields = append(fields, fmt.Sprintf(`"%s": "VALUE"`, name))
	}
	if len(fields) == 0 {
		return "--done"
	}
	return "--done --captured '{" + strings.Join(fields, ", ") + "}'"
}

func (s *Step) describe() string {
	if s.Undo {
		return "the compensation of step " + s.Step
	}
	return "step " + s.Step
}
