package lifecycle

import (
	"context"
	"fmt"
	"time"
)

// Timeout is the cause of a context made by WithTimeout whose time is over: it names what took too long.
type Timeout struct {
	Name  string
	After time.Duration
}

func (t *Timeout) Error() string { return fmt.Sprintf("%s: not done within %s", t.Name, t.After) }

// Is makes a Timeout a context.DeadlineExceeded, so that one errors.Is finds both.
func (t *Timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// WithTimeout is context.WithTimeout with a cause that names what ran out of time.
func WithTimeout(ctx context.Context, name string, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, &Timeout{Name: name, After: d})
}
