package runner

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// notHere is how long an effect waits whose rule is not configured in this process.
const notHere = time.Minute

// next decides what is to be done about an effect that was taken: a call, or an ending without one. It depends on what is stored, on the rule, and on which destinations are one alone.
func next(t *taken, r *rules.Rule, all sides) (c *call, end *ending) {
	if r == nil {
		end = t.back(effects.Planned, notHere, t.attempts-1, "its rule "+effects.NotConfigured+"; it waits for it")
		end.unruled = true
		return nil, end
	}
	for i := range t.steps {
		if b := &t.steps[i]; b.state == effects.Unknown && r.Step(b.step) == nil {
			return nil, t.review(fmt.Sprintf("step %s: nobody knows whether it was done, and its rule has it no more; say what happened with `postern effects resolve`", b.step))
		}
	}
	step, undo, place := t.step(r)
	if step == nil {
		return nil, t.over()
	}
	for i := range t.steps {
		if b := &t.steps[i]; !b.undo && !t.undoing && b.state == effects.StepDone && r.Step(b.step) == nil {
			return nil, t.review(fmt.Sprintf("step %s was done, and its rule has no such step any more, so that %s may be the same again: give the step its name back and retry, or reject what is left", b.step, step.Name))
		}
	}
	c = &call{taken: t, rule: r, step: step, undo: undo, place: place}
	b := t.row(step.Name, undo)
	c.doubted = b != nil && b.state != effects.StepFailed
	c.by, c.once = c.clears(b)
	switch {
	case !c.doubted:
	case c.by == effects.DoubtPerson:
		return nil, t.doubt(step, undo, "nobody knows whether it was done, and by its rule, or the one that it was sent by, it must not be repeated, and the other side cannot be asked")
	case !all.one(b.destination, step.Destination):
		return nil, t.doubt(step, undo, fmt.Sprintf("nobody knows whether it was done: it was sent to destination %s, of which %s, where its rule sends it now, cannot know", b.destination, step.Destination))
	}
	if did := t.row(step.Name, false); undo && !all.one(did.destination, step.Destination) {
		return nil, t.review(fmt.Sprintf("step %s was done by destination %s, and %s, where its rule sends it now, cannot undo that: give the step its destination back and retry, or undo it by hand and reject what is left", step.Name, did.destination, step.Destination))
	}
	if c.goes(c.doubted) != t.destination { // the rule is another than the one by which it was planned, a process ended before it knew, or a person had it go on
		return nil, c.handOver()
	}
	if t.attempts > step.Retry.Attempts+1 { // processes ended at each, or its rule allows fewer than it did
		return nil, t.review(fmt.Sprintf("step %s: after %d attempts, of which its rule allows %d (retry.attempts)", step.Name, t.attempts-1, step.Retry.Attempts))
	}
	c.check = c.doubted && c.by == effects.DoubtCheck
	if err := c.render(b); err != nil {
		return nil, t.review(fmt.Sprintf("step %s: %v", step.Name, err))
	}
	return c, nil
}

// goes is the destination that the step is sent to, or, where it is in doubt, that is asked: the call takes up that one's room, and no other's.
func (c *call) goes(doubted bool) string {
	if doubted && c.by == effects.DoubtCheck {
		return c.step.Check.Destination
	}
	return c.step.Destination
}

// handOver gives an effect to the destination that its next call goes to.
func (c *call) handOver() *ending {
	end := c.back(effects.Planned, 0, c.attempts-1, "")
	end.destination = c.goes(c.doubted)
	if c.doubted {
		end.state, end.reason = effects.Failed, fmt.Sprintf("step %s: nobody knows whether it was done", c.step.Name)
	}
	return end
}

// step is the one to be taken: the first that is not done, or, where it is undone, the last that is done and was not undone yet; nil: there is none.
func (t *taken) step(r *rules.Rule) (step *rules.Step, undo bool, place int) {
	if !t.undoing {
		for i := range r.Steps {
			if b := t.row(r.Steps[i].Name, false); b == nil || b.state != effects.StepDone {
				return &r.Steps[i], false, i
			}
		}
		return nil, false, 0
	}
	for i := range slices.Backward(r.Steps) {
		s := &r.Steps[i]
		did, undid := t.row(s.Name, false), t.row(s.Name, true)
		if s.Undo != nil && did != nil && did.state == effects.StepDone && (undid == nil || undid.state != effects.StepDone) {
			return s, true, i
		}
	}
	return nil, true, 0
}

// render fills in the request. One that was sent before is sent as it was: another under the same key could be refused, or done as well.
func (c *call) render(b *begun) (err error) {
	if c.facts, err = effects.ReadFacts(c.taken.facts); err != nil {
		return err
	}
	c.facts.Steps = map[string]map[string]any{}
	for i := range c.steps {
		if !c.steps[i].undo {
			c.facts.Steps[c.steps[i].step] = c.steps[i].captured
		}
	}
	c.sent()
	c.facts.ReservedAt = c.now
	c.facts.StepKey = rules.StepKey(c.key, c.version, c.forced, c.step.Name, c.undo)
	of := &c.step.Do
	switch {
	case c.check:
		of = &c.step.Check.Request
	case c.undo:
		of = c.step.Undo
	}
	if b != nil && !c.check && string(b.request) != "null" {
		if err = json.Unmarshal(b.request, &c.request); err == nil && (c.request.Method == rules.MethodMail) != (of.Mail != nil) {
			err = errors.New("it was begun as a mail and its rule has it as a call, or the other way round; say that it was not done, or give the step back what it was")
		}
		return err
	}
	c.request, err = of.Render(c.facts, c.facts.StepKey)
	return err
}

// sent names the mails of the rule to later steps, also those that a person says were sent.
func (c *call) sent() {
	for i := range c.rule.Steps {
		if s := &c.rule.Steps[i]; s.Do.Mail != nil {
			captured := map[string]any{rules.CapturedID: c.messageID(s)}
			maps.Copy(captured, c.facts.Steps[s.Name])
			c.facts.Steps[s.Name] = captured
		}
	}
}

// messageID is that of a step's mail as it was begun, also where its rule has it from somebody else by now.
func (t *taken) messageID(s *rules.Step) string {
	from := s.Do.Mail.From.Address
	if b := t.row(s.Name, false); b != nil {
		var begun rules.Rendered
		if json.Unmarshal(b.request, &begun) == nil && begun.From != "" { // what cannot be read is not sent again: see render
			from = begun.From
		}
	}
	return rules.MessageID(rules.StepKey(t.key, t.version, t.forced, s.Name, false), from)
}

// fingerprint is a request as it is stored, and its SHA-256.
func fingerprint(r rules.Rendered) (stored, print []byte, err error) {
	if stored, err = json.Marshal(r); err != nil {
		return nil, nil, fmt.Errorf("write a request: %w", err)
	}
	sum := sha256.Sum256(stored)
	return stored, sum[:], nil
}

// back gives an effect back, to be taken again after a while. Where that counts as no attempt, the round begins no sooner.
func (t *taken) back(state effects.State, wait time.Duration, attempts int, reason string) *ending {
	return &ending{effect: t.effect, state: state, wait: wait, attempts: attempts, reason: reason, destination: t.destination, afresh: t.first && attempts < t.attempts}
}

func (t *taken) over() *ending {
	reason := ""
	if t.undoing {
		reason = "its steps were undone" + t.notUndone()
	}
	return t.back(effects.Done, 0, 0, reason)
}

// notUndone tells of steps that were done and stay so.
func (t *taken) notUndone() string {
	var names []string
	for i := range t.steps {
		if b := &t.steps[i]; !b.undo && b.state == effects.StepDone {
			if undid := t.row(b.step, true); undid == nil || undid.state != effects.StepDone {
				names = append(names, b.step)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", but for " + strings.Join(names, ", ") + ", which the rule cannot undo"
}

func (t *taken) review(reason string) *ending { return t.back(effects.Review, 0, t.attempts, reason) }

// doubt leaves it to a person to say whether a step was done.
func (t *taken) doubt(step *rules.Step, undo bool, reason string) *ending {
	end := t.review(fmt.Sprintf("step %s: %s; say what happened with `postern effects resolve`", step.Name, reason))
	end.step, end.undo, end.stepIs, end.trouble, end.person = step.Name, undo, effects.Unknown, reason, true
	return end
}

// done is the ending of a call whose step is done: the next one is due.
func (c *call) done(status int, captured map[string]any, missing string) *ending {
	end := c.stepped(effects.StepDone, status, "")
	end.captured, end.attempts, end.afresh = captured, 0, true
	c.steps = append(c.steps, begun{step: c.step.Name, undo: c.undo, state: effects.StepDone, captured: captured})
	for i := range c.steps {
		if c.steps[i].step == c.step.Name && c.steps[i].undo == c.undo {
			c.steps[i].state = effects.StepDone
		}
	}
	following, _, _ := c.taken.step(c.rule)
	switch {
	case missing != "":
		end.state, end.reason, end.trouble = effects.Review, missing, missing
	case following == nil:
		over := c.over()
		end.state, end.reason = over.state, over.reason
	default:
		end.state, end.destination = effects.Planned, following.Destination
	}
	return end
}

// stepped is an ending that says what became of the step. That an attempt was not done says nothing of those before it: a doubt stays one until it is known that the step was done, or was not.
func (c *call) stepped(is effects.StepState, status int, trouble string) *ending {
	if is == effects.StepFailed && c.doubted && !c.check {
		is = effects.Unknown
	}
	return &ending{effect: c.effect, step: c.step.Name, undo: c.undo, stepIs: is, status: status, trouble: trouble, state: effects.Failed, reason: trouble, destination: c.goes(is == effects.Unknown), attempts: c.attempts}
}

// unsent is an ending of a call that was not made: it counts as nothing.
func (c *call) unsent(trouble string) *ending {
	is := effects.StepFailed
	if c.check {
		is = effects.Unknown
	}
	end := c.stepped(is, 0, trouble)
	end.attempts, end.afresh = c.attempts-1, c.first
	return end
}

// spared is an ending of a call that the other side did not hear, or cannot: it counts as no attempt, but its time does.
func (c *call) spared(trouble string, wait time.Duration) *ending {
	end := c.unsent(trouble)
	end.wait, end.afresh = wait, false
	if c.age+wait > c.step.Retry.Age {
		end.state, end.reason = effects.Review, fmt.Sprintf("step %s: after %s: %s", c.step.Name, c.age.Round(time.Second), trouble)
	}
	return end
}

// again is an ending after which the step is tried again, unless it was tried often or long enough; of each lost answer the other side is asked all the same, and after that it is as with any other. spread is from 0 to 1.
func (c *call) again(is effects.StepState, status int, trouble string, atLeast time.Duration, spread float64) *ending {
	end := c.stepped(is, status, trouble)
	retry := c.step.Retry
	asks := is == effects.Unknown && c.by == effects.DoubtCheck && !c.check
	if asks {
		atLeast = max(atLeast, c.step.Check.Settles) // so that what is under way still is seen by whoever asks
	}
	end.wait = max(retry.Wait(c.attempts, spread), atLeast)
	switch {
	case asks:
	case c.attempts >= retry.Attempts:
		end.state, end.reason = effects.Review, fmt.Sprintf("step %s: after %d attempts: %s", c.step.Name, c.attempts, trouble)
	case c.age+end.wait > retry.Age:
		end.state, end.reason = effects.Review, fmt.Sprintf("step %s: after %s: %s", c.step.Name, c.age.Round(time.Second), trouble)
	case end.stepIs == effects.Unknown && c.by == effects.DoubtPerson:
		return c.doubt(c.step, c.undo, trouble+"; it must not be repeated, and the other side cannot be asked")
	}
	return end
}
