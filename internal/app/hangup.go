package app

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"golang.org/x/term"
)

// process is what there is once in a process, whatever runs in it: what becomes of SIGHUP, and how garbage is collected.
type process struct {
	reload chan struct{}
	wanted atomic.Bool
	tuned  atomic.Bool
}

type processKey struct{}

// OwnProcess is for a main: it returns the context of a process that belongs to what runs in it. New sets with it how Go collects
// garbage. It ends at a SIGHUP, unless the process asked for Reloads before or ignores the signal, as under nohup. stop gives the
// signal back to the system.
func OwnProcess(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &process{reload: make(chan struct{}, 1)}
	ctx = context.WithValue(ctx, processKey{}, p)
	if signal.Ignored(syscall.SIGHUP) {
		return ctx, func() { cancel(nil) }
	}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		terminal = nil
	}
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGHUP)
	go func() { // until stop
		defer close(done)
		for range signals {
			p.hangup(terminal, cancel)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		<-done
		cancel(nil)
		if terminal != nil {
			_ = terminal.Close() // only asked, never written to
		}
	}
}

// hangup asks for a reload if the process wants that of the signal, and its terminal, if it had one, is still there.
func (p *process) hangup(terminal *os.File, end context.CancelCauseFunc) {
	if !p.wanted.Load() || terminal != nil && gone(terminal) {
		end(errors.New("hangup signal received"))
		return
	}
	select {
	case p.reload <- struct{}{}:
	default: // one is asked for already
	}
}

// gone tells whether a terminal was closed: the system answers nothing about it any more.
func gone(terminal *os.File) bool {
	_, err := term.GetState(int(terminal.Fd()))
	return err != nil
}

// Reloads makes SIGHUP a wish to reload, from now on, in a process whose context OwnProcess made; else it never comes.
func Reloads(ctx context.Context) <-chan struct{} {
	p, ok := ctx.Value(processKey{}).(*process)
	if !ok {
		return nil
	}
	p.wanted.Store(true)
	return p.reload
}
