package testkit

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// Logger writes to the log of the test, which is shown when the test fails or with -v. Lines after
// the end of the test are dropped.
func Logger(t testing.TB) *slog.Logger {
	w := &testLog{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testLog struct {
	mu    sync.Mutex
	t     testing.TB
	ended bool
}

func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended { // the testing package panics on a line after the end
		l.t.Log(string(bytes.TrimRight(line, "\n")))
	}
	return len(line), nil
}

func (l *testLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}
