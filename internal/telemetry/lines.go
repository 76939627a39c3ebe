package telemetry

import (
	"io"
	"sync"
)

// Lines writes what many write without each paying for it: one goroutine hands on what has gathered since it last did, so a line waits
// for nothing but the lines before it. Where whatever reads them does not keep up, writers wait, as they would without it.
type Lines struct {
	w io.Writer

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte
	busy    bool
	closed  bool
	ended   chan struct{}
}

// mostWaiting is how many bytes of lines wait before writers do.
const mostWaiting = 1 << 20

// NewLines returns Lines before a writer. Close writes what is left.
func NewLines(w io.Writer) *Lines {
	l := &Lines{w: w, ended: make(chan struct{})}
	l.changed.L = &l.mu
	go l.run()
	return l
}

// Write takes lines; the error of a later write is nobody's. After Close it writes at once.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > mostWaiting && !l.closed {
		l.changed.Wait()
	}
	if l.closed {
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

// Close writes what is left and ends the goroutine.
func (l *Lines) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	<-l.ended
	return nil
}
