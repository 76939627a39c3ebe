package runner

import (
	"context"
	"fmt"
	"runtime/debug"
)

// decideSafely runs a decision about an effect. After a panic the effect needs review; the process
// and other effects continue.
func (r *Runner) decideSafely(t *leasedEffect, next func() (*call, *result)) (c *call, end *result) {
	defer func() {
		if cause := recover(); cause != nil {
			c, end = nil, t.review(r.describePanic(t, cause))
		}
	}()
	return next()
}

// execute executes a call and returns the result of the attempt. After a panic the outcome is
// unknown.
func (d *destination) execute(ctx context.Context, c *call) (end result) {
	defer func() {
		if cause := recover(); cause != nil {
			reason := d.r.describePanic(c.leasedEffect, cause)
			if end = *c.needsDecision(c.step, c.undo, reason); c.first { // nothing was sent
				end = *c.review(reason)
			}
		}
		end.leaseEpoch, end.rule, end.wasUnknown = c.leaseEpoch, c.leasedEffect.rule, c.outcomeUnknown
	}()
	return *d.perform(ctx, c)
}

// describePanic logs a panic and returns the reason for the ledger. Only the log has the stack.
func (r *Runner) describePanic(t *leasedEffect, cause any) string {
	r.Logger.Error("an effect caused a panic in Postern, and needs review (postern effects list --state "+
		"needs_review): please report it", "effect", t.effect, "rule", t.rule, "panic", fmt.Sprint(cause), "stack",
		string(debug.Stack()))
	return "it caused a panic in Postern, see the log: report it as a bug"
}
