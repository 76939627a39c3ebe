// Package lifecycle starts and stops things in order: an undo stack, goroutines that somebody waits for, and timeouts that
// say what took too long.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// stopGrace is how long an undo may go on after its context is done, before it is left behind.
const stopGrace = 100 * time.Millisecond

// Stack remembers how to undo what was started, by name. The zero value is ready to use.
type Stack struct {
	mu      sync.Mutex
	undo    []undo
	stopped bool

	once sync.Once
	err  error
}

type undo struct {
	name string
	fn   func(context.Context) error
}

// Defer registers an undo right after its do. Once Stop was called it runs fn at once, with a context that is not cancelled,
// so that a start that raced with the stop leaves nothing behind; what that fn returns is nobody's and is dropped.
func (s *Stack) Defer(name string, fn func(context.Context) error) {
	s.mu.Lock()
	stopped := s.stopped
	if !stopped {
		s.undo = append(s.undo, undo{name, fn})
	}
	s.mu.Unlock()
	if stopped {
		_ = fn(context.Background())
	}
}

// Stop undoes everything, the last first, and returns their errors by name. One that does not return before ctx is done is
// left behind and named in the error; those after it are still given their turn, with the context that is over. A further
// call waits for the first and returns its result.
func (s *Stack) Stop(ctx context.Context) error {
	s.once.Do(func() { s.err = s.stop(ctx) })
	return s.err
}

func (s *Stack) stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	undos := s.undo
	s.mu.Unlock()
	var errs []error
	for i := len(undos) - 1; i >= 0; i-- {
		if err := undos[i].run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", undos[i].name, err))
		}
	}
	return errors.Join(errs...)
}

// run is bounded by ctx even where fn is not.
func (u undo) run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- u.fn(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// What honours the context gets a moment to return what it knows.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	select {
	case err := <-done:
		return err
	case <-grace.Done():
		return fmt.Errorf("left behind: %w", context.Cause(ctx))
	}
}
