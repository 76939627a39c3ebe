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

// hangups is what becomes of SIGHUP in a process.
type hangups struct {
	reload chan struct{}
	wanted atomic.Bool
}

type hangupsKey struct{}

// WithHangup ends the returned context at a SIGHUP, unless the process asked for Reloads before or ignores the signal, as under
// nohup. stop gives the signal back to the system.
func WithHangup(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &hangups{reload: make(chan struct{}, 1)}
	ctx = context.WithValue(ctx, hangupsKey{}, h)
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
			h.hangup(terminal, cancel)
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
func (h *hangups) hangup(terminal *os.File, end context.CancelCauseFunc) {
	if !h.wanted.Load() || terminal != nil && gone(terminal) {
		end(errors.New("hangup signal received"))
		return
	}
	select {
	case h.reload <- struct{}{}:
	default: // one is asked for already
	}
}

// gone tells whether a terminal was closed: the system answers nothing about it any more.
func gone(terminal *os.File) bool {
	_, err := term.GetState(int(terminal.Fd()))
	return err != nil
}

// Reloads makes SIGHUP a wish to reload, from now on, in a process whose context WithHangup made; else it never comes.
func Reloads(ctx context.Context) <-chan struct{} {
	h, ok := ctx.Value(hangupsKey{}).(*hangups)
	if !ok {
		return nil
	}
	h.wanted.Store(true)
	return h.reload
}
