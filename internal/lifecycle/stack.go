// Package lifecycle starts and stops the parts of a process in order: a stack of undo functions,
// groups of goroutines, and timeouts that name the operation. Every command and daemon uses it. It
// knows no other package of Postern.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// stopGrace is how long an undo function may run after its context is done. After that Stop no
// longer waits for it.
const stopGrace = 100 * time.Millisecond

// Stack holds named undo functions for everything that was started. The zero value is ready to use.
type Stack struct {
	mu      sync.Mutex
	undos   []undo
	stopped bool

	once sync.Once
	err  error
}

type undo struct {
	name string
	fn   func(context.Context) error
}

// Defer registers an undo function right after the matching start. After Stop, it runs fn at once
// with a context that is not cancelled. A start that is concurrent with Stop therefore leaves
// nothing running. The error of that fn is dropped.
func (s *Stack) Defer(name string, fn func(context.Context) error) {
	s.mu.Lock()
	stopped := s.stopped
	if !stopped {
		s.undos = append(s.undos, undo{name, fn})
	}
	s.mu.Unlock()
	if stopped {
		_ = fn(context.Background())
	}
}

// Stop runs all undo functions, the last first, and returns their errors by name. If one does not
// return before ctx is done, Stop no longer waits for it and names it in the error. It still runs
// the others, with the ctx that is done. Further calls wait for the first one and return its
// result.
func (s *Stack) Stop(ctx context.Context) error {
	s.once.Do(func() { s.err = s.stop(ctx) })
	return s.err
}

func (s *Stack) stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	undos := s.undos
	s.mu.Unlock()
	var errs []error
	for i := len(undos) - 1; i >= 0; i-- {
		if err := undos[i].run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", undos[i].name, err))
		}
	}
	return errors.Join(errs...)
}

// run returns when ctx is done, even if fn does not.
func (u undo) run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- u.fn(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// A function that respects the context gets a moment to return its error.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	select {
	case err := <-done:
		return err
	case <-grace.Done():
		return fmt.Errorf("still running: %w", context.Cause(ctx))
	}
}
