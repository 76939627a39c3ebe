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

// next decides about an effect that was taken. Of a step in doubt it is not asked while the call may be under way still, and it is not sent again under a key that the other side may have forgotten.
func (d *destination) next(t *taken) (*call, *ending) {
	t.destination = d.reach.Name
	c, end := next(t, d.rules.Named(t.rule), d.sides)
	if end != nil || !c.doubted {
		return c, end
	}
	b := t.row(c.step.Name, c.undo)
	if c.check {
		if wait := c.step.Check.Settles - max(b.ended, 0); wait > 0 {
			return nil, c.settle(wait, b.ended < 0)
		}
		return c, nil
	}
	if !c.repeatable() && !c.named() {
		return nil, t.doubt(c.step, c.undo, "nobody knows whether it was done, and what was sent names no key by which the other side could know it")
	}
	if c.keyed() && b.known+d.lease > d.reach.KeysKept { // it may be sent as late as the lease ends
		return nil, t.doubt(c.step, c.undo, fmt.Sprintf("nobody knows whether it was done, and it was sent %s ago under a key that destination %s keeps for %s (keys_kept)", b.known.Round(time.Second), t.destination, d.reach.KeysKept))
	}
	return c, nil
}

// settle has the other side asked after a while. unknown: when the attempt ended is not known, so that it ended now at the latest.
func (c *call) settle(wait time.Duration, unknown bool) *ending {
	end := c.back(effects.Failed, wait, c.attempts-1, fmt.Sprintf("step %s: the other side is asked whether it was done %s after the attempt (check.settles)", c.step.Name, c.step.Check.Settles))
	if unknown {
		end.step, end.undo, end.stepIs, end.doubted = c.step.Name, c.undo, effects.Unknown, true
	}
	return end
}

// sides are the destinations of one configuration, by their names.
type sides map[string]*destination

// one says whether two destinations are the same other side, which knows of both what it was sent: at one address, for one account.
func (s sides) one(a, b string) bool {
	if a == b {
		return true
	}
	x, y := s[a], s[b]
	return x != nil && y != nil && x.reach.Place() == y.reach.Place() && maps.EqualFunc(x.reach.Headers, y.reach.Headers, slices.Equal)
}

// clears says what clears up a lost answer of the call, and whether the step is not sent again for a no of the other side: by the rule that what is sent was made by as well as by its rule of now.
func (c *call) clears(b *begun) (by effects.Doubt, once bool) {
	by, once = says(c.step, c.undo)
	switch {
	case b == nil || !c.doubted && string(b.request) == "null": // it is made of the rule of now
		return by, once
	case c.doubted && (b.doubt == effects.DoubtPerson || b.doubt == effects.DoubtCheck && by != effects.DoubtCheck):
		return effects.DoubtPerson, once
	case by == effects.DoubtCheck && !once && b.doubt != effects.DoubtCheck: // which may look for what was not sent, so that its no means nothing
		return b.doubt, once
	}
	return by, once || c.doubted && b.once
}

// says is what a rule says of that.
func says(step *rules.Step, undo bool) (by effects.Doubt, once bool) {
	switch {
	case step.Check != nil && !undo:
		return effects.DoubtCheck, !step.Check.Again
	case step.Once:
		return effects.DoubtPerson, true
	}
	return effects.DoubtKey, false
}

// keyed says whether nothing but its key keeps the step from being done again.
func (c *call) keyed() bool {
	of := &c.step.Do
	if c.undo {
		of = c.step.Undo
	}
	return of.KeyHeader != "" || !c.repeatable()
}

// repeatable says whether what is sent does the same however often it is.
func (c *call) repeatable() bool {
	return slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodDelete}, c.request.Method)
}

// named says whether what is sent has the step's key in it.
func (c *call) named() bool {
	return strings.Contains(fmt.Sprint(c.request.Path, c.request.Headers, c.request.Body), c.facts.StepKey)
}
