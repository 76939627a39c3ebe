package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// ErrEnded is the error of a loop that returned before it was asked to stop.
var ErrEnded = errors.New("ended unexpectedly")

// Group owns the goroutines of a part of the process. If one of its loops ends unexpectedly, the
// group stops all goroutines, and Wait returns an error with the loop's name.
type Group struct {
	ctx   context.Context
	stop  context.CancelCauseFunc
	group *errgroup.Group
}

// errStopped is the cause of a group's context after an orderly Stop.
var errStopped = errors.New("stopped")

// NewGroup returns a group whose goroutines stop when ctx is done.
func NewGroup(ctx context.Context) *Group {
	ctx, stop := context.WithCancelCause(ctx)
	group, ctx := errgroup.WithContext(ctx)
	return &Group{ctx: ctx, stop: stop, group: group}
}

// Loop runs a core loop, which runs until its context is done. If it returns or panics before that,
// the group stops and Wait returns the error. Its return value after that is ignored.
func (g *Group) Loop(name string, run func(context.Context) error) {
	g.group.Go(func() error {
		err := recoverPanics(g.ctx, run)
		switch {
		case errors.As(err, new(*Panic)):
		case g.ctx.Err() != nil:
			return nil
		case err == nil:
			err = ErrEnded
		}
		return fmt.Errorf("%s: %w", name, err)
	})
}

// Go runs a task that may end at any time. Only its error or a panic stops the group.
func (g *Group) Go(name string, run func(context.Context) error) {
	g.group.Go(func() error {
		err := recoverPanics(g.ctx, run)
		if err == nil || g.ctx.Err() != nil && !errors.As(err, new(*Panic)) {
			return nil
		}
		return fmt.Errorf("%s: %w", name, err)
	})
}

// Done is closed when the group stops: by Stop, by its parent context, or by a loop that ended.
func (g *Group) Done() <-chan struct{} { return g.ctx.Done() }

// Wait blocks until every goroutine has returned. It returns the error that stopped the group; nil
// after an orderly stop.
func (g *Group) Wait() error { return g.group.Wait() }

// Stop stops the goroutines and waits for them, no longer than ctx. It may be called again.
func (g *Group) Stop(ctx context.Context) error {
	g.stop(errStopped)
	done := make(chan error, 1)
	go func() { done <- g.group.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for goroutines: %w", context.Cause(ctx))
	}
}

// Panic is the error of a goroutine that panicked.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// recoverPanics turns a panic into an error, so that the rest of the process can stop in order.
func recoverPanics(ctx context.Context, run func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	return run(ctx)
}
