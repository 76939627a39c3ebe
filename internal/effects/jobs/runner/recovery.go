package runner

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// nextCall returns the next call of a leased effect, or its result if it has no call now. It does
// not check a step with an unknown outcome while the earlier call may still be in progress. It does
// not repeat a step under a key that the destination may have dropped.
func (d *destination) nextCall(t *leasedEffect) (*call, *result) {
	t.destination = d.config.Name
	c, end := nextCall(t, d.rules.ByName(t.rule), d.configured)
	if end != nil || !c.outcomeUnknown {
		return c, end
	}
	b := t.findStep(c.step.Name, c.undo)
	if c.check {
		if wait := c.step.Check.Delay - max(b.endedAgo, 0); wait > 0 {
			return nil, c.waitForCheck(wait, b.endedAgo < 0)
		}
		return c, nil
	}
	if !c.isIdempotent() && !c.containsKey() {
		return nil, t.needsDecision(c.step, c.undo, "it is unknown whether it was executed, and the request does not "+
			"contain a key by which the destination could recognize it")
	}
	if c.reliesOnKey() && b.mayBeDoneFor+d.lease > d.config.KeyRetention { // it may be sent as late as the lease ends
		return nil, t.needsDecision(c.step, c.undo, fmt.Sprintf("it is unknown whether it was executed, and it was "+
			"sent %s ago under a key that destination %s keeps for %s (key_retention)",
			b.mayBeDoneFor.Round(time.Second), t.destination, d.config.KeyRetention))
	}
	return c, nil
}

// waitForCheck defers the check of a step. unknown says that the end of the attempt is not known.
// The attempt has ended by now at the latest.
func (c *call) waitForCheck(wait time.Duration, unknown bool) *result {
	end := c.endWithoutCall(effects.Failed, wait, c.attempts-1, fmt.Sprintf("step %s: the destination is asked "+
		"whether it was executed, %s after the attempt (check.delay)", c.step.Name, c.step.Check.Delay))
	if unknown {
		end.step, end.undo, end.stepState, end.wasUnknown = c.step.Name, c.undo, effects.Unknown, true
	}
	return end
}

// destinationSet are the destinations of one configuration, by name.
type destinationSet map[string]*destination

// sameTarget reports whether two destinations are the same system, with one address and one
// account, so that it knows the requests to both.
func (s destinationSet) sameTarget(a, b string) bool {
	if a == b {
		return true
	}
	x, y := s[a], s[b]
	return x != nil && y != nil && x.config.Address() == y.config.Address() &&
		maps.EqualFunc(x.config.Headers, y.config.Headers, slices.Equal)
}

// chooseRecovery returns how a lost response of the call is cleared up, and whether the step must
// not be repeated if a check says no. Both the rule that rendered the stored request and the
// current rule have to allow it.
func (c *call) chooseRecovery(b *stepRow) (by effects.Recovery, neverRepeat bool) {
	by, neverRepeat = ruleRecovery(c.step, c.undo)
	switch {
	case b == nil || !c.outcomeUnknown && string(b.request) == "null": // the current rule renders it
		return by, neverRepeat
	case c.outcomeUnknown && (b.recovery == effects.RecoverByOperator || b.recovery == effects.RecoverByCheck &&
		by != effects.RecoverByCheck):
		return effects.RecoverByOperator, neverRepeat
	// a check for another request may say no although the stored request was executed
	case by == effects.RecoverByCheck && !neverRepeat && b.recovery != effects.RecoverByCheck:
		return b.recovery, neverRepeat
	}
	return by, neverRepeat || c.outcomeUnknown && b.neverRepeat
}

// ruleRecovery returns the recovery that a rule provides, and whether the step must not be
// repeated.
func ruleRecovery(step *rules.Step, undo bool) (by effects.Recovery, neverRepeat bool) {
	switch {
	case step.Check != nil && !undo:
		return effects.RecoverByCheck, !step.Check.RepeatIfNotDone
	case step.NeverRepeat:
		return effects.RecoverByOperator, true
	}
	return effects.RecoverByKey, false
}

// reliesOnKey reports whether only its key prevents the step from being executed twice.
func (c *call) reliesOnKey() bool {
	request := &c.step.Do
	if c.undo {
		request = c.step.Undo
	}
	return request.KeyHeader != "" || !c.isIdempotent()
}

// isIdempotent reports whether the HTTP method allows repetition.
func (c *call) isIdempotent() bool {
	return slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodDelete}, c.request.Method)
}

// containsKey reports whether the request contains the step's key.
func (c *call) containsKey() bool {
	return strings.Contains(fmt.Sprint(c.request.Path, c.request.Headers, c.request.Body), c.data.StepKey)
}
