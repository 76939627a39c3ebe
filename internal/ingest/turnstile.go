package ingest

import (
	"runtime"
	"time"
)

// largeBody is from how many bytes on bodies are proven and read a few at a time. Reading JSON takes several times its memory while it
// lasts, which is not counted among the bodies held, and small deliveries should not stand behind large ones for a processor.
const largeBody = 64 << 10

// turnstile lets as many large bodies through at once as there are processors to read them.
type turnstile chan struct{}

func newTurnstile() turnstile { return make(turnstile, runtime.GOMAXPROCS(0)) }

// enter waits for a body's turn, and gives what ends it; the error is errFull where it does not come within a time. A small body
// passes at once.
func (t turnstile) enter(size int, within time.Duration) (leave func(), err error) {
	if size < largeBody {
		return func() {}, nil
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-timer.C:
		return nil, errFull
	}
}
