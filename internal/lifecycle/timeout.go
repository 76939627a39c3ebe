package lifecycle

import (
	"context"
	"fmt"
	"time"
)

// Timeout is the cause of a context from WithTimeout that has expired. It names the operation.
type Timeout struct {
	Name  string
	After time.Duration
}

func (t *Timeout) Error() string { return fmt.Sprintf("%s: not done within %s", t.Name, t.After) }

// Is makes errors.Is match context.DeadlineExceeded.
func (t *Timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// WithTimeout is context.WithTimeout with a cause that names the operation.
func WithTimeout(ctx context.Context, name string, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, &Timeout{Name: name, After: d})
}
