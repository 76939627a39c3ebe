package testkit

import (
	"testing"
	"time"
)

// Eventually calls check until it returns nil; after timeout the test fails with its last error. For what only a socket or
// another goroutine can bring about; timers are synctest's.
func Eventually(t testing.TB, timeout time.Duration, check func() error) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	wait := time.Millisecond
	for {
		err := check()
		if err == nil {
			return
		}
		poll := time.NewTimer(wait)
		select {
		case <-deadline.C:
			poll.Stop()
			t.Fatalf("not within %s: %v", timeout, err)
		case <-poll.C:
			wait = min(2*wait, 50*time.Millisecond)
		}
	}
}
