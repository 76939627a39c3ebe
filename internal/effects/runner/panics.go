package runner

import (
	"context"
	"fmt"
	"runtime/debug"
)

// decide has it decided what is to be done about an effect. Where that panics, a person sees the effect, and neither the process nor another effect ends of it.
func (r *Runner) decide(t *taken, next func() (*call, *ending)) (c *call, end *ending) {
	defer func() {
		if cause := recover(); cause != nil {
			c, end = nil, t.review(r.panicked(t, cause))
		}
	}()
	return next()
}

// carry makes a call, and says what came of this attempt. Of one that panics nobody knows.
func (d *destination) carry(ctx context.Context, c *call) (end ending) {
	defer func() {
		if cause := recover(); cause != nil {
			end = *c.doubt(c.step, c.undo, d.r.panicked(c.taken, cause))
		}
		end.claims, end.rule, end.doubted = c.claims, c.taken.rule, c.doubted
	}()
	return *d.make(ctx, c)
}

// panicked is the reason for a person, which is all that the ledger has of it; the log has where it was.
func (r *Runner) panicked(t *taken, cause any) string {
	r.Logger.Error("an effect made Postern panic, and waits for a person (postern effects list --state review): please report it", "effect", t.effect, "rule", t.rule, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
	return "it made Postern panic, which the log tells: report it as a bug"
}
