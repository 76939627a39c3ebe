package telemetry

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// AsyncWriter writes the lines of many goroutines in batches, from one goroutine, so that callers
// do not wait for the output. If the reader of the output is too slow, callers block, as they would
// without an AsyncWriter. During a stop they do not block.
type AsyncWriter struct {
	w io.Writer

	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	writing bool
	// stopping: writers no longer block. closed: no lines follow. finished: the goroutine has
	// ended.
	stopping, closed, finished bool
	done                       chan struct{}
	stopWatching               func() bool
}

const (
	// maxPending is the number of waiting bytes at which writers block.
	maxPending = 1 << 20
	// closeTimeout limits the write of the last lines.
	closeTimeout = time.Second
)

// NewAsyncWriter returns an AsyncWriter for w. Close writes the remaining lines. After the end of
// ctx, which is the start of a stop, writers no longer block: few lines follow, and the output may
// have no reader.
func NewAsyncWriter(ctx context.Context, w io.Writer) *AsyncWriter {
	l := &AsyncWriter{w: w, done: make(chan struct{})}
	l.changed.L = &l.mu
	l.stopWatching = context.AfterFunc(ctx, func() { l.setFlag(&l.stopping) })
	go l.run()
	return l
}

// Write adds lines. It does not return the error of a later write. After Close it writes directly,
// unless earlier lines are stuck.
func (l *AsyncWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) > maxPending && !l.stopping && !l.closed {
		l.changed.Wait()
	}
	if l.finished {
		return l.w.Write(p)
	}
	if l.pending = append(l.pending, p...); !l.writing {
		l.changed.Broadcast()
	}
	return len(p), nil
}

func (l *AsyncWriter) run() {
	defer close(l.done)
	var written []byte
	for {
		l.mu.Lock()
		for len(l.pending) == 0 && !l.closed {
			l.changed.Wait()
		}
		if len(l.pending) == 0 {
			l.finished = true
			l.mu.Unlock()
			return
		}
		l.pending, written = written[:0], l.pending
		l.writing = true
		l.mu.Unlock()
		_, _ = l.w.Write(written) // no caller waits for this error
		l.mu.Lock()
		l.writing = false
		l.changed.Broadcast()
		l.mu.Unlock()
	}
}

// setFlag sets one of the flags and wakes all waiting goroutines.
func (l *AsyncWriter) setFlag(flag *bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*flag = true
	l.changed.Broadcast()
}

// Close writes the remaining lines and ends the goroutine. It returns an error if this takes more
// than a second. The output then has no reader, and the lines and the goroutine remain until the
// process ends.
func (l *AsyncWriter) Close() error {
	l.stopWatching()
	l.setFlag(&l.closed)
	late := time.NewTimer(closeTimeout)
	defer late.Stop()
	select {
	case <-l.done:
		return nil
	case <-late.C:
		return fmt.Errorf("write the last lines: the output was not read within %s", closeTimeout)
	}
}
