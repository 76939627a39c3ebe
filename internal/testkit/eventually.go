package testkit

import (
	"testing"
	"time"
)

// maxTotalFactor limits the total time of a check that makes progress, as a multiple of its
// timeout.
const maxTotalFactor = 10

// Eventually calls check until it returns nil. It fails when the error of check has not changed for
// the timeout. An error with a count ("3 of 40 events are applied") therefore gets more time while
// it changes, so that a slow machine fails no test. The pause between two checks is at least three
// times as long as a check, up to half a second, so that checks leave the processor to what they
// wait for. Use it for sockets and other goroutines only; tests of timers use synctest.
func Eventually(t testing.TB, timeout time.Duration, check func() error) {
	t.Helper()
	started, lastMessage := time.Now(), ""
	lastProgress := started
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		now := time.Now()
		if message := err.Error(); message != lastMessage {
			lastProgress, lastMessage = now, message
		}
		if now.Sub(lastProgress) > timeout || now.Sub(started) > maxTotalFactor*timeout {
			t.Fatalf("no progress for %s, after %s: %v", now.Sub(lastProgress).Round(time.Millisecond),
				now.Sub(started).Round(time.Millisecond), err)
		}
		time.Sleep(max(pause, min(3*now.Sub(began), 500*time.Millisecond)))
	}
}
