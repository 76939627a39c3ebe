package effects

import (
	"encoding/json"
	"fmt"
	"strings"
)

// next says what is safe to do about an effect, in words.
func (v *View) next() string {
	id := v.Effect.Effect
	switch v.State {
	case Waiting:
		if v.late {
			return fmt.Sprintf("nothing of it was begun, and nothing will be: it could be approved until %s, and a processor will call it expired", v.ExpiresAt)
		}
		return fmt.Sprintf("nothing was begun: postern effects approve %d, or postern effects reject %d", id, id)
	case Planned, Failed, Running:
		return v.onItsWay()
	case Review:
		return v.review()
	case Rejected:
		return "a person rejected it" + v.undoes("")
	case Expired:
		return "nothing of it was begun, and nothing will be unless it is planned again: by the next change that wants its key, where its rule supersedes, or by a replay with --mode force"
	case Superseded:
		return "nothing of it was begun, and nothing will be unless its object comes back to its key, which plans it again"
	case Done:
		return v.done()
	}
	return ""
}

// onItsWay is of an effect that a processor goes on with by itself.
func (v *View) onItsWay() string {
	text := "a processor takes its next step by itself"
	switch {
	case v.strayed():
		return fmt.Sprintf("%s, and it goes on by itself within a minute of its being there; or postern effects reject %d ends it%s", v.Reason, v.Effect.Effect, v.undoes("after that, with its rule there, "))
	case v.State == Running:
		return fmt.Sprintf("a processor is taking its next step; if nothing is heard of it by %s, another one goes on", v.TakenUntil)
	case v.State == Failed:
		text = fmt.Sprintf("a processor tries again by itself at %s; postern effects retry %d has it tried now", v.Due, v.Effect.Effect)
	}
	if s := v.doubtful(); s != nil {
		return fmt.Sprintf("nobody knows whether %s was done: %s. %s", s.name(), s.Doubt.cleared(), text)
	}
	return text
}

// cleared says how a processor clears up a doubt.
func (d Doubt) cleared() string {
	switch d {
	case DoubtCheck:
		return "the other side is asked whether it was done, and nothing is sent before it has said"
	case DoubtPerson:
		return "it is not sent again before a person says what happened"
	case DoubtKey:
	}
	return "it is sent again, the same, under its key, by which the other side knows it, unless that may have forgotten it meanwhile (keys_kept)"
}

// review is of an effect that waits for a person.
func (v *View) review() string {
	id := v.Effect.Effect
	last := v.last()
	switch s := v.doubtful(); {
	case v.redacted():
		return fmt.Sprintf("what it was planned with was redacted, so nothing can be sent for it any more: postern effects reject %d%s", id, v.left())
	case v.troubled():
		return v.untold()
	case s != nil && s.Doubt == DoubtPerson:
		return fmt.Sprintf("nobody knows whether %s was done; look there, then postern effects resolve %d --step %s %s, or --not-done", s.name(), id, s.Step, s.asDone())
	case s != nil:
		return fmt.Sprintf("nobody knows whether %s was done; postern effects retry %d is safe: %s", s.name(), id, s.Doubt.cleared())
	case last != nil && last.State == StepFailed:
		return fmt.Sprintf("%s was not done; mend what its error says, then postern effects retry %d is safe: it is made anew of the rule as it is then, under the same key", last.name(), id)
	case last != nil && last.lacks():
		return fmt.Sprintf("%s is done and its answer lacked something; postern effects resolve %d --step %s %s gives it, and the next step is taken", last.name(), id, last.Step, last.asDone())
	}
	return fmt.Sprintf("its next step was not sent; mend what the reason says, then postern effects retry %d is safe", id)
}

// untold is of an effect whose rule could not say what is to follow.
func (v *View) untold() string {
	return fmt.Sprintf("its rule could not say what is to follow, so nothing can be done under this key: %s, and postern effects reject %d", v.byHand(), v.Effect.Effect)
}

// byHand says what a person does in the place of a rule that could not say what is to follow.
func (v *View) byHand() string {
	of, next := fmt.Sprintf("event %d by hand, as a replay does not make its change again", v.Event), "sees the object's next change"
	switch {
	case v.Event == 0:
		of, next = "this object, in the window up to "+v.WindowEnd+", by hand", "is asked again in the next window"
	case v.each:
		of, next = fmt.Sprintf("event %d by hand, as a replay does not ask about it again", v.Event), "is asked about the next event"
	}
	return fmt.Sprintf("see to what should have followed of %s; then mend the rule, which %s", of, next)
}

func (v *View) done() string {
	if v.Undoing {
		return "nothing: what was done was undone" + v.left()
	}
	if len(v.undoable()) == 0 || v.redacted() {
		return "nothing: all its steps are done"
	}
	return "nothing: all its steps are done; " + v.compensation()
}

// undoable are the steps that were done and whose rule said how they are undone.
func (v *View) undoable() (steps []string) {
	for _, s := range v.Steps {
		if s.Undoable && s.State == StepDone {
			steps = append(steps, s.Step)
		}
	}
	return steps
}

// undoes says what is left of an effect that ends half-way, and the command that undoes it then.
func (v *View) undoes(when string) string {
	if v.Undoing || v.redacted() || v.doubtful() != nil || len(v.undoable()) == 0 {
		return v.left()
	}
	return v.left() + "; " + when + v.compensation()
}

// compensation is the command that undoes what was done, and what that is.
func (v *View) compensation() string {
	partial := ""
	if len(v.lasting()) > 0 {
		partial = " --partial"
	}
	return fmt.Sprintf("postern effects compensate %d%s would undo %s", v.Effect.Effect, partial, strings.Join(v.undoable(), ", "))
}

// lasting are the steps that were done and whose rule did not say how they are undone.
func (v *View) lasting() (steps []string) {
	for _, s := range v.Steps {
		if !s.Undoable && s.State == StepDone {
			steps = append(steps, s.Step)
		}
	}
	return steps
}

// left says which steps were done and not undone, and which are in doubt.
func (v *View) left() string {
	var done, unknown []string
	for _, s := range v.Steps {
		switch {
		case s.State == Unknown:
			unknown = append(unknown, s.name())
		case s.State == StepDone && !s.Undo && !v.undone(s.Step):
			done = append(done, s.Step)
		}
	}
	text := ""
	if len(done) > 0 {
		text += "; done and not undone: " + strings.Join(done, ", ")
	}
	if len(unknown) > 0 {
		text += "; nobody knows whether these were done: " + strings.Join(unknown, ", ")
	}
	return text
}

func (v *View) undone(step string) bool {
	s := v.step(step, true)
	return s != nil && s.State == StepDone
}

// step is one that was begun; nil: it was not.
func (v *View) step(name string, undo bool) *Step {
	for i := range v.Steps {
		if v.Steps[i].Step == name && v.Steps[i].Undo == undo {
			return &v.Steps[i]
		}
	}
	return nil
}

// doubtful is the step of which nobody knows whether it was done; nil: there is none. While a processor takes it, that is not known either.
func (v *View) doubtful() *Step {
	for i := range v.Steps {
		if v.Steps[i].State == Unknown {
			return &v.Steps[i]
		}
	}
	return nil
}

// last is the step that was begun last; nil: none was. Steps are undone in the other order.
func (v *View) last() *Step {
	var last *Step
	for i := range v.Steps {
		if s := &v.Steps[i]; s.Undo == v.Undoing && (last == nil || !v.Undoing) {
			last = s
		}
	}
	return last
}

// strayed: it waits for a rule or a destination that is not configured.
func (v *View) strayed() bool { return v.State == Planned && strings.Contains(v.Reason, NotConfigured) }

// redacted: nothing is left of which a request could be made.
func (v *View) redacted() bool { return v.PayloadSHA256 == "" }

// troubled: the rule could not say what it wants, or wanted it under the key of something else, so that key and conditions are not what they should be.
func (v *View) troubled() bool {
	rest, ok := strings.CutPrefix(v.Key, troubleKey(v.Rule, v.Event))
	return ok && (rest == "" || rest[0] == ':') && len(v.Steps) == 0
}

// lacks: the step is done, and its answer had not all that was to be captured.
func (s *Step) lacks() bool { return s.State == StepDone && s.Error != "" }

// missing are the names of what the step was to capture and has not, nor a person gives, a JSON object.
func (s *Step) missing(given json.RawMessage) (names []string) {
	known := map[string]json.RawMessage{}
	for _, fields := range []json.RawMessage{s.Captured, given} {
		_ = json.Unmarshal(fields, &known) // both are objects, or nothing
	}
	for _, name := range s.Captures {
		if _, ok := known[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// asDone is how a person says that the step was done: with what it was to capture and has not.
func (s *Step) asDone() string {
	var fields []string
	for _, name := range s.missing(nil) {
		fields = append(fields, fmt.Sprintf(`"%s": "VALUE"`, name))
	}
	if len(fields) == 0 {
		return "--done"
	}
	return "--done --captured '{" + strings.Join(fields, ", ") + "}'"
}

func (s *Step) name() string {
	if s.Undo {
		return "the undoing of step " + s.Step
	}
	return "step " + s.Step
}
