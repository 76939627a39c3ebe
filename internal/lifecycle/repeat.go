package lifecycle

import (
	"context"
	"time"
)

// Repeat calls do until ctx ends: at once, and then after each interval or signal of wake, which
// may be nil. While do reports more work, it continues without a wait. report gets the first of
// consecutive errors. Repeat returns nil.
func Repeat(ctx context.Context, every time.Duration, wake <-chan struct{}, report func(error),
	do func(context.Context) (more bool, err error)) error {
	failing := false
	for ctx.Err() == nil {
		more, err := do(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			report(err)
		}
		if failing = err != nil; more && !failing {
			continue
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-time.After(every):
		}
	}
	return nil
}
