package testkit

import (
	"testing"
	"time"
)

// patience is how many times longer than its timeout a check may take altogether while it makes progress.
const patience = 10

// Eventually calls check until it returns nil. It fails with check's last error once that has said the same for timeout: an
// error that counts what is done ("3 of 40 events are applied") gets more time as long as it moves, so that a slow machine
// fails no test. For what only a socket or another goroutine can bring about; timers are synctest's.
func Eventually(t testing.TB, timeout time.Duration, check func() error) {
	t.Helper()
	began, last := time.Now(), ""
	moved := began
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		now := time.Now()
		if text := err.Error(); text != last {
			moved, last = now, text
		}
		if now.Sub(moved) > timeout || now.Sub(began) > patience*timeout {
			t.Fatalf("no progress for %s, after %s: %v", now.Sub(moved).Round(time.Millisecond), now.Sub(began).Round(time.Millisecond), err)
		}
		time.Sleep(wait)
	}
}
