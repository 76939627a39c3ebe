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

// processState exists once in a process. It holds how the process handles SIGHUP, and whether the
// garbage collector is tuned.
type processState struct {
	reload          chan struct{}
	reloadsOnHangup atomic.Bool
	gcTuned         atomic.Bool
}

type processKey struct{}

// OwnProcess is for main functions. It returns the context of a process that Postern owns, which
// lets New tune Go's garbage collector. The context ends at a SIGHUP, unless ReloadsOnHangup was
// called before or the process ignores the signal, as under nohup. stop restores the signal.
func OwnProcess(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &processState{reload: make(chan struct{}, 1)}
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
	go func() { // stop ends it
		defer close(done)
		for range signals {
			p.handleHangup(terminal, cancel)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		<-done
		cancel(nil)
		if terminal != nil {
			_ = terminal.Close() // it is only read
		}
	}
}

// handleHangup requests a reload if ReloadsOnHangup was called. It ends the process otherwise, and
// also if the process had a terminal that is closed now.
func (p *processState) handleHangup(terminal *os.File, end context.CancelCauseFunc) {
	if !p.reloadsOnHangup.Load() || terminal != nil && isClosedTerminal(terminal) {
		end(errors.New("hangup signal received"))
		return
	}
	select {
	case p.reload <- struct{}{}:
	default: // a reload is already requested
	}
}

// isClosedTerminal reports whether a terminal was closed; the system returns an error for it.
func isClosedTerminal(terminal *os.File) bool {
	_, err := term.GetState(int(terminal.Fd()))
	return err != nil
}

// ReloadsOnHangup makes SIGHUP request a reload from now on and returns the channel of requests.
// The channel is nil if OwnProcess did not create the context.
func ReloadsOnHangup(ctx context.Context) <-chan struct{} {
	p, ok := ctx.Value(processKey{}).(*processState)
	if !ok {
		return nil
	}
	p.reloadsOnHangup.Store(true)
	return p.reload
}
