package runner

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// missingRuleWait is how long an effect waits whose rule is not configured in this process.
const missingRuleWait = time.Minute

// nextCall returns the next call of a leased effect, or its result if it has no call. It depends
// only on the stored effect, the rule, and which destinations are the same system.
func nextCall(t *leasedEffect, r *rules.Rule, all destinationSet) (c *call, end *result) {
	if time.Now().After(t.decideUntil) {
		return nil, t.decideLater()
	}
	if r == nil {
		end = t.endWithoutCall(effects.Planned, missingRuleWait, t.attempts-1, "its rule "+effects.NotConfigured+
			"; it waits for the rule")
		end.ruleMissing = true
		return nil, end
	}
	for i := range t.steps {
		if b := &t.steps[i]; b.state == effects.Unknown && r.Step(b.step) == nil {
			return nil, t.review(fmt.Sprintf("step %s: it is unknown whether it was executed, and its rule has no "+
				"such step any more; say what happened with `postern effects resolve`", b.step))
		}
	}
	step, _, _ := t.nextStep(r)
	if step == nil {
		return nil, t.finished()
	}
	for i := range t.steps {
		if b := &t.steps[i]; !b.undo && !t.undoing && b.state == effects.StepDone && r.Step(b.step) == nil {
			return nil, t.review(fmt.Sprintf("step %s is done, and its rule has no such step any more, so that %s "+
				"may be the same step: restore the name of the step and retry, or reject the effect", b.step,
				step.Name))
		}
	}
	if end := t.skipSteps(r); end != nil {
		return nil, end
	}
	step, undo, position := t.nextStep(r)
	if step == nil {
		return nil, t.finished()
	}
	c = &call{leasedEffect: t, rule: r, step: step, undo: undo, position: position}
	b := t.findStep(step.Name, undo)
	c.outcomeUnknown = b != nil && b.state != effects.StepFailed && b.state != effects.Checking
	c.recovery, c.neverRepeat = c.chooseRecovery(b)
	c.first = !undo && step.Check != nil && step.Check.Before && (b == nil || b.state == effects.Checking)
	c.check = c.first || c.outcomeUnknown && c.recovery == effects.RecoverByCheck
	switch {
	case !c.outcomeUnknown:
	case c.recovery == effects.RecoverByOperator:
		return nil, t.needsDecision(step, undo, "it is unknown whether it was executed. Its rule, or the rule that "+
			"rendered the request, forbids to repeat it, and has no check")
	case !all.sameTarget(b.destination, step.Destination):
		return nil, t.needsDecision(step, undo, fmt.Sprintf("it is unknown whether it was executed: it was sent to "+
			"destination %s, and %s, where its rule sends it now, cannot know", b.destination, step.Destination))
	}
	if executed := t.findStep(step.Name, false); undo && !all.sameTarget(executed.destination, step.Destination) {
		return nil, t.review(fmt.Sprintf("step %s was executed by destination %s, and %s, where its rule sends it "+
			"now, cannot compensate it: restore the destination of the step and retry, or undo it by hand and reject "+
			"the effect", step.Name, executed.destination, step.Destination))
	}
	// the rule changed since the effect was planned, a process ended before it recorded a result,
	// or an operator continued the effect
	if c.nextDestination(c.check) != t.destination {
		return nil, c.moveToNextDestination()
	}
	// a process ended during each attempt, or the rule now allows fewer attempts
	if t.attempts > step.Retry.MaxAttempts+1 {
		return nil, t.review(fmt.Sprintf("step %s: after %d attempts; its rule allows %d (retry.attempts)",
			step.Name, t.attempts-1, step.Retry.MaxAttempts))
	}
	if err := c.render(b); err != nil {
		return nil, t.review(fmt.Sprintf("step %s: %v", step.Name, err))
	}
	return c, nil
}

// nextDestination returns the destination of the next call: the step's, or that of its check. The
// call uses capacity of that destination only.
func (c *call) nextDestination(check bool) string {
	if check {
		return c.step.Check.Destination
	}
	return c.step.Destination
}

// moveToNextDestination makes an effect due at the destination of its next call.
func (c *call) moveToNextDestination() *result {
	end := c.endWithoutCall(effects.Planned, 0, c.attempts-1, "")
	end.destination = c.nextDestination(c.check)
	if c.outcomeUnknown {
		end.state, end.reason = effects.Failed, fmt.Sprintf("step %s: it is unknown whether it was executed",
			c.step.Name)
	}
	return end
}

// nextStep returns the first step that is neither done nor skipped. During compensation it returns
// the last step that Postern did and that is not compensated. Nil means that there is none.
func (t *leasedEffect) nextStep(r *rules.Rule) (step *rules.Step, undo bool, position int) {
	if !t.undoing {
		for i := range r.Steps {
			if b := t.findStep(r.Steps[i].Name, false); b == nil || !b.state.Ended() {
				return &r.Steps[i], false, i
			}
		}
		return nil, false, 0
	}
	for i := range slices.Backward(r.Steps) {
		s := &r.Steps[i]
		executed, compensated := t.findStep(s.Name, false), t.findStep(s.Name, true)
		if s.Undo != nil && executed != nil && executed.isOwn() &&
			(compensated == nil || compensated.state != effects.StepDone) {
			return s, true, i
		}
	}
	return nil, true, 0
}

// render renders the request. A stored request is sent unchanged, because another request under the
// same key could be rejected, or executed as well.
func (c *call) render(b *stepRow) (err error) {
	if c.data, err = c.readData(c.rule, c.step, c.undo); err != nil {
		return err
	}
	request := &c.step.Do
	switch {
	case c.check:
		request = &c.step.Check.Request
	case c.undo:
		request = c.step.Undo
	}
	if b != nil && !c.check && string(b.request) != "null" {
		if err = json.Unmarshal(b.request, &c.request); err == nil &&
			(c.request.Method == rules.MethodMail) != (request.Mail != nil) {
			err = errors.New("it started as a mail and its rule now has a call, or the other way round; say that it " +
				"was not executed, or restore the step in the rule")
		}
		return err
	}
	c.request, err = request.Render(c.data, c.data.StepKey)
	return err
}

// messageID returns the Message-ID of a step's mail as it was first sent, even if the rule has
// another sender by now.
func (t *leasedEffect) messageID(s *rules.Step) string {
	from := s.Do.Mail.From.Address
	if b := t.findStep(s.Name, false); b != nil {
		var sent rules.RenderedRequest
		// an unreadable request is not sent again: see render
		if json.Unmarshal(b.request, &sent) == nil && sent.From != "" {
			from = sent.From
		}
	}
	return rules.MessageID(rules.StepKey(t.key, t.version, t.forced, s.Name, false), from)
}

// fingerprint returns a request as it is stored, and its SHA-256.
func fingerprint(r rules.RenderedRequest) (stored, print []byte, err error) {
	if stored, err = json.Marshal(r); err != nil {
		return nil, nil, fmt.Errorf("write a request: %w", err)
	}
	sum := sha256.Sum256(stored)
	return stored, sum[:], nil
}

// endWithoutCall returns the result of a leased effect that has no call. In a state with a due
// time, the effect is due again after the wait. If this lease was the first of its round and does
// not count as an attempt, the round starts with the next one.
func (t *leasedEffect) endWithoutCall(state effects.State, wait time.Duration, attempts int, reason string) *result {
	return &result{effect: t.effect, state: state, delay: wait, attempts: attempts, reason: reason,
		destination: t.destination, newRound: t.firstOfRound && attempts < t.attempts}
}

func (t *leasedEffect) finished() *result {
	reason := ""
	if t.undoing {
		reason = "its steps were compensated" + t.describeNotUndone()
	}
	return t.endWithoutCall(effects.Done, 0, 0, reason)
}

// describeNotUndone lists the steps that Postern did, that changed something, and that are not
// compensated.
func (t *leasedEffect) describeNotUndone() string {
	var names []string
	for i := range t.steps {
		if b := &t.steps[i]; !b.undo && b.isOwn() && !b.readsOnly() {
			if compensated := t.findStep(b.step, true); compensated == nil || compensated.state != effects.StepDone {
				names = append(names, b.step)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", except " + strings.Join(names, ", ") + ", which the rule cannot compensate"
}

func (t *leasedEffect) review(reason string) *result {
	return t.endWithoutCall(effects.Review, 0, t.attempts, reason)
}

// needsDecision makes an operator decide whether a step was executed.
func (t *leasedEffect) needsDecision(step *rules.Step, undo bool, reason string) *result {
	end := t.review(fmt.Sprintf("step %s: %s; say what happened with `postern effects resolve`", step.Name, reason))
	end.step, end.undo, end.stepState, end.message, end.operatorOnly = step.Name, undo, effects.Unknown, reason, true
	return end
}

// done returns the result of a call whose step is done; the next step becomes due.
func (c *call) done(status int, captured map[string]any, missing string) *result {
	end := c.stepResult(effects.StepDone, status, "")
	end.captured, end.attempts, end.newRound = captured, 0, true
	c.steps = append(c.steps, stepRow{step: c.step.Name, undo: c.undo, state: effects.StepDone, captured: captured})
	for i := range c.steps {
		if c.steps[i].step == c.step.Name && c.steps[i].undo == c.undo {
			c.steps[i].state = effects.StepDone
		}
	}
	following, _, _ := c.leasedEffect.nextStep(c.rule)
	switch {
	case missing != "":
		end.state, end.reason, end.message = effects.Review, missing, missing
	case following == nil:
		over := c.finished()
		end.state, end.reason = over.state, over.reason
	default:
		end.state, end.destination = effects.Planned, following.Destination
	}
	return end
}

// stepResult returns a result that sets the state of the step. A failed attempt says nothing about
// earlier attempts. An unknown outcome stays unknown until the step is known to be executed or not.
func (c *call) stepResult(state effects.StepState, status int, message string) *result {
	if state == effects.StepFailed && c.outcomeUnknown && !c.check {
		state = effects.Unknown
	}
	end := &result{effect: c.effect, step: c.step.Name, undo: c.undo, stepState: state, status: status,
		message: message, state: effects.Failed, reason: message,
		destination: c.step.Destination, attempts: c.attempts}
	if state == effects.Checking || state == effects.Unknown && c.recovery == effects.RecoverByCheck {
		end.destination = c.step.Check.Destination
	}
	return end
}

// notSent returns the result of a call that was not sent. It does not count as an attempt.
func (c *call) notSent(message string) *result {
	state := effects.StepFailed
	if c.check {
		state = c.stateBeforeCheck()
	}
	end := c.stepResult(state, 0, message)
	end.attempts, end.newRound = c.attempts-1, c.firstOfRound
	return end
}

// notCounted returns the result of a call that the destination did not process. It does not count
// as an attempt, but its time counts.
func (c *call) notCounted(message string, wait time.Duration) *result {
	end := c.notSent(message)
	end.delay, end.newRound = wait, false
	if c.roundAge+wait > c.step.Retry.MaxAge {
		end.state, end.reason = effects.Review, fmt.Sprintf("step %s: after %s: %s", c.step.Name,
			c.roundAge.Round(time.Second), message)
	}
	return end
}

// retry returns a result after which the step is retried, unless the limits of attempts or time are
// reached. After each lost response the check still runs, and its own result is then subject to the
// limits. spread is from 0 to 1.
func (c *call) retry(state effects.StepState, status int, message string, atLeast time.Duration,
	spread float64) *result {
	end := c.stepResult(state, status, message)
	policy := c.step.Retry
	check := state == effects.Unknown && c.recovery == effects.RecoverByCheck && !c.check
	if check {
		atLeast = max(atLeast, c.step.Check.Delay) // so that the check sees an attempt that is still in progress
	}
	end.delay = max(policy.Wait(c.attempts, spread), atLeast)
	switch {
	case check:
	case c.attempts >= policy.MaxAttempts:
		end.state, end.reason = effects.Review, fmt.Sprintf("step %s: after %d attempts: %s", c.step.Name, c.attempts,
			message)
	case c.roundAge+end.delay > policy.MaxAge:
		end.state, end.reason = effects.Review, fmt.Sprintf("step %s: after %s: %s", c.step.Name,
			c.roundAge.Round(time.Second), message)
	case end.stepState == effects.Unknown && c.recovery == effects.RecoverByOperator:
		return c.needsDecision(c.step, c.undo, message+"; it must not be repeated, and there is no check")
	}
	return end
}
