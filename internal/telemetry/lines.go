package telemetry

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// Lines writes what many write without each paying for it: one goroutine hands on what has gathered since it last did, so a line waits
// for nothing but the lines before it. Where whatever reads them does not keep up, writers wait, as they would without it; but a stop
// waits for nobody who does not read.
type Lines struct {
	w io.Writer

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte
	busy    bool
	// stopping: writers wait for no room any more; closed: there is an end to come; over: it has come, and nobody hands on.
	stopping, closed, over bool
	ended                  chan struct{}
	forget                 func() bool
}

const (
	// mostWaiting is how many bytes of lines wait before writers do.
	mostWaiting = 1 << 20
	// lastWithin is what the last lines may take.
	lastWithin = time.Second
)

// NewLines returns Lines before a writer. Close writes what is left. From the end of ctx on, which is the beginning of a stop, writers
// wait for no room: its lines are few, and nobody may be there to make any.
func NewLines(ctx context.Context, w io.Writer) *Lines {
	l := &Lines{w: w, ended: make(chan struct{})}
	l.changed.L = &l.mu
	l.forget = context.AfterFunc(ctx, func() { l.tell(&l.stopping) })
	go l.run()
	return l
}

// Write takes lines; the error of a later write is nobody's. After Close it writes at once, unless lines before it are stuck.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > mostWaiting && !l.stopping && !l.closed {
		l.changed.Wait()
	}
	if l.over {
		return l.w.Write(p)
	}
	if l.waiting = append(l.waiting, p...); !l.busy {
		l.changed.Broadcast()
	}
	return len(p), nil
}

func (l *Lines) run() {
	defer close(l.ended)
	var written []byte
	for {
		l.mu.Lock()
		for len(l.waiting) == 0 && !l.closed {
			l.changed.Wait()
		}
		if len(l.waiting) == 0 {
			l.over = true
			l.mu.Unlock()
			return
		}
		l.waiting, written = written[:0], l.waiting
		l.busy = true
		l.mu.Unlock()
		_, _ = l.w.Write(written) // there is nobody to tell
		l.mu.Lock()
		l.busy = false
		l.changed.Broadcast()
		l.mu.Unlock()
	}
}

// tell sets one of the flags, and lets all look at them.
func (l *Lines) tell(flag *bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*flag = true
	l.changed.Broadcast()
}

// Close writes what is left and ends the goroutine. It fails where that takes more than a second: then nobody reads, and the lines, and
// the goroutine that holds them, are left to the end of the process.
func (l *Lines) Close() error {
	l.forget()
	l.tell(&l.closed)
	late := time.NewTimer(lastWithin)
	defer late.Stop()
	select {
	case <-l.ended:
		return nil
	case <-late.C:
		return fmt.Errorf("write the last lines: nobody read them within %s", lastWithin)
	}
}
